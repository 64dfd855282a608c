//! The small worlds in which the engine is explored: up to six writes over three blocks, on the smallest cache that
//! there can be.

use forebay_block::Criticality;
use forebay_engine::{Engine, Params};
use forebay_format::Layout;
use forebay_policy::{Admission, Durability, Order, Settings, WritePolicy};

use crate::explore::{EVERY_CRASH, Seen, SmallWorld, explore};
use crate::plan::{Action, Shape};
use crate::subject::Subject;

const BLOCK: u64 = forebay_block::BLOCK_BYTES;

/// How much of the worlds is to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Images after which the exploration of a world ends at the next schedule.
    pub paths_max: u64,
    /// Choices in which a schedule may differ from "the oldest first".
    pub detours_max: usize,
    /// Sectors of a device of which every combination may survive; of more, the typical ones.
    pub contested_max: usize,
    /// Of the steps of a recovery every so manieth is crashed at.
    pub recovery_stride: u64,
}

impl Bound {
    /// What every run of the tests sees.
    pub const SHARE: Self = Self { paths_max: 1500, detours_max: 2, contested_max: 1, recovery_stride: 7 };
    /// What a long run sees: whole worlds, but for the largest ones.
    pub const SOAK: Self =
        Self { paths_max: 200_000, detours_max: usize::MAX, contested_max: 4, recovery_stride: 1 };
}

/// A small world, and what it is called.
#[derive(Clone, Debug)]
pub struct Named {
    /// For reports: script and settings.
    pub name: String,
    /// The world.
    pub small: SmallWorld,
}

const fn part(block: u64, first: u64, sectors: u64, sync: bool) -> Action {
    let criticality = if sync { Criticality::Direct } else { Criticality::None };
    Action::Write { offset: block * BLOCK + first * 512, len: sectors * 512, fua: false, sync, criticality }
}

const fn write(block: u64) -> Action {
    part(block, 0, 8, true)
}

const fn lazy(block: u64) -> Action {
    part(block, 0, 8, false)
}

const fn zero(block: u64) -> Action {
    let criticality = Criticality::None;
    Action::Zero { offset: block * BLOCK, len: BLOCK, fua: false, unmap: true, criticality }
}

/// Scripts whose steps can meet in every order that their depth allows.
const SCRIPTS: [(&str, &[Action]); 8] = [
    ("overwrite", &[write(0), write(0)]),
    ("bypass-over-dirty", &[write(0), lazy(0)]),
    ("dirty-over-bypass", &[lazy(0), write(0), lazy(1)]),
    ("flush-between", &[write(0), lazy(1), Action::Flush, write(0)]),
    ("destage-meets-write", &[write(0), Action::Destage, write(0)]),
    ("destage-meets-bypass", &[write(0), Action::Destage, lazy(0)]),
    ("zero-and-part", &[write(0), zero(0), part(0, 2, 2, true)]),
    ("six-writes", &[write(0), lazy(1), write(2), write(1), lazy(0), write(2)]),
];

/// A hint that somebody waits for a block.
const fn promote(block: u64) -> Action {
    Action::Promote { offset: block * BLOCK, len: BLOCK }
}

/// Scripts in which bypasses are reissued to the log.
const REISSUES: [(&str, &[Action]); 3] = [
    ("reissue", &[lazy(0), promote(0), write(0)]),
    ("reissue-over-dirty", &[write(0), lazy(0), promote(0), Action::Destage]),
    ("reissue-then-bypass", &[lazy(0), promote(0), lazy(0), promote(0)]),
];

/// Every script under every kind of settings, the volume's alignment taking turns.
pub fn worlds(bound: Bound) -> Vec<Named> {
    let back = Settings::default();
    let ioi = Settings { admission: Admission::CpPiIoi, ..back };
    let reissuing = [
        ("cp+pi+ioi", ioi),
        ("cp+pi+ioi, durable by flush", Settings { durability: Durability::Flush, ..ioi }),
        ("cp+pi+ioi, ordered", Settings { write_policy: WritePolicy::Ordered, ..ioi }),
    ];
    let by_barriers = Settings {
        write_policy: WritePolicy::Ordered,
        order: Order::Barrier,
        admission: Admission::Sync,
        ..back
    };
    let (group_bytes, group_age_ms) = (BLOCK, 1);
    let journaled = Settings { write_policy: WritePolicy::Journaled, group_bytes, group_age_ms, ..back };
    let settings = [
        ("write-back", back),
        ("write-back, durable by flush", Settings { durability: Durability::Flush, ..back }),
        ("sync only", Settings { admission: Admission::Sync, ..back }),
        (
            "sync only, durable by flush",
            Settings { admission: Admission::Sync, durability: Durability::Flush, ..back },
        ),
        ("write-through", Settings { write_policy: WritePolicy::WriteThrough, ..back }),
        ("ordered", Settings { write_policy: WritePolicy::Ordered, ..back }),
        ("ordered by barriers, sync only", by_barriers),
        ("journaled", journaled),
        ("journaled, sync only", Settings { admission: Admission::Sync, ..journaled }),
    ];
    let mut worlds = Vec::new();
    let plain = SCRIPTS.into_iter().flat_map(|script| settings.map(|settings| (script, settings)));
    let reissues = REISSUES.into_iter().flat_map(|script| reissuing.map(|settings| (script, settings)));
    for ((script, actions), (how, settings)) in plain.chain(reissues) {
        let align = if worlds.len() % 2 == 0 { 512 } else { 4096 };
        let shape = Shape {
            volume_bytes: 3 * BLOCK,
            segment_bytes: Layout::SEGMENT_BYTES_MIN,
            segment_count: Layout::SEGMENT_COUNT_MIN,
            align,
            stamped: true,
            journal_bytes: match settings.write_policy {
                WritePolicy::Journaled => 2 * u64::from(Layout::SEGMENT_BYTES_MIN),
                _ => 0,
            },
            journal_apart: false,
            commits_in_place: false,
        };
        let small = SmallWorld {
            shape,
            settings,
            script: actions.to_vec(),
            depth: 2,
            crashes: EVERY_CRASH.to_vec(),
            paths_max: bound.paths_max,
            detours_max: bound.detours_max,
            contested_max: bound.contested_max,
            recovery_stride: bound.recovery_stride,
        };
        worlds.push(Named { name: format!("{script}, {how}, align {align}"), small });
    }
    worlds
}

/// Sees `world` as far as its bound allows, run against the production engine.
pub fn see(world: &Named) -> Seen {
    see_with(world, Engine::new)
}

/// As [`see`], run against what `make` makes.
pub fn see_with<S: Subject>(world: &Named, make: impl FnMut(Params) -> S) -> Seen {
    explore(&world.small, make)
}

/// One line on what was seen of a world.
pub fn line(world: &Named, seen: &Seen) -> String {
    let Seen { schedules, crashes, images, states, crashes_in_recovery, complete, .. } = seen;
    let name = &world.name;
    let whole = if *complete { "whole" } else { "in part" };
    format!(
        "{name:<60} {schedules:>7} schedules {crashes:>8} crashes {images:>9} images {states:>8} states \
         {crashes_in_recovery:>9} crashes in recovery, seen {whole}"
    )
}
