//! The tasks of the system, as `/proc` shows them, and what the rules say of each.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::rules::{Critical, Rules, TaskFacts};

/// Most tasks that are remembered; the eBPF program remembers as many.
const TASKS_MAX: usize = 32_768;
/// Longest process title that is read.
const TITLE_BYTES_MAX: usize = 4096;

/// What is known of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Task {
    process: u32,
    critical: Critical,
    /// A rule fits it.
    ruled: bool,
}

/// A process, so that a change of its title is noticed.
struct Process {
    title: String,
    /// It was there when processes were last listed.
    listed: bool,
}

/// See the module's documentation.
pub(crate) struct Tasks {
    rules: Rules,
    users: HashMap<u32, String>,
    tasks: HashMap<u32, Task>,
    processes: HashMap<u32, Process>,
    changes: Changes,
}

/// What has changed since it was asked last.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Tasks that have become critical, or are not any more.
    pub critical: Vec<(u32, Critical)>,
    /// Processes of which a rule speaks, and did not before, or otherwise.
    pub ruled: Vec<(u32, Critical)>,
    /// Tasks that rules have named.
    pub named: Vec<(u32, Label)>,
}

/// What rules say of a task beside that it is critical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// What it is called in reports.
    pub name: Option<Arc<str>>,
    /// The rule whose rate it shares.
    pub rate: Option<usize>,
}

impl Tasks {
    pub fn new(rules: Rules) -> Self {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let users = passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, uid) = (fields.next()?, fields.nth(1)?);
            Some((uid.parse().ok()?, name.to_owned()))
        });
        Self {
            rules,
            users: users.collect(),
            tasks: HashMap::new(),
            processes: HashMap::new(),
            changes: Changes::default(),
        }
    }

    /// Looks at every process; those whose title has not changed are left as they are.
    pub fn scan(&mut self) {
        self.processes.values_mut().for_each(|p| p.listed = false);
        let numbers = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
            entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<u32>>()
        };
        for pid in numbers("/proc") {
            let title = title(pid);
            let known = self.processes.get(&pid).is_some_and(|p| p.title == title);
            if self.processes.len() < TASKS_MAX || known {
                self.processes.insert(pid, Process { title, listed: true });
            }
            if !known {
                numbers(&format!("/proc/{pid}/task")).into_iter().for_each(|tid| self.classify(tid, pid));
            }
        }
        self.processes.retain(|_, p| p.listed);
        let processes = &self.processes;
        self.tasks.retain(|_, t| processes.contains_key(&t.process));
    }

    /// Looks at one task, which is new or has changed.
    pub fn classify(&mut self, tid: u32, process: u32) {
        let Some(facts) = self.facts(tid, process) else {
            return;
        };
        let rule = self.rules.of(&facts);
        let critical = rule.map(|(_, r)| r.critical).unwrap_or_default();
        let ruled = rule.is_some();
        if let Some((place, rule)) = rule
            && (rule.name.is_some() || rule.rate.is_some())
        {
            let rate = rule.rate.map(|_| place);
            let label = Label { name: rule.name.as_deref().map(Into::into), rate };
            self.changes.named.push((tid, label));
        }
        let task = Task { process, critical, ruled };
        let was = self.tasks.get(&tid);
        if critical != was.map(|t| t.critical).unwrap_or_default() {
            self.changes.critical.push((tid, critical));
        }
        if ruled && tid == process && was != Some(&task) {
            self.changes.ruled.push((tid, critical));
        }
        if self.tasks.len() < TASKS_MAX || was.is_some() {
            self.tasks.insert(tid, task);
        }
    }

    fn facts(&self, tid: u32, process: u32) -> Option<TaskFacts> {
        let at = format!("/proc/{process}");
        let thread = fs::read_to_string(format!("{at}/task/{tid}/comm")).ok()?.trim_end().to_owned();
        let exe = fs::read_link(format!("{at}/exe")).map(|p| p.display().to_string()).unwrap_or_default();
        let cgroups = fs::read_to_string(format!("{at}/cgroup")).unwrap_or_default();
        let cgroup = cgroups.lines().find_map(|l| l.strip_prefix("0::")).unwrap_or_default().to_owned();
        let uid = fs::metadata(&at).map(|m| m.uid()).ok()?;
        let user = self.users.get(&uid).cloned().unwrap_or_default();
        let ports = if self.rules.ask_for_ports() { ports(process) } else { Vec::new() };
        Some(TaskFacts { title: title(process), thread, exe, cgroup, users: [user, uid.to_string()], ports })
    }

    /// The processes of which a rule speaks, with what it says.
    pub fn ruled(&self) -> Vec<(u32, Critical)> {
        let leaders = self.tasks.iter().filter(|(tid, t)| **tid == t.process && t.ruled);
        leaders.map(|(tid, t)| (*tid, t.critical)).collect()
    }

    /// Whether it is one of those that are remembered.
    pub fn knows(&self, tid: u32) -> bool {
        self.tasks.contains_key(&tid)
    }

    /// The task has ended; whether a rule spoke of it.
    pub fn forget(&mut self, tid: u32) -> bool {
        self.processes.remove(&tid);
        self.tasks.remove(&tid).is_some_and(|task| task.ruled)
    }

    /// Who has become critical, or is not any more, and whom rules have named, since this was asked last.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

