//! What the campaigns of admission share: who is compared, what is known of each, and the page that shows it beside ATC'15.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_control::{ExplainRow, Explanation, WaitRow};
use forebay_policy::Admission;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::plot::Plot;
use crate::report::{Figures, Table, median};
use crate::site::{Emulated, Site};
use crate::{BenchError, Options};

/// The one that the others are compared with, as in the paper.
pub(crate) const BASE: Admission = Admission::All;

/// The paper's SSD has no power-loss protection, and its volatile write cache was turned off (section 7.1).
pub(crate) const FLASH: &str = "ssd-sata,plp=no";
/// The paper's disks had 10,000 turns a minute, and their volatile write cache was turned off (section 7.1).
pub(crate) const DISK: &str = "hdd-10k,write-cache=no";

/// Who is compared, how often, for how long, and on what.
pub(crate) struct Contest {
    pub(crate) contenders: Vec<Contender>,
    /// Bytes of the cache, from scarce to sufficient; none if they differ by load.
    pub(crate) sizes: Vec<u64>,
    pub(crate) rounds: u32,
    pub(crate) warm: Duration,
    pub(crate) time: Duration,
    pub(crate) backing: Emulated,
    with: Vec<(String, String)>,
    /// Further settings of the database.
    pub(crate) settings: Vec<(String, String)>,
}

/// A benchmark's own answers.
pub(crate) struct Own {
    pub(crate) admissions: Vec<Admission>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) rounds: u32,
    pub(crate) warm_seconds: u64,
    pub(crate) seconds: u64,
}

impl Contest {
    /// What was asked for, and the benchmark's own answers for the rest.
    pub(crate) fn new(options: &Options, own: Own) -> Self {
        let asked = &options.contest;
        let contender = |admission: &Option<Admission>| admission.map_or(Contender::NO_CACHE, Contender::of);
        let contenders = match asked.policies.as_slice() {
            [] => own.admissions.iter().copied().map(Contender::of).chain([Contender::NO_CACHE]).collect(),
            policies => policies.iter().map(contender).collect(),
        };
        let time = Duration::from_secs(options.seconds.unwrap_or(own.seconds));
        let mut sizes = if asked.caches.is_empty() { own.sizes } else { asked.caches.clone() };
        // From scarce to sufficient, whatever the order in which they were given.
        sizes.sort_unstable();
        Self {
            contenders,
            sizes,
            rounds: options.rounds.unwrap_or(own.rounds),
            warm: Duration::from_secs(own.warm_seconds).min(time),
            time,
            backing: Emulated::new(options.backing_model.as_deref().unwrap_or(DISK)),
            with: asked.with.clone(),
            settings: asked.settings.clone(),
        }
    }

    /// Who is measured after whom: every other round goes through them in reverse, for what a measurement leaves behind (pages to be written
    /// back, a warm machine) shall not always be the same one's.
    pub(crate) fn in_turn(&self, round: u32) -> Vec<Contender> {
        let mut contenders = self.contenders.clone();
        if round % 2 == 1 {
            contenders.reverse();
        }
        contenders
    }

    /// What a contender's volume stands on.
    pub(crate) fn site(&self, contender: Contender, cache: Emulated, cache_bytes: u64, rules: &str) -> Site {
        let mut flags = vec![("write-policy".into(), "write-back".into()), ("rules".into(), rules.into())];
        let admission = contender.admission();
        if let Some(admission) = admission {
            flags.push(("admission".into(), admission.to_string()));
            flags.extend(self.with.iter().cloned());
        }
        Site { cache: admission.map(|_| (cache, cache_bytes)), backing: self.backing.clone(), flags }
    }
}

/// A way to admit writes, or no cache at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contender(Option<usize>);

impl Contender {
    /// The backing as it is.
    pub(crate) const NO_CACHE: Self = Self(None);

    pub(crate) fn of(admission: Admission) -> Self {
        Self(Admission::ALL.iter().position(|a| *a == admission))
    }

    pub(crate) fn admission(self) -> Option<Admission> {
        Admission::ALL.get(self.0?).copied()
    }

