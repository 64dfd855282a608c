//! Devices that fail, in the log: looks at a volume's figures about once a second and says what has changed.
//!
//! Figures alone would tell only those who ask for them. Lines are written when something begins, once a minute while it
//! goes on with how often it happened meanwhile, and when it ends, so that a device that fails every operation fills no
//! disk with lines.

use std::time::{Duration, Instant};

use forebay_engine::{Ailment, State, Status};
use forebay_policy::size;

use crate::diagnosis::{Names, below, explain, failed_cache, fenced};

/// What goes on is told again after this time, with what has come together.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A backing that has not failed for so long has recovered; longer than the longest pause between two tries.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// A full cache from which nothing has gone to the backing for so long is stalled.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// What ails the backing's side, or else this is to be done.
fn why(f: &Status, names: &Names, remedy: &str) -> String {
    f.backing_trouble().map_or(remedy.to_owned(), |answer| explain(answer, names))
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Info(String),
    Warn(String),
    Error(String),
}

/// A counter of failures whose rises are told.
#[derive(Default)]
struct Counter {
    seen: u64,
    told: u64,
    told_at: Option<Instant>,
}

impl Counter {
    /// How many failures there are to tell of, if it is time to.
    fn rise(&mut self, count: u64, now: Instant) -> Option<u64> {
        self.seen = count;
        let recently = self.told_at.is_some_and(|at| now.duration_since(at) < TELL_AGAIN_AFTER);
        if count == self.told || recently {
            return None;
        }
        self.told_at = Some(now);
        Some(count - std::mem::replace(&mut self.told, count))
    }

    /// What comes next is told at once.
    fn settle(&mut self) {
        self.told = self.seen;
        self.told_at = None;
    }
}

/// The backing, since it has failed.
struct BackingFailing {
    /// Errors before.
    errors_before: u64,
    last_failed: Instant,
    /// Bytes written and read when it failed last.
    moved_bytes: u64,
}

/// The cache, since it failed a durable write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Latched {
    Evacuating,
    Retired,
}

/// Writers wait for room.
struct Full {
    /// When bytes reached the backing last, and how many had then.
    moved: (Instant, u64),
    stalled: bool,
    last_full: Instant,
}

/// What was told of a volume. One for each volume.
#[derive(Default)]
pub struct Trouble {
    backing: Counter,
    backing_failing: Option<BackingFailing>,
    cache: Counter,
    checksums: Counter,
    answers: Counter,
    latched: Option<Latched>,
    full: Option<Full>,
    /// It was told that a device below the cache is silent.
    silent: bool,
    silence_told_at: Option<Instant>,
    /// It was told that the backing is another host's.
    fenced: bool,
    /// Records that have ended before their time.
    records_ended: usize,
}

impl Trouble {
    /// Logs what is new in the figures of a volume, and of the records of its devices that have failed.
    pub fn look(&mut self, volume: &str, names: &Names, figures: &Status, records_failed: &[String]) {
        if records_failed.len() > self.records_ended {
            self.records_ended = records_failed.len();
            tracing::error!(volume, "{}; the volume goes on", records_failed.join("; "));
        }
        for line in self.lines(names, figures, Instant::now()) {
            match line {
                Line::Info(text) => tracing::info!(volume, "{text}"),
                Line::Warn(text) => tracing::warn!(volume, "{text}"),
                Line::Error(text) => tracing::error!(volume, "{text}"),
            }
        }
    }

    fn lines(&mut self, names: &Names, f: &Status, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        if f.state == Some(State::Fenced) {
            // Nothing else is worth a line any more.
            if !std::mem::replace(&mut self.fenced, true) {
                lines.push(Line::Error(fenced(f.dirty_bytes)));
            }
            return lines;
        }
        self.latch(names, f, &mut lines);
        self.counters(f, now, &mut lines);
        self.backing(names, f, now, &mut lines);
        self.room(names, f, now, &mut lines);
        self.silence(names, f, now, &mut lines);
        lines
    }

    /// The failure of the cache that latches (P9).
    fn latch(&mut self, names: &Names, f: &Status, lines: &mut Vec<Line>) {
        if f.state != Some(State::Degraded) {
            return;
        }
        if self.latched.is_none() {
            self.latched = Some(Latched::Evacuating);
            let answer = failed_cache(f, names);
            lines.push(Line::Error(format!(
                "the cache failed a durable write{answer}: nothing more is written to it, writes go to the backing; {} of dirty \
                 data are being moved there. Once the cache is retired, stop the daemon, replace the device and \
                 `forebay format` a new cache",
                size::show(f.dirty_bytes)
            )));
        }
        // A retired log has no index any more; before that its dirty blocks are in it.
        if self.latched == Some(Latched::Evacuating) && f.dirty_bytes == 0 && f.cached_bytes == 0 {
            self.latched = Some(Latched::Retired);
            lines.push(Line::Warn(
                "the failed cache is retired: the backing holds everything. Stop the daemon, replace the device and \
                 `forebay format` a new cache, or serve with --no-cache"
                    .into(),
            ));
        }
    }

