//! Crashes at random instants of a recorded run: both devices are rebuilt as the crash could have left them, `forebay`
//! is started on them, everything is read, and every sector must hold what had been promised at that instant.
//!
//! ```text
//!  record ── replay to instant N ──► images ──► forebay serve ──► read all ──► (flush ──► backing alone)
//!  acks ──── history up to N ──────────────────────────────────────► judge ──────────────────► judge
//! ```
//!
//! Now and then the run on the images is recorded, too, and cut at instants of its own: in recovery, and behind it,
//! where whatever has been read must stay.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_record::{Bases, Cause, Fate, Reader, Replay, Role, VolumeCrash, monotonic_ns};
use serde::Serialize;

use crate::acks::Acks;
use crate::daemon::Daemon;
use crate::expectation::Expectation;
use crate::history::{History, Promise};
use crate::random::{Random, mix};
use crate::report::Report;
use crate::state::State;
use crate::target::TargetSpec;
use crate::verify::{VerifyOptions, verify};

/// Violations that are described one by one; more are only counted.
const TOLD_MAX: usize = 10;
/// One crash in so many is a kill, the others are power cuts.
const KILL_ONE_IN: u64 = 3;
/// After one recovery in so many everything is destaged, and the backing alone is judged.
const DESTAGE_ONE_IN: u64 = 4;
/// Crashes of a recovery that is recorded.
const CRASHES_OF_A_RECOVERY: u64 = 2;
/// Entries at the end of the record of a recovery that are of special interest.
const TAIL: u64 = 6;
/// A device that lies loses one settled operation in so many.
const LIE_EVERY: u64 = 16;

/// What is crashed, and how often.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// The binary under test.
    pub forebay: PathBuf,
    /// What it is given besides the devices.
    pub flags: Vec<String>,
    /// The record of the run.
    pub record: PathBuf,
    /// The cache as it was before the run.
    pub cache: PathBuf,
    /// The backing as it was before the run; its label is in a file beside it.
    pub backing: PathBuf,
    /// What was known of the volume before the run; `None` if it was blank.
    pub before: Option<PathBuf>,
    /// The run before, from whose end this one has gone on: a directory with its `record`, its devices from before it
    /// (`cache`, `backing` and the label beside it), its `acks`, and the `state` from before it unless the volume was
    /// blank. What it left without a flush may still be lost in this run. `None`: nothing was.
    pub after: Option<PathBuf>,
    /// Acknowledgements that were noted in the run.
    pub acks: Vec<PathBuf>,
    /// What they are worth.
    pub promise: Promise,
    /// How many crashes.
    pub crashes: u64,
    /// One recovery in so many is crashed again; 0 for none.
    pub again_one_in: u64,
    /// Start of the pseudo-random sequence.
    pub seed: u64,
    /// Where images are made; it is emptied.
    pub scratch: PathBuf,
    /// This device loses what was durable: the judge must notice.
    pub liar: Option<Role>,
    /// No answer within this time is an error.
    pub patience: Duration,
}

/// Outcome of many crashes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CrashReport {
    /// Entries of the record: instants to choose from.
    pub instants: u64,
    /// Power cuts, those of recoveries included.
    pub power_cuts: u64,
    /// Kills, those of recoveries included.
    pub kills: u64,
    /// Those of the above that hit a recovery, or what came after it.
    pub crashes_again: u64,
    /// Those at which the outcome of some operation was open.
    pub crashes_with_open_operations: u64,
    /// Most operations whose outcome was open at a time.
    pub open_operations_max: u64,
    /// Backings that were judged without their cache after everything had been destaged.
    pub backings_alone: u64,
    /// Operations that were started while another on the same sectors was under way.
    pub overlaps: u64,
    /// Sectors that were read and compared.
    pub sectors_compared: u64,
    /// Crashes after which a promise was broken.
    pub violations: u64,
    /// What is wrong, in words.
    #[serde(skip)]
    pub told: Vec<String>,
}

/// One crash of a run.
struct Planned {
    instant: u64,
    crash: VolumeCrash,
    again: bool,
    destage: bool,
}

