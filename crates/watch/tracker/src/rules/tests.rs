use super::*;

fn titled(title: &str) -> TaskFacts {
    TaskFacts { title: title.into(), ..TaskFacts::default() }
}

fn critical(preset: &str, task: &TaskFacts) -> Option<bool> {
    Rules::preset(preset).unwrap().of(task).map(|(_, r)| r.critical == Critical::Yes)
}

#[test]
fn stars_stand_for_anything() {
    for (pattern, text, fits) in [
        ("postgres: *", "postgres: a b", true),
        ("postgres: *", "postgres", false),
        ("*/redis-server", "/usr/bin/redis-server", true),
        ("*/redis-server", "/usr/bin/redis-server (deleted)", false),
        ("a*b*c", "a1b2c", true),
        ("a*b*c", "acb", false),
        ("a*a", "a", false),
        ("exact", "exact", true),
        ("exact", "exactly", false),
        ("*", "", true),
    ] {
        assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
    }
}

/// What Debian's packages install, and what `/proc/PID/exe` says of a process of it: the file, not the link by which it was started.
const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";
const REDIS: [&str; 2] = ["/usr/bin/redis-check-rdb", "/usr/bin/valkey-check-rdb"];
const MARIADB: &str = "/usr/sbin/mariadbd";
/// What others' packages of MySQL and MongoDB do; Debian has none.
const MYSQL: &str = "/usr/sbin/mysqld";
const MONGODB: &str = "/usr/bin/mongod";

fn task(exe: &str, title: &str, thread: &str) -> TaskFacts {
    TaskFacts { exe: exe.into(), exe_is_trusted: true, thread: thread.into(), ..titled(title) }
}

#[test]
fn presets_tell_backends_from_helpers() {
    for (name, text) in PRESETS {
        assert!(!Rules::parse(text).unwrap().is_empty(), "{name}");
    }
    for (title, is) in [
        ("postgres: tpcc tpcc [local] COMMIT", Some(true)),
        ("postgres: 15/main: checkpointer ", Some(false)),
        ("postgres: walwriter ", Some(false)),
        ("postgres: 17/main: walsummarizer ", Some(false)),
        // A database may have such a name.
        ("postgres: app archiver [local] COMMIT", Some(true)),
        ("postgres: 15/main: app checkpointer [local] idle", Some(true)),
        ("/usr/lib/postgresql/15/bin/postgres -D x", None),
    ] {
        assert_eq!(critical("postgresql", &task(POSTGRES, title, "postgres")), is, "{title}");
    }
    for (family, debians) in ["redis", "valkey"].into_iter().zip(REDIS) {
        let server = format!("{family}-server");
        for exe in [&format!("/usr/local/bin/{server}"), debians] {
            let main = task(exe, &format!("/usr/bin/{server} *:6379"), &server);
            assert_eq!(critical("redis", &main), Some(true), "{exe}");
            for child in ["rdb-bgsave *:6379", "aof-rewrite *:6379"] {
                let child = task(exe, &format!("{family}-{child}"), &server);
                assert_eq!(critical("redis", &child), Some(false), "{exe}");
            }
            assert_eq!(critical("redis", &task(exe, &server, "bio_aof")), Some(false), "{exe}");
        }
        let name: String = format!("{family}-check-rdb").chars().take(15).collect();
        assert_eq!(critical("redis", &task(debians, "x", &name)), Some(false), "the tool itself");
    }
    for (exe, thread, is) in [
        (MARIADB, "ib_io_wr-1", Some(false)),
        (MYSQL, "connection", Some(true)),
        (MYSQL, "ib_log_flush", Some(true)),
        (MYSQL, "ib_log_checkpt", Some(false)),
        (MONGODB, "connection", None),
    ] {
        assert_eq!(critical("mariadb", &task(exe, "x", thread)), is, "{exe} {thread}");
    }
    let mariadb = Rules::preset("mariadb").unwrap();
    let asked = mariadb.of(&task(MARIADB, "x", "mariadbd")).map(|(_, r)| r.critical == Critical::Requests);
    assert_eq!(asked, Some(true), "all threads of MariaDB 10 are called so");
    assert_eq!(critical("mongodb", &task(MONGODB, "x", "conn17")), Some(true));
    assert_eq!(critical("mongodb", &task(MONGODB, "x", "JournalFlusher")), Some(true));
    assert_eq!(critical("mongodb", &task(MONGODB, "x", "WTJourn.Flusher")), Some(true));
    assert_eq!(critical("mongodb", &task(MONGODB, "x", "WTCheck.Thread")), Some(false));
}

