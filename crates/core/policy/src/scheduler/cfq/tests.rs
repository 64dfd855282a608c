use super::super::tests::{MS, destage, given, one_by_one, read, start, sync_write, write};
use super::*;

const MIB: u64 = 1 << 20;

/// Tasks in the order in which they are served, with how many operations each; 0 for async ones. Each operation
/// takes a millisecond.
fn served(operations: &[Operation], most: usize) -> Vec<(u32, usize)> {
    let mut cfq: Cfq = given(operations.iter().copied());
    let task = |number: &u64| {
        let operation = operations.iter().find(|operation| operation.number == *number).unwrap();
        if operation.issuer.sync { operation.issuer.task } else { 0 }
    };
    let order: Vec<u32> = one_by_one(&mut cfq, 0, most).iter().map(task).collect();
    order.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

/// So many of each of these, by turns, all at the same place.
fn many(each: u64, kinds: &[fn(u64) -> Operation]) -> Vec<Operation> {
    let count = kinds.len() as u64;
    (0..each * count).map(|n| kinds[(n % count) as usize](n + 1)).collect()
}

#[test]
fn slices_are_of_time_by_level() {
    type Case = (&'static str, Vec<Operation>, &'static [(u32, usize)]);
    let cases: [Case; 5] = [
        (
            "100 ms from the first end, then the next one",
            many(150, &[|n| read(n).of(1), |n| read(n).of(2)]),
            &[(1, 101), (2, 101), (1, 49), (2, 49)],
        ),
        (
            "180 ms at level 0, 40 ms at level 7",
            many(400, &[|n| read(n).of(1).with(2, 0), |n| read(n).of(2).with(2, 7)]),
            &[(1, 181), (2, 41), (1, 181), (2, 41)],
        ),
        (
            "six share 300 ms",
            many(
                60,
                &[
                    |n| read(n).of(1),
                    |n| read(n).of(2),
                    |n| read(n).of(3),
                    |n| read(n).of(4),
                    |n| read(n).of(5),
                    |n| read(n).of(6),
                ],
            ),
            &[(1, 51), (2, 51), (3, 51), (4, 51), (5, 51), (6, 51)],
        ),
        (
            "16 async ones in a slice",
            many(250, &[|n| write(n).of(3), |n| read(n).of(1)]),
            &[(1, 101), (0, 16), (1, 101), (0, 16)],
        ),
        (
            "real time goes before",
            many(9, &[|n| read(n).of(1), |n| read(n).of(2).with(1, 7), |n| read(n).of(3).with(3, 7)]),
            &[(2, 9), (1, 9)],
        ),
    ];
    for (what, operations, wanted) in cases {
        let served = served(&operations, 500);
        assert_eq!(&served[..wanted.len().min(served.len())], wanted, "{what}");
    }
}

#[test]
fn async_slices_by_level() {
    // Level 3 has 20 operations in its slice, level 7 has 4 and comes to stand further back; numbers tell which.
    let mut cfq: Cfq = given(many(100, &[|n| write(n).with(2, 3), |n| write(n).with(2, 7)]));
    let order = one_by_one(&mut cfq, 0, 68);
    let runs: Vec<usize> = order.chunk_by(|a, b| a % 2 == b % 2).map(<[u64]>::len).collect();
    assert_eq!(runs, [20, 4, 40, 4]);
}

#[test]
fn within_a_slice_it_goes_to_what_is_near() {
    // Where it stands after the first one is 100 MiB.
    let cases: [(&str, &[u64], &[u64]); 4] = [
        ("upwards", &[103, 101, 102], &[2, 3, 1]),
        ("backwards counts twice", &[103, 99], &[2, 1]),
        ("but not where it is further", &[103, 98], &[1, 2]),
        ("far back only at the end", &[80, 90, 500], &[2, 1, 3]),
    ];
    for (what, places, wanted) in cases {
        let first = Operation { len: MIB, ..read(100) }.at(99 * MIB);
        let mut cfq: Cfq = given([first]);
        assert_eq!(one_by_one(&mut cfq, 0, 1), [100]);
        places.iter().enumerate().for_each(|(n, place)| cfq.arrived(read(n as u64 + 1).at(place * MIB)));
        assert_eq!(one_by_one(&mut cfq, 1, 9), wanted, "{what}");
    }
    let overdue = [read(1).at(9 * MIB), read(2).at(8 * MIB), read(3).at(7 * MIB).came(1)];
    assert_eq!(one_by_one(&mut given::<Cfq>(overdue), 124, 9), [3, 2, 1], "by place");
    assert_eq!(one_by_one(&mut given::<Cfq>(overdue), 125, 9), [1, 2, 3], "the oldest one is overdue");
}

#[test]
fn few_of_a_line_are_outstanding_unless_it_is_alone() {
    let mut cfq: Cfq = given(many(20, &[|n| read(n).of(1), |n| read(n).of(2)]));
    assert_eq!(start(&mut cfq, 0, 99), [1, 3, 5, 7], "four before the first end");
    assert_eq!(cfq.next_wake_ns(), Some(100 * MS), "a slice in which nothing ends begins after its time");
    cfq.ended(1);
    assert_eq!(start(&mut cfq, 10, 99), [9, 11, 13, 15, 17], "eight");
    assert_eq!(cfq.next_wake_ns(), Some(110 * MS));
    assert_eq!(start(&mut cfq, 109, 99), []);
    assert_eq!(start(&mut cfq, 110, 99), [2, 4, 6, 8], "the other one's slice");
    let mut stuck: Cfq = given(many(20, &[|n| read(n).of(1), |n| read(n).of(2)]));
    let started: Vec<_> = [0, 100, 199, 200].map(|ms| start(&mut stuck, ms, 99).len()).to_vec();
    assert_eq!(started, [4, 4, 0, 4], "and then the other line has one, although nothing ends");
    assert_eq!(start(&mut given::<Cfq>(many(20, &[|n| read(n).of(1)])), 0, 99).len(), 20, "alone");
    let beside_async = many(20, &[|n| read(n).of(1), write]);
    assert_eq!(start(&mut given::<Cfq>(beside_async), 0, 99).len(), 20, "the only sync one");
}

#[test]
fn async_ones_do_not_start_beside_sync_ones() {
    let mut cfq: Cfq = given([read(1).of(1), write(2), write(3)]);
    assert_eq!(start(&mut cfq, 0, 9), [1]);
    assert_eq!((start(&mut cfq, 249, 9), cfq.next_wake_ns()), (vec![], Some(250 * MS)));
    assert_eq!(start(&mut cfq, 250, 9), [2, 3], "these are overdue");
    let mut cfq: Cfq = given([read(1).of(1), write(2), write(3)]);
    assert_eq!(start(&mut cfq, 0, 9), [1]);
    cfq.ended(1);
    assert_eq!(start(&mut cfq, 5, 9), [2, 3]);
}

#[test]
fn after_a_slow_sync_one_async_ones_begin_slowly() {
    let mut cfq: Cfq = given([read(1).of(1)]);
    assert_eq!(start(&mut cfq, 0, 9), [1]);
    cfq.ended(1);
    (2..20).for_each(|number| cfq.arrived(write(number).came(125)));
    assert_eq!((start(&mut cfq, 125, 9), start(&mut cfq, 324, 9)), (vec![2], vec![]));
    assert_eq!(start(&mut cfq, 325, 9), [3], "two after 200 ms");
    assert_eq!(start(&mut cfq, 525, 9), [4, 5], "four after 400 ms");
}

#[test]
fn who_comes_takes_the_slice_from_whom() {
    type Make = fn(u64) -> Operation;
    // What is active, what comes, whether that starts next.
    let cases: [(&str, Make, Make, bool); 7] = [
        ("sync, sync", |n| read(n).of(1), |n| read(n).of(2), false),
        ("sync, async", |n| read(n).of(1), |n| write(n), false),
        ("async, sync", |n| write(n), |n| read(n).of(2), true),
        ("async, async of level 0", |n| write(n), |n| write(n).with(2, 0), false),
        ("best effort, real time", |n| read(n).of(1), |n| read(n).of(2).with(1, 7), true),
        ("real time, best effort", |n| read(n).of(1).with(1, 7), |n| read(n).of(2).with(2, 0), false),
        ("idle, best effort", |n| read(n).of(1).with(3, 0), |n| write(n), true),
    ];
    for (what, active, comes, takes) in cases {
        let mut cfq: Cfq = given((1..9).map(active));
        assert_eq!(one_by_one(&mut cfq, 0, 1), [1], "{what}");
        cfq.arrived(comes(99).came(1));
        assert_eq!(start(&mut cfq, 1, 1), [if takes { 99 } else { 2 }], "{what}");
    }
}

#[test]
fn the_idle_class_waits_for_its_grace_and_has_a_turn() {
    let idle = |n| read(n).of(9).with(3, 0);
    let mut cfq: Cfq = given([idle(1), idle(2), read(3).of(1)]);
    assert_eq!(one_by_one(&mut cfq, 0, 2), [3]);
    // The end of the last one was seen at 1 ms.
    assert_eq!((start(&mut cfq, 8, 9), cfq.next_wake_ns()), (vec![], Some(9 * MS)));
    assert_eq!(start(&mut cfq, 9, 9), [1], "one at a time");
    cfq.ended(1);
    assert_eq!(start(&mut cfq, 10, 9), [2]);
    let mut stuck: Cfq = given([idle(1), idle(2)]);
    assert_eq!((start(&mut stuck, 0, 9), stuck.next_wake_ns()), (vec![1], Some(CLASS_TURN_NS)));
    assert_eq!((start(&mut stuck, 199, 9), start(&mut stuck, 200, 9)), (vec![], vec![2]), "one is stuck");
    // While others have work it has one operation each 200 ms.
    let mut cfq: Cfq = given((0..1000).map(|n| read(n).of(1)).chain((1000..1010).map(idle)));
    let order = one_by_one(&mut cfq, 0, 900);
    let turns: Vec<usize> = (0..900).filter(|at| order[*at] >= 1000).collect();
    assert_eq!(turns, [200, 400, 600, 800]);
}

#[test]
fn only_destaging_is_promoted_and_nothing_idle_is_kept() {
    for (second, promoted, wanted) in
        [(destage(2), 9, vec![1]), (destage(2), 2, vec![1, 2]), (write(2), 2, vec![1])]
    {
        let mut cfq: Cfq = given([read(1).of(1), second, write(3)]);
        cfq.promoted(promoted);
        cfq.withdrawn(3);
        assert_eq!(start(&mut cfq, 0, 9), wanted, "{second:?}: beside a sync one only a sync one starts");
    }
    let mut cfq: Cfq = given([read(1).of(1), write(2), destage(3), write(4), read(5).of(2).with(3, 0)]);
    [1, 3, 5, 77].into_iter().for_each(|number| cfq.promoted(number));
    [4, 88].into_iter().for_each(|number| cfq.withdrawn(number));
    assert_eq!(one_by_one(&mut cfq, 0, 9), [1, 2, 3]);
    assert_eq!(one_by_one(&mut cfq, 11, 9), [5]);
    assert!(!cfq.begin_round(Round::default(), 12 * MS) && cfq.next(12 * MS).is_none());
    assert!(
        cfq.lines.is_empty() && cfq.active.is_none() && cfq.waiting.is_empty() && cfq.outstanding.is_empty()
    );
    assert_eq!((cfq.sync_outstanding, cfq.idle_outstanding), (0, 0));
    let mut cfq: Cfq = given([sync_write(1), write(2)]);
    assert_eq!((cfq.take_async(1), cfq.take_async(2).map(|o| o.number), cfq.lines.len()), (None, Some(2), 1));
}
