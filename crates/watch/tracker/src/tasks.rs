//! The tasks of the system, as `/proc` shows them, and what the rules say of each.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hints::Hints;
use crate::rates::Rate;
use crate::rules::{Critical, Rules, TaskFacts};

/// Most tasks that are remembered.
const TASKS_MAX: usize = 32_768;
/// Longest process title that is read.
const TITLE_BYTES_MAX: u64 = 4096;
/// Of the processes whose title is as it was, one in so many is looked at again by each scan: its user, control group or ports may have changed, or a
/// thread's name, and a thread may have come of which nobody has told.
const LOOK_AGAIN_IN: u32 = 8;

/// What the eBPF programs are told of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    pub critical: Critical,
    /// A rule fits it.
    pub ruled: bool,
    /// The rate that this rule has.
    pub rate: Rate,
    /// Its hint is believed, although not everybody's is.
    pub heard: bool,
}

/// What is known of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    process: u32,
    pub role: Role,
    /// A rule fits it, and was told of as its label.
    pub labelled: bool,
    /// The eBPF program was told, and knows it still.
    told: bool,
}

/// A process, so that a change of its title is noticed.
struct Process {
    title: String,
    /// It is a thread of the kernel, which has no title and hardly ever gets one, or has ended.
    has_no_program: bool,
    /// It was there when processes were last listed.
    listed: bool,
}

/// See the module's documentation.
pub(crate) struct Tasks {
    rules: Rules,
    hints: Hints,
    users: HashMap<u32, String>,
    tasks: HashMap<u32, Task>,
    processes: HashMap<u32, Process>,
    changes: Changes,
    /// Which of the known processes are looked at again next.
    turn: u32,
    hidden: Arc<AtomicBool>,
}

/// What has changed since it was asked last.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Tasks of which the rules say something, and did not before, or otherwise.
    pub roles: Vec<(u32, Role)>,
    /// Processes of which a rule speaks, and did not before, or otherwise.
    pub ruled: Vec<(u32, Critical)>,
    /// Tasks that rules have named.
    pub named: Vec<(u32, Label)>,
}

/// What a task is called in reports: copied for each write, and put into words by [`Rules::words`] for whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// As the rule in this place calls it.
    Rule(usize),
    /// The rule in this place fits it and has no name for it: as its thread is called.
    Ruled(usize, [u8; 16]),
    /// As its thread is called: up to 15 bytes, then zeros.
    Thread([u8; 16]),
}

impl Name {
    /// A thread's, without what numbers the like of it: `kworker/u8:3` is `kworker`.
    pub fn of_thread(comm: &[u8]) -> Self {
        let is_numbered = comm.starts_with(b"kworker/") || comm.starts_with(b"jbd2/");
        let plain = comm.iter().take_while(|b| **b != 0 && !(is_numbered && **b == b'/'));
        let mut name = [0; 16];
        name.iter_mut().zip(plain).take(15).for_each(|(to, from)| *to = *from);
        Self::Thread(name)
    }
}

/// What rules say of a task beside that it is critical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// The place of the rule that fits it.
    pub rule: Option<usize>,
    /// That rule has a name for it.
    pub named: bool,
    /// The rate that it shares.
    pub rate: Rate,
}

impl Label {
    /// What a task is called whose thread has this name.
    pub fn name(&self, thread: Name) -> Name {
        match (self.rule, thread) {
            (Some(place), Name::Thread(comm)) if !self.named => Name::Ruled(place, comm),
            (Some(place), _) => Name::Rule(place),
            (None, thread) => thread,
        }
    }

    /// What a task is called, whatever its thread is, if its rule has a name for it.
    pub fn by_rule(&self) -> Option<Name> {
        self.rule.filter(|_| self.named).map(Name::Rule)
    }
}

/// The users of `/etc/passwd`.
fn users() -> HashMap<u32, String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let users = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?);
        Some((uid.parse().ok()?, name.to_owned()))
    });
    users.collect()
}

