use super::*;
use crate::Contest;

fn options(quick: bool) -> Options {
    Options {
        quick,
        scratch: PathBuf::from("scratch"),
        rounds: None,
        seconds: None,
        loads: Vec::new(),
        contenders: Vec::new(),
        backing_model: None,
        contest: Contest::default(),
        forebay: PathBuf::from("forebay"),
        stopped: std::sync::Arc::default(),
    }
}

/// Requests of so many milliseconds each, in a second.
fn slice(ms: impl IntoIterator<Item = u64>) -> Slice {
    Slice { seconds: 1.0, latencies_us: ms.into_iter().map(|ms| ms * 1000).collect(), ..Slice::default() }
}

fn scheduler(label: &str) -> Contender {
    Contender::all().find(|c| c.label() == label).unwrap()
}

#[test]
fn percentiles_are_of_all_rounds_together_and_the_longest_of_too_few() {
    let (mut results, fifo) = (Results::default(), scheduler("fifo"));
    results.add(REDIS, fifo, slice((1..=500).rev()));
    results.add(REDIS, fifo, slice(501..=1000));
    let all = results.of(REDIS, fifo).unwrap();
    assert_eq!((all.seconds, all.per_second()), (2.0, 500.0));
    let tails = shown::TAILS.map(|(p, _)| all.percentile_ms(p).unwrap());
    assert_eq!(tails, [990.0, 999.0, 1000.0, 1000.0]);
    assert_eq!(Slice::default().percentile_ms(99_000), None);
}

#[test]
fn figures_have_the_names_that_scripts_rely_on() {
    let plan = Plan::new(&options(false)).unwrap();
    let mut results = Results::default();
    let background = |took| Slice { background: [("checkpoints", vec![took])].into(), ..slice([10; 100]) };
    for contender in Contender::all() {
        results.add(POSTGRESQL, contender, background(if contender == scheduler("rcp") { 1.0 } else { 2.0 }));
    }
    let alone = scheduler("rcp");
    results.add(NEIGHBOUR, alone, slice([10]));
    results.add(NEIGHBOUR, alone.beside_neighbour(), slice([15]));
    let report = report::report(&results, &plan);
    assert_eq!(report.figures["greedy_neighbour_p99_9_of_alone"], 1.5);
    assert_eq!(report.figures["postgresql_rcp_p99_999_ms"], 10.0);
    assert_eq!(report.figures["postgresql_rcp_checkpoints_took_of_best_other"], 0.5);
    assert!(report.figures.contains_key("postgresql_rcp_cache_p99_999_ms"), "{:?}", report.figures);
    assert!(schedulers().any(|name| name == BASE), "nothing is there to compare with");
    for contender in Contender::all() {
        for ending in ["throughput_of_cfq", "p99_9_of_cfq"] {
            assert_eq!(report.figures[&format!("postgresql_{}_{ending}", contender.name())], 1.0);
        }
    }
    let is_fit =
        |name: &String| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    assert!(report.figures.keys().chain(report.measured.keys()).all(is_fit), "{:?}", report.measured);
}

#[test]
fn what_could_not_be_measured_is_told_once_and_by_name() {
    let mut results = Results::default();
    results.add(REDIS, scheduler("rcp"), slice([1]));
    let gone = BenchError::Forebay("python3 is missing".to_owned());
    results.leave_out(WIREDTIGER, None, &gone);
    results.leave_out(POSTGRESQL, Some(scheduler("fifo")), &gone);
    results.leave_out(POSTGRESQL, Some(scheduler("fifo")), &gone);
    let report = report::report(&results, &Plan::new(&options(true)).unwrap());
    let expected =
        "not measured: wiredtiger (python3 is missing); postgresql under fifo (python3 is missing)"
            .to_owned();
    assert_eq!(report.not_measured(), Some(expected));
}

#[test]
fn a_quick_run_is_of_few_and_what_is_chosen_is_run_alone() {
    let labels = |options: &Options| {
        Plan::new(options).unwrap().contenders.into_iter().map(Contender::label).collect::<Vec<_>>()
    };
    assert_eq!(labels(&options(false)).len(), schedulers().count());
    assert!(labels(&options(true)).iter().all(|label| QUICK.contains(&label.as_str())));
    let contest = Contest { schedulers: vec!["rcp+cache".to_owned()], ..Contest::default() };
    let chosen = Options { contest, ..options(true) };
    assert_eq!(labels(&chosen), ["rcp+cache"]);
    let settings = |loads: &[&str]| {
        let contest = Contest { settings: vec![("fsync".into(), "off".into())], ..Contest::default() };
        let loads = loads.iter().map(|load| (*load).to_owned()).collect();
        Plan::new(&Options { loads, contest, ..options(false) }).is_ok()
    };
    assert!(settings(&[REDIS]) && settings(&[POSTGRESQL]));
    assert!(!settings(&[]) && !settings(&[POSTGRESQL, REDIS]) && !settings(&[WIREDTIGER]));
}