/// What the sectors may hold after either crash.
struct Allowed<'a> {
    kill: &'a Expectation,
    power_cut: &'a Expectation,
}

impl Allowed<'_> {
    fn after(&self, cause: Cause) -> &Expectation {
        match cause {
            Cause::Kill => self.kill,
            Cause::PowerCut => self.power_cut,
        }
    }
}

/// When things were asked of a volume that had come back from a crash, in nanoseconds of the monotonic clock.
struct Served {
    /// Everything had been read.
    read_ns: u64,
    /// A flush that was issued later had been acknowledged.
    flushed_ns: u64,
}

/// A run of the volume that can be crashed anywhere.
struct Run {
    replay: Replay,
    name: String,
}

/// Crashes the run that was recorded again and again.
///
/// # Errors
/// What hinders the test; broken promises are in the report.
pub fn crashes(options: &CrashOptions) -> io::Result<CrashReport> {
    let mut judge = Judge::new(options)?;
    let mut history = judge.history()?;
    let instants = Reader::open(&options.record)?.count()?;
    judge.report.instants = instants;
    let mut run =
        Run { replay: first_replay(options)?, name: format!("record {}", options.record.display()) };
    if let Some(role) = options.liar {
        run.replay.disk_mut(role).lie(LIE_EVERY);
    }
    for planned in judge.plan(instants) {
        run.replay.go_to(planned.instant)?;
        history.go_to(run.replay.known_before_ns());
        let allowed = Allowed { kill: history.after_kill(), power_cut: history.after_power_cut() };
        judge.crash(&run, &planned, &allowed)?;
    }
    run.replay.go_to(instants)?;
    judge.report.overlaps =
        [Role::Cache, Role::Backing].iter().map(|role| run.replay.disk(*role).overlaps()).sum();
    Ok(judge.report)
}

/// The replay of the run at its beginning.
fn first_replay(options: &CrashOptions) -> io::Result<Replay> {
    let bases_now = bases(&options.cache, &options.backing);
    let Some(before) = &options.after else {
        return Replay::open(&options.record, &bases_now);
    };
    let earlier = bases(&before.join("cache"), &before.join("backing"));
    let mut replay = Replay::open(&before.join("record"), &earlier)?;
    replay.go_to(u64::MAX)?;
    replay.continued(&options.record, &bases_now)
}

/// The images that a run began with; label and journal lie beside the backing.
pub fn bases(cache: &Path, backing: &Path) -> Bases {
    let beside = |suffix: &str| {
        let mut path = backing.as_os_str().to_owned();
        path.push(suffix);
        path.into()
    };
    let (label, journal) = (beside(".forebay"), beside(".journal"));
    Bases { cache: Some(cache.to_owned()), backing: backing.to_owned(), label, journal }
}

/// Builds, starts, reads and judges.
struct Judge<'a> {
    options: &'a CrashOptions,
    /// The volume before the run.
    before: State,
    /// The volume before the first run of which the acknowledgements are known.
    earlier: State,
    random: Random,
    report: CrashReport,
}

impl<'a> Judge<'a> {
    fn new(options: &'a CrashOptions) -> io::Result<Self> {
        let Some(first) = options.acks.first() else {
            return Err(io::Error::other("a run without acknowledgements promises nothing"));
        };
        let acks = Acks::load(first)?;
        let before = match &options.before {
            Some(path) => State::load(path)?
                .ok_or_else(|| io::Error::other(format!("there is no state {}", path.display())))?,
            None => State::blank(acks.volume, acks.sectors),
        };
        let earlier = match &options.after {
            Some(run) => {
                State::load(&run.join("state"))?.unwrap_or_else(|| State::blank(acks.volume, acks.sectors))
            }
            None => before.clone(),
        };
        if (before.volume, before.expectation.sectors()) != (acks.volume, acks.sectors) {
            return Err(io::Error::other("state and acknowledgements are of different volumes"));
        }
        if (earlier.volume, earlier.expectation.sectors()) != (acks.volume, acks.sectors) {
            return Err(io::Error::other("the run before is one of another volume"));
        }
        let random = Random::new(mix(options.seed));
        Ok(Self { options, before, earlier, random, report: CrashReport::default() })
    }