/// The users of whom rules or hints speak and whom `/etc/passwd` does not have, each once: they fit no task.
pub fn unknown_users(rules: &Rules, hints: &Hints) -> Vec<String> {
    let users = users();
    let names = rules.users().chain(hints.users());
    let is_unknown = |user: &&str| {
        let is_a_name = !user.contains('*') && user.parse::<u32>().is_err();
        is_a_name && !users.values().any(|name| name == user)
    };
    let unknown: BTreeSet<&str> = names.filter(is_unknown).collect();
    unknown.into_iter().map(str::to_owned).collect()
}

impl Tasks {
    pub fn new(rules: Rules, hints: Hints) -> Self {
        let users = users();
        Self {
            rules,
            hints,
            users,
            tasks: HashMap::new(),
            processes: HashMap::new(),
            changes: Changes::default(),
            turn: 0,
            hidden: Arc::default(),
        }
    }

    /// Looks at every process; of those whose title has not changed most are left as they are.
    pub fn scan(&mut self) {
        self.turn = (self.turn + 1) % LOOK_AGAIN_IN;
        self.processes.values_mut().for_each(|p| p.listed = false);
        let numbers = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
            entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<u32>>()
        };
        for pid in numbers("/proc") {
            let in_turn = pid % LOOK_AGAIN_IN == self.turn;
            if let Some(process) = self.processes.get_mut(&pid).filter(|p| p.has_no_program && !in_turn) {
                process.listed = true;
                continue;
            }
            let title = title(pid);
            let known = self.processes.get(&pid).is_some_and(|p| p.title == title);
            if self.processes.len() < TASKS_MAX || known {
                let has_no_program = title.is_empty() && program(pid).is_ok_and(|path| path.is_empty());
                self.processes.insert(pid, Process { title, has_no_program, listed: true });
            }
            if !known || in_turn {
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
        if let Some(listed) = self.processes.get_mut(&process).filter(|_| !facts.title.is_empty()) {
            listed.has_no_program = false;
        }
        let rule = self.rules.of(&facts);
        let label = rule.map(|(place, rule)| Label {
            rule: Some(place),
            named: rule.name.is_some(),
            rate: self.rules.rate_of(place),
        });
        let label = label.unwrap_or_default();
        let role = Role {
            critical: rule.map(|(_, rule)| rule.critical).unwrap_or_default(),
            ruled: rule.is_some(),
            rate: label.rate,
            heard: self.hints.believes(&facts),
        };
        let labelled = label != Label::default();
        let task = Task { process, role, labelled, told: true };
        let was = self.tasks.get(&tid);
        if labelled || was.is_some_and(|t| t.labelled) {
            self.changes.named.push((tid, label));
        }
        // Of one that is not known here it is not known either what the programs know: be it what was said of the one that had its number before.
        if was.is_none_or(|t| !t.told || t.role != role) {
            self.changes.roles.push((tid, role));
        }
        if role.ruled && tid == process && was != Some(&task) {
            self.changes.ruled.push((tid, role.critical));
        }
        if self.tasks.len() < TASKS_MAX || was.is_some() {
            self.tasks.insert(tid, task);
        }
    }

    fn facts(&self, tid: u32, process: u32) -> Option<TaskFacts> {
        let at = format!("/proc/{process}");
        let thread = fs::read_to_string(format!("{at}/task/{tid}/comm")).ok()?.trim_end().to_owned();
        let exe = match program(process) {
            Ok(program) => program,
            Err(e) => {
                let denied = e.kind() == ErrorKind::PermissionDenied && self.rules.ask_for_files();
                if denied && !may_trace() {
                    self.hidden.store(true, Ordering::Relaxed);
                }
                String::new()
            }
        };
        let exe_is_trusted =
            !exe.is_empty() && fs::metadata(format!("{at}/exe")).is_ok_and(|m| is_trusted(&m));
        let cgroup = cgroup(&at).unwrap_or_default();
        let uid = fs::metadata(&at).map(|m| m.uid()).ok()?;
        let user = self.users.get(&uid).cloned().unwrap_or_default();
        let users = [user, uid.to_string()];
        let (title, ports) = (title(process), Vec::new());
        let mut facts = TaskFacts { title, thread, exe, exe_is_trusted, cgroup, users, ports };
        if self.rules.ask_for_ports_of(&facts) {
            facts.ports = self::ports(process);
            // A server's children often close what it listens on.
            let parent = parent(process).filter(|p| program(*p).is_ok_and(|exe| exe == facts.exe));
            facts.ports.extend(parent.into_iter().flat_map(self::ports));
        }
        Some(facts)
    }

    /// Whether something could not be looked at that rules ask for, for lack of a privilege; to be asked while tasks are looked at, too.
    pub fn hidden(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.hidden)
    }

