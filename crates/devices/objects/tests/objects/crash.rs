//! Lives that end at any instant, on a store with every fault, again and again.

use forebay_objects::{Access, Takeover};

use crate::client::{Client, World};
use crate::oracle::{Oracle, content_of};
use crate::world::{Host, small_limits};

/// How many lives ended with a part of what was submitted.
fn lives(seed: u64, waits_for_flushes: bool) -> (u64, u64) {
    let mut world = World::new(seed);
    let mut client = Client::new(&world, "0", Takeover::Never, waits_for_flushes, Oracle::default());
    let (mut kept, mut named) = (0, 0);
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
        let names = std::mem::take(&mut client.names);
        let oracle = client.die(&mut world);
        client = Client::new(&world, &life.to_string(), Takeover::Always, waits_for_flushes, oracle);
        client.names = names;
        client.open(&mut world);
        assert_eq!(client.host.refused, None, "seed {seed}, life {life}");
        let found = client.read_all(&mut world);
        let upto = client.oracle.judge(&found, waits_for_flushes);
        let upto = upto.unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        kept += u64::from(upto > 0 && upto < client.oracle.len());
        client.oracle.begin_with(found);
        if waits_for_flushes {
            named += named_are_kept(&client, &mut world);
        }
    }
    (kept, named)
}

/// How many named checkpoints another host can read, all of them as they were made.
fn named_are_kept(client: &Client, world: &mut World) -> u64 {
    for (name, content) in &client.names {
        let access = Access::Checkpoint(name.clone());
        let mut reader = Host::open("reader", access, small_limits(), world.now);
        reader.settle(&mut world.now, &mut world.model);
        assert_eq!(reader.refused, None);
        assert_eq!(content_of(&reader.read_all(&mut world.now, &mut world.model)), *content);
    }
    client.names.len() as u64
}

#[test]
fn after_a_crash_all_changes_up_to_a_commit_are_there_and_no_other() {
    let all: Vec<(u64, u64)> = (0..300).map(|seed| lives(seed, true)).collect();
    let (kept, named) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(kept > 100 && named > 100, "crashes leave a part: {kept}; and names: {named}");
}

#[test]
fn after_a_crash_changes_are_there_in_their_order_whatever_is_under_way() {
    let kept: u64 = (1000..1300).map(|seed| lives(seed, false).0).sum();
    assert!(kept > 100, "crashes leave a part: {kept}");
}
