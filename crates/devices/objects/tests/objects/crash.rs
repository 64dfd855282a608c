//! Lives that end at any instant, on a store with every fault, again and again.

use forebay_objects::Takeover;

use crate::client::{Client, World};
use crate::oracle::Oracle;

/// How many lives ended with a part of what was submitted.
fn lives(seed: u64, waits_for_flushes: bool) -> u64 {
    let mut world = World::new(seed);
    let mut client = Client::new(&world, "0", Takeover::Never, waits_for_flushes, Oracle::default());
    let mut kept = 0;
    client.open(&mut world);
    for life in 1..=6_u64 {
        for _ in 0..world.random.below(400) {
            if world.random.once_in(2) {
                client.submit(&mut world);
            }
            if world.random.once_in(30) {
                client.name(&mut world);
            }
            if !world.random.once_in(3) {
                client.turn(&mut world);
            }
        }
        let oracle = client.die(&mut world);
        client = Client::new(&world, &life.to_string(), Takeover::Always, waits_for_flushes, oracle);
        client.open(&mut world);
        assert_eq!(client.host.refused, None, "seed {seed}, life {life}");
        let found = client.read_all(&mut world);
        let upto = client.oracle.judge(&found, waits_for_flushes);
        let upto = upto.unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        kept += u64::from(upto > 0 && upto < client.oracle.len());
        client.oracle.begin_with(found);
    }
    kept
}

#[test]
fn after_a_crash_all_changes_up_to_a_commit_are_there_and_no_other() {
    let kept: u64 = (0..300).map(|seed| lives(seed, true)).sum();
    assert!(kept > 100, "crashes leave a part: {kept}");
}

#[test]
fn after_a_crash_changes_are_there_in_their_order_whatever_is_under_way() {
    let kept: u64 = (1000..1300).map(|seed| lives(seed, false)).sum();
    assert!(kept > 100, "crashes leave a part: {kept}");
}
