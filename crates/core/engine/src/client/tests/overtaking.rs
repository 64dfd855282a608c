//! No part overtakes another on the same blocks, and who waits is awaited: against naive models.

use proptest::prelude::*;

use super::*;

/// A part of the naive model.
#[derive(Clone, Copy, Debug)]
struct Naive {
    key: PartKey,
    range: BlockRange,
    path: Path,
    waits: bool,
}

impl Naive {
    fn conflicts(&self, other: &Self) -> bool {
        let shared = self.path == Path::Log && other.path == Path::Log;
        self.range.overlaps(other.range) && !shared
    }
}

/// Whether the model's part `at` may start: nobody before it waits for its blocks, nobody holds them.
fn may_start(all: &[Naive], at: usize) -> bool {
    let part = all[at];
    let overtakes = all.iter().any(|p| p.waits && p.key < part.key && p.range.overlaps(part.range));
    let held = all.iter().any(|p| !p.waits && p.key != part.key && p.conflicts(&part));
    !overtakes && !held
}

/// As the coordinator does.
fn starts(requests: &mut Requests, key: PartKey, locks: &mut Locks) -> bool {
    requests.candidate(key, false).unwrap();
    match requests.start(key, false, locks) {
        Some(Next::GoOn(Path::Log)) => assert!(matches!(requests.append(key, 9, locks), Next::Append(_))),
        Some(Next::GoOn(Path::Bypass)) => assert!(matches!(requests.write(key, true), Next::Write(..))),
        Some(other) => panic!("{other:?}"),
        None => return false,
    }
    true
}

proptest! {
    /// No part overtakes another on the same blocks, and each starts as soon as it may, whatever arrives, ends, and begins again.
    #[test]
    fn no_part_overtakes_another(
        ops in proptest::collection::vec((0u8..8, 0u64..12, 1u64..4, any::<bool>()), 1..200),
    ) {
        let (mut requests, mut locks) = (Requests::new(VOLUME), Locks::default());
        // In the order of arrival.
        let mut model: Vec<Naive> = Vec::new();
        for (n, (op, first, count, is_log)) in ops.into_iter().enumerate() {
            let under_way: Vec<usize> = (0..model.len()).filter(|at| !model[*at].waits).collect();
            match op {
                0..4 => {
                    let path = if is_log { Path::Log } else { Path::Bypass };
                    let cut = Cut::write(first * BLOCK_BYTES, Buf::zeroed((count * BLOCK_BYTES) as usize));
                    let key = arrive(&mut requests, n as u64, cut, path)[0];
                    let has_started = !requests.must_wait(key) && starts(&mut requests, key, &mut locks);
                    if !has_started {
                        requests.wait(key);
                    }
                    model.push(Naive { key, range: BlockRange::new(BlockNo(first), count), path, waits: true });
                    let at = model.len() - 1;
                    model[at].waits = !may_start(&model, at);
                    prop_assert_eq!(has_started, !model[at].waits, "{:?} beside {:?}", model[at], model);
                }
                4..6 if !under_way.is_empty() => {
                    let naive = model.remove(under_way[first as usize % under_way.len()]);
                    prop_assert!(requests.finish(naive.key, None, &mut locks).is_some());
                }
                6 if !under_way.is_empty() => {
                    let naive = &mut model[under_way[first as usize % under_way.len()]];
                    if naive.path == Path::Log {
                        requests.restart(naive.key, &mut locks);
                        (naive.waits, naive.path) = (true, Path::Bypass);
                    }
                }
                _ => {
                    let mut round = requests.round();
                    let mut started = Vec::new();
                    while let Some(key) = requests.next_waiting(&mut round) {
                        let has_started = starts(&mut requests, key, &mut locks);
                        requests.tried(&mut round, has_started);
                        started.extend(has_started.then_some(key));
                    }
                    let mut expected = Vec::new();
                    for at in 0..model.len() {
                        if model[at].waits && may_start(&model, at) {
                            model[at].waits = false;
                            expected.push(model[at].key);
                        }
                    }
                    prop_assert_eq!(started, expected, "of {:?}", model);
                }
            }
        }
        for naive in &model {
            prop_assert_eq!(requests.parts[&naive.key].state == Waiting, naive.waits);
        }
    }

    /// Who is awaited lends that to all who wait before it for its blocks, directly or not, and to nobody else.
    #[test]
    fn awaited_are_those_in_the_way(
        ranges in proptest::collection::vec((0u64..24, 1u64..4), 1..24),
        wanted in proptest::collection::btree_set(0usize..24, 1..3),
    ) {
        let mut requests = Requests::new(VOLUME);
        let mut keys = Vec::new();
        for (n, (first, count)) in ranges.iter().enumerate() {
            let cut = Cut::write(first * BLOCK_BYTES, Buf::zeroed((count * BLOCK_BYTES) as usize));
            let key = arrive(&mut requests, n as u64, cut, Path::Bypass)[0];
            requests.wait(key);
            keys.push((key, BlockRange::new(BlockNo(*first), *count)));
        }
        let wanted: Vec<PartKey> = wanted.iter().filter_map(|n| keys.get(*n)).map(|(key, _)| *key).collect();
        requests.are_awaited(&wanted);
        let mut model: std::collections::BTreeSet<PartKey> = wanted.into_iter().collect();
        while let Some((key, _)) = keys.iter().find(|(key, range)| {
            let before = |(k, r): &(PartKey, BlockRange)| model.contains(k) && key < k && r.overlaps(*range);
            !model.contains(key) && keys.iter().any(before)
        }) {
            model.insert(*key);
        }
        for (key, _) in &keys {
            let part = &requests.parts[key];
            prop_assert_eq!(part.class() == Class::Foreground, model.contains(key), "{:?} of {:?}", key, keys);
        }
    }
}
