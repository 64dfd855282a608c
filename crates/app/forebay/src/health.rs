//! What a volume is doing, and what is wrong with it, in the words of the status contract.

use std::time::Duration;

use forebay_control::VolumeState;
use forebay_engine::{Ailing, Ailment, State, Status};

use crate::diagnosis::{Names, below, explain, failed_cache, fenced};

/// A volume whose thread has not answered for so long is not well.
const THREAD_SILENT_AFTER: Duration = Duration::from_secs(2);

/// What is wrong, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Illness {
    /// What is wrong and what goes on meanwhile.
    pub reason: String,
    /// Wall-clock time in nanoseconds since 1970.
    pub since_ns: u64,
}

/// The state of a volume, and what is wrong with it. Its thread has not answered for `unanswered`; `caches`: writes may enter the
/// cache.
pub fn health(
    s: &Status,
    names: &Names,
    wall_ns: u64,
    unanswered: Duration,
    caches: bool,
) -> (VolumeState, Option<Illness>) {
    let state = match s.state {
        None | Some(State::Starting) => VolumeState::Starting,
        Some(State::Healthy) => VolumeState::Healthy,
        Some(State::Degraded) => VolumeState::Degraded,
        Some(State::Full) => VolumeState::Full,
        Some(State::Fenced) => VolumeState::Fenced,
        Some(State::Stopping | State::Stopped) => VolumeState::Stopping,
    };
    let illness = |reason: String, since_ns: u64| Some(Illness { reason, since_ns });
    if state == VolumeState::Fenced {
        return (state, illness(fenced(s.dirty_bytes), s.fenced_ns.unwrap_or(wall_ns)));
    }
    if !matches!(state, VolumeState::Healthy | VolumeState::Degraded | VolumeState::Full) {
        return (state, None);
    }
    if unanswered >= THREAD_SILENT_AFTER {
        let reason = format!(
            "the volume's thread has not answered for {} s: the figures are old, and requests wait",
            unanswered.as_secs()
        );
        return (
            VolumeState::Degraded,
            illness(reason, wall_ns.saturating_sub(unanswered.as_nanos() as u64)),
        );
    }
    if let Some(since_ns) = s.cache_failed_ns {
        let backing = s.ailing.as_ref().map(|ailing| format!("; and {}", ails(ailing, names, wall_ns)));
        let (backing, answer) = (backing.unwrap_or_default(), failed_cache(s, names));
        let reason = format!(
            "the cache failed a durable write{answer}: nothing more is written to it, writes go to the backing{backing}"
        );
        return (VolumeState::Degraded, illness(reason, since_ns));
    }
    let Some(ailing) = &s.ailing else { return (state, None) };
    let is_full = state == VolumeState::Full;
    let reason = format!("{}: {}", ails(ailing, names, wall_ns), meanwhile(&ailing.ailment, caches, is_full));
    // A backing that refuses writes fills the cache, which is the worse of the two for writers.
    let state = match ailing.ailment {
        Ailment::Failing(_) if is_full => VolumeState::Full,
        Ailment::Failing(_) | Ailment::Silent | Ailment::Away(_) => VolumeState::Degraded,
    };
    (state, illness(reason, ailing.since_ns))
}

fn ails(ailing: &Ailing, names: &Names, wall_ns: u64) -> String {
    let (device, name) = (below(ailing.role), &names.get(ailing.role).name);
    let seconds = wall_ns.saturating_sub(ailing.since_ns) / 1_000_000_000;
    match &ailing.ailment {
        Ailment::Silent => format!("{device} has not answered for {seconds} s ({name})"),
        Ailment::Away(None) => {
            format!("the connection to {device} has been lost for {seconds} s, and is tried anew ({name})")
        }
        Ailment::Away(Some(error)) => {
            format!(
                "{device} has not done what it is asked for {seconds} s, and is asked anew: {error} ({name})"
            )
        }
        Ailment::Failing(trouble) => explain(trouble, names),
    }
}