    fn counters(&mut self, f: &Status, now: Instant, lines: &mut Vec<Line>) {
        if let Some(n) = self.cache.rise(f.cache_errors, now) {
            lines.push(Line::Warn(format!(
                "{} of the cache failed, {} since start: check the device; clean data is read from the backing \
                 instead, dirty data that cannot be read is an I/O error for its reader",
                counted(n, "operation"),
                f.cache_errors
            )));
        }
        if let Some(n) = self.checksums.rise(f.checksum_failures, now) {
            lines.push(Line::Error(format!(
                "{} of the cache failed the checksum, {} since start: the device returns something else than was \
                 written to it; run `forebay check` on the cache and replace the device",
                counted(n, "block"),
                f.checksum_failures
            )));
        }
        if let Some(n) = self.answers.rise(f.errors, now) {
            lines.push(Line::Warn(format!(
                "{} ended with an error for the client, {} since start",
                counted(n, "request"),
                f.errors
            )));
        }
    }

    fn backing(&mut self, names: &Names, f: &Status, now: Instant, lines: &mut Vec<Line>) {
        let moved_bytes = f.bytes_to_backing + f.read_bytes_missed;
        if f.backing_errors > self.backing.seen {
            let errors_before =
                self.backing_failing.as_ref().map_or(self.backing.seen, |failing| failing.errors_before);
            self.backing_failing = Some(BackingFailing { errors_before, last_failed: now, moved_bytes });
        }
        if let Some(n) = self.backing.rise(f.backing_errors, now) {
            let waiting = match f.dirty_bytes {
                0 => String::new(),
                dirty => format!(
                    "; {} of dirty data are safe in the cache, and are tried again until it takes them",
                    size::show(dirty)
                ),
            };
            let why = why(f, names, "check the device");
            lines.push(Line::Warn(format!(
                "{} of the backing failed, {} since start: {why}{waiting}",
                counted(n, "operation"),
                f.backing_errors
            )));
        }
        let recovered = self.backing_failing.as_ref().filter(|failing| {
            let used = moved_bytes > failing.moved_bytes || f.dirty_bytes == 0;
            used && now.duration_since(failing.last_failed) >= RECOVERED_AFTER
        });
        if let Some(failing) = recovered {
            lines.push(Line::Info(format!(
                "the backing has recovered, after {} that failed",
                counted(f.backing_errors - failing.errors_before, "operation")
            )));
            self.backing_failing = None;
            self.backing.settle();
        }
    }

    /// A device below the cache that answers nothing at all fails nothing either.
    fn silence(&mut self, names: &Names, f: &Status, now: Instant, lines: &mut Vec<Line>) {
        let silent = f.ailing.as_ref();
        let silent = silent.filter(|ailing| matches!(ailing.ailment, Ailment::Silent | Ailment::Away(_)));
        // One that is slow is silent again and again.
        let recently = self.silence_told_at.is_some_and(|at| now.duration_since(at) < TELL_AGAIN_AFTER);
        match silent {
            Some(ailing) if !self.silent && !recently => {
                self.silent = true;
                self.silence_told_at = Some(now);
                let (device, name) = (below(ailing.role), &names.get(ailing.role).name);
                lines.push(Line::Warn(format!("{device} does not answer ({name}): what needs it waits")));
            }
            None if std::mem::take(&mut self.silent) => {
                lines.push(Line::Info("what did not answer has answered".into()));
            }
            _ => {}
        }
    }