    fn history(&self) -> io::Result<History> {
        let mut requests = Vec::new();
        let earlier = self.options.after.iter().map(|run| run.join("acks"));
        for path in earlier.chain(self.options.acks.iter().cloned()) {
            requests.extend(Acks::load(&path)?.requests);
        }
        Ok(History::new(self.options.promise, self.earlier.expectation.clone(), requests))
    }

    /// Crashes in the order of their instants.
    fn plan(&mut self, instants: u64) -> Vec<Planned> {
        let again_one_in = self.options.again_one_in;
        let mut plan: Vec<Planned> = (0..self.options.crashes)
            .map(|_| Planned {
                instant: self.random.below(instants + 1),
                crash: self.choose_crash(),
                again: again_one_in > 0 && self.random.one_in(again_one_in),
                destage: self.random.one_in(DESTAGE_ONE_IN),
            })
            .collect();
        plan.sort_by_key(|planned| planned.instant);
        plan
    }

    fn choose_crash(&mut self) -> VolumeCrash {
        let cause = if self.random.one_in(KILL_ONE_IN) { Cause::Kill } else { Cause::PowerCut };
        let mut fate = || Fate::ALL[self.random.below(Fate::ALL.len() as u64) as usize];
        VolumeCrash { cause, cache: fate(), backing: fate(), seed: self.random.next() }
    }

    /// One crash, and what follows from it.
    fn crash(&mut self, run: &Run, planned: &Planned, allowed: &Allowed<'_>) -> io::Result<()> {
        let work = self.build(run, planned, "crashed")?;
        self.count(run, planned);
        let what = format!("{}: instant {}, {}", run.name, run.replay.instant(), planned.crash);
        let first = planned.crash;
        let mut state = State { expectation: allowed.after(first.cause).clone(), ..self.before.clone() };
        let record = work.join("record");
        let mut flags = self.options.flags.clone();
        if planned.again {
            for role in ["cache", "backing"] {
                flags.extend(["--decorate".to_owned(), format!("{role}:record:file=record")]);
            }
        }
        let Some(served) = self.serve(&what, &work, &flags, planned.destage, &mut state)? else {
            return Ok(());
        };
        if !planned.again {
            return Ok(());
        }
        let instants = Reader::open(&record)?.count()?;
        for _ in 0..CRASHES_OF_A_RECOVERY {
            let mut run =
                Run { replay: run.replay.after(first, &record)?, name: format!("{what}; recovery") };
            // Half of them near the end, where everything has been read and flushed.
            let from = if self.random.one_in(2) { instants.saturating_sub(TAIL) } else { 0 };
            let planned = Planned {
                instant: from + self.random.below(instants + 1 - from),
                crash: self.choose_crash(),
                again: false,
                destage: self.random.one_in(DESTAGE_ONE_IN),
            };
            run.replay.go_to(planned.instant)?;
            let known_ns = run.replay.known_before_ns();
            // What a power cut has left is on the medium, and so is what a flush covers. What was read after a kill is
            // there after another one. What was read only in part is what it was before.
            let stays = match (first.cause, planned.crash.cause) {
                (Cause::Kill, Cause::PowerCut) => known_ns > served.flushed_ns,
                _ => known_ns > served.read_ns,
            };
            let allowed = match first.cause {
                _ if stays => &state.expectation,
                Cause::Kill => allowed.after(planned.crash.cause),
                Cause::PowerCut => allowed.power_cut,
            };
            self.report.crashes_again += 1;
            self.crash_again(&run, &planned, allowed)?;
        }
        Ok(())
    }

    fn crash_again(&mut self, run: &Run, planned: &Planned, allowed: &Expectation) -> io::Result<()> {
        let work = self.build(run, planned, "again")?;
        self.count(run, planned);
        let what = format!("{}: instant {}, {}", run.name, run.replay.instant(), planned.crash);
        let mut state = State { expectation: allowed.clone(), ..self.before.clone() };
        let flags = self.options.flags.clone();
        self.serve(&what, &work, &flags, planned.destage, &mut state).map(drop)
    }

