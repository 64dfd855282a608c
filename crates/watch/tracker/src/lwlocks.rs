//! PostgreSQL's lightweight locks, which sleep on semaphores without an owner: its static probes tell who waits, and who holds.
//!
//! Waits are probed in every process of the program: they are rare, and cost nothing while there are none. Who holds a lock matters
//! only of processes that are not critical by themselves - checkpointer, background writer, WAL writer, autovacuum - and only these are probed
//! where they take locks and give them back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::thread;

use aya::programs::ProgramFd;

use crate::probes::{self, Argument, Probe};
use crate::rules::Critical;
use crate::tracker::Falls;

/// Programs with such locks that are probed; further ones are not.
const PROGRAMS_MAX: usize = 16;
/// Processes that may hold locks and are probed; further ones are not.
const HOLDERS_MAX: usize = 64;
/// Descriptors of probes that are to be taken away, two for each: while there are so many no further process is probed.
const TO_END_MAX: usize = 512;
/// Places in a program where one of these probes stands; PostgreSQL has one or two of each. Further ones are not probed: each costs a tenth of a second
/// in the end, and two descriptors for each process.
const PLACES_MAX: usize = 8;
/// Most news that the thread has not heard.
const NEWS_MAX: usize = 1024;

/// What a probe tells: its name, and `FB_LWLOCK_*`.
const WAITS: [(&str, u64); 2] = [("lwlock__wait__start", 1), ("lwlock__wait__done", 2)];
const RELEASES: [(&str, u64); 1] = [("lwlock__release", 4)];
const ACQUIRES: [(&str, u64); 3] =
    [("lwlock__acquire", 3), ("lwlock__condacquire", 3), ("lwlock__acquire__or__wait", 3)];

/// A program's file.
type FileKey = (u64, u64);

/// What is attached, until it is dropped.
struct Attached(Vec<OwnedFd>);

struct Program {
    probes: Vec<Probe>,
    /// Kept for as long as a process of it is there.
    _waits: Attached,
}

/// What was found in a program's file.
enum Found {
    Probes(Program),
    /// It is PostgreSQL, but has no such probes, or they cannot be attached.
    Blind,
    Other,
}

/// The probes of what a process takes, and of what it gives back.
type Holder = (Attached, Attached);

/// What the thread is told.
enum News {
    /// These processes are there and no others, with what the rules say of each.
    There(Vec<(u32, Critical)>),
    /// This process has come, or the rules say something else of it now.
    Changed(u32, Critical),
    Ended(u32),
}

/// The thread, as those see it who tell it what there is to probe. It ends when this is dropped.
pub(crate) struct Lwlocks(SyncSender<News>);

impl Lwlocks {
    /// These processes are there and no others, with what the rules say of each.
    pub fn follow(&self, processes: Vec<(u32, Critical)>) {
        self.tell(News::There(processes));
    }

    /// This process has come, or the rules say something else of it now.
    pub fn changed(&self, pid: u32, critical: Critical) {
        self.tell(News::Changed(pid, critical));
    }

    /// This process has ended.
    pub fn ended(&self, pid: u32) {
        self.tell(News::Ended(pid));
    }

    fn tell(&self, news: News) {
        // If it has too much to do, the next list of all processes makes up for it.
        let _ = self.0.try_send(news);
    }
}

/// Attaches probes and takes them away, in a thread of its own: the kernel takes 0.1 s for each that it takes away, and attaches none meanwhile.
pub(crate) struct Prober {
    program: ProgramFd,
    perf_type: u32,
    programs: HashMap<FileKey, Found>,
    holders: HashMap<u32, Holder>,
    /// Probes to be taken away when there is nothing else to do.
    to_end: VecDeque<OwnedFd>,
}

impl Prober {
    /// Nothing is attached yet; `program` is that of the probes.
    pub fn new(program: ProgramFd) -> io::Result<Self> {
        let text = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
        let perf_type = text.trim().parse().map_err(io::Error::other)?;
        let (programs, holders) = (HashMap::new(), HashMap::new());
        Ok(Self { program, perf_type, programs, holders, to_end: VecDeque::new() })
    }

