//! Loading the eBPF programs and attaching them, and what the daemon says to them and hears of them.

use std::fs;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{Array, Map, MapData, MapError, RingBuf};
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, ProgramError, UProbe};
use aya::{Btf, Ebpf, EbpfError};
use forebay_block::words_of;
use thiserror::Error;

use crate::lwlocks::Prober;
use crate::roles::Roles;
use crate::waits::Wait;
use crate::wire::{
    COUNT_HINTS_LIMITED, COUNT_SIGNALS_DROPPED, COUNT_TAGS_DROPPED, DISKS_MAX, Message, RANGE_UNLOCKED,
    RANGES_MAX, RawRange, RawSignal, RawSlot, RawTag,
};

/// The programs, compiled by `build.rs`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tracker.bpf.o"));

/// Why there are no tags.
#[derive(Debug, Error)]
pub enum TrackerError {
    /// The kernel does not describe its types.
    #[error("the kernel has no BTF: {0}")]
    NoBtf(String),
    /// The kernel refused something, most often for lack of privileges.
    #[error(
        "cannot load the eBPF programs (Linux 6.1 or later and root, or CAP_BPF and CAP_PERFMON, are needed): {0}"
    )]
    Refused(String),
    /// The programs are not what this code expects.
    #[error("the eBPF programs have no '{0}'")]
    Missing(&'static str),
    /// There are too many devices.
    #[error("the writes of {DISKS_MAX} attached volumes are tagged, and there is no place for more")]
    Full,
    /// A system call failed.
    #[error("cannot {what}: {}", words_of(.source))]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl TrackerError {
    /// The first line: the verifier's words that may follow are for developers.
    pub fn brief(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }
}

/// What is missing without something that the kernel has refused. The log has all of the kernel's words.
fn without(what: &str, e: &TrackerError) -> String {
    tracing::debug!("{what}: {e}");
    format!("{what} ({})", e.brief())
}

/// A group of programs, each useless without the others of the group, and what is missing without it.
struct Group {
    programs: &'static [(&'static str, &'static str)],
    without: &'static str,
}

/// The writes themselves; without this there is no tracker.
const WRITES: &[(&str, &str)] = &[("on_bio", "block_bio_queue")];

/// What can be gone without.
const GROUPS: &[Group] = &[
    Group {
        programs: &[
            ("on_exit", "sched_process_exit"),
            ("on_exec", "sched_process_exec"),
            ("on_fork", "sched_process_fork"),
        ],
        without: "new tasks: they are noticed late",
    },
    Group {
        programs: &[("on_contention_end", "contention_end"), ("on_contention_begin", "contention_begin")],
        without: "waits for kernel locks",
    },
    Group { programs: &[("on_switch", "sched_switch")], without: "waits for the journal, pages and futexes" },
    Group { programs: &[("on_folio_wait", "folio_wait_writeback")], without: "which page is waited for" },
];

/// What tells which write has the first slot of a disk's queue. It is attached only where a disk has slots, and for a
/// minute since somebody critical slept for one.
const SLOTS: (&str, &str) = ("on_issue", "block_rq_issue");

fn without_first_slot(e: &TrackerError) -> String {
    without("which write has the first slot of the disk's queue", e)
}

/// What notices requests on sockets.
const REQUESTS: Group = Group {
    programs: &[
        ("on_send", "sock_send_length"),
        ("on_receive", "sock_recv_length"),
        ("on_tcp_state", "inet_sock_set_state"),
    ],
    without: "who works for a request that came over a socket",
};

