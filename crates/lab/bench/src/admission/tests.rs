use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_block::Content;
use forebay_policy::AdmissionReason;

use super::*;

#[test]
fn what_a_policy_shows_that_could_not_see_all_does_not_count() {
    let account = |missing: &[&str]| Account {
        status: serde_json::json!({"writes": 30, "criticality_missing": missing}),
        ..Account::default()
    };
    let shown = |after| Shown::default().grown(&Account::default(), &after, 2.0);
    assert!((shown(account(&[])).unwrap().writes_per_second - 15.0).abs() < f64::EPSILON);
    let refused = shown(account(&["waits for locks (no probes)"])).unwrap_err().to_string();
    assert!(refused.contains("waits for locks (no probes)"), "{refused}");
}

#[test]
fn what_was_before_the_measured_time_does_not_count() {
    let row = |task: &str, reason: AdmissionReason, bytes: u64| ExplainRow {
        task: task.to_owned(),
        rule: None,
        hint: false,
        data: Content::Log.as_str().to_owned(),
        sync: true,
        reason: reason.to_string(),
        cached: true,
        writes: bytes / 10,
        bytes,
    };
    let wait = |kind: &str, total_us| WaitRow {
        kind: kind.to_owned(),
        count: 1,
        total_us,
        average_us: total_us,
        max_us: total_us,
    };
    let account = |bytes_to_cache: u64, rows, waits| Account {
        status: serde_json::json!({"bytes_to_cache": bytes_to_cache}),
        explain: Explanation { rows, inherited: Vec::new() },
        waits,
    };
    let before = account(100, vec![row("redis", AdmissionReason::Direct, 100)], vec![wait("journal", 9000)]);
    let after = account(
        160,
        vec![
            row("redis", AdmissionReason::Direct, 120),
            row("redis", AdmissionReason::Inherited, 30),
            row("other", AdmissionReason::Direct, 10),
        ],
        vec![wait("journal", 9500), wait("flush", 2000)],
    );
    let shown = Shown::default().grown(&before, &after, 1.0).unwrap();
    let rows: Vec<_> = shown.explain.iter().map(|r| (r.task.as_str(), r.writes, r.bytes)).collect();
    assert_eq!(rows, [("redis", 2, 20), ("redis", 3, 30), ("other", 1, 10)]);
    let waits = [("flush".to_owned(), 2.0), ("journal".to_owned(), 0.5)];
    assert_eq!((shown.cache_bytes, shown.waits_ms), (60.0, BTreeMap::from(waits)));
}

#[test]
fn contenders_have_names_that_are_fit_for_figures() {
    let names: Vec<String> = Admission::ALL.iter().map(|a| Contender::of(*a).name()).collect();
    assert_eq!(names.last().map(String::as_str), Some("adaptive"));
    assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '_')), "{names:?}");
    assert_eq!((Contender::NO_CACHE.name(), Contender::NO_CACHE.admission()), ("no_cache".to_owned(), None));
}

fn options(caches: Vec<u64>) -> Options {
    Options {
        quick: true,
        scratch: PathBuf::new(),
        rounds: None,
        seconds: None,
        loads: Vec::new(),
        contenders: Vec::new(),
        backing_model: None,
        contest: crate::Contest { caches, ..crate::Contest::default() },
        forebay: PathBuf::new(),
        stopped: Arc::default(),
    }
}

#[test]
fn caches_go_from_scarce_to_sufficient_however_they_are_given() {
    let own = Own { admissions: Vec::new(), sizes: vec![9], rounds: 1, warm_seconds: 1, seconds: 1 };
    assert_eq!(Contest::new(&options(vec![3, 1, 2]), own).sizes, [1, 2, 3]);
}

#[test]
fn nobody_is_measured_after_the_same_one_in_each_round() {
    let own = Own { admissions: Vec::new(), sizes: vec![9], rounds: 3, warm_seconds: 1, seconds: 1 };
    let mut options = options(Vec::new());
    options.contest.policies = vec![Some(Admission::All), Some(Admission::Cp), None];
    let contest = Contest::new(&options, own);
    let labels = |round| -> Vec<_> { contest.in_turn(round).into_iter().map(Contender::label).collect() };
    assert_eq!(
        [0, 1, 2].map(labels),
        [["all", "cp", "no cache"], ["no cache", "cp", "all"], ["all", "cp", "no cache"]]
    );
}

#[test]
fn who_is_told_to_stop_has_what_was_measured_until_then() {
    let options = options(Vec::new());
    let all = |shown: usize| {
        Results::until_stopped(&options, |results| {
            (0..shown).for_each(|_| results.add("tpcc", 0, Contender::NO_CACHE, Shown::default()));
            Err(BenchError::Forebay("pgbench failed".to_owned()))
        })
    };
    assert!(matches!(all(1), Err(BenchError::Forebay(_))), "nobody has told it to stop");
    options.stopped.store(true, Ordering::Relaxed);
    assert!(matches!(all(0), Err(BenchError::Stopped)));
    assert_eq!(all(1).unwrap().0.len(), 1);
}