/// Whatever a task calls itself: it is not the program, or the program's file is anybody's.
#[test]
fn presets_believe_no_title_and_no_name_of_a_thread() {
    for (preset, exe, title, thread) in [
        ("postgresql", POSTGRES, "postgres: x", "postgres"),
        ("redis", REDIS[0], "redis-server *:6379", "redis-server"),
        ("redis", REDIS[1], "valkey-server *:6379", "valkey-server"),
        ("mariadb", MYSQL, "mysqld", "connection"),
        ("mariadb", MARIADB, "mariadbd", "mariadbd"),
        ("mongodb", MONGODB, "mongod", "conn1"),
    ] {
        let rules = Rules::preset(preset).unwrap();
        let makes_critical = |task: &TaskFacts| {
            rules.of(task).is_some_and(|(_, r)| matches!(r.critical, Critical::Yes | Critical::Requests))
        };
        let real = task(exe, title, thread);
        assert!(makes_critical(&real), "{exe}");
        for impostor in ["/usr/bin/sleep", "/tmp/mad", ""] {
            assert!(!makes_critical(&task(impostor, title, thread)), "{impostor} as {exe}");
        }
        assert!(
            !makes_critical(&TaskFacts { exe_is_trusted: false, ..real.clone() }),
            "another file as {exe}"
        );
        // Of one user's tasks it does not matter whose file it is.
        let of_user = rules.clone().only_of("db");
        let users = |user: &str| TaskFacts {
            exe_is_trusted: false,
            users: [user.into(), "7".into()],
            ..real.clone()
        };
        assert!(of_user.of(&users("db")).is_some() && of_user.of(&users("other")).is_none());
        assert_eq!(rules.gullible().count(), 0);
    }
}

#[test]
fn rules_that_believe_what_any_task_says_of_itself_are_known() {
    for (given, critical, gullible) in [
        ("title = \"postgres: *\"", "true", true),
        ("thread = \"conn*\"", "\"requests\"", true),
        ("port = 5432", "true", true),
        ("exe = \"*\"", "\"requests\"", true),
        ("exe = [\"/usr/bin/x\", \"*\"]", "true", true),
        ("cgroup = \"*/db\"", "true", true),
        ("user = \"*\"", "true", true),
        ("title = \"x\"", "false", false),
        ("title = \"x\"", "\"never\"", false),
        ("title = \"x\"\nexe = \"*/postgres\"", "true", false),
        ("title = \"x\"\nuser = \"postgres\"", "true", false),
        ("cgroup = \"/system.slice/*\"", "true", false),
    ] {
        let rules =
            Rules::parse(&format!("[[rule]]\n{given}\ncritical = {critical}")).unwrap().called("mine");
        let expected: &[&str] = if gullible { &["mine:1"] } else { &[] };
        assert_eq!(rules.gullible().collect::<Vec<_>>(), expected, "{given} {critical}");
    }
}

#[test]
fn rules_are_called_by_their_set_and_number() {
    let mut rules = Rules::preset("redis").unwrap();
    let first = rules.0.len();
    rules
        .extend(Rules::parse("[[rule]]\ntitle = \"x\"\ncritical = false").unwrap().called("./my.toml"))
        .unwrap();
    let Name::Thread(comm) = Name::of_thread(b"x") else { panic!("a thread's") };
    assert_eq!(rules.source(Name::Rule(0)), Some("redis:1"));
    assert_eq!(rules.source(Name::Ruled(first, comm)), Some("./my.toml:1"));
    assert_eq!(rules.source(Name::Thread(comm)), None);
}