    /// Starts the thread; it keeps in `blind` whether there is a PostgreSQL whose waits it does not see.
    pub fn start(mut self, falls: Arc<Falls>, blind: Arc<AtomicBool>) -> io::Result<Lwlocks> {
        let (teller, told) = sync_channel(NEWS_MAX);
        let run = move || {
            loop {
                let news = match self.to_end.is_empty() {
                    true => told.recv().map_err(|_| TryRecvError::Disconnected),
                    false => told.try_recv(),
                };
                match news {
                    Ok(news) => {
                        falls.bear(|| self.hear(news));
                        let unseen = self.programs.values().any(|found| matches!(found, Found::Blind));
                        blind.store(unseen, Ordering::Relaxed);
                    }
                    Err(TryRecvError::Empty) => drop(self.to_end.pop_front()),
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new().name("lwlocks".into()).spawn(run)?;
        Ok(Lwlocks(teller))
    }

    fn hear(&mut self, news: News) {
        match news {
            News::There(processes) => {
                let seen: HashSet<FileKey> =
                    processes.iter().filter_map(|(pid, _)| Some(file_of(*pid)?.1)).collect();
                self.programs.retain(|key, _| seen.contains(key));
                let there: HashSet<u32> = processes.iter().map(|(pid, _)| *pid).collect();
                let gone: Vec<u32> =
                    self.holders.keys().filter(|pid| !there.contains(pid)).copied().collect();
                gone.into_iter().for_each(|pid| self.forget(pid));
                processes.into_iter().for_each(|(pid, critical)| self.look_at(pid, critical));
            }
            News::Changed(pid, critical) => self.look_at(pid, critical),
            News::Ended(pid) => self.forget(pid),
        }
    }

    /// It does not matter any more what this process holds.
    fn forget(&mut self, pid: u32) {
        if let Some((acquires, releases)) = self.holders.remove(&pid) {
            // What was taken must be seen given back: these go last.
            self.to_end.extend(acquires.0.into_iter().chain(releases.0));
        }
    }

    fn look_at(&mut self, pid: u32, critical: Critical) {
        let Some((exe, key)) = file_of(pid) else { return };
        self.learn(key, &exe);
        if !matches!(critical, Critical::No | Critical::Never) {
            self.forget(pid);
        } else if !self.holders.contains_key(&pid)
            && self.holders.len() < HOLDERS_MAX
            && self.to_end.len() < TO_END_MAX
            && let Some(Found::Probes(program)) = self.programs.get(&key)
        {
            // And these come first.
            let attach = |wanted| self.attach(&exe, &program.probes, wanted, Some(pid));
            match attach(&RELEASES[..]).and_then(|releases| Ok((attach(&ACQUIRES)?, releases))) {
                Ok(attached) => drop(self.holders.insert(pid, attached)),
                Err(e) => tracing::debug!(pid, "who holds its locks is not known: {e}"),
            }
        }
    }

    /// Looks at a program's file, and probes the waits in it if there are any to probe.
    fn learn(&mut self, key: FileKey, exe: &str) {
        if self.programs.contains_key(&key) || self.programs.len() >= PROGRAMS_MAX {
            return;
        }
        // Of a process that has ended meanwhile nothing is learned: the next one of its program is looked at.
        let Ok(file) = fs::File::open(exe) else { return };
        let probes = probes::of_file(file).unwrap_or_default();
        let probes: Vec<Probe> = probes
            .into_iter()
            .filter(|p| p.provider == "postgresql" && p.name.starts_with("lwlock__"))
            .collect();
        let is_postgresql = fs::read_link(exe).is_ok_and(|at| at.file_name() == Some("postgres".as_ref()));
        let found = match probes.is_empty() {
            true if is_postgresql => Found::Blind,
            true => Found::Other,
            false => match self.attach(exe, &probes, &WAITS, None) {
                Ok(waits) => Found::Probes(Program { probes, _waits: waits }),
                Err(_) if fs::metadata(exe).is_err() => return,
                Err(e) => {
                    tracing::warn!(exe, "waits for its lightweight locks are not known: {e}");
                    Found::Blind
                }
            },
        };
        self.programs.insert(key, found);
    }

    fn attach(
        &self,
        exe: &str,
        probes: &[Probe],
        wanted: &[(&str, u64)],
        pid: Option<u32>,
    ) -> io::Result<Attached> {
        let mut attached = Attached(Vec::new());
        let of = |(name, kind): &(&str, u64)| {
            let (name, kind) = ((*name).to_owned(), *kind);
            let places = probes.iter().filter(move |p| p.name == name).take(PLACES_MAX);
            places.filter_map(move |p| Some((p, kind, p.first?)))
        };
        for (probe, kind, first) in wanted.iter().flat_map(of) {
            let event = open_event(self.perf_type, exe, probe, pid)?;
            let link = link(self.program.as_fd().as_raw_fd(), event.as_raw_fd(), cookie(kind, first))?;
            attached.0.extend([event, link]);
        }
        Ok(attached)
    }
}

/// The program's file of a process: its path, and what tells it from others.
fn file_of(pid: u32) -> Option<(String, FileKey)> {
    let exe = format!("/proc/{pid}/exe");
    let file = fs::metadata(&exe).ok()?;
    Some((exe, (file.dev(), file.ino())))
}

/// What the eBPF program is told of a probe; see `tracker.h`.
fn cookie(kind: u64, argument: Argument) -> u64 {
    let (form, register, offset) = match argument {
        Argument::Register(register) => (0, register, 0),
        Argument::Memory(register, offset) => (1, register, offset),
        Argument::Constant(value) => (2, 0, value),
    };
    kind | form << 8 | u64::from(register) << 16 | u64::from(offset as u32) << 32
}

/// `perf_event_attr` up to its version 1 (72 bytes), which is all that a probe needs.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    /// The upper half: where the probe's semaphore lies in the file.
    config: u64,
    sample: [u64; 3],
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    /// Address of the file's path.
    config1: u64,
    /// Offset of the instruction.
    config2: u64,
}

/// The part of `union bpf_attr` that makes a link to a perf event.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PERF_EVENT: u32 = 41;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given out this descriptor, to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn open_event(perf_type: u32, exe: &str, probe: &Probe, pid: Option<u32>) -> io::Result<OwnedFd> {
    let path = CString::new(exe)?;
    let attr = PerfEventAttr {
        kind: perf_type,
        size: size_of::<PerfEventAttr>() as u32,
        config: probe.semaphore << 32,
        config1: path.as_ptr() as u64,
        config2: probe.offset,
        ..PerfEventAttr::default()
    };
    // An event of no process in particular belongs to a processor, and is told of all.
    let (pid, cpu) = pid.map_or((-1, 0), |pid| (pid as libc::pid_t, -1));
    // SAFETY: `attr` is as long as it says and lives, with the path that it points to, until after the call.
    owned(unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    })
}

