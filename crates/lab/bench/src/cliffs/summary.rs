//! What was measured as figures, tables and plots.

use crate::cliffs::durable::Durable;
use crate::cliffs::write_path::Costs;
use crate::cliffs::{DepthResult, FLUSH_DEPTH, FlushResult, StoreResult};
use crate::generator::Kind;
use crate::plot::Plot;
use crate::recording::{BUCKET, Recording};
use crate::report::{Report, Table};

/// The tail that is compared.
const TAIL: f64 = 0.999;
/// The depth whose 10 ms are shown and judged.
const TIME_LINE_DEPTH: usize = 8;
/// The depths whose percentiles are shown.
const PERCENTILE_DEPTHS: [usize; 2] = [8, 32];
/// One operation of so many takes longer than the percentile.
const ONE_OF: [f64; 5] = [2.0, 10.0, 100.0, 1000.0, 10_000.0];

/// What the figures are, for who has the report alone.
const MEANINGS: &[&str] = &[
    "Two daemons serve the same emulated store over NBD: cached, behind 64 MiB of emulate:nvdram that are full, and uncached (--no-cache). \
     Writes of 4 KiB go to random places of 1 GiB (256 MiB with --quick). The daemons have their slices in turn.",
    "throughput_of_uncached: writes a second, medians of the slices. p99_9_of_uncached: within which 99.9% of all writes end.",
    "worst_10ms_of_median: writes that end in the worst 10 ms of all slices, against those of the median 10 ms, cached.",
    "reads_during_flush, writes_during_flush: operations a second at depth 8 while everything dirty is flushed, against those without a flush.",
    "cpu_us: processor time of the server's process for each write of 4 KiB over NBD to memory, in microseconds.",
    "durable_depth_16_of_raw: durable writes of 4 KiB a second to a volume over NBD, against direct O_DSYNC writes by io_uring to a file beside it. \
     durable_depth_1_of_limit: the time of such a write and of a round trip to a server that does nothing, against the time of a write to the volume.",
];

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Summary {
    report: Report,
}

/// A ratio; nothing if there is nothing to compare with.
fn ratio(of: f64, to: f64) -> Option<f64> {
    (to > 0.0).then(|| of / to)
}

impl DepthResult {
    fn throughput(&self) -> Option<f64> {
        ratio(self.cached.per_second(), self.uncached.per_second())
    }

    fn tail(&self) -> Option<f64> {
        ratio(self.cached.quantile_ms(TAIL), self.uncached.quantile_ms(TAIL))
    }

    /// One line for who waits.
    pub(crate) fn in_words(&self) -> String {
        let said = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        format!(
            "depth {}: {} of the uncached throughput, {} of its 99.9%, {:.2} of the median in the worst 10 ms",
            self.depth,
            said(self.throughput()),
            said(self.tail()),
            self.cached.worst_of_median()
        )
    }
}

impl FlushResult {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Read => "reads",
            Kind::Write => "writes",
        }
    }
}

impl Summary {
    pub(crate) fn note(&mut self, sentence: String) {
        self.report.notes.push(sentence);
    }

    fn figure(&mut self, name: String, value: Option<f64>) {
        if let Some(value) = value {
            self.report.figures.insert(name, value);
        }
    }

    fn measured(&mut self, name: String, value: f64) {
        self.report.measured.insert(name, value);
    }

