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
mod tests;
