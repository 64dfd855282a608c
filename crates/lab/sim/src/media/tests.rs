use super::*;

fn data(sectors: usize, value: u8) -> Data {
    Data::Bufs(vec![Buf::copy_of(&vec![value; sectors * SECTOR])])
}

fn sector(m: &Media, n: u64) -> u8 {
    m.read(n * SECTOR as u64, SECTOR)[0]
}

#[test]
fn unflushed_writes_may_be_lost_and_torn_flushed_and_durable_ones_not() {
    let mut m = Media::new(0, 64 * SECTOR);
    m.write(0, data(4, 1), false);
    let mark = m.flush_mark();
    m.write(0, data(1, 2), false);
    m.flush(mark);
    m.write(8 * 512, data(2, 3), true);
    m.write(8 * 512, data(1, 4), false);
    assert_eq!([sector(&m, 0), sector(&m, 1), sector(&m, 8)], [2, 1, 4]);
    let mut asked = Vec::new();
    m.cut(vec![(512, data(1, 9))], &mut |s, n| {
        asked.push((s, n));
        usize::from(s == 1)
    });
    assert_eq!(asked, [(0, 1), (1, 1), (8, 1)]);
    assert_eq!([sector(&m, 0), sector(&m, 1), sector(&m, 8), sector(&m, 9)], [1, 9, 3, 3]);
}

#[test]
fn a_durable_write_ends_the_chances_of_older_unflushed_ones() {
    let mut m = Media::new(0, 16 * SECTOR);
    m.write(0, data(2, 1), false);
    m.write(0, data(1, 2), true);
    m.cut(Vec::new(), &mut |_, n| n);
    assert_eq!([sector(&m, 0), sector(&m, 1)], [2, 1]);
    m.write(0, data(1, 5), false);
    m.write(0, data(1, 6), true);
    m.write(0, data(1, 7), false);
    let mark = m.flush_mark();
    m.flush(mark);
    m.cut(Vec::new(), &mut |_, _| 0);
    assert_eq!(sector(&m, 0), 7);
}

#[test]
fn a_failed_flush_is_not_mended_by_a_later_one() {
    let mut m = Media::new(0, 16 * SECTOR);
    m.write(0, data(1, 1), false);
    m.fail_flush(m.flush_mark(), false);
    m.write(512, data(1, 2), false);
    m.flush(m.flush_mark());
    assert_eq!(sector(&m, 0), 1);
    m.cut(Vec::new(), &mut |_, _| 0);
    assert_eq!([sector(&m, 0), sector(&m, 1)], [0, 2]);
    m.write(0, data(2, 4), false);
    m.fail_flush(m.flush_mark(), false);
    m.write(0, data(1, 5), false);
    m.flush(m.flush_mark());
    m.cut(Vec::new(), &mut |_, n| n);
    assert_eq!(
        [sector(&m, 0), sector(&m, 1)],
        [5, 4],
        "what was written again is durable, the rest may be there"
    );
    m.write(0, data(3, 6), false);
    m.fail_flush(m.flush_mark(), false);
    for value in [7, 8] {
        m.write(512, data(2, value), false);
        m.flush(m.flush_mark());
        m.write(1024, data(1, value + 10), false);
        m.flush(m.flush_mark());
    }
    m.cut(Vec::new(), &mut |_, _| 0);
    assert_eq!([sector(&m, 0), sector(&m, 1), sector(&m, 2)], [5, 8, 18], "the newest that was flushed");
    m.write(0, data(1, 0), true);
    m.write(0, data(1, 3), false);
    m.fail_flush(m.flush_mark(), true);
    assert_eq!(sector(&m, 0), 0);
}

#[test]
fn every_way_of_surviving_leaves_only_versions_that_were_written() {
    for survival in Survival::ALL {
        for seed in 0..50 {
            let mut m = Media::new(0, 32 * SECTOR);
            m.write(0, data(8, 1), true);
            m.write(0, data(8, 2), false);
            m.write(4 * 512, data(8, 3), false);
            m.cut_at_random(vec![(0, data(2, 4))], survival, &mut Random::new(seed));
            for n in 0..12 {
                let allowed: &[u8] = match n {
                    0..2 => &[1, 2, 4],
                    2..4 => &[1, 2],
                    4..8 => &[1, 2, 3],
                    _ => &[0, 3],
                };
                assert!(allowed.contains(&sector(&m, n)), "{survival:?} {n} {}", sector(&m, n));
                assert_eq!(m.read(n * 512, SECTOR), m.read_durable(n * 512, SECTOR));
            }
        }
    }
}

#[test]
fn a_wiped_medium_is_a_new_one() {
    let mut m = Media::new(4096, 64 * SECTOR);
    m.write(8192, data(4, 1), false);
    m.damage(4096, |s| s[0] = 1);
    m.wipe(0, 80 * SECTOR);
    assert!((0..80).all(|n| sector(&m, n) == 0) && m.end() == 80 * 512 && !m.is_volatile());
}
