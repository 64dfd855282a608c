use super::*;
use forebay_block::Buf;

fn named(name: &str) -> Name {
    Name::of_thread(name.as_bytes())
}

fn author(name: &str) -> Author {
    Author { name: named(name), hinted: false, cause: None, came_with: None }
}

#[test]
fn of_what_is_cached_for_others_it_is_told_for_whom() {
    let mut account = Account::default();
    account.authors.insert(7, author("checkpointer"));
    let awaited = |through, waiter: Option<&str>| Promotion {
        offset: 0,
        len: 4096,
        task: 7,
        through,
        waiter: waiter.map(named),
    };
    let origin = Origin { pid: 7, ..Origin::default() };
    account.awaited(&awaited(Wait::Writeback, Some("backend")));
    account.admitted(&origin, AdmissionReason::Reissued, 4096);
    account.admitted(&origin, AdmissionReason::Reissued, 4096);
    account.admitted(&origin, AdmissionReason::NotCritical, 4096);
    account.awaited(&awaited(Wait::Journal, None));
    account.admitted(&origin, AdmissionReason::Inherited, 4096);
    account.awaited(&Promotion { task: 8, ..awaited(Wait::Journal, None) });
    let rows = account.counted.explanation(&Rules::default()).inherited;
    let texts: Vec<String> = rows
        .iter()
        .map(|r| format!("{} {} {:?} {} {}", r.task, r.through, r.waiter, r.reason, r.writes))
        .collect();
    assert_eq!(
        texts,
        ["checkpointer journal None inherited 1", "checkpointer writeback Some(\"backend\") reissued 2"]
    );
}

/// Takes requests, and remembers how critical they were.
struct Taken(Mutex<Vec<Criticality>>, Arc<Gate>);

impl BlockService for Taken {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            name: "db".into(),
            size_bytes: 1 << 30,
            read_only: false,
            request_bytes_max: 32 << 20,
            logical_block: 512,
        }
    }

    fn submit(&self, _: Op, origin: Origin, _: Completion) {
        hold(&self.0).push(origin.criticality);
    }

    fn gate(&self) -> &Arc<Gate> {
        &self.1
    }
}

#[test]
fn whatever_clients_of_an_export_write_counts_for_its_rate() {
    let zero = |len| Op::Zero { offset: 0, len, unmap: false, fua: false };
    let write = || Op::Write { offset: 0, data: Buf::zeroed(4096), fua: true };
    // A byte a second: the first write goes, and what it is longer is owed for more than an hour.
    for (first, second) in [(write(), zero(4096)), (zero(1 << 20), write())] {
        let rated = RatedVolume::new(Taken(Mutex::default(), Arc::default()), 1);
        let critical = Origin { criticality: Criticality::Direct, ..Origin::default() };
        for op in
            [Op::Read { offset: 0, len: 4096 }, first, Op::Flush, second, Op::Read { offset: 0, len: 4096 }]
        {
            rated.submit(op, critical, Box::new(|_| ()));
        }
        let (yes, capped) = (Criticality::Direct, Criticality::Capped);
        assert_eq!(*hold(&rated.inner.0), [yes, yes, yes, capped, yes]);
    }
}

#[test]
fn writes_are_added_up_by_task_data_synchrony_and_reason() {
    let mut account = Account::default();
    account.authors.insert(7, author("backend"));
    account.authors.insert(8, author("jbd2"));
    let origin = |pid, content| Origin { pid, content, ..Origin::default() };
    account.admitted(&origin(7, Content::Log), AdmissionReason::Direct, 4096);
    account.admitted(&origin(7, Content::Log), AdmissionReason::Direct, 8192);
    account.admitted(&Origin { sync: true, ..origin(7, Content::Log) }, AdmissionReason::Direct, 1024);
    account.admitted(&origin(8, Content::Journal), AdmissionReason::Inherited, 512);
    account.admitted(&origin(9, Content::Metadata), AdmissionReason::NotCritical, 1);
    let rows = account.counted.explanation(&Rules::default()).rows;
    let texts: Vec<String> = rows
        .iter()
        .map(|r| {
            let (sync, cached) = (if r.sync { "sync" } else { "async" }, r.cached);
            format!("{} {} {sync} {} {cached} {} {}", r.task, r.data, r.reason, r.writes, r.bytes)
        })
        .collect();
    assert_eq!(
        texts,
        [
            "backend log async direct true 2 12288",
            "backend log sync direct true 1 1024",
            "client metadata async not-critical false 1 1",
            "jbd2 journal async inherited true 1 512"
        ]
    );
}