/// A thread's name without what numbers the like of it: `kworker/u8:3` is `kworker`.
pub(crate) fn plain_name(comm: &str) -> String {
    match comm.split_once('/') {
        Some((kind @ ("kworker" | "jbd2"), _)) => kind.to_owned(),
        _ => comm.to_owned(),
    }
}

/// The arguments of a process, joined by blanks.
fn title(process: u32) -> String {
    let mut bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    bytes.truncate(TITLE_BYTES_MAX);
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The TCP ports on which a process listens.
fn ports(process: u32) -> Vec<u16> {
    let fds = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().filter_map(Result::ok);
    let sockets: Vec<String> = fds
        .filter_map(|fd| {
            Some(
                fs::read_link(fd.path())
                    .ok()?
                    .to_str()?
                    .strip_prefix("socket:[")?
                    .trim_end_matches(']')
                    .to_owned(),
            )
        })
        .collect();
    let table = |name: &str| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    [table("tcp"), table("tcp6")].iter().flat_map(|t| listening(t, &sockets)).collect()
}

/// The ports of a table of the kernel on which one of the sockets listens.
fn listening(table: &str, sockets: &[String]) -> Vec<u16> {
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let listens = *state == "0A" && sockets.iter().any(|s| s == inode);
        listens.then(|| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()).flatten()
    };
    table.lines().filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap()
    }

    #[test]
    fn this_process_is_found_by_every_kind_of_rule() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let exe = std::env::current_exe().unwrap().display().to_string();
        let uid = fs::metadata("/proc/self").unwrap().uid();
        let pid = std::process::id();
        for rule in [format!("port = {port}"), format!("exe = \"{exe}\""), format!("user = \"{uid}\"")] {
            let mut tasks = Tasks::new(rules(&format!("[[rule]]\nname = \"me\"\n{rule}\ncritical = true")));
            tasks.scan();
            let Changes { critical, ruled, named } = tasks.take_changes();
            assert!(
                critical.contains(&(pid, Critical::Yes)) && ruled.contains(&(pid, Critical::Yes)),
                "{rule}"
            );
            assert!(named.contains(&(pid, Label { name: Some("me".into()), rate: None })), "{rule}");
            tasks.scan();
            tasks.classify(pid, pid);
            let Changes { critical, ruled, .. } = tasks.take_changes();
            assert!(!critical.into_iter().chain(ruled).any(|(tid, _)| tid == pid), "nothing has changed");
        }
    }

    #[test]
    fn others_are_not_critical_and_are_called_by_their_name() {
        let mut tasks = Tasks::new(Rules::default());
        tasks.scan();
        assert_eq!(tasks.take_changes(), Changes::default());
        assert_eq!(plain_name("kworker/u8:3"), "kworker");
        assert_eq!(plain_name("jbd2/loop0-8"), "jbd2");
        assert_eq!(plain_name("a/b"), "a/b");
    }

    #[test]
    fn only_listening_sockets_of_the_process_count() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:1538 00000000:0000 0A 0:0 0:0 0 0 0 77 1\n   \
                     1: 0100007F:1539 00000000:0000 01 0:0 0:0 0 0 0 77 1\n   2: 0100007F:153A 00000000:0000 0A 0:0 0:0 0 0 0 78 1\n";
        assert_eq!(listening(table, &["77".to_owned()]), [0x1538]);
    }
}
