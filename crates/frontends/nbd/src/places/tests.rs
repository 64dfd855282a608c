use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const ATTACKER: Source = Source::V4(Ipv4Addr::new(10, 0, 0, 1));
const OTHER: Source = Source::V4(Ipv4Addr::new(10, 0, 0, 2));

fn limits() -> Limits {
    Limits { connections_max: 16, connections_per_source_max: 8, ..Limits::default() }
}

/// Begins all that can begin.
fn begin(places: &mut Places<u32>, now: Instant) -> Vec<Begun<u32>> {
    std::iter::from_fn(|| places.next(now)).collect()
}

#[test]
fn one_source_gets_its_share_and_leaves_the_rest() {
    let (mut places, now) = (Places::new(limits()), Instant::now());
    for n in 0..12 {
        assert_eq!(places.arrive(ATTACKER, n, now), None);
    }
    assert_eq!(begin(&mut places, now).len(), limits().handshakes_per_source_max());
    places.arrive(OTHER, 100, now);
    let begun = begin(&mut places, now);
    assert_eq!(
        (begun.len(), begun[0].what, begun[0].displaced),
        (1, 100, None),
        "at once, ahead of the others"
    );
}

#[test]
fn who_has_most_gives_its_longest_idle_place_to_who_waits_but_not_before_it_had_time() {
    let limits = Limits { connections_per_source_max: 16, ..limits() };
    let (mut places, start) = (Places::new(limits), Instant::now());
    for n in 0..8 {
        places.arrive(ATTACKER, n, start);
    }
    assert_eq!(begin(&mut places, start).len(), 8);
    places.got_on(1, start + Duration::from_millis(1));
    places.arrive(OTHER, 100, start);
    let soon = start + limits.displaced_after();
    assert!(begin(&mut places, soon - Duration::from_millis(1)).is_empty());
    assert_eq!(places.next_change(), Some(soon));
    let begun = begin(&mut places, soon);
    assert_eq!(begun.iter().map(|b| (b.what, b.displaced)).collect::<Vec<_>>(), [(100, Some(2))]);
}

#[test]
fn handshakes_and_those_who_wait_expire() {
    let (mut places, start) = (Places::new(limits()), Instant::now());
    let limits = limits();
    for n in 0..5 {
        places.arrive(ATTACKER, n, start);
    }
    assert_eq!(begin(&mut places, start).len(), 4);
    places.got_on(1, start + limits.silence_max() / 2);
    assert_eq!(places.expire(start + limits.silence_max()), (vec![2, 3, 4], vec![]));
    assert_eq!(places.become_client(2), Err(Full::Late));
    // However steadily it gets on.
    places.got_on(1, start + limits.handshake_timeout - Duration::from_millis(1));
    assert_eq!(places.expire(start + limits.handshake_timeout), (vec![1], vec![4]));
    assert_eq!(places.next_change(), None);
}

#[test]
fn too_many_who_wait_cost_the_source_that_has_most_of_them() {
    let (mut places, now) = (Places::new(limits()), Instant::now());
    assert_eq!(places.arrive(OTHER, 100, now), None);
    for n in 0..15 {
        assert_eq!(places.arrive(ATTACKER, n, now), None);
    }
    assert_eq!(places.arrive(ATTACKER, 15, now), Some(15));
    assert_eq!(places.arrive(OTHER, 101, now), Some(14));
}

#[test]
fn clients_have_shares_too() {
    let (mut places, now) = (Places::new(limits()), Instant::now());
    let enter = |places: &mut Places<u32>, source| {
        places.arrive(source, 0, now);
        let id = places.next(now).unwrap().id;
        let became = places.become_client(id);
        if became.is_err() {
            places.leave(id);
        }
        (id, became)
    };
    for _ in 0..8 {
        assert_eq!(enter(&mut places, ATTACKER).1, Ok(()));
    }
    assert_eq!(enter(&mut places, ATTACKER).1, Err(Full::Source));
    for user in 0..8 {
        assert_eq!(enter(&mut places, Source::User(user)).1, Ok(()));
    }
    assert_eq!(enter(&mut places, OTHER).1, Err(Full::All));
    places.leave(1);
    assert_eq!(enter(&mut places, OTHER).1, Ok(()));
}

#[test]
fn addresses_of_one_network_of_ipv6_are_one_source() {
    let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
    assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    assert_eq!(source("::ffff:10.0.0.1"), ATTACKER);
}

proptest! {
    /// Beside any number of silent connections that come again as soon as they are closed, as long as they find room to wait,
    /// who gets on in less than the time that everybody has comes in, from the same source as from another.
    #[test]
    fn who_gets_on_comes_in_beside_those_who_only_hold_places(
        silent in 1usize..16,
        same in any::<bool>(),
        steps in 1u32..12,
        offset_ms in 0u64..500,
    ) {
        let limits = limits();
        let mut places = Places::new(limits);
        let (start, tick) = (Instant::now(), limits.displaced_after() / 4);
        let mut now = start;
        let mut of_silent: BTreeMap<u64, ()> = BTreeMap::new();
        (0..silent as u32).for_each(|n| assert_eq!(places.arrive(ATTACKER, n, now), None));
        let good = if same { ATTACKER } else { OTHER };
        let arrives = start + Duration::from_millis(offset_ms);
        let (mut arrived, mut id, mut done) = (false, None, 0);
        while done < steps {
            prop_assert!(now < start + limits.handshake_timeout, "it did not come in");
            if !arrived && now >= arrives {
                arrived = true;
                prop_assert_eq!(places.arrive(good, 1000, now), None);
            }
            let mut again = Vec::new();
            while let Some(begun) = places.next(now) {
                prop_assert!(begun.displaced.is_none() || begun.displaced != id, "it was displaced");
                again.extend(begun.displaced.filter(|d| of_silent.remove(d).is_some()));
                match begun.what {
                    1000 => id = Some(begun.id),
                    _ => drop(of_silent.insert(begun.id, ())),
                }
            }
            let (expired, given_up) = places.expire(now);
            prop_assert!(given_up.is_empty());
            again.extend(expired.into_iter().filter(|e| of_silent.remove(e).is_some()));
            again.iter().for_each(|n| assert_eq!(places.arrive(ATTACKER, *n as u32 % 1000, now), None));
            if let Some(id) = id {
                // It gets on at every fourth moment only.
                if (now - start).as_millis() / tick.as_millis() % 3 == 0 {
                    places.got_on(id, now);
                    done += 1;
                }
            }
            now += tick;
        }
        prop_assert_eq!(places.become_client(id.unwrap()), Ok(()));
    }
}