    /// As people call it.
    pub(crate) fn label(self) -> &'static str {
        self.admission().map_or("no cache", Admission::as_str)
    }

    /// As figures do.
    pub(crate) fn name(self) -> String {
        self.label().replace([' ', '+'], "_")
    }
}

/// What one measurement has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// The measure of the application: what it is for.
    pub(crate) rate: f64,
    /// Latencies of its requests in milliseconds: the 99th and 99.9th percentile, and the 99.99th, as far as there are enough requests.
    pub(crate) tail_ms: [Option<f64>; 3],
    /// Seconds in which nothing was answered.
    pub(crate) silent_seconds: f64,
    /// Bytes written to the cache, and requests that volume and cache carried out, a second.
    pub(crate) cache_bytes: f64,
    pub(crate) writes_per_second: f64,
    /// Times a write waited for room.
    pub(crate) stalls: f64,
    /// The writes meanwhile, as `forebay explain` has them.
    pub(crate) explain: Vec<ExplainRow>,
    /// Milliseconds that critical tasks waited meanwhile, by kind, as `forebay waits` has them.
    pub(crate) waits_ms: BTreeMap<String, f64>,
}

/// What a daemon has counted until some moment.
#[derive(Default)]
pub(crate) struct Account {
    status: Value,
    explain: Explanation,
    waits: Vec<WaitRow>,
}

impl Account {
    pub(crate) fn of(daemon: &Daemon) -> Result<Self, BenchError> {
        let strange = |e| BenchError::Forebay(format!("what the daemon has counted is not understood: {e}"));
        let explain = serde_json::from_value(daemon.json("explain")?).map_err(strange)?;
        let waits = serde_json::from_value(daemon.json("waits")?).map_err(strange)?;
        Ok(Self { status: daemon.status()?, explain, waits })
    }
}

impl Shown {
    /// With what the daemon has counted in so many seconds.
    ///
    /// # Errors
    /// If its policy could not see all that it goes by: what it has shown then is not the policy's.
    pub(crate) fn grown(self, before: &Account, after: &Account, seconds: f64) -> Result<Self, BenchError> {
        let missing: Vec<&str> = after
            .status
            .get("criticality_missing")
            .and_then(Value::as_array)
            .map_or_else(Vec::new, |all| all.iter().filter_map(Value::as_str).collect());
        if !missing.is_empty() {
            let missing = missing.join("; ");
            return Err(BenchError::Forebay(format!(
                "who waits for what cannot be followed here: {missing}"
            )));
        }
        let number =
            |account: &Account, key| account.status.get(key).and_then(Value::as_f64).unwrap_or_default();
        let grown = |key| number(after, key) - number(before, key);
        let wait_grown = |row: &WaitRow| {
            let was = before.waits.iter().find(|was| was.kind == row.kind).map_or(0, |was| was.total_us);
            (row.kind.clone(), row.total_us.saturating_sub(was) as f64 / 1000.0)
        };
        Ok(Self {
            cache_bytes: grown("bytes_to_cache"),
            writes_per_second: grown("writes") / seconds,
            stalls: grown("stalls"),
            explain: after.explain.since(&before.explain).rows,
            waits_ms: after.waits.iter().map(wait_grown).collect(),
            ..self
        })
    }
}

/// Samples that must lie beyond a percentile: with fewer it is chance.
const BEYOND_MIN: usize = 10;

/// A percentile of sorted microseconds, in milliseconds; nothing if too few samples lie beyond it.
pub(crate) fn percentile_ms(sorted_us: &[u64], per_myriad: usize) -> Option<f64> {
    if sorted_us.len() * 10_000_usize.saturating_sub(per_myriad) < BEYOND_MIN * 10_000 {
        return None;
    }
    let at = (sorted_us.len() * per_myriad).div_ceil(10_000).saturating_sub(1);
    sorted_us.get(at).map(|us| *us as f64 / 1000.0)
}

/// Milliseconds for people, of a percentile that may not be known.
pub(crate) fn shown_ms(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"))
}