    /// The eBPF program does not know what it was told of this task: it is new, under a number that was another's, or its first write came just then.
    pub fn tell_again(&mut self, tid: u32) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.told = false;
        }
    }

    /// Nobody knows what has changed: all are looked at anew by the next scan, and told.
    pub fn tell_all_again(&mut self) {
        self.processes.clear();
        self.tasks.values_mut().for_each(|task| task.told = false);
    }

    /// The processes of which a rule speaks, with what it says.
    pub fn ruled(&self) -> Vec<(u32, Critical)> {
        let leaders = self.tasks.iter().filter(|(tid, t)| **tid == t.process && t.role.ruled);
        leaders.map(|(tid, t)| (*tid, t.role.critical)).collect()
    }

    /// Whether it is one of those that are remembered.
    pub fn knows(&self, tid: u32) -> bool {
        self.tasks.contains_key(&tid)
    }

    /// The task has ended; what was known of it.
    pub fn forget(&mut self, tid: u32) -> Option<Task> {
        self.processes.remove(&tid);
        // It must not be said of the next one that gets this number.
        self.changes.roles.retain(|(changed, _)| *changed != tid);
        self.changes.ruled.retain(|(changed, _)| *changed != tid);
        self.changes.named.retain(|(changed, _)| *changed != tid);
        self.tasks.remove(&tid)
    }

    /// What the rules say that they did not when this was asked last.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }
}

/// What a task's thread is called; `None` if there is none of this number.
pub(crate) fn name_of_task(tid: u32) -> Option<Name> {
    let comm = fs::read(format!("/proc/{tid}/comm")).ok()?;
    Some(Name::of_thread(comm.trim_ascii_end()))
}

/// Path of a process's program, also if another has taken its place since; empty for threads of the kernel.
fn program(process: u32) -> std::io::Result<String> {
    match fs::read_link(format!("/proc/{process}/exe")) {
        Ok(path) => {
            let path = path.display().to_string();
            Ok(path.strip_suffix(" (deleted)").map_or_else(|| path.clone(), str::to_owned))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

/// Whether no other user than root and the daemon's can have made this file, or change it.
fn is_trusted(file: &fs::Metadata) -> bool {
    const OTHERS_WRITE: u32 = 0o002;
    const GROUP_WRITES: u32 = 0o020;
    // SAFETY: both calls ask for numbers alone, and cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let is_ours = file.uid() == 0 || file.uid() == user;
    let is_our_group = file.gid() == 0 || file.gid() == group;
    is_ours && file.mode() & OTHERS_WRITE == 0 && (is_our_group || file.mode() & GROUP_WRITES == 0)
}

/// The cgroup of a process, by its place in `/proc`; of version 2 alone.
fn cgroup(at: &str) -> Option<String> {
    let cgroups = fs::read_to_string(format!("{at}/cgroup")).ok()?;
    cgroups.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned)
}

/// Whether the system tells of tasks' cgroups.
pub(crate) fn has_cgroups() -> bool {
    cgroup("/proc/self").is_some()
}

/// Whether this process has the privilege to look at others'. Some are hidden even so: from whom it does not matter.
fn may_trace() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> CAP_SYS_PTRACE & 1 == 1)
}

/// The process that has forked this one.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may have any characters: the state, then the parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The arguments of a process, joined by blanks.
fn title(process: u32) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{process}/cmdline")) {
        // A process that has just ended has none.
        let _ = file.take(TITLE_BYTES_MAX).read_to_end(&mut bytes);
    }
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The TCP ports on which a process listens; none if its sockets cannot be looked at.
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
mod tests;