    fn room(&mut self, names: &Names, f: &Status, now: Instant, lines: &mut Vec<Line>) {
        let is_full = f.state == Some(State::Full);
        let Some(full) = &mut self.full else {
            if is_full {
                let moved = (now, f.bytes_to_backing);
                self.full = Some(Full { moved, stalled: false, last_full: now });
                lines.push(Line::Warn(format!(
                    "the cache is full: writers wait for the backing to take {} of dirty data; give it a larger \
                     cache or a faster backing if this happens often",
                    size::show(f.dirty_bytes)
                )));
            }
            return;
        };
        if !is_full {
            // A cache that is filled as fast as it is emptied is full in one look and not in the next.
            if now.duration_since(full.last_full) >= TELL_AGAIN_AFTER {
                lines.push(Line::Info(format!(
                    "the cache has had room again for a minute, {} stalls",
                    f.stalls
                )));
                self.full = None;
            } else if std::mem::take(&mut full.stalled) {
                lines.push(Line::Info("writers go on: the backing takes data again".into()));
            }
            return;
        }
        full.last_full = now;
        // Retries of a failing backing count as bytes on their way, so that errors count as standing still.
        if f.bytes_to_backing > full.moved.1 && self.backing_failing.is_none() {
            full.moved = (now, f.bytes_to_backing);
            if std::mem::take(&mut full.stalled) {
                lines.push(Line::Info("writers go on: the backing takes data again".into()));
            }
        } else if !full.stalled && now.duration_since(full.moved.0) >= STALLED_AFTER {
            full.stalled = true;
            let why = why(f, names, "repair the backing");
            lines.push(Line::Error(format!(
                "the cache is full and the backing takes nothing: writers hang until it does; {why}; {} of dirty data are safe \
                 in the cache",
                size::show(f.dirty_bytes)
            )));
        }
    }
}