/// The highest percentile that is known, in words.
pub(crate) fn highest_tail(tail_ms: &[Option<f64>; 3]) -> String {
    let known = TAILS.iter().zip(tail_ms).rev().find_map(|(name, ms)| Some((name, (*ms)?)));
    known.map_or_else(|| "too few for a percentile".to_owned(), |(name, ms)| format!("{name} in {ms:.0} ms"))
}

/// Names of the percentiles in [`Shown::tail_ms`].
const TAILS: [&str; 3] = ["99%", "99.9%", "99.99%"];

/// All that was measured, by load, bytes of the cache and contender.
#[derive(Default)]
pub(crate) struct Results(BTreeMap<(&'static str, u64, Contender), Vec<Shown>>);

impl Results {
    /// What `all` has measured, or what it had when it was told to stop: whatever is going on then may fail.
    pub(crate) fn until_stopped(
        options: &Options,
        all: impl FnOnce(&mut Self) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let mut results = Self::default();
        match all(&mut results) {
            Err(_) if options.is_stopped() && results.0.is_empty() => Err(BenchError::Stopped),
            Err(_) if options.is_stopped() => Ok(results),
            done => done.map(|()| results),
        }
    }

    pub(crate) fn add(&mut self, load: &'static str, cache_bytes: u64, contender: Contender, shown: Shown) {
        self.0.entry((load, cache_bytes, contender)).or_default().push(shown);
    }

    /// The median of a figure over the rounds, if each of them has it. What has no cache has none of any size.
    pub(crate) fn median(
        &self,
        load: &'static str,
        cache_bytes: u64,
        contender: Contender,
        figure: impl Fn(&Shown) -> Option<f64>,
    ) -> Option<f64> {
        let cache_bytes = if contender == Contender::NO_CACHE { 0 } else { cache_bytes };
        let rounds = self.0.get(&(load, cache_bytes, contender))?.iter().map(figure);
        Some(median(rounds.collect::<Option<Vec<f64>>>()?))
    }

    /// The last round's account of a contender.
    pub(crate) fn last(&self, load: &'static str, cache_bytes: u64, contender: Contender) -> Option<&Shown> {
        self.0.get(&(load, cache_bytes, contender))?.last()
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Bytes of a block.
const BLOCK_BYTES: f64 = 4096.0;

/// Application performance for each block's worth of bytes written to the cache; of what was not cached there is none.
pub(crate) fn per_cached_block(shown: &Shown) -> Option<f64> {
    (shown.cache_bytes > 0.0).then(|| shown.rate / (shown.cache_bytes / BLOCK_BYTES))
}

/// A figure that is named for each contender: its ending, how it is computed, and whether one without a cache has it.
type Named = (&'static str, fn(&Shown) -> Option<f64>, bool);

/// Figures as they are, and those that are relative to the base.
const ABSOLUTE: [Named; 5] = [
    ("p99_ms", |s| s.tail_ms[0], true),
    ("p99_9_ms", |s| s.tail_ms[1], true),
    ("p99_99_ms", |s| s.tail_ms[2], true),
    ("silent_seconds", |s| Some(s.silent_seconds), true),
    ("stalls", |s| Some(s.stalls), false),
];
const RELATIVE: [Named; 4] = [
    ("of_all", |s| Some(s.rate), true),
    ("cache_bytes_of_all", |s| Some(s.cache_bytes), false),
    ("per_cached_block_of_all", per_cached_block, false),
    ("writes_of_all", |s| Some(s.writes_per_second), true),
];
/// What the relative ones are made of.
const MEASURED: [Named; 3] = [
    ("cache_bytes", |s| Some(s.cache_bytes), false),
    ("per_cached_block", per_cached_block, false),
    ("writes_per_second", |s| Some(s.writes_per_second), true),
];

/// What the figures are, for who has the report alone.
pub(crate) fn meanings(rate: &str) -> Vec<String> {
    vec![
        "of_all: against the policy `all` with the same cache.".to_owned(),
        format!(
            "per_cached_block: {rate} for each 4 KiB written to the cache meanwhile, headers and summaries included."
        ),
        "stalls: times that a write waited for room in the cache.".to_owned(),
        format!("A percentile is there if at least {BEYOND_MIN} samples lie beyond it."),
    ]
}

/// What was measured of one load, beside what it is of `all`.
pub(crate) fn measured_table(
    results: &Results,
    (load, sizes, contenders): (&'static str, &[u64], &[Contender]),
    rate: &str,
) -> Table {
    let mut rows = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        for contender in contenders {
            let bare = *contender == Contender::NO_CACHE;
            let of = |c: Contender, figure: fn(&Shown) -> Option<f64>| results.median(load, *size, c, figure);
            let Some(value) = of(*contender, |s| Some(s.rate)).filter(|_| !bare || number == 0) else {
                continue;
            };
            let base = of(Contender::of(BASE), |s| Some(s.rate)).filter(|base| *base > 0.0);
            let known = |value: Option<f64>, digits: usize| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let cached = of(*contender, |s| Some(s.cache_bytes / f64::from(1 << 20))).filter(|_| !bare);
            rows.push(vec![
                if bare { "-".to_owned() } else { mib(*size).to_string() },
                contender.label().to_owned(),
                format!("{value:.0}"),
                known(base.map(|base| value / base), 3),
                known(cached, 1),
                known(of(*contender, per_cached_block), 3),
                known(of(*contender, |s| Some(s.writes_per_second)), 0),
                shown_ms(of(*contender, |s| s.tail_ms[0])),
            ]);
        }
    }
    let columns =
        ["cache, MiB", "policy", rate, "of all", "MiB cached", "per 4 KiB cached", "writes/s", "99%, ms"];
    (format!("{load}: measured, and against all"), columns.map(str::to_owned).to_vec(), rows)
}

/// Adds the figures of one load: `LOAD_cache_N_mib_POLICY_FIGURE`.
pub(crate) fn add_figures(
    (figures, measured): (&mut Figures, &mut Figures),
    results: &Results,
    load: &'static str,
    sizes: &[u64],
    (contenders, rate): (&[Contender], &str),
) {
    let base = Contender::of(BASE);
    for size in sizes {
        for contender in contenders {
            let name = format!("{load}_cache_{}_mib_{}", mib(*size), contender.name());
            let of = |c: Contender, figure: fn(&Shown) -> Option<f64>| results.median(load, *size, c, figure);
            let has = |(.., without): &&Named| *without || *contender != Contender::NO_CACHE;
            if let Some(value) = of(*contender, |s| Some(s.rate)) {
                figures.insert(format!("{name}_{rate}"), value);
            }
            for (ending, figure, _) in ABSOLUTE.iter().filter(has) {
                if let Some(value) = of(*contender, *figure) {
                    figures.insert(format!("{name}_{ending}"), value);
                }
            }
            for (ending, figure, _) in MEASURED.iter().filter(has) {
                if let Some(value) = of(*contender, *figure) {
                    measured.insert(format!("{name}_{ending}"), value);
                }
            }
            for (ending, figure, _) in RELATIVE.iter().filter(has) {
                if let (Some(value), Some(base_value)) = (of(*contender, *figure), of(base, *figure))
                    && base_value > 0.0
                    && *contender != base
                {
                    figures.insert(format!("{name}_{ending}"), value / base_value);
                }
            }
        }
    }
}

/// A figure of every contender over the size of the cache, of those that have it; nothing if none has.
pub(crate) fn over_sizes(
    results: &Results,
    (load, sizes, contenders): (&'static str, &[u64], &[Contender]),
    (title, y_label): (&str, &str),
    figure: fn(&Shown) -> Option<f64>,
) -> Option<Plot> {
    let line = |c: &Contender| {
        let point = |size: &u64| Some((mib(*size) as f64, results.median(load, *size, *c, figure)?));
        (c.label().to_owned(), sizes.iter().filter_map(point).collect::<Vec<_>>())
    };
    let lines: Vec<_> = contenders.iter().map(line).filter(|(_, points)| !points.is_empty()).collect();
    (!lines.is_empty()).then(|| Plot {
        title: title.to_owned(),
        x_label: "cache, MiB".into(),
        y_label: y_label.to_owned(),
        lines,
        log_x: true,
        ..Plot::default()
    })
}

/// What critical tasks waited for under each policy (Figure 5): milliseconds in all, by kind.
pub(crate) fn waits_table(
    results: &Results,
    load: &'static str,
    size: u64,
    contenders: &[Contender],
) -> Option<Table> {
    let accounts: Vec<(&Contender, &BTreeMap<String, f64>)> = contenders
        .iter()
        .filter_map(|c| Some((c, &results.last(load, size, *c)?.waits_ms)))
        .filter(|(_, waits)| !waits.is_empty())
        .collect();
    let kinds: BTreeSet<&str> =
        accounts.iter().flat_map(|(_, waits)| waits.keys()).map(String::as_str).collect();
    let mut columns = vec!["waits for".to_owned()];
    columns.extend(accounts.iter().map(|(c, _)| c.label().to_owned()));
    let lines = kinds.into_iter().map(|kind| {
        let ms = accounts.iter().map(|(_, waits)| waits.get(kind).copied().unwrap_or_default());
        [kind.to_owned()].into_iter().chain(ms.map(|ms| format!("{ms:.0}"))).collect()
    });
    let lines: Vec<Vec<String>> = lines.collect();
    let heading = format!(
        "{load}, cache {} MiB: what critical tasks waited for, ms in all (as in ATC'15, Figure 5)",
        mib(size)
    );
    (!lines.is_empty()).then_some((heading, columns, lines))
}

/// A part of the writes in an account.
#[derive(Clone, Copy)]
enum Part {
    Data(&'static str),
    Sync(bool),
    All,
}

impl Part {
    fn has(self, row: &ExplainRow) -> bool {
        match self {
            Self::Data(data) => row.data == data,
            Self::Sync(sync) => row.sync == sync,
            Self::All => true,
        }
    }
}

/// What the critical writes were (Table 3): percent of the bytes in the cache, by data, by synchrony, and by how they were known to be critical;
/// with the `paper`'s numbers, which are of PostgreSQL.
pub(crate) fn breakdown_table(
    results: &Results,
    load: &'static str,
    size: u64,
    paper: bool,
) -> Option<Table> {
    let contender = Contender::of(Admission::CpPiIoi);
    let account = &results.last(load, size, contender)?.explain;
    let bytes = |part: Part, reason: Option<&str>| {
        let fits = |row: &&ExplainRow| row.cached && part.has(row) && reason.is_none_or(|r| row.reason == r);
        account.iter().filter(fits).map(|row| row.bytes).sum::<u64>() as f64
    };
    let all = Some(bytes(Part::All, None)).filter(|all| *all > 0.0)?;
    let percent = |part, reason| bytes(part, reason) / all * 100.0;
    let line = |(label, part, of_paper): (&str, Part, &str)| {
        let shares = [Some("direct"), Some("inherited"), Some("reissued"), None].map(|r| percent(part, r));
        let mut line = vec![label.to_owned()];
        line.extend(shares.iter().map(|share| format!("{share:.3}")));
        line.extend(paper.then(|| of_paper.to_owned()));
        line
    };
    let columns =
        ["%", "CP", "PI", "IOI", "total"].into_iter().chain(paper.then_some("ATC'15: CP, PI, IOI, total"));
    let columns = columns.map(str::to_owned).collect();
    let lines = [
        ("data (database)", Part::Data("database"), "0, 0.521, 0.052, 0.572"),
        ("data (log)", Part::Data("log"), "98.741, 0.571, 0.001, 99.312"),
        ("data (other)", Part::Data("data"), ""),
        ("metadata", Part::Data("metadata"), "0, 0, 0.001, 0.001"),
        ("journal", Part::Data("journal"), "0, 0.078, 0.036, 0.114"),
        ("synchronous", Part::Sync(true), "98.741, 1.031, 0.036, 99.808"),
        ("asynchronous", Part::Sync(false), "0, 0.139, 0.054, 0.192"),
        ("total", Part::All, "98.741, 1.170, 0.089, 100"),
    ];
    let heading =
        format!("{load}, cache {} MiB: critical writes under cp+pi+ioi (as in ATC'15, Table 3)", mib(size));
    Some((heading, columns, lines.into_iter().map(line).collect()))
}

#[cfg(test)]
mod tests;