    pub(crate) fn add_store(&mut self, store: &StoreResult) {
        for result in &store.depths {
            let prefix = format!("{}_depth_{}", store.name, result.depth);
            self.figure(format!("{prefix}_throughput_of_uncached"), result.throughput());
            self.figure(format!("{prefix}_p99_9_of_uncached"), result.tail());
            self.figure(format!("{prefix}_worst_10ms_of_median"), Some(result.cached.worst_of_median()));
            if result.depth == TIME_LINE_DEPTH {
                self.figure(
                    format!("{}_worst_10ms_of_median", store.name),
                    Some(result.cached.worst_of_median()),
                );
            }
            self.measured(format!("{prefix}_dirty_share"), result.dirty_share);
            for (who, recording) in [("cached", &result.cached), ("uncached", &result.uncached)] {
                let prefix = format!("{prefix}_{who}");
                self.measured(format!("{prefix}_writes_per_second"), recording.per_second());
                self.measured(format!("{prefix}_operations"), recording.operations() as f64);
                for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", TAIL)] {
                    self.measured(format!("{prefix}_{name}_ms"), recording.quantile_ms(quantile));
                }
                let (worst, median) = recording.worst_and_median();
                self.measured(format!("{prefix}_worst_10ms_writes"), worst);
                self.measured(format!("{prefix}_median_10ms_writes"), median);
                let (empty, all) = recording.empty_buckets();
                self.measured(format!("{prefix}_empty_10ms"), empty as f64);
                self.measured(format!("{prefix}_all_10ms"), all as f64);
            }
        }
        for flush in &store.flushes {
            let (with, without) = (flush.with.per_second(), flush.without.per_second());
            let name = format!("{}_{}", store.name, flush.name());
            self.figure(format!("{name}_during_flush"), ratio(with, without));
            for (when, recording) in [("during_flush", &flush.with), ("without_flush", &flush.without)] {
                self.measured(format!("{name}_{when}_per_second"), recording.per_second());
                self.measured(format!("{name}_{when}_p99_9_ms"), recording.quantile_ms(TAIL));
            }
        }
        if !store.left_out.is_empty() {
            let depths: Vec<String> = store.left_out.iter().map(usize::to_string).collect();
            self.note(format!("{}: depth {} is left out for lack of time.", store.title, depths.join(", ")));
        }
        self.report.tables.push(depths_table(store));
        self.report.tables.push(flush_table(store));
        self.report.plots.extend(plots(store));
    }

    pub(crate) fn add_costs(&mut self, costs: &Costs) {
        costs.left_out.iter().for_each(|sentence| self.note(sentence.clone()));
        let mut rows = Vec::new();
        for cost in &costs.costs {
            for (depth, cpu_us, took_us) in &cost.of_depths {
                self.figure(format!("{}_depth_{depth}_cpu_us", cost.name), Some(*cpu_us));
                self.measured(format!("{}_depth_{depth}_write_us", cost.name), *took_us);
                rows.push(vec![
                    cost.name.to_owned(),
                    depth.to_string(),
                    format!("{cpu_us:.1}"),
                    format!("{:.0}", 1e6 / took_us.max(f64::MIN_POSITIVE)),
                ]);
            }
        }
        let columns = ["server", "depth", "cpu_us", "writes/s"].map(str::to_owned).to_vec();
        let heading = "Processor time of the server for a write of 4 KiB over NBD to memory";
        self.report.tables.push((heading.into(), columns, rows));
        let bars = |of: usize| {
            let cpu = costs.costs.iter().flat_map(|cost| {
                cost.of_depths.iter().filter(move |(depth, ..)| *depth == of).map(|d| (cost.name.into(), d.1))
            });
            cpu.collect()
        };
        for depth in crate::cliffs::write_path::DEPTHS {
            let heading = format!("Microseconds of processor time for a write, depth {depth}");
            self.report.charts.push((heading, bars(depth)));
        }
    }

    pub(crate) fn add_durable(&mut self, durable: Durable) {
        self.figure("durable_depth_16_of_raw".into(), Some(durable.depth_16_of_raw()));
        self.figure("durable_depth_1_of_limit".into(), Some(durable.depth_1_of_limit()));
        let values = [
            ("durable_raw_depth_1_us", "raw, depth 1", durable.raw_us[0]),
            ("durable_round_trip_us", "round trip", durable.round_trip_us),
            ("durable_volume_depth_1_us", "volume over NBD, depth 1", durable.volume_us[0]),
            ("durable_raw_depth_16_us", "raw, depth 16", durable.raw_us[1]),
            ("durable_volume_depth_16_us", "volume over NBD, depth 16", durable.volume_us[1]),
        ];
        let mut rows = Vec::new();
        for (name, label, us) in values {
            self.measured(name.into(), us);
            rows.push(vec![
                label.into(),
                format!("{us:.1}"),
                format!("{:.0}", 1e6 / us.max(f64::MIN_POSITIVE)),
            ]);
        }
        let columns = ["what", "µs for each", "1/s"].map(str::to_owned).to_vec();
        self.report.tables.push(("Durable writes of 4 KiB".into(), columns, rows));
    }

    pub(crate) fn report(self) -> Report {
        let mut report = self.report;
        report.name = "cliffs";
        report.title =
            "Cliffs: a cache that is full all the time against the store without it, side by side in one run"
                .into();
        report.notes.splice(0..0, MEANINGS.iter().map(|text| (*text).to_owned()));
        report
    }
}