/// Where the numbers of tasks are those that the kernel's tracepoints tell.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Functions of the kernel in which a task sleeps, and what it waits for then.
const FUNCTIONS: &[(&str, Wait)] = &[
    ("jbd2_log_wait_commit", Wait::Journal),
    ("wait_transaction_locked", Wait::Journal),
    ("add_transaction_credits", Wait::Journal),
    ("start_this_handle", Wait::Journal),
    ("__jbd2_log_wait_for_space", Wait::Journal),
    // Its thread, for those who have a handle open.
    ("jbd2_journal_wait_updates", Wait::Journal),
    // A buffer that the running commit is writing (ATC'15: sleep_on_shadow_bh).
    ("do_get_write_access", Wait::Journal),
    // A buffer of metadata that is being written, by the journal's thread or by one that writes for others.
    ("out_of_line_wait_on_bit_lock", Wait::Journal),
    ("folio_wait_writeback", Wait::Writeback),
    ("__filemap_fdatawait_range", Wait::Writeback),
    ("folio_wait_bit_common", Wait::Buffer),
    ("__filemap_get_folio", Wait::Buffer),
    ("__folio_lock", Wait::Buffer),
    ("wbt_wait", Wait::Slot),
    ("blk_mq_get_tag", Wait::Slot),
    ("rq_qos_wait", Wait::Slot),
    // A buffer is waited for by whoever has asked for it to be read or written: the journal's thread for its commit.
    ("__wait_on_buffer", Wait::Io),
    ("submit_bio_wait", Wait::Io),
    ("blkdev_issue_flush", Wait::Flush),
    ("iomap_dio_rw", Wait::Io),
    ("__iomap_dio_rw", Wait::Io),
    ("blkdev_direct_IO", Wait::Io),
    ("balance_dirty_pages", Wait::Dirty),
];

/// In this one a task waits for the write-back of pages one after the other, and has locked none. In others that wait for it it has: it is
/// about to submit or to change the page.
const LOCKS_NO_PAGE: &str = "__filemap_fdatawait_range";

/// The programs at work; they end when this is dropped.
pub(crate) struct Programs {
    disks: Array<MapData, [u32; DISKS_MAX]>,
    /// What stands there.
    watched: Vec<u32>,
    counts: Array<MapData, u64>,
    ranges: Array<MapData, [RawRange; RANGES_MAX]>,
    functions: Functions,
    missing: Vec<String>,
    /// Which write has the first slot of a disk's queue can be told.
    can_tell_first_slot: bool,
    /// It is told.
    first_slot: Option<BtfTracePointLinkId>,
    ebpf: Ebpf,
}

/// What is known of the functions in which tasks sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Functions {
    /// Those of the journal are among them.
    All,
    /// Not those of the journal: it is a module that is not there.
    NoJournal,
    /// None, and why.
    Hidden(String),
}

/// The rings, each read by whoever holds it.
pub(crate) struct Rings {
    pub tags: Ring<RawTag>,
    pub slots: Ring<RawSlot>,
    pub signals: Ring<RawSignal>,
    /// Not a ring, but what the same thread looks after.
    pub roles: Roles,
    /// Likewise; `None` if it cannot be.
    pub locks: Option<Prober>,
}

fn refused(e: impl std::error::Error) -> TrackerError {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    TrackerError::Refused(text)
}

impl From<EbpfError> for TrackerError {
    fn from(e: EbpfError) -> Self {
        refused(e)
    }
}

impl From<ProgramError> for TrackerError {
    fn from(e: ProgramError) -> Self {
        refused(e)
    }
}

impl From<MapError> for TrackerError {
    fn from(e: MapError) -> Self {
        refused(e)
    }
}

/// Attaches programs that are of no use without each other: all, or none. What notices an end comes before what notices its beginning, so that
/// nothing begins of which the end is missed.
fn attach(ebpf: &mut Ebpf, btf: &Btf, programs: &[(&'static str, &'static str)]) -> Result<(), TrackerError> {
    for (name, tracepoint) in programs {
        tracepoint_program(ebpf, name)?.load(tracepoint, btf)?;
    }
    for (at, (name, _)) in programs.iter().enumerate() {
        if let Err(e) = tracepoint_program(ebpf, name)?.attach() {
            for (attached, _) in programs.iter().take(at) {
                tracepoint_program(ebpf, attached)?.unload()?;
            }
            return Err(e.into());
        }
    }
    Ok(())
}

fn tracepoint_program<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut BtfTracePoint, TrackerError> {
    Ok(ebpf.program_mut(name).ok_or(TrackerError::Missing(name))?.try_into()?)
}

fn locks(ebpf: &mut Ebpf) -> Result<Prober, TrackerError> {
    const NAME: &str = "on_lwlock";
    let program = ebpf.program_mut(NAME).ok_or(TrackerError::Missing(NAME))?;
    let program: &mut UProbe = program.try_into()?;
    program.load()?;
    let fd = program
        .fd()?
        .try_clone()
        .map_err(|source| TrackerError::System { what: "keep a program", source })?;
    Prober::new(fd)
        .map_err(|source| TrackerError::System { what: "read the type of user-space probes", source })
}

