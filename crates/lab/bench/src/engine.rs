//! `forebay bench engine`: what a write costs the engine in processor time, without devices, as the cache, the volume, what is dirty
//! and what is under way grow.

use forebay_policy::WritePolicy;

use crate::conditions::counted;
use crate::report::{Report, median};
use crate::{BenchError, Options};

mod world;

use world::{Load, World};

const GIB: u64 = 1 << 30;
/// The name of a size in figures, and its bytes.
type Size = (&'static str, u64);
const SMALLEST_VOLUME: Size = ("1_gib", GIB);
const LARGEST_VOLUME: Size = ("16_tib", GIB << 14);
/// The write policy where another thing is varied: the default.
const BASE_POLICY: &str = "write_back";
/// The volume where another thing is varied.
const VOLUME_BYTES: u64 = GIB << 6;

/// What is measured, and how often.
struct Plan {
    rounds: u32,
    /// Numbers of clean segments for each write policy.
    segments: &'static [u32],
    /// Clean segments where another thing is varied.
    base_segments: u32,
    volumes: &'static [Size],
    dirty_percents: &'static [u64],
    outstanding: &'static [u64],
}

impl Plan {
    fn new(options: &Options) -> Self {
        let plan = match options.quick {
            true => Self {
                rounds: 5,
                segments: &[512, 16_384],
                base_segments: 512,
                volumes: &[SMALLEST_VOLUME, LARGEST_VOLUME],
                dirty_percents: &[0, 50],
                outstanding: &[1, 128],
            },
            false => Self {
                rounds: 50,
                segments: &[512, 4096, 16_384, 60_000],
                base_segments: 16_384,
                volumes: &[SMALLEST_VOLUME, ("64_gib", VOLUME_BYTES), ("1_tib", GIB << 10), LARGEST_VOLUME],
                dirty_percents: &[0, 25, 50],
                outstanding: &[1, 16, 128],
            },
        };
        Self { rounds: options.rounds.unwrap_or(plan.rounds), ..plan }
    }
}

/// One measurement: some segments full, a small part of the smallest cache.
const LOAD: Load = Load { writes: 256, outstanding: 1, destage: true };
/// The same where the backing rests: what is dirty is to stay about as much as it is, for all rounds.
const LOAD_DIRTY: Load = Load { writes: 32, outstanding: 1, destage: false };

/// What the figures are, for who has the report alone.
const MEANINGS: &[&str] = &[
    "The engine runs in this process, in virtual time. Its devices answer at once and keep nothing: what they cost is in the figures, and little.",
    "cpu_ns: processor time of the engine's thread for each write of 4 KiB, in nanoseconds, by the system's clock of the thread.",
    "clean_segments: the cache is full of so many segments of 64 KiB, all clean. Everything is destaged after each 256 writes, and that is in the figure.",
    "volume, outstanding: the same with a volume of that size, or so many writes under way. dirty: the backing does not answer, and so much percent of \
     what is cached is dirty.",
    "X_of_Y: the processor time of X against that of Y, measured in turn.",
];

/// Runs it and returns the figures.
///
/// # Errors
/// [`BenchError`]; also if the engine does not do what is to be measured.
pub fn engine(options: &Options) -> Result<Report, BenchError> {
    options.check_loads(&[])?;
    if options.seconds.is_some() {
        return Err(BenchError::Forebay(
            "this benchmark measures a number of writes, not a time: give --rounds instead of --seconds"
                .into(),
        ));
    }
    measured(options, &Plan::new(options))
}

fn measured(options: &Options, plan: &Plan) -> Result<Report, BenchError> {
    let mut report = Report {
        name: "engine",
        title: "Processor time of the engine for each write of 4 KiB, without devices, in turn in one run"
            .into(),
        notes: MEANINGS.iter().map(|text| (*text).to_owned()).collect(),
        tables: vec![(
            "Measured, and against the first of its kind".into(),
            ["what", "cpu_ns", "ratio"].map(str::to_owned).to_vec(),
            Vec::new(),
        )],
        ..Report::default()
    };
    segments(options, plan, &mut report)?;
    volumes(options, plan, &mut report)?;
    dirty(options, plan, &mut report)?;
    outstanding(options, plan, &mut report)?;
    let medians = if plan.rounds > 1 { ", medians" } else { "" };
    let how = format!("{} of {} writes{medians}", counted(plan.rounds.into(), "round"), LOAD.writes);
    Ok(report.under_conditions(options, how))
}

fn segments(options: &Options, plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
    let worlds = plan.segments.iter().map(|count| World::new(options, *count, VOLUME_BYTES));
    let mut worlds = worlds.collect::<Result<Vec<_>, _>>()?;
    let labels: Vec<String> = plan.segments.iter().map(u32::to_string).collect();
    for policy in WritePolicy::ALL {
        for world in &mut worlds {
            world.set_policy(*policy)?;
            world.measure(LOAD)?;
        }
        let times = in_turn(options, plan.rounds, worlds.len(), |n| worlds[n].measure(LOAD))?;
        add(report, &policy.as_str().replace('-', "_"), &labels, "clean_segments", &times);
    }
    Ok(())
}

fn volumes(options: &Options, plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
    let worlds = plan.volumes.iter().map(|(_, bytes)| World::new(options, plan.base_segments, *bytes));
    let mut worlds = worlds.collect::<Result<Vec<_>, _>>()?;
    let labels: Vec<&str> = plan.volumes.iter().map(|(name, _)| *name).collect();
    let times = in_turn(options, plan.rounds, worlds.len(), |n| worlds[n].measure(LOAD))?;
    add(report, BASE_POLICY, &labels, "volume", &times);
    Ok(())
}

fn dirty(options: &Options, plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
    let mut worlds = Vec::new();
    for percent in plan.dirty_percents {
        let mut world = World::new(options, plan.base_segments, VOLUME_BYTES)?;
        world.soil(*percent)?;
        worlds.push(world);
    }
    let labels: Vec<String> = plan.dirty_percents.iter().map(u64::to_string).collect();
    let times = in_turn(options, plan.rounds, worlds.len(), |n| worlds[n].measure(LOAD_DIRTY))?;
    add(report, BASE_POLICY, &labels, "percent_dirty", &times);
    Ok(())
}

fn outstanding(options: &Options, plan: &Plan, report: &mut Report) -> Result<(), BenchError> {
    let mut world = World::new(options, plan.base_segments, VOLUME_BYTES)?;
    let labels: Vec<String> = plan.outstanding.iter().map(u64::to_string).collect();
    let times = in_turn(options, plan.rounds, labels.len(), |n| {
        world.measure(Load { outstanding: plan.outstanding[n], ..LOAD })
    })?;
    add(report, BASE_POLICY, &labels, "outstanding", &times);
    Ok(())
}

/// Measures each of so many in turn, round by round; the median of each.
fn in_turn(
    options: &Options,
    rounds: u32,
    count: usize,
    mut measure: impl FnMut(usize) -> Result<f64, BenchError>,
) -> Result<Vec<f64>, BenchError> {
    let mut times = vec![Vec::new(); count];
    for _ in 0..rounds {
        for (n, times) in times.iter_mut().enumerate() {
            options.go_on()?;
            times.push(measure(n)?);
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// Adds what was measured of one kind: `PREFIX_LABEL_KIND` in nanoseconds, and its ratio to the first.
fn add(report: &mut Report, prefix: &str, labels: &[impl AsRef<str>], kind: &str, times: &[f64]) {
    let (Some(first), Some(first_time)) = (labels.first(), times.first()) else { return };
    let mut bars = Vec::new();
    for (label, time) in labels.iter().zip(times) {
        let name = format!("{prefix}_{}_{kind}", label.as_ref());
        let is_first = label.as_ref() == first.as_ref();
        let ratio = (!is_first && *first_time > 0.0).then(|| time / first_time);
        if let Some(ratio) = ratio {
            report.figures.insert(format!("{name}_of_{}", first.as_ref()), ratio);
        }
        report.measured.insert(format!("{name}_cpu_ns"), *time);
        let said = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        if let Some((_, _, rows)) = report.tables.first_mut() {
            rows.push(vec![name, format!("{time:.0}"), said]);
        }
        bars.push((label.as_ref().to_owned(), *time));
    }
    report.charts.push((format!("{prefix}, {kind}: nanoseconds for each write"), bars));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::Contest;
    use crate::report::Figures;

    fn options() -> Options {
        Options {
            quick: true,
            scratch: PathBuf::from("/nonexistent/scratch"),
            rounds: None,
            seconds: None,
            loads: Vec::new(),
            contenders: Vec::new(),
            backing_model: None,
            contest: Contest::default(),
            forebay: PathBuf::new(),
            stopped: Arc::default(),
        }
    }

    #[test]
    fn every_kind_is_measured_of_an_engine_that_does_what_is_asked() {
        let plan = Plan {
            rounds: 2,
            segments: &[512, 1024],
            base_segments: 512,
            volumes: &[SMALLEST_VOLUME, LARGEST_VOLUME],
            dirty_percents: &[0, 50],
            outstanding: &[1, 128],
        };
        let report = measured(&options(), &plan).unwrap();
        let names: Vec<&str> = report.figures.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "journaled_1024_clean_segments_of_512",
                "ordered_1024_clean_segments_of_512",
                "write_back_1024_clean_segments_of_512",
                "write_back_128_outstanding_of_1",
                "write_back_16_tib_volume_of_1_gib",
                "write_back_50_percent_dirty_of_0",
                "write_through_1024_clean_segments_of_512",
            ]
        );
        assert!(report.figures.values().chain(report.measured.values()).all(|value| *value > 0.0));
        assert_eq!((report.measured.len(), report.tables[0].2.len()), (14, 14));
        println!("{}", report.text());
    }

    #[test]
    fn it_ends_when_it_is_told_to_and_takes_no_time_for_a_number() {
        let stopped = Options { stopped: Arc::new(AtomicBool::new(true)), ..options() };
        assert!(matches!(engine(&stopped), Err(BenchError::Stopped)));
        let timed = engine(&Options { seconds: Some(1), ..options() });
        assert!(timed.unwrap_err().to_string().contains("--rounds"));
    }

    #[test]
    fn what_was_measured_stands_beside_its_ratio_to_the_first() {
        let mut report = Report { tables: vec![Default::default()], ..Report::default() };
        add(&mut report, "ordered", &["512", "16384"], "clean_segments", &[2000.0, 2500.0]);
        assert_eq!(report.figures, Figures::from([("ordered_16384_clean_segments_of_512".into(), 1.25)]));
        assert_eq!(report.measured["ordered_512_clean_segments_cpu_ns"], 2000.0);
        assert_eq!(report.measured["ordered_16384_clean_segments_cpu_ns"], 2500.0);
        assert_eq!(report.tables[0].2[1], ["ordered_16384_clean_segments", "2500", "1.25"]);
    }
}
