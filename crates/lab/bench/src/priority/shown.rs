//! What was measured: of one contender in one round, and of all.

use std::collections::BTreeMap;

use forebay_control::WaitRow;
use serde_json::Value;

use super::contender::Contender;
use crate::BenchError;
use crate::daemon::Daemon;

/// The percentiles that are shown, in hundred thousandths, and their names.
pub(crate) const TAILS: [(u64, &str); 4] =
    [(99_000, "p99"), (99_900, "p99_9"), (99_990, "p99_99"), (99_999, "p99_999")];

/// What one measurement has shown, or several together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) seconds: f64,
    /// Of each request, in microseconds.
    pub(crate) latencies_us: Vec<u64>,
    /// How many of these were under way when the seconds were over.
    pub(crate) late: u64,
    /// Seconds that each task in the background took which ended meanwhile, by what it was.
    pub(crate) background: BTreeMap<&'static str, Vec<f64>>,
    /// Milliseconds that critical tasks waited meanwhile, by kind, as `forebay waits` has them.
    pub(crate) waits_ms: BTreeMap<String, f64>,
    /// What the neighbour has on the drive of what it wrote.
    pub(crate) neighbour_bytes_per_second: f64,
}

impl Slice {
    /// Requests that ended within the time, a second.
    pub(crate) fn per_second(&self) -> f64 {
        (self.latencies_us.len() as u64).saturating_sub(self.late) as f64
            / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// A percentile in milliseconds: the least that at least so many requests did not exceed. Of fewer requests than a percentile is of, it is the
    /// longest. `latencies_us` is sorted.
    pub(crate) fn percentile_ms(&self, of_100_000: u64) -> Option<f64> {
        let at = (self.latencies_us.len() as u64 * of_100_000).div_ceil(100_000).checked_sub(1)?;
        self.latencies_us.get(at as usize).map(|us| *us as f64 / 1000.0)
    }

    /// Seconds that a task in the background took on average.
    pub(crate) fn background_seconds(&self, what: &str) -> Option<f64> {
        let took = self.background.get(what).filter(|took| !took.is_empty())?;
        Some(took.iter().sum::<f64>() / took.len() as f64)
    }

    /// For whoever looks on.
    pub(crate) fn words(&self) -> String {
        let tail = self
            .percentile_ms(99_900)
            .map_or_else(|| "nothing".to_owned(), |ms| format!("99.9% in {ms:.1} ms"));
        let background: Vec<String> =
            self.background.iter().map(|(what, took)| format!("{} {what}", took.len())).collect();
        format!("{:.0} a second, {tail}, {}", self.per_second(), background.join(", "))
    }

    fn extend(&mut self, other: Self) {
        // Weighted by their times.
        let neighbours = [&*self, &other].map(|s| s.neighbour_bytes_per_second * s.seconds);
        self.seconds += other.seconds;
        self.neighbour_bytes_per_second =
            neighbours.iter().sum::<f64>() / self.seconds.max(f64::MIN_POSITIVE);
        self.late += other.late;
        self.latencies_us.extend(other.latencies_us);
        self.latencies_us.sort_unstable();
        for (what, took) in other.background {
            self.background.entry(what).or_default().extend(took);
        }
        for (kind, ms) in other.waits_ms {
            *self.waits_ms.entry(kind).or_default() += ms;
        }
    }
}

/// What critical tasks have waited for until some moment, in milliseconds, by kind.
pub(crate) struct Waits(BTreeMap<String, f64>);

impl Waits {
    /// # Errors
    /// If the tracker lacks something: schedulers would then go by less than they are meant to.
    pub(crate) fn of(daemon: &Daemon) -> Result<Self, BenchError> {
        let status = daemon.status()?;
        let missing = status.get("criticality_missing").and_then(Value::as_array);
        let missing: Vec<&str> = missing.into_iter().flatten().filter_map(Value::as_str).collect();
        if !missing.is_empty() {
            let missing = missing.join("; ");
            return Err(BenchError::Forebay(format!(
                "who waits for what cannot be followed here: {missing}"
            )));
        }
        let rows: Vec<WaitRow> = serde_json::from_value(daemon.json("waits")?).map_err(|e| {
            BenchError::Forebay(format!("what the daemon has counted is not understood: {e}"))
        })?;
        Ok(Self(rows.into_iter().map(|row| (row.kind, row.total_us as f64 / 1000.0)).collect()))
    }

    /// What has come since then.
    pub(crate) fn since(self, before: &Self) -> BTreeMap<String, f64> {
        let grown = |(kind, ms): (String, f64)| {
            let was = before.0.get(&kind).copied().unwrap_or_default();
            (kind, ms - was)
        };
        self.0.into_iter().map(grown).collect()
    }
}

/// All that was measured, and what was not.
#[derive(Default)]
pub(crate) struct Results {
    measured: Vec<(&'static str, Contender, Slice)>,
    left_out: Vec<String>,
    notes: Vec<String>,
}

impl Results {
    /// Puts a measurement to those of other rounds.
    pub(crate) fn add(&mut self, load: &'static str, contender: Contender, slice: Slice) {
        let known = self.measured.iter_mut().find(|(l, c, _)| (*l, *c) == (load, contender));
        if let Some((.., slices)) = known {
            slices.extend(slice);
        } else {
            let mut slices = Slice::default();
            slices.extend(slice);
            self.measured.push((load, contender, slices));
        }
    }

    /// A load, or one contender under it, that could not be measured.
    pub(crate) fn leave_out(&mut self, load: &str, contender: Option<Contender>, why: &BenchError) {
        let under = contender.map_or_else(String::new, |c| format!(" under {}", c.label()));
        let why = why.to_string();
        let mut lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
        // Of programs that say much, the first and the last word.
        let (first, last) = (lines.next().unwrap_or_default(), lines.next_back());
        let told = last.map_or_else(
            || format!("{load}{under} ({first})"),
            |last| format!("{load}{under} ({first} … {last})"),
        );
        eprintln!("not measured: {told}");
        if !self.left_out.contains(&told) {
            self.left_out.push(told);
        }
    }

    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.measured.is_empty()
    }

    pub(crate) fn of(&self, load: &str, contender: Contender) -> Option<&Slice> {
        self.measured.iter().find(|(l, c, _)| *l == load && *c == contender).map(|(.., slice)| slice)
    }

    /// Every contender of a load that was measured, in the order of the documentation.
    pub(crate) fn under(&self, load: &str) -> Vec<(Contender, &Slice)> {
        Contender::all().filter_map(|c| Some((c, self.of(load, c)?))).collect()
    }
}
