//! The production engine in small worlds: every schedule, every crash, every image that may be left, as far as the
//! bound goes. `FOREBAY_SIM_PATHS` raises it: images for each world, of all schedules.

use std::sync::Mutex;

use forebay_engine::{Engine, Mutation};
use forebay_sim::campaign::figure;
use forebay_sim::explore::Seen;
use forebay_sim::small_worlds::{Bound, line, see, see_with, worlds};

use super::threads::on_two_threads;

fn bound() -> Bound {
    match std::env::var("FOREBAY_SIM_PATHS") {
        Ok(paths) => Bound { paths_max: paths.parse().unwrap(), ..Bound::SOAK },
        Err(_) => Bound::SHARE,
    }
}

#[test]
fn the_engine_is_right_in_every_small_world() {
    let worlds = worlds(bound());
    let total: Mutex<Seen> = Mutex::default();
    on_two_threads(worlds.len(), |i| {
        let seen = see(&worlds[i]);
        println!("{}", line(&worlds[i], &seen));
        if let Some((violation, lines)) = seen.violation {
            let timeline = forebay_sim::trace::timeline(&lines, &violation.sectors);
            panic!("{}: {violation}\n{timeline}", worlds[i].name);
        }
        let mut total = total.lock().unwrap();
        total.schedules += seen.schedules;
        total.crashes += seen.crashes;
        total.images += seen.images;
        total.states += seen.states;
        total.crashes_in_recovery += seen.crashes_in_recovery;
    });
    let total = total.into_inner().unwrap();
    println!("{} worlds: {total:?}", worlds.len());
    let counted = [
        ("schedules of small worlds", total.schedules),
        ("crashes of small worlds", total.crashes),
        ("images of small worlds", total.images),
        ("crashes in their recovery", total.crashes_in_recovery),
    ];
    counted.into_iter().for_each(|(name, count)| print!("{}", figure(name, count)));
    assert!(total.states > 1000 && total.images > total.crashes, "hardly anything was seen");
}

/// Exploring finds bugs, too, without any luck.
#[test]
fn planted_bugs_are_seen_in_small_worlds() {
    let bugs = [
        (Mutation::AcknowledgesBeforeWrite, "overwrite, write-back"),
        (Mutation::WritesVolatile, "overwrite, write-back"),
        (Mutation::IgnoresLastRecord, "overwrite, write-back"),
        (Mutation::DropsSupersede, "bypass-over-dirty, sync only"),
        (Mutation::IgnoresSupersede, "bypass-over-dirty, sync only"),
        (Mutation::FlushForgetsLog, "flush-between, write-back, durable by flush"),
        (Mutation::CleanBeforeFlush, "destage-meets-write, write-back"),
    ];
    let worlds = worlds(Bound { paths_max: 5_000, ..Bound::SHARE });
    on_two_threads(bugs.len(), |i| {
        let (mutation, name) = bugs[i];
        let world = worlds.iter().find(|w| w.name.starts_with(name)).unwrap();
        let seen = see_with(world, |p| Engine::with_mutation(p, mutation));
        let Some((violation, lines)) = seen.violation else {
            panic!("{mutation:?} is not seen in {}", line(world, &seen));
        };
        println!("{mutation:?}: {} schedules, {} images: {violation}", seen.schedules, seen.images);
        assert!(!lines.is_empty());
    });
}
