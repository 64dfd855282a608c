//! The page: figures beside the goals, and what they are made of.

use super::DEPTHS;
use super::contender::{Contender, Store};
use super::shown::Results;
use crate::admission::{percentile_ms, shown_ms};
use crate::report::{Figures, Report, Table};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// A ratio, if there is something to compare with.
fn ratio(of: Option<f64>, base: Option<f64>) -> Option<f64> {
    Some(of? / base.filter(|base| *base > 0.0)?)
}

/// With whom one of Forebay's is compared: the store alone in each of its ways, and `write-back` of `journaled`.
fn bases(contender: Contender) -> Vec<Contender> {
    match contender.policy() {
        None => Vec::new(),
        Some(_) => Contender::peers(contender.store).into_iter().chain(contender.as_write_back()).collect(),
    }
}

/// What a comparison is called: `rbd_4k_depth1` and the like stand before it.
fn compared(what: &str, contender: Contender, base: Contender) -> String {
    match contender == Contender::write_back(contender.store) {
        true => format!("{what}_of_{}", base.name()),
        false => format!("{what}_{}_of_{}", contender.name(), base.name()),
    }
}

fn writes_name(store: Store, depth: usize) -> String {
    format!("{}_4k_depth{depth}", store.name())
}

fn add_writes(results: &Results, store: Store, figures: &mut Figures, measured: &mut Figures) {
    for depth in DEPTHS {
        let what = writes_name(store, depth);
        let rate = |c: Contender| results.writes(c, depth).map(|r| r.per_second());
        for contender in results.of_writes(store) {
            let name = format!("{what}_{}", contender.name());
            rate(contender).map(|rate| measured.insert(format!("{name}_writes_per_second"), rate));
            if let Some(recording) = results.writes(contender, depth) {
                for (share, percentile) in [(0.5, "p50"), (0.99, "p99")] {
                    measured.insert(format!("{name}_{percentile}_ms"), recording.quantile_ms(share));
                }
            }
            for base in bases(contender) {
                let value = ratio(rate(contender), rate(base));
                value.map(|value| figures.insert(compared(&what, contender, base), value));
            }
        }
    }
    for contender in results.of_writes(store) {
        let share = results.dirty_share(contender);
        share.map(|s| measured.insert(format!("{}_4k_{}_dirty_share", store.name(), contender.name()), s));
    }
}

fn add_databases(results: &Results, store: Store, figures: &mut Figures, measured: &mut Figures) {
    let what = store.database_load();
    let rate = |c: Contender| results.commits(c).map(|commits| commits.per_second());
    for contender in results.of_databases(store) {
        let name = format!("{what}_{}", contender.name());
        rate(contender).map(|rate| measured.insert(format!("{name}_commits_per_second"), rate));
        let p99 = results.commits(contender).and_then(|c| percentile_ms(&c.latencies_us, 9900));
        p99.map(|ms| measured.insert(format!("{name}_p99_ms"), ms));
        for base in bases(contender) {
            let value = ratio(rate(contender), rate(base));
            value.map(|value| figures.insert(compared(&what, contender, base), value));
        }
    }
}

/// What the objects cost that writes made, all of which have been destaged.
fn add_costs(results: &Results, figures: &mut Figures, measured: &mut Figures) {
    for contender in results.of_writes(Store::S3) {
        let Some(cost) = results.cost(contender) else { continue };
        let suffix = match contender == Contender::write_back(Store::S3) {
            true => String::new(),
            false => format!("_{}", contender.name()),
        };
        let acknowledged = cost.acknowledged_bytes as f64;
        let bytes = ratio(Some(cost.sent_bytes as f64), Some(acknowledged));
        bytes.map(|value| figures.insert(format!("s3{suffix}_bytes_ratio"), value));
        let requests = ratio(Some(cost.requests as f64), Some(acknowledged / GIB));
        requests.map(|value| figures.insert(format!("s3{suffix}_requests_a_gib"), value));
        measured.insert(format!("s3_{}_bytes_acknowledged", contender.name()), acknowledged);
        measured.insert(format!("s3_{}_bytes_sent", contender.name()), cost.sent_bytes as f64);
        measured.insert(format!("s3_{}_requests", contender.name()), cost.requests as f64);
    }
}