/// What goes on.
fn meanwhile(ailment: &Ailment, caches: bool, is_full: bool) -> &'static str {
    match (ailment, caches, is_full) {
        (_, true, true) => "the cache is full, and writes wait until the backing takes data again",
        (Ailment::Silent | Ailment::Away(_), true, false) => {
            "writes go into the cache as long as it has room, reads of what is not cached wait or fail"
        }
        (Ailment::Failing(_), true, false) => {
            "writes go into the cache as long as it has room, reads of what is not cached may fail"
        }
        (Ailment::Silent | Ailment::Away(_), false, _) => {
            "writes wait or fail, and reads of what is not cached"
        }
        (Ailment::Failing(_), false, _) => "writes may fail, and reads of what is not cached",
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::{Answer, Cause, ErrorKind, IoError, OpKind};
    use forebay_engine::{Asked, Role, Trouble};

    use super::*;
    use crate::diagnosis::Named;

    const NOW_NS: u64 = 1_800_000_000_000_000_000;
    const SINCE_NS: u64 = NOW_NS - 3_000_000_000;

    fn judged(figures: Status, unanswered_s: u64, caches: bool) -> (VolumeState, String, u64) {
        let named = |name: &str| Named { name: name.to_owned(), is_remote: false };
        let names = Names { cache: named("/dev/fast"), backing: named("/dev/slow"), ..Names::default() };
        let (state, illness) = health(&figures, &names, NOW_NS, Duration::from_secs(unanswered_s), caches);
        illness.map_or((state, String::new(), 0), |i| (state, i.reason, i.since_ns))
    }

    fn figures(state: State, ailment: Ailment) -> Status {
        let ailing = Some(Ailing { role: Role::Backing, ailment, since_ns: SINCE_NS });
        Status { state: Some(state), ailing, ..Status::default() }
    }

    #[test]
    fn nothing_is_wrong_with_a_volume_that_works() {
        for (state, told) in [
            (State::Starting, VolumeState::Starting),
            (State::Healthy, VolumeState::Healthy),
            (State::Full, VolumeState::Full),
            (State::Stopping, VolumeState::Stopping),
        ] {
            let figures = Status { state: Some(state), ..Status::default() };
            assert_eq!(judged(figures, 0, true), (told, String::new(), 0));
        }
    }

    #[test]
    fn a_backing_that_ails_degrades_and_says_what_goes_on() {
        let silent = judged(figures(State::Healthy, Ailment::Silent), 0, true);
        assert_eq!((silent.0, silent.2), (VolumeState::Degraded, SINCE_NS));
        assert!(silent.1.contains("backing has not answered for 3 s (/dev/slow): "), "{}", silent.1);
        assert!(silent.1.contains("has room"));
        let asked = Asked { role: Role::Backing, kind: OpKind::Write, offset: Some(0), len: 4096 };
        let full = Trouble { asked, kind: ErrorKind::NoSpace, context: "writing", cause: None };
        let failing = figures(State::Healthy, Ailment::Failing(full));
        let (state, reason, _) = judged(failing.clone(), 0, false);
        assert!(reason.starts_with("the backing: writing: ") && reason.contains("(/dev/slow: "), "{reason}");
        assert!(state == VolumeState::Degraded && reason.contains("no space left"), "{reason}");
        assert!(reason.contains("writes may fail"), "{reason}");
        assert_eq!(judged(figures(State::Full, Ailment::Silent), 0, true).0, VolumeState::Degraded);
        let sick = IoError::of_store(ErrorKind::Io, "asking the object store", "503 SlowDown", None);
        let (state, reason, _) = judged(figures(State::Healthy, Ailment::Away(Some(sick))), 0, true);
        assert!(state == VolumeState::Degraded && reason.contains("asked for 3 s"), "{reason}");
        assert!(
            reason.contains(": 503 SlowDown (/dev/slow): ") && reason.contains("wait or fail"),
            "{reason}"
        );
        let (_, reason, _) = judged(figures(State::Healthy, Ailment::Away(None)), 0, true);
        assert!(reason.starts_with("the connection to the backing has been lost for 3 s"), "{reason}");
        let (state, reason, _) = judged(Status { state: Some(State::Full), ..failing }, 0, true);
        assert!(state == VolumeState::Full && reason.contains("cache is full"), "{reason}");
    }

    #[test]
    fn a_backing_of_another_host_comes_before_all_else() {
        let figures = Status {
            fenced_ns: Some(SINCE_NS),
            dirty_bytes: 3 << 20,
            cache_failed_ns: Some(5),
            ..figures(State::Fenced, Ailment::Silent)
        };
        let (state, reason, since_ns) = judged(figures.clone(), 3, true);
        assert_eq!((state, since_ns), (VolumeState::Fenced, SINCE_NS));
        assert!(reason.contains("another host has taken") && reason.contains("3 MiB"), "{reason}");
        let (_, reason, _) = judged(Status { dirty_bytes: 0, ..figures }, 0, false);
        assert!(reason.contains("everything that was written"), "{reason}");
    }

    #[test]
    fn a_failed_cache_and_a_thread_that_hangs_come_first() {
        let asked = Asked { role: Role::Cache, kind: OpKind::Write, offset: Some(8192), len: 4096 };
        let cause = Some(Cause { answer: Answer::System(5), offset: Some(8192) });
        let trouble = Trouble { asked, kind: ErrorKind::Io, context: "a test", cause };
        let failed = Status {
            cache_failed_ns: Some(5),
            cache_trouble: Some(trouble),
            ..figures(State::Degraded, Ailment::Silent)
        };
        let (state, reason, since_ns) = judged(failed.clone(), 1, true);
        assert_eq!((state, since_ns), (VolumeState::Degraded, 5));
        assert!(reason.contains("durable write") && reason.contains("not answered"), "{reason}");
        assert!(
            reason.contains("(/dev/fast: write of 4096 bytes at byte 8192: a test: input/output error)"),
            "{reason}"
        );
        let (state, reason, since_ns) = judged(failed, 3, true);
        assert_eq!((state, since_ns), (VolumeState::Degraded, SINCE_NS));
        assert!(reason.contains("thread"), "{reason}");
    }
}