#[test]
fn all_that_a_rule_gives_must_hold() {
    let text = "[[rule]]\nuser = \"postgres\"\nport = 5432\ncgroup = \"/db*\"\ncritical = true\n";
    let rules = Rules::parse(text).unwrap();
    let mut task = TaskFacts {
        cgroup: "/db/pg".into(),
        users: ["postgres".into(), "113".into()],
        ports: vec![22, 5432],
        ..TaskFacts::default()
    };
    assert!(rules.of(&task).is_some());
    task.ports.clear();
    assert!(rules.of(&task).is_none() && rules.ask_for_ports_of(&task));
    task.cgroup.clear();
    assert!(!rules.ask_for_ports_of(&task), "whatever its ports are");
}

#[test]
fn a_task_is_critical_always_never_or_while_it_answers() {
    for (spelled, critical) in [
        ("true", Critical::Yes),
        ("false", Critical::No),
        ("\"requests\"", Critical::Requests),
        ("\"never\"", Critical::Never),
    ] {
        let rules = Rules::parse(&format!("[[rule]]\nthread = \"x\"\ncritical = {spelled}")).unwrap();
        assert_eq!(
            (rules.0[0].critical, rules.ask_for_requests()),
            (critical, critical == Critical::Requests)
        );
    }
    let rated = Rules::parse("[[rule]]\ncgroup = \"/a*\"\ncritical = true\nrate = \"2M\"").unwrap();
    assert_eq!(rated.rates().collect::<Vec<_>>(), [2 << 20]);
    let error = Rules::parse("[[rule]]\nthread = \"x\"\ncritical = \"often\"").unwrap_err().to_string();
    assert!(error.contains("\"requests\" or \"never\", not \"often\""), "{error}");
}

#[test]
fn mistakes_are_told() {
    assert_eq!(Rules::parse("[[rule]]\ncritical = true"), Err(RulesError::FitsAll(1)));
    let wrong = Rules::parse("[[rule]]\ntitel = \"x\"\ncritical = true").unwrap_err().to_string();
    assert!(wrong.starts_with("line 2: unknown field `titel`"), "{wrong}");
    for (flaw, told) in [
        ("thread = \"a-name-of-sixteen*\"", "15 characters"),
        ("exe = \"redis-server\"", "exe is a path"),
        ("exe = [\"/usr/bin/redis-server\", \"redis-server\"]", "exe is a path"),
        ("cgroup = \"system.slice/db\"", "cgroup is a path"),
    ] {
        let error = Rules::parse(&format!("[[rule]]\n{flaw}\ncritical = true")).unwrap_err().to_string();
        assert!(error.starts_with("rule 1 fits no task: ") && error.contains(told), "{error}");
    }
    let path = Rules::parse("[[rule]]\nexe = 7\ncritical = true").unwrap_err().to_string();
    assert!(path.contains("a path, or a list of paths"), "{path}");
    let number = Rules::parse("[[rule]]\nthread = \"x\"\ncritical = 1").unwrap_err().to_string();
    assert!(number.contains("critical is true, false,"), "{number}");
    let mut rules = Rules::preset("redis").unwrap();
    let many = "[[rule]]\nthread = \"x\"\ncritical = true\n".repeat(RULES_MAX);
    assert!(matches!(rules.extend(Rules::parse(&many).unwrap()), Err(RulesError::TooMany(_))));
    let rated = "[[rule]]\nthread = \"x\"\ncritical = true\nrate = \"1M\"\n";
    let most =
        Rules::parse(&("[[rule]]\ntitle = \"y\"\ncritical = true\n".to_owned() + &rated.repeat(RATES_MAX)));
    rules.extend(most.unwrap()).unwrap();
    assert!(matches!(rules.extend(Rules::parse(rated).unwrap()), Err(RulesError::TooManyRates(33))));
    let ordinals = [
        rules.rate_of(rules.0.len() - RATES_MAX - 1),
        rules.rate_of(rules.0.len() - RATES_MAX),
        rules.rate_of(rules.0.len() - 1),
    ];
    assert_eq!(ordinals, [0, 1, 32]);
}