/// Goals: what, the figure, and its least value.
fn goals() -> Vec<(String, String, f64)> {
    let mut goals = vec![(
        "4 KiB durable writes at depth 1, of RBD's".to_owned(),
        "rbd_4k_depth1_of_rbd".to_owned(),
        10.0,
    )];
    goals.push(("commits on S3, of s3backer's".to_owned(), "s3_postgresql_of_s3backer".to_owned(), 10.0));
    goals.push((
        "commits on S3 under journaled, of write-back's".to_owned(),
        "s3_postgresql_journaled_of_write_back".to_owned(),
        0.9,
    ));
    for store in Store::ALL {
        for depth in DEPTHS {
            let what = writes_name(store, depth);
            let alone = store.alone();
            for (words, ours) in [
                ("with room", Contender::write_back(store)),
                ("with a full cache", Contender::forebay(store, false, true)),
            ] {
                goals.push((
                    format!("never slower than {} alone: depth {depth}, {words}", alone.name()),
                    compared(&what, ours, alone),
                    1.0,
                ));
            }
        }
    }
    let what = writes_name(Store::S3, 64);
    let journaled = Contender::forebay(Store::S3, true, true);
    if let Some(write_back) = journaled.as_write_back() {
        goals.push((
            "journaled with a full cache on S3, of write-back's: depth 64".to_owned(),
            compared(&what, journaled, write_back),
            0.9,
        ));
    }
    goals
}

fn goals_table(figures: &Figures) -> Option<Table> {
    let row = |(what, figure, least): (String, String, f64)| {
        let here = *figures.get(&figure)?;
        let reached = if here >= least { "yes" } else { "no" };
        Some(vec![what, figure, format!("≥ {least}"), format!("{here:.2}"), reached.to_owned()])
    };
    let rows: Vec<Vec<String>> = goals().into_iter().filter_map(row).collect();
    let columns = ["goal", "figure", "limit", "here", "reached"].map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| ("Goals".to_owned(), columns, rows))
}

