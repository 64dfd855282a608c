//! Who is critical: rules over what the system tells of a task. The first that fits decides.

use forebay_policy::size;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::tasks::Name;
use crate::wire::text;

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
    /// Path of the program.
    pub exe: Option<String>,
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
        Self::parse(text).ok()
    }

    /// Adds more, to be asked after these.
    ///
    /// # Errors
    /// [`RulesError::TooMany`].
    pub fn extend(&mut self, more: Self) -> Result<(), RulesError> {
        let count = self.0.len() + more.0.len();
        if count > RULES_MAX {
            return Err(RulesError::TooMany(count));
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
            Name::Thread(comm) => text(&comm).into_owned(),
        }
    }

    /// The rates of the rules, each in its place.
    pub fn rates(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.0.iter().map(|r| r.rate)
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
        self.0.iter().any(|r| r.port.is_some() || r.exe.is_some())
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
        let is_path = |pattern: &Option<String>| pattern.as_ref().is_none_or(|p| p.starts_with(['/', '*']));
        let long = |name: &String| name.chars().filter(|c| *c != '*').count() > THREAD_NAME_MAX;
        match () {
            () if self.thread.as_ref().is_some_and(long) => Some("a thread's name has 15 characters at most"),
            () if !is_path(&self.exe) => Some("exe is a path, which begins with / or with *"),
            () if !is_path(&self.cgroup) => Some("cgroup is a path, which begins with / or with *"),
            () => None,
        }
    }

    fn fits_but_for_ports(&self, task: &TaskFacts) -> bool {
        let like = |pattern: &Option<String>, text: &str| pattern.as_ref().is_none_or(|p| matches(p, text));
        like(&self.title, &task.title)
            && like(&self.thread, &task.thread)
            && like(&self.exe, &task.exe)
            && like(&self.cgroup, &task.cgroup)
            && self.user.as_ref().is_none_or(|u| task.users.iter().any(|t| matches(u, t)))
    }
}

/// Whether `text` is what `pattern` says, in which `*` stands for any characters, or none.
fn matches(pattern: &str, text: &str) -> bool {
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

    #[test]
    fn presets_tell_backends_from_helpers() {
        for (name, text) in PRESETS {
            assert!(!Rules::parse(text).unwrap().is_empty(), "{name}");
        }
        assert_eq!(critical("postgresql", &titled("postgres: tpcc tpcc [local] COMMIT")), Some(true));
        assert_eq!(critical("postgresql", &titled("postgres: 15/main: checkpointer ")), Some(false));
        assert_eq!(critical("postgresql", &titled("postgres: walwriter ")), Some(false));
        assert_eq!(critical("postgresql", &titled("postgres: 17/main: walsummarizer ")), Some(false));
        // A database may have such a name.
        assert_eq!(critical("postgresql", &titled("postgres: app archiver [local] COMMIT")), Some(true));
        assert_eq!(
            critical("postgresql", &titled("postgres: 15/main: app checkpointer [local] idle")),
            Some(true)
        );
        assert_eq!(critical("postgresql", &titled("/usr/lib/postgresql/15/bin/postgres -D x")), None);
        let thread =
            |exe: &str, thread: &str| TaskFacts { exe: exe.into(), thread: thread.into(), ..titled("x") };
        for family in ["redis", "valkey"] {
            let server = format!("{family}-server");
            for file in [server.clone(), format!("{family}-check-rdb")] {
                let exe = format!("/usr/bin/{file}");
                let task = |title: &str, thread: &str| TaskFacts {
                    exe: exe.clone(),
                    thread: thread.into(),
                    ..titled(title)
                };
                let main = task(&format!("/usr/bin/{server} *:6379"), &server);
                assert_eq!(critical("redis", &main), Some(true), "{exe}");
                for child in ["rdb-bgsave *:6379", "aof-rewrite *:6379"] {
                    let child = task(&format!("{family}-{child}"), &server);
                    assert_eq!(critical("redis", &child), Some(false), "{exe}");
                }
                assert_eq!(critical("redis", &task(&server, "bio_aof")), Some(false), "{exe}");
            }
            let (tool, name) = (format!("/usr/bin/{family}-check-rdb"), format!("{family}-check-rdb"));
            let name = name.chars().take(15).collect::<String>();
            assert_eq!(critical("redis", &thread(&tool, &name)), Some(false), "{tool}");
        }
        assert_eq!(critical("mariadb", &thread("/usr/sbin/mariadbd", "ib_io_wr-1")), Some(false));
        assert_eq!(critical("mariadb", &thread("/usr/sbin/mysqld", "connection")), Some(true));
        assert_eq!(critical("mariadb", &thread("/usr/sbin/mysqld", "ib_log_flush")), Some(true));
        assert_eq!(critical("mariadb", &thread("/usr/sbin/mysqld", "ib_log_checkpt")), Some(false));
        let (mariadb, nameless) =
            (Rules::preset("mariadb").unwrap(), thread("/usr/sbin/mariadbd", "mariadbd"));
        let asked = mariadb.of(&nameless).map(|(_, r)| r.critical == Critical::Requests);
        assert_eq!(asked, Some(true), "all threads of MariaDB 10 are called so");
        assert_eq!(critical("mongodb", &thread("/usr/bin/mongod", "conn17")), Some(true));
        assert_eq!(critical("mongodb", &thread("/usr/bin/mongod", "WTCheck.Thread")), Some(false));
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
        assert_eq!(rated.rates().collect::<Vec<_>>(), [Some(2 << 20)]);
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
            ("cgroup = \"system.slice/db\"", "cgroup is a path"),
        ] {
            let error = Rules::parse(&format!("[[rule]]\n{flaw}\ncritical = true")).unwrap_err().to_string();
            assert!(error.starts_with("rule 1 fits no task: ") && error.contains(told), "{error}");
        }
        let number = Rules::parse("[[rule]]\nthread = \"x\"\ncritical = 1").unwrap_err().to_string();
        assert!(number.contains("critical is true, false,"), "{number}");
        let mut rules = Rules::preset("redis").unwrap();
        let many = "[[rule]]\nthread = \"x\"\ncritical = true\n".repeat(RULES_MAX);
        assert!(matches!(rules.extend(Rules::parse(&many).unwrap()), Err(RulesError::TooMany(_))));
    }
}