fn counted(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use forebay_block::{ErrorKind, IoError, OpKind};
    use forebay_engine::{Ailing, Asked, Role, Trouble as Answer};

    use super::*;

    /// A volume whose figures are looked at once a second.
    struct Watched {
        trouble: Trouble,
        figures: Status,
        now: Instant,
    }

    impl Watched {
        fn healthy() -> Self {
            let figures = Status { state: Some(State::Healthy), ..Status::default() };
            Self { trouble: Trouble::default(), figures, now: Instant::now() }
        }

        /// The lines of so many seconds in which `change` happens again and again.
        fn seconds(&mut self, seconds: u64, mut change: impl FnMut(&mut Status)) -> Vec<Line> {
            let mut lines = Vec::new();
            for _ in 0..seconds {
                self.now += Duration::from_secs(1);
                change(&mut self.figures);
                lines.extend(self.trouble.lines(&Names::of_a_test(), &self.figures, self.now));
            }
            lines
        }
    }

    fn starts(line: &Line) -> (char, &str) {
        match line {
            Line::Info(t) => ('i', t),
            Line::Warn(t) => ('w', t),
            Line::Error(t) => ('e', t),
        }
    }

    #[track_caller]
    fn told(lines: &[Line], wanted: &[(char, &str)]) {
        let fits = |(line, (level, words)): (&Line, &(char, &str))| {
            let (l, text) = starts(line);
            l == *level && text.contains(words)
        };
        assert!(lines.len() == wanted.len() && lines.iter().zip(wanted).all(fits), "{lines:?}");
    }

    #[test]
    fn nothing_is_told_of_a_healthy_volume() {
        let mut v = Watched::healthy();
        let busy = |f: &mut Status| {
            f.writes += 100;
            f.bytes_to_backing += 1 << 20;
            f.dirty_bytes = 1 << 20;
        };
        told(&v.seconds(1000, busy), &[]);
    }

    #[test]
    fn that_another_host_has_the_backing_is_told_once_and_nothing_else_any_more() {
        let mut v = Watched::healthy();
        let fenced = |f: &mut Status| {
            f.state = Some(State::Fenced);
            f.backing_errors += 7;
            f.errors += 7;
            f.dirty_bytes = 8192;
        };
        told(&v.seconds(300, fenced), &[('e', "another host has taken the backing over")]);
    }

    #[test]
    fn a_failing_backing_is_told_once_a_minute_and_its_recovery_once() {
        let mut v = Watched::healthy();
        v.figures.dirty_bytes = 4096;
        let lines = v.seconds(130, |f| f.backing_errors += 7);
        told(
            &lines,
            &[
                ('w', "7 operations of the backing failed, 7 since"),
                ('w', "420 operations of the backing failed, 427 since"),
                ('w', "420 operations"),
            ],
        );
        told(&v.seconds(300, |_| ()), &[('w', "63 operations")]);
        told(&v.seconds(5, |f| f.bytes_to_backing += 1), &[('i', "recovered, after 910 operations")]);
        told(
            &v.seconds(1, |f| f.backing_errors += 1),
            &[('w', "1 operation of the backing failed, 911 since")],
        );
    }

    #[test]
    fn a_failing_backing_is_told_with_its_cause_its_place_and_a_remedy() {
        let answer = |errno, role| {
            let error = IoError::of_system(errno, "writing to a device", Some(8192));
            Answer {
                asked: Asked { role, kind: OpKind::Write, offset: Some(8192), len: 4096 },
                kind: error.kind,
                context: error.context,
                cause: error.cause,
            }
        };
        for (errno, words, remedy) in [
            (28, "no space left on the device", "goes on by itself"),
            (122, "the disk quota is used up", "raise it or make room"),
            (27, "the file may not become so large", "LimitFSIZE"),
            (19, "the device is gone", "bring it back"),
            (116, "stale file handle", "bring it back"),
            (5, "input/output error", "check the device"),
        ] {
            let mut v = Watched::healthy();
            let lines = v.seconds(1, |f| {
                f.backing_errors = 1;
                let ailment = Ailment::Failing(answer(errno, Role::Backing));
                f.ailing = Some(Ailing { role: Role::Backing, ailment, since_ns: 0 });
            });
            let place = "the backing: writing to a device at byte 8192: ";
            for part in [words, remedy, place, " (/dev/slow: "] {
                told(&lines, &[('w', part)]);
            }
        }
    }

    #[test]
    fn a_backing_between_two_tries_has_not_recovered() {
        let mut v = Watched::healthy();
        v.figures.dirty_bytes = 4096;
        let mut second = 0;
        let lines = v.seconds(50, |f| {
            second += 1;
            f.bytes_to_backing += 4096;
            f.backing_errors += u64::from(second % 6 == 1);
        });
        told(&lines, &[('w', "1 operation")]);
    }

    #[test]
    fn a_cache_that_latches_is_told_in_both_its_stages() {
        let mut v = Watched::healthy();
        let asked = Asked { role: Role::Cache, kind: OpKind::Flush, offset: None, len: 0 };
        let trouble = Answer { asked, kind: ErrorKind::Io, context: "a test", cause: None };
        let lines = v.seconds(3, |f| {
            f.state = Some(State::Degraded);
            f.cache_trouble = Some(trouble.clone());
            (f.dirty_bytes, f.cached_bytes, f.cache_errors) = (8192, 12288, 1);
        });
        told(&lines, &[('e', "8 KiB of dirty data"), ('w', "1 operation of the cache")]);
        told(
            &lines[..1],
            &[('e', "a durable write (/dev/fast: flush: a test: input/output error): nothing more")],
        );
        told(&v.seconds(3, |f| f.dirty_bytes = 0), &[]);
        told(&v.seconds(3, |f| f.cached_bytes = 0), &[('w', "retired")]);
    }

    #[test]
    fn bad_blocks_and_errors_for_clients_are_told_with_their_number() {
        let mut v = Watched::healthy();
        let lines =
            v.seconds(10, |f| (f.checksum_failures, f.errors) = (f.checksum_failures + 2, f.errors + 1));
        told(&lines, &[('e', "2 blocks"), ('w', "1 request ended")]);
        told(&v.seconds(60, |_| ()), &[('e', "18 blocks"), ('w', "9 requests ended")]);
        told(&v.seconds(600, |_| ()), &[]);
    }

    #[test]
    fn a_backing_that_is_silent_is_told_and_a_slow_one_not_each_time() {
        let mut v = Watched::healthy();
        let silent =
            Some(Ailing { role: forebay_engine::Role::Backing, ailment: Ailment::Silent, since_ns: 0 });
        told(
            &v.seconds(5, |f| f.ailing = silent.clone()),
            &[('w', "the backing does not answer (/dev/slow)")],
        );
        told(&v.seconds(1, |f| f.ailing = None), &[('i', "has answered")]);
        let mut second = 0;
        let lines = v.seconds(50, |f| {
            second += 1;
            f.ailing = silent.clone().filter(|_| second % 3 == 0);
        });
        told(&lines, &[]);
        told(&v.seconds(20, |f| f.ailing = silent.clone()), &[('w', "does not answer")]);
    }

    #[test]
    fn a_full_cache_that_empties_is_told_once() {
        let mut v = Watched::healthy();
        let mut second = 0;
        let lines = v.seconds(100, |f| {
            second += 1;
            f.state = Some(if second % 3 == 0 { State::Healthy } else { State::Full });
            f.bytes_to_backing += 1;
        });
        told(&lines, &[('w', "full: writers wait")]);
        told(&v.seconds(70, |f| f.state = Some(State::Healthy)), &[('i', "has had room")]);
    }

    #[test]
    fn a_full_cache_whose_backing_takes_nothing_is_stalled() {
        let mut v = Watched::healthy();
        v.figures.state = Some(State::Full);
        told(&v.seconds(100, |_| ()), &[('w', "full: writers wait"), ('e', "takes nothing")]);
        told(&v.seconds(1, |f| f.bytes_to_backing += 1), &[('i', "writers go on")]);
        let failing = |f: &mut Status| {
            f.backing_errors += 1;
            f.bytes_to_backing += 4096;
        };
        told(&v.seconds(15, failing), &[('w', "of the backing failed"), ('e', "takes nothing")]);
    }
}
