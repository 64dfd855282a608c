//! Whose hints are believed: a task that says of itself that it works for a request.

use std::fmt;
use std::str::FromStr;

use crate::rules::{TaskFacts, matches};

/// Most users and control groups that are listed.
const LISTED_MAX: usize = 64;

/// Of whom a list speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Believed {
    /// Tasks of a user, by name or number.
    User(String),
    /// Tasks of control groups whose path is like this one; `*` stands for any characters.
    Cgroup(String),
}

/// Whose hints are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints(Option<Vec<Believed>>);

impl Hints {
    /// Not everybody's.
    pub(crate) fn are_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Nobody's are believed.
    pub fn are_nobodys(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether a list speaks of this task.
    pub(crate) fn believes(&self, task: &TaskFacts) -> bool {
        let speaks_of = |believed: &Believed| match believed {
            Believed::User(user) => task.users.contains(user),
            Believed::Cgroup(pattern) => matches(pattern, &task.cgroup),
        };
        self.0.iter().flatten().any(speaks_of)
    }

    /// The users of whom a list speaks.
    pub(crate) fn users(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().filter_map(|believed| match believed {
            Believed::User(user) => Some(user.as_str()),
            Believed::Cgroup(_) => None,
        })
    }

    /// Whether a list speaks of control groups.
    pub(crate) fn ask_for_cgroups(&self) -> bool {
        self.0.iter().flatten().any(|believed| matches!(believed, Believed::Cgroup(_)))
    }
}

impl FromStr for Hints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let believed = |item: &str| match item.trim().split_once('=') {
            Some(("user", user)) if !user.is_empty() => Ok(Believed::User(user.to_owned())),
            Some(("cgroup", path)) if path.starts_with('/') => Ok(Believed::Cgroup(path.to_owned())),
            Some(("cgroup", path)) => {
                Err(format!("'{path}' is no path of a control group, which begins with /"))
            }
            _ => Err(format!("'{item}' is neither all, none, user=NAME nor cgroup=PATH")),
        };
        match text {
            "all" => Ok(Self(None)),
            "none" => Ok(Self(Some(Vec::new()))),
            list => {
                let listed = list.split(',').map(believed).collect::<Result<Vec<_>, _>>()?;
                match listed.len() {
                    0..=LISTED_MAX => Ok(Self(Some(listed))),
                    more => Err(format!("{more} users and control groups are more than {LISTED_MAX}")),
                }
            }
        }
    }
}

impl fmt::Display for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |believed: &Believed| match believed {
            Believed::User(user) => format!("user={user}"),
            Believed::Cgroup(path) => format!("cgroup={path}"),
        };
        match &self.0 {
            None => f.write_str("all"),
            Some(none) if none.is_empty() => f.write_str("none"),
            Some(list) => f.write_str(&list.iter().map(words).collect::<Vec<_>>().join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_believed_of_those_that_are_listed() {
        let task = |user: &str, uid: &str, cgroup: &str| TaskFacts {
            users: [user.into(), uid.into()],
            cgroup: cgroup.into(),
            ..TaskFacts::default()
        };
        let (app, other) = (task("app", "1001", "/"), task("", "1002", "/tenants/a/x"));
        for (text, limited, believed) in [
            ("all", false, [false, false]),
            ("none", true, [false, false]),
            ("user=app", true, [true, false]),
            ("user=1002", true, [false, true]),
            ("cgroup=/tenants/*", true, [false, true]),
            ("user=app,cgroup=/tenants/b/*", true, [true, false]),
        ] {
            let hints: Hints = text.parse().unwrap();
            assert_eq!(hints.are_limited(), limited, "{text}");
            assert_eq!(hints.are_nobodys(), text == "none");
            assert_eq!([&app, &other].map(|task| hints.believes(task)), believed, "{text}");
            assert_eq!(hints.to_string(), text);
        }
        for (wrong, told) in [
            ("some", "'some' is neither"),
            ("", "'' is neither"),
            ("user=", "neither"),
            ("cgroup=tenants", "begins with /"),
            ("uid=7", "user=NAME"),
            (&["user=a"; LISTED_MAX + 1].join(","), "more than 64"),
        ] {
            let error = wrong.parse::<Hints>().unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }
}
