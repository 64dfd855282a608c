//! Small worlds, seen whole.

use forebay_block::Criticality;
use forebay_policy::{Durability, Settings};
use forebay_sim::explore::{EVERY_CRASH, SmallWorld, explore};
use forebay_sim::media::CONTESTED_MAX;
use forebay_sim::plan::{Action, Shape};

use super::toy::{Bug, Toy};

const fn write(block: u64, sectors: u64) -> Action {
    Action::Write {
        offset: block * 4096,
        len: sectors * 512,
        fua: false,
        sync: false,
        criticality: Criticality::None,
    }
}

fn small(durability: Durability) -> SmallWorld {
    SmallWorld {
        shape: Shape {
            volume_bytes: 3 * 4096,
            segment_bytes: 64 << 10,
            segment_count: 6,
            align: 512,
            stamped: true,
            journal_bytes: 0,
            journal_apart: false,
            commits_in_place: false,
        },
        settings: Settings { durability, ..Settings::default() },
        script: vec![write(0, 2), write(1, 1), Action::Flush, write(0, 1)],
        depth: 2,
        crashes: EVERY_CRASH.to_vec(),
        paths_max: u64::MAX,
        contested_max: CONTESTED_MAX,
        recovery_stride: 1,
        detours_max: usize::MAX,
    }
}

#[test]
fn a_right_volume_is_right_everywhere() {
    for durability in Durability::ALL {
        let seen = explore(&small(*durability), |p| Toy::new(p, Bug::None));
        println!("{durability}: {seen:?}");
        assert!(seen.complete && seen.violation.is_none(), "{:?}", seen.violation);
        assert!(seen.schedules > 5 && seen.states > 10 && seen.images > seen.crashes);
    }
}

#[test]
fn a_wrong_volume_is_caught() {
    for (bug, durability) in [
        (Bug::AcknowledgesEarly, Durability::Write),
        (Bug::ForgetsDurability, Durability::Write),
        (Bug::ForgetsFlush, Durability::Flush),
    ] {
        let seen = explore(&small(durability), |p| Toy::new(p, bug));
        let (violation, lines) = seen.violation.expect("the bug is seen");
        println!("{bug:?}: {violation}");
        assert!(!lines.is_empty());
    }
}