#[test]
fn tasks_of_one_name_and_one_rule_have_one_row() {
    let rule = |name, title| format!("[[rule]]\n{name}\ntitle = \"{title}\"\ncritical = true\n");
    let named_rules = ["a", "b"].map(|title| rule("name = \"backend\"", title)).concat();
    let rules = Rules::parse(&(named_rules + &rule("", "c"))).unwrap().called("mine");
    let mut account = Account::default();
    let Name::Thread(comm) = named("backend") else { panic!("it is a thread's") };
    let names = [
        (Name::Rule(0), false),
        (Name::Rule(1), false),
        (Name::Ruled(2, comm), false),
        (named("backend"), false),
        (named("backend"), true),
    ];
    for (pid, (name, hinted)) in (1..).zip([names, names].concat()) {
        let cause = Cause { via: Wait::Journal, waiter: 99, payers: 0 };
        account.named(pid, name, hinted, Some(cause), |waiter| {
            assert_eq!(waiter, 99);
            Some(names[0].0)
        });
        account.named(pid, name, hinted, Some(cause), |_| panic!("it is known"));
        account.named(pid, name, hinted, None, |_| panic!("nobody waits"));
        let origin = Origin { pid, ..Origin::default() };
        account.admitted(&origin, AdmissionReason::Inherited, 512);
    }
    let explanation = account.counted.explanation(&rules);
    assert!(
        explanation.rows.iter().all(|row| (row.task.as_str(), row.writes, row.bytes) == ("backend", 2, 1024))
    );
    let rules: Vec<_> = explanation.rows.iter().map(|row| (row.rule.as_deref(), row.hint)).collect();
    let by = |rule| (Some(rule), false);
    assert_eq!(rules, [(None, false), (None, true), by("mine:1"), by("mine:2"), by("mine:3")]);
    let [row] = explanation.inherited.as_slice() else { panic!("{:?}", explanation.inherited) };
    let waiter = (row.waiter.as_deref(), row.waiter_rule.as_deref());
    assert_eq!((row.task.as_str(), waiter, row.writes), ("backend", (Some("backend"), Some("mine:1")), 10));
}

#[test]
fn an_account_stays_small() {
    let mut account = Account::default();
    for pid in 0..3 * ROWS_MAX as u32 {
        account.authors.insert(pid, author(&pid.to_string()));
        account.admitted(&Origin { pid, ..Origin::default() }, AdmissionReason::All, 1);
    }
    assert!(account.counted.rows.len() <= ROWS_MAX + AdmissionReason::ALL.len());
    let other =
        account.counted.explanation(&Rules::default()).rows.into_iter().find(|r| r.task == "other").unwrap();
    assert_eq!(other.writes, 2 * ROWS_MAX as u64);
}

#[test]
fn what_is_missing_is_told_where_it_is_needed() {
    let tracking = Tracking::new(Rules::default(), Hints::default());
    assert!(tracking.missing(Admission::All, false).is_empty());
    let missing = tracking.missing(Admission::Cp, false).join("; ");
    assert!(missing.contains("--rules") && missing.contains("not attached"), "{missing}");
    let missing = tracking.missing(Admission::Sync, true);
    assert!(missing.is_empty(), "it does not ask who is critical: {missing:?}");
    let tracking = Tracking::new(Rules::preset("redis").unwrap(), Hints::default());
    assert_eq!(tracking.missing(Admission::CpPi, true), Vec::<String>::new());
}

/// As the frontend of the block device brings them: nobody else records these.
#[test]
fn requests_whose_issuer_a_link_is_asked_for_are_recorded() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("requests");
    let info = Taken(Mutex::default(), Arc::default()).info();
    let recorder = RequestRecorder::create(&path, &info).unwrap();
    let link = Link::new(Some(Arc::clone(&recorder)));
    let (_, done) = link.identify(&Op::Flush, Origin { lane: 5, ..Origin::default() }, Box::new(|_| ()));
    done(Ok(forebay_block::Reply::Done));
    recorder.finish();
    let text = std::fs::read_to_string(&path).unwrap();
    let words: Vec<&str> = text.lines().skip(2).filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert_eq!(words, ["flush 1 lane=5", "answer 1", "end 1 0"]);
}