fn map(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, TrackerError> {
    ebpf.take_map(name).ok_or(TrackerError::Missing(name))
}

fn roles(ebpf: &mut Ebpf) -> Result<Roles, TrackerError> {
    const NAME: &str = "roles";
    // The mapping keeps the map.
    let Map::Array(map) = map(ebpf, NAME)? else { return Err(TrackerError::Missing(NAME)) };
    Roles::map(map.fd().as_fd())
        .map_err(|source| TrackerError::System { what: "map what is known of tasks", source })
}

impl Programs {
    /// Loads and attaches them; those that follow `requests` on sockets only where a rule wants to know. Hints may be believed of some only.
    pub fn load(requests: bool, hints_are_limited: bool) -> Result<(Self, Rings), TrackerError> {
        let btf = Btf::from_sys_fs().map_err(|e| TrackerError::NoBtf(e.to_string()))?;
        let mut ebpf = Ebpf::load(OBJECT)?;
        let mut counts = Array::try_from(map(&mut ebpf, "counts")?)?;
        counts.set(COUNT_HINTS_LIMITED, u64::from(hints_are_limited), 0)?;
        let mut missing = Vec::new();
        attach(&mut ebpf, &btf, WRITES)?;
        for group in GROUPS.iter().chain(requests.then_some(&REQUESTS)) {
            if let Err(e) = attach(&mut ebpf, &btf, group.programs) {
                missing.push(without(group.without, &e));
            }
        }
        let (name, tracepoint) = SLOTS;
        let slots = tracepoint_program(&mut ebpf, name).and_then(|p| Ok(p.load(tracepoint, &btf)?));
        if let Err(e) = &slots {
            missing.push(without_first_slot(e));
        }
        if fs::read_link("/proc/self/ns/pid").is_ok_and(|space| space.as_os_str() != FIRST_PID_NAMESPACE) {
            missing.push(
                "who is critical: in a container with process numbers of its own tasks are not known"
                    .to_owned(),
            );
        }
        // A map lives as long as somebody holds it; the programs do from here on.
        let locks = locks(&mut ebpf);
        if let Err(e) = &locks {
            missing.push(without("waits for PostgreSQL's lightweight locks", e));
        }
        let rings = Rings {
            locks: locks.ok(),
            tags: Ring::of(&mut ebpf, "tags")?,
            slots: Ring::of(&mut ebpf, "slots")?,
            signals: Ring::of(&mut ebpf, "signals")?,
            roles: roles(&mut ebpf)?,
        };
        let mut programs = Self {
            ranges: Array::try_from(map(&mut ebpf, "ranges")?)?,
            functions: Functions::NoJournal,
            disks: Array::try_from(map(&mut ebpf, "disks")?)?,
            watched: Vec::new(),
            counts,
            missing,
            can_tell_first_slot: slots.is_ok(),
            first_slot: None,
            ebpf,
        };
        programs.look_for_functions()?;
        Ok((programs, rings))
    }

    /// Learns where the functions lie in which tasks sleep; again and again, until those of the journal are among them.
    fn look_for_functions(&mut self) -> Result<(), TrackerError> {
        self.functions = match functions() {
            Err(e) => Functions::Hidden(e.to_string()),
            Ok(ranges) => {
                let mut all = [RawRange::default(); RANGES_MAX];
                all.iter_mut().zip(&ranges).for_each(|(place, range)| *place = *range);
                self.ranges.set(0, all, 0)?;
                let of_journal = |r: &RawRange| Wait::from_number(r.wait) == Some(Wait::Journal);
                if ranges.iter().any(of_journal) { Functions::All } else { Functions::NoJournal }
            }
        };
        Ok(())
    }

    /// The journal may be a module that comes with the first file system that has one.
    pub fn look_for_journal(&mut self) -> Result<(), TrackerError> {
        match self.functions == Functions::NoJournal && fs::exists("/sys/module/jbd2").unwrap_or_default() {
            true => self.look_for_functions(),
            false => Ok(()),
        }
    }

    /// What works only in part, in words.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = self.missing.clone();
        match &self.functions {
            Functions::All => {}
            Functions::NoJournal => {
                missing.push("waits for the journal of ext4: the kernel has no jbd2 as yet".to_owned());
            }
            Functions::Hidden(e) => {
                let why = "the kernel's symbols cannot be read, which needs CAP_SYSLOG";
                missing.push(format!("what tasks sleep in: {why} ({e})"));
            }
        }
        missing
    }

    /// From now on writes to this disk are tagged.
    pub fn watch(&mut self, device: u32) -> Result<(), TrackerError> {
        if self.watched.len() >= DISKS_MAX {
            return Err(TrackerError::Full);
        }
        self.watched.push(device);
        self.tell_watched()
    }

    /// No longer.
    pub fn forget(&mut self, device: u32) {
        self.watched.retain(|watched| *watched != device);
        // Tags of one that is not watched are of no use, and do no harm.
        let _ = self.tell_watched();
    }

    fn tell_watched(&mut self) -> Result<(), TrackerError> {
        let mut disks = [0; DISKS_MAX];
        disks.iter_mut().zip(&self.watched).for_each(|(place, device)| *place = *device);
        Ok(self.disks.set(0, disks, 0)?)
    }

    /// Whether it is wanted to be told which write has the first slot of a disk's queue. Returns whether it is told.
    pub fn tell_first_slot(&mut self, wanted: bool) -> bool {
        if let Err(e) = self.attach_slots(wanted && self.can_tell_first_slot) {
            self.can_tell_first_slot = false;
            self.missing.push(without_first_slot(&e));
        }
        self.first_slot.is_some()
    }

    fn attach_slots(&mut self, wanted: bool) -> Result<(), TrackerError> {
        let program = tracepoint_program(&mut self.ebpf, SLOTS.0)?;
        match (wanted, self.first_slot.take()) {
            (true, None) => self.first_slot = Some(program.attach()?),
            (false, Some(link)) => program.detach(link)?,
            (_, as_it_is) => self.first_slot = as_it_is,
        }
        Ok(())
    }

    /// Tags and signals that were dropped because nobody took them.
    pub fn dropped(&self) -> u64 {
        self.counts.get(&COUNT_TAGS_DROPPED, 0).unwrap_or_default() + self.signals_dropped()
    }

    /// Signals that were.
    pub fn signals_dropped(&self) -> u64 {
        self.counts.get(&COUNT_SIGNALS_DROPPED, 0).unwrap_or_default()
    }
}