    fn count(&mut self, run: &Run, planned: &Planned) {
        match planned.crash.cause {
            Cause::Kill => self.report.kills += 1,
            Cause::PowerCut => self.report.power_cuts += 1,
        }
        let open: usize = Role::ALL.iter().map(|role| run.replay.disk(*role).pending_count()).sum();
        self.report.crashes_with_open_operations += u64::from(open > 0);
        self.report.open_operations_max = self.report.open_operations_max.max(open as u64);
    }

    /// Makes the images of a crash in a directory of the scratch space.
    fn build(&self, run: &Run, planned: &Planned, name: &str) -> io::Result<PathBuf> {
        let directory = self.options.scratch.join(name);
        match fs::remove_dir_all(&directory) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => fs::create_dir_all(&directory)?,
        }
        rebuild(&run.replay, planned.crash, &directory)?;
        Ok(directory)
    }

    /// Serves the images, compares everything and flushes. `None` after a violation.
    fn serve(
        &mut self,
        what: &str,
        directory: &Path,
        flags: &[String],
        destage: bool,
        state: &mut State,
    ) -> io::Result<Option<Served>> {
        let patience = self.options.patience;
        let mut daemon = match Daemon::start(&self.options.forebay, directory, flags, patience) {
            Ok(daemon) => daemon,
            Err(e) => {
                self.violated(format!("{what}: {e}"));
                return Ok(None);
            }
        };
        let through_forebay = self.read(daemon.target(), state)?;
        let read_ns = monotonic_ns();
        if !self.is_right(what, &through_forebay) {
            return Ok(None);
        }
        if let Err(e) = daemon.target().open(patience)?.flush() {
            self.violated(format!("{what}: everything was read, but a flush failed: {e}"));
            return Ok(None);
        }
        let flushed_ns = monotonic_ns();
        if destage {
            if let Err(e) = daemon.flush() {
                self.violated(format!("{what}: everything was read, but not destaged: {e}"));
                return Ok(None);
            }
            daemon.kill()?;
            let alone = self.read(TargetSpec::File(directory.join("backing")), &mut state.clone())?;
            self.report.backings_alone += 1;
            if !self.is_right(&format!("{what}; the backing alone, destaged"), &alone) {
                return Ok(None);
            }
        }
        daemon.kill()?;
        Ok(Some(Served { read_ns, flushed_ns }))
    }

    fn read(&self, target: TargetSpec, state: &mut State) -> io::Result<Report> {
        let patience = self.options.patience;
        verify(&VerifyOptions { target, allowed: Vec::new(), quiet: true, patience }, state)
    }

    fn is_right(&mut self, what: &str, found: &Report) -> bool {
        self.report.sectors_compared += found.sectors_compared;
        let right = found.is_right() && !found.lost;
        if !right {
            let more = if found.lost { " (the volume went away)" } else { "" };
            self.violated(format!(
                "{what}: {} sectors are wrong{more}: {}",
                found.sectors_wrong,
                found.told.join("; ")
            ));
        }
        right
    }

    fn violated(&mut self, what: String) {
        self.report.violations += 1;
        if self.report.told.len() < TOLD_MAX {
            self.report.told.push(what);
        }
    }
}

/// Writes the images `cache`, `backing`, `backing.forebay` and `backing.journal` that a crash at the replay's instant leaves.
///
/// # Errors
/// As the system gives them.
pub fn rebuild(replay: &Replay, crash: VolumeCrash, directory: &Path) -> io::Result<()> {
    let names = ["cache", "backing", "backing.forebay", "backing.journal"];
    for (role, name) in Role::ALL.into_iter().zip(names) {
        let disk = replay.disk(role);
        if disk.size_bytes() > 0 {
            disk.survivor(crash.of(role)).write_to(&directory.join(name))?;
        }
    }
    Ok(())
}