fn link(program: RawFd, event: RawFd, cookie: u64) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        prog_fd: program as u32,
        target_fd: event as u32,
        attach_type: BPF_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: the kernel reads `attr`, of the length given, during the call only; what is beyond counts as zero.
    owned(unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const attr, size_of::<LinkCreate>()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_as_the_header_says() {
        let header = include_str!("../bpf/tracker.h");
        for (name, value) in [
            ("LWLOCK_WAIT", 1),
            ("LWLOCK_WAITED", 2),
            ("LWLOCK_ACQUIRE", 3),
            ("LWLOCK_RELEASE", 4),
            ("ARGUMENT_REGISTER", 0),
            ("ARGUMENT_MEMORY", 1),
            ("ARGUMENT_CONSTANT", 2),
        ] {
            let line = format!("#define FB_{name} {value}");
            assert!(header.lines().any(|l| l.split('\t').next() == Some(&line)), "{line}");
        }
        assert_eq!(cookie(3, Argument::Register(80)), 3 | 80 << 16);
        assert_eq!(cookie(1, Argument::Memory(32, -8)), 1 | 1 << 8 | 32 << 16 | 0xffff_fff8 << 32);
        assert_eq!(cookie(4, Argument::Constant(7)), 4 | 2 << 8 | 7 << 32);
        assert_eq!(size_of::<PerfEventAttr>(), 72);
        assert_eq!(size_of::<LinkCreate>(), 24);
    }
}
