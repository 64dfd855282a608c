//! What ails a device below the cache, of all that is known: what the engine has seen of operations, and what the device says of itself.

use forebay_block::{ErrorKind, IoError, OpKind};
use forebay_device::Away;
use forebay_engine::{Ailing, Ailment, Asked, Role, Trouble};

/// The device says that it is away. What a store has answered is told rather than that others of its answers do not come.
pub(crate) fn with_away(seen: Option<Ailing>, role: Role, away: Away, wall_ns: u64) -> Ailing {
    let since_ns = wall_ns.saturating_sub(u64::try_from(away.lasts.as_nanos()).unwrap_or(u64::MAX));
    let since_ns = seen.as_ref().map_or(since_ns, |seen| seen.since_ns.min(since_ns));
    let ailment = match (away.why, seen) {
        (Some(error), _) if away.refuses => {
            let asked = Asked { role, kind: OpKind::Write, offset: None, len: 0 };
            let IoError { kind, context, cause } = error;
            Ailment::Failing(Trouble { asked, kind, context, cause })
        }
        (_, Some(Ailing { ailment: Ailment::Failing(trouble), role, .. })) if is_refusal(&trouble) => {
            return Ailing { role, ailment: Ailment::Failing(trouble), since_ns };
        }
        (why, _) => Ailment::Away(why),
    };
    Ailing { role, ailment, since_ns }
}

/// Somebody who is there will not do it: no lost connection ends like that.
const fn is_refusal(trouble: &Trouble) -> bool {
    matches!(trouble.kind, ErrorKind::NoSpace | ErrorKind::ReadOnly)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WALL_NS: u64 = 1_800_000_000_000_000_000;
    const AWAY: Away = Away::silent(Duration::from_secs(3));

    fn failing(errno: i32) -> Ailing {
        let asked = Asked { role: Role::Journal, kind: OpKind::Write, offset: Some(0), len: 4096 };
        let IoError { kind, context, cause } = IoError::of_system(errno, "writing", Some(0));
        let ailment = Ailment::Failing(Trouble { asked, kind, context, cause });
        Ailing { role: Role::Journal, ailment, since_ns: WALL_NS - 1_000_000_000 }
    }

    #[test]
    fn who_answers_nothing_is_away() {
        for seen in [None, Some(failing(110)), Some(failing(5))] {
            let told = with_away(seen, Role::Backing, AWAY, WALL_NS);
            let since_ns = WALL_NS - 3_000_000_000;
            assert_eq!(told, Ailing { role: Role::Backing, ailment: Ailment::Away(None), since_ns });
        }
    }

    /// Such as a pool that is full while a write that it has not refused waits.
    #[test]
    fn what_was_answered_is_told_though_something_else_is_not_answered() {
        for errno in [28, 122, 1, 30] {
            let told = with_away(Some(failing(errno)), Role::Backing, AWAY, WALL_NS);
            assert_eq!((told.role, &told.ailment), (Role::Journal, &failing(errno).ailment), "{errno}");
            assert_eq!(told.since_ns, WALL_NS - 3_000_000_000);
        }
    }

    #[test]
    fn a_store_that_refuses_is_there_and_one_that_fails_for_a_while_says_how() {
        let full = IoError::of_store(ErrorKind::NoSpace, "asking", "507 no room", None);
        let refuses = Away { why: Some(full.clone()), refuses: true, ..AWAY };
        let told = with_away(Some(failing(5)), Role::Backing, refuses, WALL_NS);
        let Ailment::Failing(trouble) = told.ailment else { panic!("{told:?}") };
        assert_eq!((trouble.error(), trouble.asked.role), (full.clone(), Role::Backing));
        let passes = Away { why: Some(full.clone()), ..AWAY };
        assert_eq!(with_away(None, Role::Backing, passes, WALL_NS).ailment, Ailment::Away(Some(full)));
    }
}