#[test]
fn figures_are_medians_and_relative_to_all() {
    let mut results = Results::default();
    let shown = |rate, cache_bytes| Shown { rate, cache_bytes, ..Shown::default() };
    for rate in [100.0, 90.0, 300.0] {
        results.add("tpcc", 1 << 20, Contender::of(Admission::All), shown(rate, 1000.0));
    }
    results.add("tpcc", 1 << 20, Contender::of(Admission::CpPiIoi), shown(150.0, 250.0));
    results.add("tpcc", 0, Contender::NO_CACHE, shown(20.0, 0.0));
    let contenders = [BASE, Admission::CpPiIoi].map(Contender::of);
    let contenders = [contenders[0], contenders[1], Contender::NO_CACHE];
    let mut figures = Figures::new();
    let mut measured = Figures::new();
    add_figures((&mut figures, &mut measured), &results, "tpcc", &[1 << 20], (&contenders, "tpmc"));
    for (name, value) in [
        ("all_tpmc", 100.0),
        ("cp_pi_ioi_of_all", 1.5),
        ("cp_pi_ioi_cache_bytes_of_all", 0.25),
        ("cp_pi_ioi_per_cached_block_of_all", 6.0),
        ("no_cache_of_all", 0.2),
    ] {
        let figure = figures[&format!("tpcc_cache_1_mib_{name}")];
        assert!((figure - value).abs() < 1e-9, "{name}: {figure}");
    }
    for (name, value) in [("all_cache_bytes", 1000.0), ("cp_pi_ioi_per_cached_block", 2457.6)] {
        let figure = measured[&format!("tpcc_cache_1_mib_{name}")];
        assert!((figure - value).abs() < 1e-9, "{name}: {figure}");
    }
    let over = |figure| over_sizes(&results, ("tpcc", &[1 << 20], &contenders), ("t", "y"), figure);
    let plot = over(|s| Some(s.rate)).unwrap();
    assert_eq!(plot.lines[1], ("cp+pi+ioi".to_owned(), vec![(1.0, 150.0)]));
    let (_, _, rows) = measured_table(&results, ("tpcc", &[1 << 20], &contenders), "tpmC");
    assert_eq!(rows[1][..5].join(" "), "1 cp+pi+ioi 150 1.500 0.0");
    assert_eq!(rows[2].join(" "), "- no cache 20 0.200 - - 0 -");
    // What has no cache has cached nothing, and what nobody has is not drawn.
    let absent: Vec<&String> = figures
        .keys()
        .chain(measured.keys())
        .filter(|name| name.contains("no_cache") && (name.contains("cached") || name.contains("cache_bytes")))
        .collect();
    assert!(absent.is_empty(), "{absent:?}");
    assert!(over(per_cached_block).unwrap().lines.iter().all(|(label, _)| label != "no cache"));
    assert_eq!(over(|s| s.tail_ms[1]), None);
    assert!(figures.keys().all(|name| !name.ends_with("p99_ms")), "{figures:?}");
}

#[test]
fn percentiles_are_those_of_the_sorted_that_have_ten_samples_beyond_them() {
    let of = |samples: u64| {
        let sorted: Vec<u64> = (1..=samples).map(|n| n * 1000).collect();
        [9900, 9990, 9999].map(|p| percentile_ms(&sorted, p))
    };
    assert_eq!(of(100_000), [Some(99_000.0), Some(99_900.0), Some(99_990.0)]);
    assert_eq!(of(99_999), [Some(99_000.0), Some(99_900.0), None]);
    assert_eq!((of(1000), of(999), of(0)), ([Some(990.0), None, None], [None; 3], [None; 3]));
    assert_eq!(highest_tail(&of(10_000)), "99.9% in 9990 ms");
    assert_eq!(highest_tail(&of(400)), "too few for a percentile");
}

#[test]
fn tables_add_up_what_the_daemon_says() {
    let row = |data: Content, sync: bool, reason: AdmissionReason, bytes: u64| ExplainRow {
        task: "t".to_owned(),
        rule: None,
        hint: false,
        data: data.as_str().to_owned(),
        sync,
        reason: reason.to_string(),
        cached: reason.is_cached(),
        writes: 1,
        bytes,
    };
    let explain = vec![
        row(Content::Log, true, AdmissionReason::Direct, 80),
        row(Content::Database, false, AdmissionReason::Reissued, 5),
        row(Content::Data, true, AdmissionReason::Inherited, 2),
        row(Content::Metadata, false, AdmissionReason::Inherited, 3),
        row(Content::Journal, true, AdmissionReason::Inherited, 10),
        row(Content::Data, true, AdmissionReason::NotCritical, 900),
    ];
    let waits_ms = BTreeMap::from([("journal".to_owned(), 2.25)]);
    let mut results = Results::default();
    let contender = Contender::of(Admission::CpPiIoi);
    results.add("tpcc", 1 << 20, contender, Shown { explain, waits_ms, ..Shown::default() });
    let (_, _, lines) = breakdown_table(&results, "tpcc", 1 << 20, true).unwrap();
    let shares: Vec<String> = lines.iter().map(|line| line[..5].join(" ")).collect();
    assert_eq!(
        shares,
        [
            "data (database) 0.000 0.000 5.000 5.000",
            "data (log) 80.000 0.000 0.000 80.000",
            "data (other) 0.000 2.000 0.000 2.000",
            "metadata 0.000 3.000 0.000 3.000",
            "journal 0.000 10.000 0.000 10.000",
            "synchronous 80.000 12.000 0.000 92.000",
            "asynchronous 0.000 3.000 5.000 8.000",
            "total 80.000 15.000 5.000 100.000",
        ]
    );
    let (_, columns, _) = breakdown_table(&results, "tpcc", 1 << 20, false).unwrap();
    assert_eq!(columns.len(), 5, "{columns:?}");
    assert_eq!(breakdown_table(&results, "tpcc", 2 << 20, true), None, "nothing was measured");
    let (_, columns, lines) =
        waits_table(&results, "tpcc", 1 << 20, &[Contender::NO_CACHE, contender]).unwrap();
    assert_eq!((columns[1].as_str(), lines), ("cp+pi+ioi", vec![vec!["journal".to_owned(), "2".to_owned()]]));
}
