//! Two owners: what the first has acknowledged is never lost, and nothing of it lands behind the second's beginning.

use forebay_block::Nanos;
use forebay_objects::Takeover;

use crate::client::{Client, World};
use crate::oracle::Oracle;

fn takeover(seed: u64) -> (bool, bool) {
    let mut world = World::new(seed);
    let mut first = Client::new(&world, "first", Takeover::Never, true, Oracle::default());
    first.open(&mut world);
    let go_on = |world: &mut World, client: &mut Client| {
        if world.random.once_in(2) {
            client.submit(world);
        }
        client.turn(world);
    };
    for _ in 0..world.random.below(300) {
        go_on(&mut world, &mut first);
    }
    let mut second = Client::new(&world, "second", Takeover::Always, true, Oracle::default());
    let mut found = None;
    let mut begun = None;
    while found.is_none() {
        if world.random.once_in(2) {
            go_on(&mut world, &mut first);
            continue;
        }
        second.turn(&mut world);
        assert_eq!(second.host.refused, None);
        if second.host.opened.is_some() && begun.is_none() {
            begun = Some(world.now);
            second.ask_all(&world);
        }
        found = second.whole();
    }
    let (found, begun) = (found.unwrap(), begun.unwrap());
    let judged = first.oracle.judge(&found, true);
    judged.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    let lost = first.oracle.len();
    second.oracle.begin_with(found.clone());
    for _ in 0..world.random.below(500) {
        if world.random.once_in(2) {
            go_on(&mut world, &mut first);
        } else {
            go_on(&mut world, &mut second);
        }
    }
    // What the first has acknowledged since then was there.
    first.oracle.judge(&found, true).unwrap_or_else(|what| panic!("seed {seed}: acknowledged late: {what}"));
    assert!(first.last_read_at.since(begun) <= 1_000_000_000, "seed {seed}: a read long after the takeover");
    let fenced = first.host.fenced.take();
    if let Some(by) = fenced.as_ref().and_then(|fenced| fenced.by.as_ref()) {
        assert_eq!(by.writer.host, "second");
    }
    first.die(&mut world);
    let oracle = second.die(&mut world);
    let mut third = Client::new(&world, "third", Takeover::Always, true, oracle);
    third.open(&mut world);
    let found = third.read_all(&mut world);
    third.oracle.judge(&found, true).unwrap_or_else(|what| panic!("seed {seed}: the second's: {what}"));
    (fenced.is_some(), lost > 0 && world.now > Nanos(0))
}

/// Clients of the first are served by its cache alone.
#[test]
fn an_owner_that_is_asked_for_nothing_learns_of_its_successor() {
    let mut world = World::new(7);
    let mut first = Client::new(&world, "first", Takeover::Never, true, Oracle::default());
    first.open(&mut world);
    let mut second = Client::new(&world, "second", Takeover::Always, true, Oracle::default());
    second.open(&mut world);
    for _ in 0..10_000 {
        first.host.vault.look(world.now);
        first.turn(&mut world);
    }
    assert!(first.host.fenced.is_some(), "after {} s", world.now.0 / 1_000_000_000);
}

#[test]
fn an_owner_that_goes_on_beside_its_successor_loses_and_adds_nothing() {
    let all: Vec<(bool, bool)> = (0..500).map(takeover).collect();
    assert!(all.iter().filter(|(fenced, _)| *fenced).count() > 400, "the first one learns of it");
    assert!(all.iter().filter(|(_, busy)| *busy).count() > 400);
}