/// Where the functions lie.
fn functions() -> std::io::Result<Vec<RawRange>> {
    let text = fs::read_to_string("/proc/kallsyms")?;
    let ranges = function_ranges(&text);
    match ranges.is_empty() {
        false => Ok(ranges),
        true => Err(std::io::Error::other("they are hidden")),
    }
}

fn function_ranges(kallsyms: &str) -> Vec<RawRange> {
    let mut places: Vec<(u64, &str)> = kallsyms
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (at, kind, name) = (words.next()?, words.next()?, words.next()?);
            matches!(kind, "t" | "T").then_some((u64::from_str_radix(at, 16).ok()?, name))
        })
        .filter(|(at, _)| *at != 0)
        .collect();
    places.sort_unstable();
    let mut ranges = Vec::new();
    for (i, (from, name)) in places.iter().enumerate() {
        // A compiler may have made a variant of it (`.isra.0`, `.constprop.0`).
        let plain = name.split('.').next().unwrap_or_default();
        if let Some((_, wait)) = FUNCTIONS.iter().find(|(f, _)| *f == plain)
            && !name.ends_with(".cold")
        {
            // Of several names at one place the next place ends the function.
            let to = places[i..].iter().find(|(at, _)| at > from).map_or(from + 4096, |(at, _)| *at);
            let wait = Wait::ALL.iter().position(|w| w == wait).unwrap_or_default() as u32 + 1;
            let flags = if plain == LOCKS_NO_PAGE { RANGE_UNLOCKED } else { 0 };
            ranges.push(RawRange { from: *from, to, wait, flags });
        }
    }
    // A kernel in which that one has no place of its own does not tell who has locked a page.
    if ranges.iter().all(|r| r.flags == 0) {
        let of_pages = |r: &&mut RawRange| Wait::from_number(r.wait) == Some(Wait::Writeback);
        ranges.iter_mut().filter(of_pages).for_each(|r| r.flags = RANGE_UNLOCKED);
    }
    ranges
}