fn writes_table(results: &Results, store: Store) -> Option<Table> {
    let contenders = results.of_writes(store);
    let mut columns = vec!["served by".to_owned()];
    columns.extend(DEPTHS.map(|depth| format!("depth {depth}: writes/s")));
    columns.extend(DEPTHS.map(|depth| format!("99% in ms, depth {depth}")));
    let row = |contender: &Contender| {
        let of = |depth| results.writes(*contender, depth);
        let rates = DEPTHS.map(|d| of(d).map_or("-".to_owned(), |r| format!("{:.0}", r.per_second())));
        let tails = DEPTHS.map(|d| of(d).map_or("-".to_owned(), |r| format!("{:.2}", r.quantile_ms(0.99))));
        [vec![contender.name().to_owned()], rates.to_vec(), tails.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = contenders.iter().map(row).collect();
    let heading = format!("4 KiB durable writes to a volume in {}, over NBD", store.name());
    (!rows.is_empty()).then_some((heading, columns, rows))
}

fn databases_table(results: &Results, store: Store) -> Option<Table> {
    let row = |contender: Contender| {
        let commits = results.commits(contender)?;
        let p99 = shown_ms(percentile_ms(&commits.latencies_us, 9900));
        Some(vec![contender.name().to_owned(), format!("{:.0}", commits.per_second()), p99])
    };
    let rows: Vec<Vec<String>> = results.of_databases(store).into_iter().filter_map(row).collect();
    let columns = ["served by", "commits/s", "99% in ms"].map(str::to_owned).to_vec();
    let heading = format!("PostgreSQL (TPC-C) on a volume in {}", store.name());
    (!rows.is_empty()).then_some((heading, columns, rows))
}

/// What every reader needs.
const MEANINGS: [&str; 3] = [
    "RESULT_of_PEER: how many more writes or commits a second. Without another name, RESULT is Forebay under write-back with a cache that has room.",
    "rbd, rbd_cache: librbd in QEMU's storage daemon, without and with librbd's own cache. s3backer: each write is in the store when it is answered.",
    "bytes_ratio and requests_a_gib: bytes sent to the store for each byte acknowledged, and requests for each GiB, when all has been destaged.",
];

pub(crate) fn report(results: &Results) -> Report {
    let (mut figures, mut measured) = (Figures::new(), Figures::new());
    let mut tables = Vec::new();
    for store in Store::ALL {
        add_writes(results, store, &mut figures, &mut measured);
        add_databases(results, store, &mut figures, &mut measured);
        tables.extend(writes_table(results, store));
        tables.extend(databases_table(results, store));
    }
    add_costs(results, &mut figures, &mut measured);
    tables.splice(0..0, goals_table(&figures));
    Report {
        name: "distributed",
        title: "Volumes on Ceph's RBD and in an S3 store: Forebay in front of the store against the store alone, in turn in one run"
            .to_owned(),
        notes: MEANINGS.iter().map(|text| (*text).to_owned()).chain(results.notes.iter().cloned()).collect(),
        left_out: results.left_out.clone(),
        figures,
        measured,
        tables,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::stand::Cost;
    use super::*;
    use crate::postgresql::Transactions;
    use crate::recording::Slice;

    fn slice(operations: u32) -> Slice {
        let mut slice = Slice::new().unwrap();
        slice.ended(Duration::from_millis(5), operations);
        slice.close(Duration::from_secs(1));
        slice
    }

    #[test]
    fn figures_are_called_as_scripts_know_them() {
        let mut results = Results::default();
        for (store, depth) in [(Store::Rbd, 1), (Store::Rbd, 64), (Store::S3, 64)] {
            for (n, contender) in Contender::of_writes(store).into_iter().enumerate() {
                results.add_writes(contender, depth, slice(100 * (n as u32 + 1))).unwrap();
            }
        }
        for (n, contender) in Contender::of_databases(Store::S3).into_iter().enumerate() {
            let per_second = 10.0 * (n as f64 + 1.0);
            results.add_transactions(contender, Transactions { per_second, ..Transactions::default() });
        }
        let cost = Cost { acknowledged_bytes: 1 << 31, sent_bytes: 3 << 30, requests: 600 };
        results.add_cost(Contender::write_back(Store::S3), &cost);
        let report = report(&results);
        let figure = |name: &str| report.figures.get(name).copied();
        // Librbd, with its cache, write-back, write-back with a full cache.
        assert_eq!(figure("rbd_4k_depth1_of_rbd"), Some(3.0));
        assert_eq!(figure("rbd_4k_depth64_of_rbd"), Some(3.0));
        assert_eq!(figure("rbd_4k_depth64_of_rbd_cache"), Some(1.5));
        assert_eq!(figure("rbd_4k_depth64_write_back_full_of_rbd"), Some(4.0));
        assert_eq!(figure("rbd_4k_depth16_of_rbd"), None, "not measured");
        // s3backer, write-back, journaled, and both with a full cache.
        assert_eq!(figure("s3_4k_depth64_journaled_full_of_write_back_full"), Some(1.25));
        assert_eq!(figure("s3_postgresql_of_s3backer"), Some(2.0));
        assert_eq!(figure("s3_postgresql_journaled_of_write_back"), Some(1.5));
        assert_eq!((figure("s3_bytes_ratio"), figure("s3_requests_a_gib")), (Some(1.5), Some(300.0)));
        assert_eq!(report.measured.get("s3_postgresql_s3backer_commits_per_second"), Some(&10.0));
        let (heading, _, rows) = &report.tables[0];
        assert_eq!(heading, "Goals");
        let verdict = |what: &str| rows.iter().find(|row| row[1] == what).map(|row| row[4].as_str());
        assert_eq!(verdict("rbd_4k_depth1_of_rbd"), Some("no"));
        assert_eq!(verdict("rbd_4k_depth64_write_back_full_of_rbd"), Some("yes"));
        assert!(bases(Store::S3.alone()).is_empty());
    }
}
