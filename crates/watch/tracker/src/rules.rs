//! Who is critical: rules over what the system tells of a task. The first that fits decides.

use forebay_policy::size;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::rates::Rate;
use crate::tasks::Name;
use crate::wire::{RATES_MAX, text};

/// Most rules in force.
pub const RULES_MAX: usize = 256;

/// Longest name of a thread, in bytes, as the kernel keeps it.
const THREAD_NAME_MAX: usize = 15;

/// The rule sets that come with Forebay, by name.
pub const PRESETS: [(&str, &str); 5] = [
    ("postgresql", include_str!("../presets/postgresql.toml")),
    ("redis", include_str!("../presets/redis.toml")),
    ("mariadb", include_str!("../presets/mariadb.toml")),
    ("mongodb", include_str!("../presets/mongodb.toml")),
    ("servers", include_str!("../presets/servers.toml")),
];

/// Rules that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RulesError {
    /// The text is not what it should be.
    #[error("{0}")]
    Syntax(String),
    /// A rule fits every task there is.
    #[error("rule {0} says of no task what it is: give it a title, thread, exe, cgroup, user or port")]
    FitsAll(usize),
    /// A rule can fit no task.
    #[error("rule {0} fits no task: {1}")]
    FitsNone(usize, &'static str),
    /// There are too many.
    #[error("{0} rules are more than {RULES_MAX}")]
    TooMany(usize),
    /// There are too many with a rate.
    #[error("{0} rules with a rate are more than {RATES_MAX}")]
    TooManyRates(usize),
}

/// What a rule says of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Spelled")]
pub enum Critical {
    /// `false`: not by itself; it may inherit, or say of itself that it works for a request.
    #[default]
    No,
    /// `true`: always.
    Yes,
    /// `"requests"`: from the read of a request on an accepted socket to the answer.
    Requests,
    /// `"never"`: whatever it says of itself, and whoever waits for it.
    Never,
}

/// As it stands in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Spelled {
    Flag(bool),
    Word(String),
    Other(toml::Value),
}

impl TryFrom<Spelled> for Critical {
    type Error = String;

    fn try_from(spelled: Spelled) -> Result<Self, String> {
        match spelled {
            Spelled::Flag(false) => Ok(Self::No),
            Spelled::Flag(true) => Ok(Self::Yes),
            Spelled::Word(word) if word == "requests" => Ok(Self::Requests),
            Spelled::Word(word) if word == "never" => Ok(Self::Never),
            Spelled::Word(word) => Err(spelled_wrong(&format!("\"{word}\""))),
            Spelled::Other(value) => Err(spelled_wrong(&value.to_string())),
        }
    }
}

fn spelled_wrong(what: &str) -> String {
    format!("critical is true, false, \"requests\" or \"never\", not {what}")
}

impl Critical {
    /// `FB_CRITICAL_*` of `tracker.h`.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::No => 0,
            Self::Yes => 1,
            Self::Requests => 3,
            Self::Never => 4,
        }
    }
}

/// One rule: it fits a task of which everything that is given holds. Texts may have `*` for any characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// What such tasks are called in reports; without it, by their thread's name.
    pub name: Option<String>,
    /// The process title: its arguments, joined by blanks.
    pub title: Option<String>,
    /// The thread's name.
    pub thread: Option<String>,
    /// Path of the program, or several of which one is; empty where it does not matter. See [`TaskFacts::exe_is_trusted`].
    #[serde(default, deserialize_with = "one_or_several")]
    pub exe: Vec<String>,
    /// Path of the control group.
    pub cgroup: Option<String>,
    /// Name or number of the user.
    pub user: Option<String>,
    /// A TCP port on which the process listens, or the one of the same program that has forked it.
    pub port: Option<u16>,
    /// Most bytes a second of writes of all such tasks together that count as critical; without it, any.
    #[serde(default, deserialize_with = "rate")]
    pub rate: Option<u64>,
    /// Whether such a task is critical, or when.
    pub critical: Critical,
    /// Its set and its number there, from 1 on: what reports call it.
    #[serde(skip)]
    source: String,
}

fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "exe is a path, or a list of paths")]
    enum Paths {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Paths::deserialize(deserializer)? {
        Paths::One(path) => vec![path],
        Paths::Several(paths) => paths,
    })
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    size::parse(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

/// What the system tells of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFacts {
    /// The process title.
    pub title: String,
    /// The thread's name.
    pub thread: String,
    /// Path of the program.
    pub exe: String,
    /// The program's file belongs to root or to the daemon's user, and nobody else may write it. Any user can put a file of any name
    /// somewhere, or under any path in a mount namespace of its own.
    pub exe_is_trusted: bool,
    /// Path of the control group.
    pub cgroup: String,
    /// Name and number of the user.
    pub users: [String; 2],
    /// TCP ports on which the process listens; empty where no rule asks.
    pub ports: Vec<u16>,
}

/// Rules in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Rule>,
}

impl Rules {
    /// Reads TOML with one `[[rule]]` for each.
    ///
    /// # Errors
    /// [`RulesError`].
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let file: File = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |s| text.get(..s.start).unwrap_or(text).matches('\n').count() + 1);
            RulesError::Syntax(format!("line {line}: {}", e.message().replace('\n', " ")))
        })?;
        let fits_all = |r: &Rule| {
            Rule { name: None, rate: None, critical: Critical::No, ..r.clone() } == Rule::default()
        };
        for (at, rule) in file.rule.iter().enumerate() {
            if fits_all(rule) {
                return Err(RulesError::FitsAll(at + 1));
            }
            if let Some(flaw) = rule.flaw() {
                return Err(RulesError::FitsNone(at + 1, flaw));
            }
        }
        Ok(Self(file.rule))
    }

    /// The rules that come with Forebay under this name.
    pub fn preset(name: &str) -> Option<Self> {
        let (_, text) = PRESETS.iter().find(|(n, _)| *n == name)?;
        Some(Self::parse(text).ok()?.called(name))
    }

    /// These rules as reports call them: the set of this name.
    pub fn called(mut self, set: &str) -> Self {
        for (number, rule) in (1..).zip(&mut self.0) {
            rule.source = format!("{set}:{number}");
        }
        self
    }

    /// These rules for tasks of one user alone.
    pub fn only_of(mut self, user: &str) -> Self {
        self.0.iter_mut().for_each(|rule| rule.user = Some(user.to_owned()));
        self
    }

    /// The rules by which any user's task can make itself critical, by what it says of itself.
    pub fn gullible(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|rule| rule.is_gullible()).map(|rule| rule.source.as_str())
    }

    /// Adds more, to be asked after these.
    ///
    /// # Errors
    /// [`RulesError::TooMany`], [`RulesError::TooManyRates`].
    pub fn extend(&mut self, more: Self) -> Result<(), RulesError> {
        let count = self.0.len() + more.0.len();
        if count > RULES_MAX {
            return Err(RulesError::TooMany(count));
        }
        let rated = self.rates().chain(more.rates()).count();
        if rated > RATES_MAX {
            return Err(RulesError::TooManyRates(rated));
        }
        self.0.extend(more.0);
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first rule that fits, and its place among all.
    pub fn of(&self, task: &TaskFacts) -> Option<(usize, &Rule)> {
        self.0.iter().enumerate().find(|(_, r)| r.fits(task))
    }

    /// A task's name in words.
    pub fn words(&self, name: Name) -> String {
        match name {
            Name::Rule(place) => self.0.get(place).and_then(|rule| rule.name.clone()).unwrap_or_default(),
            Name::Thread(comm) | Name::Ruled(_, comm) => text(&comm).into_owned(),
        }
    }

    /// The rule that fits a task of this name: its set and its number there.
    pub fn source(&self, name: Name) -> Option<&str> {
        match name {
            Name::Rule(place) | Name::Ruled(place, _) => Some(&self.0.get(place)?.source),
            Name::Thread(_) => None,
        }
    }

    /// The rates of those rules that have one, in bytes a second.
    pub fn rates(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().filter_map(|r| r.rate)
    }

    /// Which of them the rule in this place has, from 1 on; 0: none.
    pub(crate) fn rate_of(&self, place: usize) -> Rate {
        let before_and_its = self.0.iter().take(place + 1).filter(|r| r.rate.is_some()).count();
        let is_rated = self.0.get(place).is_some_and(|r| r.rate.is_some());
        if is_rated { Rate::try_from(before_and_its).unwrap_or_default() } else { 0 }
    }

    /// Whether a rule asks for requests on sockets.
    pub fn ask_for_requests(&self) -> bool {
        self.0.iter().any(|r| r.critical == Critical::Requests)
    }

    /// Whether it depends on its ports which rule fits this task.
    pub fn ask_for_ports_of(&self, task: &TaskFacts) -> bool {
        self.0.iter().any(|r| r.port.is_some() && r.fits_but_for_ports(task))
    }

    /// Whether a rule asks for what lies behind links in `/proc`, which not everybody may read of others' processes.
    pub fn ask_for_files(&self) -> bool {
        self.0.iter().any(|r| r.port.is_some() || !r.exe.is_empty())
    }

    /// Whether a rule asks for the cgroup of tasks.
    pub fn ask_for_cgroups(&self) -> bool {
        self.0.iter().any(|r| r.cgroup.is_some())
    }

    /// The users of whom rules speak.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|r| r.user.as_deref())
    }
}