/// A ring of what the programs tell; each is taken out, the oldest first, and there may be more after the end.
pub(crate) struct Ring<T>(RingBuf<MapData>, PhantomData<T>);

impl<T: Message> Ring<T> {
    fn of(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, TrackerError> {
        Ok(Self(RingBuf::try_from(map(ebpf, name)?)?, PhantomData))
    }

    /// Waits until there is one, or so many milliseconds have passed.
    pub fn wait(&self, timeout_ms: i32) {
        let mut fd = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is one valid `pollfd` that lives until after the call. An error is as if nothing had come.
        unsafe { libc::poll(&raw mut fd, 1, timeout_ms) };
    }
}

impl<T: Message> Iterator for Ring<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            let item = self.0.next()?;
            if let Some(message) = T::read(&item) {
                return Some(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `wait_by_stack` of the program: of the functions on a stack the most telling one counts.
    fn wait_of(stack: &[&str]) -> Option<Wait> {
        stack.iter().filter_map(|name| FUNCTIONS.iter().find(|(f, _)| f == name)).map(|(_, wait)| *wait).min()
    }

    /// Stacks of PostgreSQL's and Redis's tasks, as the kernel has them.
    #[test]
    fn stacks_say_what_is_waited_for() {
        let write = "ext4_buffered_write_iter";
        for (stack, wait) in [
            // The journal's thread waits for its own commit.
            (
                &["out_of_line_wait_on_bit", "__wait_on_buffer", "jbd2_journal_commit_transaction"][..],
                Wait::Io,
            ),
            (&["out_of_line_wait_on_bit_lock", "__lock_buffer", "ext4_mark_inode_dirty"], Wait::Journal),
            (&["out_of_line_wait_on_bit", "do_get_write_access", "ext4_reserve_inode_write"], Wait::Journal),
            (&["__filemap_get_folio", "ext4_da_write_begin", write], Wait::Buffer),
            (&["blk_mq_get_tag", "ext4_bio_write_folio", "file_write_and_wait_range"], Wait::Slot),
            (
                &["folio_wait_bit_common", "folio_wait_writeback", "__filemap_fdatawait_range"],
                Wait::Writeback,
            ),
            (&["submit_bio_wait", "blkdev_issue_flush", "ext4_sync_file"], Wait::Flush),
            (&["rq_qos_wait", "wbt_wait", "blk_mq_submit_bio", "__filemap_fdatawrite_range"], Wait::Slot),
            (&["balance_dirty_pages", "generic_perform_write", write], Wait::Dirty),
        ] {
            assert_eq!(wait_of(stack), Some(wait), "{stack:?}");
        }
        assert_eq!(wait_of(&[write, "vfs_write"]), None);
    }

    #[test]
    fn functions_end_where_the_next_begins() {
        let text = "ffff30 t __filemap_fdatawait_range\nffff40 T behind\nffff02 T folio_wait_writeback\nffff00 t other\nffff02 T alias\nffff09 t third\nffff20 d rq_qos_wait\n\
                    ffff0a t wbt_wait.isra.0\nffff0c t wbt_wait.cold\n";
        let ranges = function_ranges(text);
        let range = |from, to, wait| RawRange { from, to, wait, flags: 0 };
        let unlocked = RawRange { flags: RANGE_UNLOCKED, ..range(0xffff30, 0xffff40, 5) };
        assert_eq!(ranges, [range(0xffff02, 0xffff09, 5), range(0xffff0a, 0xffff0c, 7), unlocked]);
        let flags: Vec<u32> =
            function_ranges(&text.replace("__filemap", "inlined")).iter().map(|r| r.flags).collect();
        assert_eq!(flags, [RANGE_UNLOCKED, 0], "who has locked a page is not told; slots are");
        assert!(function_ranges("0000000000000000 T folio_wait_writeback\n").is_empty(), "hidden symbols");
    }
}
