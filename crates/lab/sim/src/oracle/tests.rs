use super::*;
use crate::stamp::{self, SECTOR};

const KILL: Crash = Crash { survives: Kept::Kill, all_settled: false };
const CUT: Crash = Crash { survives: Kept::Cut, all_settled: true };

fn content(value: Option<WriteNo>) -> Vec<u8> {
    let mut data = vec![0; SECTOR];
    if let Some(no) = value {
        stamp::fill(&mut data, 0, no);
    }
    data
}

/// Reads sector 0 and gets `value` (`None`: zeroes).
fn read(o: &mut Oracle, value: Option<WriteNo>) -> Result<(), &'static str> {
    let ticket = o.issue_read();
    o.finish_read(ticket, 0, &content(value)).map_err(|w| w.promise)
}

fn write(o: &mut Oracle, durable: bool) -> WriteNo {
    let no = o.issue_write(0, 1, false, durable);
    o.acknowledge(no);
    no
}

#[test]
fn an_acknowledged_write_is_what_is_read() {
    let mut o = Oracle::new(8, false);
    assert_eq!(read(&mut o, None), Ok(()));
    let a = write(&mut o, true);
    assert_eq!(read(&mut o, Some(a)), Ok(()));
    assert_eq!(read(&mut o, None), Err("P2"));
}

#[test]
fn a_read_beside_a_write_may_see_either_and_then_the_order_is_fixed() {
    let mut o = Oracle::new(8, false);
    let a = o.issue_write(0, 1, false, true);
    let long = o.issue_read();
    assert_eq!(read(&mut o, None), Ok(()));
    assert_eq!(read(&mut o, Some(a)), Ok(()));
    assert_eq!(read(&mut o, None), Err("P2"), "it went back");
    o.acknowledge(a);
    assert!(o.finish_read(long, 0, &content(None)).is_ok(), "a read that began earlier may be slow");
    assert_eq!(read(&mut o, Some(a)), Ok(()));
}

#[test]
fn concurrent_writes_may_end_in_either_order_but_not_in_both() {
    for first_wins in [true, false] {
        let mut o = Oracle::new(8, false);
        let a = o.issue_write(0, 1, false, true);
        let b = o.issue_write(0, 1, false, true);
        o.acknowledge(b);
        o.acknowledge(a);
        let (winner, loser) = if first_wins { (a, b) } else { (b, a) };
        assert_eq!(read(&mut o, Some(winner)), Ok(()));
        assert_eq!(read(&mut o, Some(loser)), Err("P2"));
    }
}

#[test]
fn a_crash_keeps_what_was_promised_and_no_more() {
    let start = || {
        let mut o = Oracle::new(8, false);
        let a = write(&mut o, true);
        let b = write(&mut o, false);
        (o, a, b)
    };
    let (mut o, a, b) = start();
    o.crash(KILL);
    assert_eq!(read(&mut o, Some(a)), Err("P3"));
    assert_eq!(read(&mut o, Some(b)), Ok(()));
    let (mut o, a, b) = start();
    o.crash(CUT);
    assert_eq!(read(&mut o, None), Err("P3"));
    assert_eq!(read(&mut o, Some(a)), Ok(()));
    assert_eq!(read(&mut o, Some(b)), Err("P3"), "what was read after the crash stays");
    let (mut o, a, b) = start();
    let flush = o.issue_flush();
    o.acknowledge_flush(flush);
    o.crash(CUT);
    assert_eq!(read(&mut o, Some(a)), Err("P3"));
    assert_eq!(read(&mut o, Some(b)), Ok(()));
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it() {
    let mut o = Oracle::new(8, false);
    let a = write(&mut o, true);
    let flush = o.issue_flush();
    let b = write(&mut o, false);
    o.acknowledge_flush(flush);
    o.crash(CUT);
    assert_eq!(read(&mut o, Some(a)), Ok(()));
    let _ = b;
    let mut o = Oracle::new(8, false);
    let _ = write(&mut o, false);
    let (failed, again) = (o.issue_flush(), o.issue_flush());
    o.fail_flush(failed);
    o.acknowledge_flush(again);
    o.crash(CUT);
    assert_eq!(read(&mut o, None), Ok(()), "a failed flush is not mended by a later one");
}

#[test]
fn an_unacknowledged_write_may_be_there_after_a_crash_or_not_but_not_come_and_go() {
    for survived in [true, false] {
        let mut o = Oracle::new(8, false);
        let a = write(&mut o, true);
        let b = o.issue_write(0, 1, false, true);
        o.crash(KILL);
        let (seen, unseen) = if survived { (b, a) } else { (a, b) };
        assert_eq!(read(&mut o, Some(seen)), Ok(()));
        o.crash(KILL);
        assert_eq!(read(&mut o, Some(unseen)), Err("P3"));
    }
}

#[test]
fn a_failed_write_may_have_happened() {
    let mut o = Oracle::new(8, false);
    let a = o.issue_write(0, 1, false, true);
    o.fail(a);
    assert_eq!(read(&mut o, None), Ok(()));
    assert_eq!(read(&mut o, Some(a)), Err("P2"), "but it cannot happen later");
    o.crash(KILL);
    assert_eq!(read(&mut o, Some(a)), Ok(()), "unless a crash reveals it");
    assert_eq!(read(&mut o, None), Err("P3"));
    let mut o = Oracle::new(8, false);
    let a = o.issue_write(0, 1, false, true);
    o.fail(a);
    let b = write(&mut o, true);
    o.crash(KILL);
    assert_eq!(read(&mut o, Some(a)), Err("P3"), "never over what was acknowledged later");
    assert_eq!(read(&mut o, Some(b)), Ok(()));
}

#[test]
fn foreign_and_misplaced_data_is_never_right() {
    let mut o = Oracle::new(8, true);
    let mut other = vec![0; SECTOR];
    stamp::fill(&mut other, 5, WriteNo(0));
    let ticket = o.issue_read();
    assert_eq!(o.finish_read(ticket, 0, &other).map_err(|w| w.promise), Err("P5"));
    other[3] ^= 1;
    let ticket = o.issue_read();
    assert_eq!(o.finish_read(ticket, 5, &other).map_err(|w| w.promise), Err("P5"));
}

#[test]
fn the_backing_alone_is_held_to_what_was_acknowledged() {
    let mut o = Oracle::new(1, false);
    let a = write(&mut o, true);
    let floors = o.floors(0, 1);
    let b = write(&mut o, true);
    assert!(o.check_alone("P1", &floors, 0, &content(None)).is_err());
    assert!(o.check_alone("P1", &floors, 0, &content(Some(a))).is_ok());
    assert!(o.check_alone("P1", &floors, 0, &content(Some(b))).is_ok());
    assert!(o.check_alone("P1", &o.floors(0, 1), 0, &content(Some(a))).is_err());
}