impl Rule {
    fn fits(&self, task: &TaskFacts) -> bool {
        self.fits_but_for_ports(task) && self.port.is_none_or(|p| task.ports.contains(&p))
    }

    /// What makes it fit no task at all, if anything does.
    fn flaw(&self) -> Option<&'static str> {
        let is_path = |pattern: &String| pattern.starts_with(['/', '*']);
        let long = |name: &String| name.chars().filter(|c| *c != '*').count() > THREAD_NAME_MAX;
        match () {
            () if self.thread.as_ref().is_some_and(long) => Some("a thread's name has 15 characters at most"),
            () if !self.exe.iter().all(is_path) => Some("exe is a path, which begins with / or with *"),
            () if !self.cgroup.iter().all(is_path) => Some("cgroup is a path, which begins with / or with *"),
            () => None,
        }
    }

    /// Whether the program is one of those that are meant. Of a rule for one user it does not matter whose file it is: that user's tasks are believed.
    fn fits_exe(&self, task: &TaskFacts) -> bool {
        let fits = |pattern: &String| {
            let is_believed = task.exe_is_trusted || is_anything(pattern) || self.names_user();
            is_believed && matches(pattern, &task.exe)
        };
        self.exe.is_empty() || self.exe.iter().any(fits)
    }

    fn names_user(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !is_anything(user))
    }

    /// Whether any user's task can make itself critical by it: title and thread are its own choice, ports nearly so, and users may have control
    /// groups of their own somewhere.
    fn is_gullible(&self) -> bool {
        let names_exe = !self.exe.is_empty() && !self.exe.iter().any(|exe| is_anything(exe));
        let names_cgroup = self.cgroup.as_ref().is_some_and(|cgroup| !cgroup.starts_with('*'));
        let makes_critical = matches!(self.critical, Critical::Yes | Critical::Requests);
        makes_critical && !(self.names_user() || names_exe || names_cgroup)
    }

    fn fits_but_for_ports(&self, task: &TaskFacts) -> bool {
        let like = |pattern: &Option<String>, text: &str| pattern.as_ref().is_none_or(|p| matches(p, text));
        like(&self.title, &task.title)
            && like(&self.thread, &task.thread)
            && self.fits_exe(task)
            && like(&self.cgroup, &task.cgroup)
            && self.user.as_ref().is_none_or(|u| task.users.iter().any(|t| matches(u, t)))
    }
}

/// Whether a pattern fits whatever there is.
fn is_anything(pattern: &str) -> bool {
    pattern.chars().all(|c| c == '*')
}

/// Whether `text` is what `pattern` says, in which `*` stands for any characters, or none.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
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
        let asked =
            mariadb.of(&task(MARIADB, "x", "mariadbd")).map(|(_, r)| r.critical == Critical::Requests);
        assert_eq!(asked, Some(true), "all threads of MariaDB 10 are called so");
        assert_eq!(critical("mongodb", &task(MONGODB, "x", "conn17")), Some(true));
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
        let most = Rules::parse(
            &("[[rule]]\ntitle = \"y\"\ncritical = true\n".to_owned() + &rated.repeat(RATES_MAX)),
        );
        rules.extend(most.unwrap()).unwrap();
        assert!(matches!(rules.extend(Rules::parse(rated).unwrap()), Err(RulesError::TooManyRates(33))));
        let ordinals = [
            rules.rate_of(rules.0.len() - RATES_MAX - 1),
            rules.rate_of(rules.0.len() - RATES_MAX),
            rules.rate_of(rules.0.len() - 1),
        ];
        assert_eq!(ordinals, [0, 1, 32]);
    }
}