fn depths_table(store: &StoreResult) -> Table {
    let columns =
        ["depth", "who", "writes/s", "p50 ms", "p99 ms", "p99.9 ms", "worst 10 ms", "empty", "dirty"];
    let mut rows = Vec::new();
    for result in &store.depths {
        for (who, recording) in [("cached", &result.cached), ("uncached", &result.uncached)] {
            let ms = |quantile| format!("{:.3}", recording.quantile_ms(quantile));
            let (empty, all) = recording.empty_buckets();
            let dirty = match who {
                "cached" => format!("{:.0}%", 100.0 * result.dirty_share),
                _ => String::new(),
            };
            rows.push(vec![
                result.depth.to_string(),
                who.into(),
                format!("{:.0}", recording.per_second()),
                ms(0.5),
                ms(0.99),
                ms(TAIL),
                format!("{:.2}", recording.worst_of_median()),
                format!("{empty} of {all}"),
                dirty,
            ]);
        }
    }
    let heading = format!("{}: random writes of 4 KiB, the worst 10 ms against the median ones", store.title);
    (heading, columns.map(str::to_owned).to_vec(), rows)
}

fn flush_table(store: &StoreResult) -> Table {
    let columns = ["operation", "without: 1/s", "during: 1/s", "without: p99.9 ms", "during: p99.9 ms"];
    let row = |flush: &FlushResult| {
        vec![
            flush.name().to_owned(),
            format!("{:.0}", flush.without.per_second()),
            format!("{:.0}", flush.with.per_second()),
            format!("{:.3}", flush.without.quantile_ms(TAIL)),
            format!("{:.3}", flush.with.quantile_ms(TAIL)),
        ]
    };
    let heading = format!("{}: without a flush and during one, depth {FLUSH_DEPTH}", store.title);
    (heading, columns.map(str::to_owned).to_vec(), store.flushes.iter().map(row).collect())
}

fn plots(store: &StoreResult) -> Vec<Plot> {
    let both = |line: &dyn Fn(&DepthResult, &Recording) -> (f64, f64)| {
        let of = |recording: fn(&DepthResult) -> &Recording| {
            store.depths.iter().map(|result| line(result, recording(result))).collect()
        };
        vec![("cached".to_owned(), of(|r| &r.cached)), ("uncached".to_owned(), of(|r| &r.uncached))]
    };
    let over_depth = |what: &str, unit: &str, line: &dyn Fn(&DepthResult, &Recording) -> (f64, f64)| Plot {
        title: format!("{}: {what}", store.title),
        x_label: "depth".into(),
        y_label: unit.into(),
        lines: both(line),
        log_x: true,
        ..Plot::default()
    };
    let mut plots = vec![
        over_depth("throughput", "writes/s", &|d, r| (d.depth as f64, r.per_second())),
        over_depth("99.9th percentile of a write's latency", "ms", &|d, r| {
            (d.depth as f64, r.quantile_ms(TAIL))
        }),
    ];
    let mut lines = Vec::new();
    for result in store.depths.iter().filter(|result| PERCENTILE_DEPTHS.contains(&result.depth)) {
        for (who, recording) in [("cached", &result.cached), ("uncached", &result.uncached)] {
            let points = ONE_OF.iter().map(|n| (*n, recording.quantile_ms(1.0 - 1.0 / n))).collect();
            lines.push((format!("{who}, depth {}", result.depth), points));
        }
    }
    plots.push(Plot {
        title: format!("{}: percentiles of a write's latency", store.title),
        x_label: "one write of so many takes longer".into(),
        y_label: "ms".into(),
        lines,
        log_x: true,
        ..Plot::default()
    });
    if let Some(result) = store.depths.iter().find(|result| result.depth == TIME_LINE_DEPTH) {
        let line = |recording: &Recording| {
            let buckets = recording.time_line().iter().enumerate();
            buckets.map(|(n, count)| (n as f64 * BUCKET.as_millis() as f64, f64::from(*count))).collect()
        };
        plots.push(Plot {
            title: format!("{}: writes in each 10 ms, first slice, depth {TIME_LINE_DEPTH}", store.title),
            x_label: "ms".into(),
            y_label: "writes in 10 ms".into(),
            lines: vec![("cached".into(), line(&result.cached)), ("uncached".into(), line(&result.uncached))],
            ..Plot::default()
        });
    }
    plots
}
