//! Making a cache and pairing it with a backing.

use std::io;
use std::path::Path;

use forebay_block::{Allocation, BLOCK_BYTES, Buf, Class, DeviceOp, SECTOR_BYTES};
use forebay_device::{
    Access, Clock, Device, DeviceInfo, DeviceKind, DeviceSpec, Lack, Ring, lacks_room, open, run_alone,
};
use forebay_engine::{Effect, Engine, Event, Params, Role};
use forebay_format::identities::Identities;
use forebay_format::label::{Label, LabelState, Phase};
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{Layout, VOLUME_BYTES_MAX};
use forebay_guard::FileRights;
use forebay_policy::Settings;

use crate::error::{CacheContent, HostError};
use crate::identity::{fingerprint, host_id, host_name, random_id, wall_ns};
use crate::journal::{JournalChoice, bytes_behind, has_room, volume_that_leaves_room};
use crate::label::LabelPlace;
use crate::pair::{carry_out, check_blocks};
use crate::recover::journal_left;
use crate::superblocks::Bench;

use self::made_files::{MadeFiles, whole_blocks};

mod made_files;

/// Bytes of zeroes that are written at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Such writes under way at a time.
const CHUNKS_UNDER_WAY_MAX: u64 = 8;

/// What `forebay format` is asked for.
pub struct FormatOptions {
    /// The cache to make: a file, which may be missing, or a device.
    pub cache: DeviceSpec,
    /// The backing to pair it with.
    pub backing: DeviceSpec,
    /// Size in bytes of the cache; needed for a file that is missing or empty, else what is there counts.
    pub cache_bytes: Option<u64>,
    /// Make a sparse backing file of this size, in bytes, if it is missing; or a store on another machine, of a kind that is made so, with
    /// room for label and journal behind a volume of this size.
    pub backing_bytes: Option<u64>,
    /// Size in bytes of the volume; by default that of the volume whose label lies at the backing's end, and the whole backing where there
    /// is none. On a block device, 12 KiB less leave room for a label at its end.
    pub volume_bytes: Option<u64>,
    /// Unit of the log in bytes, 512 or 4096; by default the device's physical block, because a power cut during a
    /// smaller write could tear an acknowledged neighbour. With 512 a single 4 KiB write costs 4.5 KiB instead of 8.
    pub align: Option<u32>,
    /// Logical block of the volume in bytes, a power of two from 512 to 4096; by default what the backing's label says, and without
    /// one that of the backing's device, so that what is made on the volume can be used on the backing alone.
    pub logical_block: Option<u32>,
    /// Overwrite a used cache or other data, and take a backing away from its cache.
    pub force: bool,
    /// Where the journal lies of a backing that is taken away from its cache: it must hold nothing that the backing needs. With
    /// [`JournalChoice::None`] it is given up.
    pub journal: JournalChoice,
}

impl FormatOptions {
    /// Size in bytes that a backing has which is made: a store on another machine has label and journal behind the volume, where they
    /// take no room before they are written.
    fn made_bytes(&self) -> Option<u64> {
        let bytes = self.backing_bytes?;
        Some(bytes + self.backing.remote().map_or(0, |_| bytes_behind(&self.backing)))
    }
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Formatted {
    /// The cache's device.
    pub cache: DeviceInfo,
    /// The backing's device.
    pub backing: DeviceInfo,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// The size that it had before, in bytes, according to the label at the backing's end.
    pub volume_bytes_before: Option<u64>,
    /// Logical block of the volume in bytes.
    pub logical_block: u32,
    /// Geometry of the log.
    pub layout: Layout,
    /// Where the backing says whose it is.
    pub label: LabelPlace,
    /// The sparse backing that was made may become larger than its file system has room for.
    pub backing_lack: Option<Lack>,
    /// Whether a journal finds its place on the backing's side by itself.
    pub journal: JournalRoom,
    /// What was overwritten, if it was a used cache.
    pub overwritten: Option<CacheContent>,
}

/// Whether there is room for the journal of `journaled` where the backing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalRoom {
    /// Beside the backing, or behind the volume's end.
    Enough,
    /// None: the journal has to be given a place, or the volume be of at most so many bytes, if that is any.
    Lacking(Option<u64>),
}

/// Makes a cache and pairs it with a backing. `progress` is told bytes written and bytes to write.
///
/// A cache file is written in full, so that later durable writes need no change of the file system's own metadata.
///
/// # Errors
/// [`HostError`]; a refusal leaves both as they were.
pub fn format(options: &FormatOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Formatted, HostError> {
    format_unless(&|| false, options, progress)
}

/// The same, as long as it is not `stopped`: then the files that it has made go again.
///
/// # Errors
/// [`HostError`]; a refusal leaves both as they were.
pub fn format_unless(
    stopped: &dyn Fn() -> bool,
    options: &FormatOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Formatted, HostError> {
    let failed = |e| HostError::system("format", options.cache.path(), e);
    if options.cache.remote().is_some() {
        return Err(HostError::RemoteCache { cache: options.cache.to_string() });
    }
    let mut made = MadeFiles::default();
    let mut backing_lack = None;
    match (options.backing.remote(), options.made_bytes()) {
        (None, bytes) => {
            backing_lack = made.sparse_file(options.backing.path(), bytes, FileRights::ALONE)?;
        }
        (Some(_), Some(bytes)) if !bytes.is_multiple_of(SECTOR_BYTES) => {
            let why = "is made of whole sectors; give a --backing-size that is a multiple of 512";
            return Err(HostError::Size { path: options.backing.to_string(), why });
        }
        (Some(backing), Some(bytes)) => made.remote(backing, bytes)?,
        (Some(_), None) => {}
    }
    if options.cache_bytes.is_none() && !options.cache.path().exists() {
        let why = "does not exist: give --size to make a file";
        return Err(HostError::Size { path: options.cache.to_string(), why });
    }
    let rights = FileRights::of_backing(options.backing.path());
    made.reserved_file(options.cache.path(), whole_blocks(options.cache_bytes), rights, stopped)?;
    let (ring, clock) = (Ring::new().map_err(failed)?, Clock::start());
    let bench = Bench { ring: &ring, clock: &clock };
    let mut cache = open(&options.cache, &ring, Access::ReadWrite)?;
    let mut backing = open(&options.backing, &ring, Access::ReadWrite)?;
    let cache_size_before = cache.info().size_bytes;
    let cache_bytes = cache_bytes(cache.info(), options)?;
    let layout = new_layout(cache_bytes, align(cache.info(), options)?).map_err(|error| match error {
        LayoutError::TooSmall { least_bytes } => HostError::CacheTooSmall { bytes: cache_bytes, least_bytes },
        LayoutError::Random(e) => failed(e),
    })?;
    check_backing(&bench, &mut *backing, options)?;
    let before = label_before(&bench, &mut *backing, options)?;
    check_blocks(backing.info())?;
    let recorded = before.as_ref().map(|(_, label)| label.logical_block);
    let logical_block = options.logical_block.or(recorded).unwrap_or(backing.info().native_block);
    let volume_bytes_before = before.and_then(|(place, label)| match place {
        LabelPlace::Behind(_) => Some(label.volume_bytes),
        // A file is the volume, and whoever makes it longer makes the volume larger.
        LabelPlace::SideFile(_) | LabelPlace::Nowhere => None,
    });
    let volume_bytes = volume_bytes(backing.info(), logical_block, volume_bytes_before, options)?;
    let overwritten = check_cache(&bench, &mut *cache, options)?;
    if cache.info().kind != DeviceKind::Block {
        check_room(options.cache.path(), cache_bytes)?;
        if cache.info().size_bytes != cache_bytes {
            let longer = cache_bytes > cache.info().size_bytes;
            let resized = cache.resize(cache_bytes);
            resized.map_err(|e| HostError::system("change the size of", options.cache.path(), e))?;
            if longer {
                made.lengthened(options.cache.path(), cache_size_before);
            }
        }
    }
    let place = LabelPlace::of(&*backing, options.backing.path(), volume_bytes);
    let has_label = place != LabelPlace::Nowhere;
    let superblock = Superblock {
        update: 0,
        layout,
        backing_id: random_id().map_err(failed)?,
        volume_bytes,
        logical_block,
        state: CacheState::Paired,
        clean_stop: true,
        has_label,
        created_ns: wall_ns(),
        backing_name: options.backing.place(),
        fingerprint: match has_label {
            true => String::new(),
            false => fingerprint(options.backing.path(), backing.info().size_bytes),
        },
    };
    rights.keep(options.cache.path(), false);
    let left = made.left_of(options.cache.path());
    prepare(&bench, &mut *cache, layout.cache_bytes(), &mut Watch { progress, stopped, left })?;
    made.label(&place);
    let label = new_label(&superblock, options.cache.path(), &place, &bench, &mut *backing)?;
    let updates = Identities { superblock, label }.pair();
    carry_out(&updates, &bench, &mut *cache, &mut *backing, &place)?;
    made.keep();
    Ok(Formatted {
        cache: cache.info().clone(),
        backing: backing.info().clone(),
        volume_bytes,
        volume_bytes_before,
        logical_block,
        layout,
        journal: match has_room(&options.backing, &place, volume_bytes, layout.segment_bytes.into()) {
            true => JournalRoom::Enough,
            false => JournalRoom::Lacking(volume_that_leaves_room(
                backing.info().size_bytes,
                layout.segment_bytes.into(),
            )),
        },
        label: place,
        backing_lack,
        overwritten,
    })
}

/// Who follows the long part of the work.
pub(crate) struct Watch<'a> {
    /// Is told bytes written and bytes to write.
    pub(crate) progress: &'a mut dyn FnMut(u64, u64),
    /// Whether it is to end before its time.
    pub(crate) stopped: &'a dyn Fn() -> bool,
    /// What is left then.
    pub(crate) left: &'static str,
}

/// Refuses to begin what cannot end well.
pub(crate) fn check_room(path: &Path, bytes: u64) -> Result<(), HostError> {
    match lacks_room(path, bytes).map_err(|e| HostError::system("find room for", path, e))? {
        Some(lack) => Err(HostError::NoRoom { path: absolute(path), lack }),
        None => Ok(()),
    }
}

pub(crate) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Refuses to overwrite a cache that is in use, or anything else of value.
fn check_cache(
    bench: &Bench<'_>,
    cache: &mut dyn Device,
    options: &FormatOptions,
) -> Result<Option<CacheContent>, HostError> {
    let name = || options.cache.to_string();
    let found = match bench.find_superblock(cache) {
        Err(HostError::Damaged { .. } | HostError::UnknownVersion { .. }) if options.force => {
            return Ok(None);
        }
        found => found?,
    };
    let Some(superblock) = found else {
        if !options.force && !starts_empty(bench, cache)? {
            return Err(HostError::ForeignData { cache: name() });
        }
        return Ok(None);
    };
    if superblock.state != CacheState::Paired {
        return Ok(None);
    }
    let content = cache_content(bench, cache, &superblock);
    if options.force {
        return Ok(Some(content));
    }
    Err(HostError::CacheUsed { cache: name(), backing: superblock.backing_name, content })
}

/// Whether what lies before the log, where file systems and partition tables have their marks, is all zero.
fn starts_empty(bench: &Bench<'_>, device: &mut dyn Device) -> Result<bool, HostError> {
    let info = device.info();
    let len = info.size_bytes.min(Layout::SEGMENTS_OFFSET) / 512 * 512;
    Ok(bench.read(device, 0, len as usize)?.iter().all(|b| *b == 0))
}

/// What a cache holds, by the engine's own recovery, without writing anything.
pub(crate) fn cache_content(
    bench: &Bench<'_>,
    cache: &mut dyn Device,
    superblock: &Superblock,
) -> CacheContent {
    let mut layout = superblock.layout;
    if cache.info().size_bytes < layout.cache_bytes() || cache.info().logical_block > layout.align {
        return CacheContent::Unreadable;
    }
    layout.generation += 1;
    let mut engine = Engine::new(Params {
        layout,
        volume_bytes: superblock.volume_bytes,
        settings: Settings::default(),
        wall_offset_ns: bench.clock.wall_offset_ns(),
        clean_stop: superblock.clean_stop,
        journal: None,
        prepared: None,
        commits_in_place: false,
        journal_left: false,
        backing_depth: 1,
        backing_unit_bytes: None,
        backing_forgets: false,
        read_only: true,
    });
    loop {
        let mut effects = Vec::new();
        engine.poll(bench.clock.now(), &mut effects);
        if effects.is_empty() {
            return CacheContent::Unreadable;
        }
        for effect in effects {
            match effect {
                Effect::Io {
                    id,
                    role: Role::Cache,
                    op: op @ (DeviceOp::Read { .. } | DeviceOp::Flush),
                    ..
                } => {
                    let result = run_alone(bench.ring, bench.clock, cache, op);
                    engine.handle(Event::Io { id, result }, bench.clock.now());
                }
                Effect::Recovered(Ok(_)) => {
                    return match engine.status(bench.clock.now()).dirty_bytes {
                        0 => CacheContent::Clean,
                        bytes => CacheContent::Dirty(bytes),
                    };
                }
                // Recovery reads and flushes; anything else means that this is no log to be judged here.
                _ => return CacheContent::Unreadable,
            }
        }
    }
}

fn check_backing(
    bench: &Bench<'_>,
    backing: &mut dyn Device,
    options: &FormatOptions,
) -> Result<(), HostError> {
    let name = || options.backing.to_string();
    let size_bytes = backing.info().size_bytes;
    let is_asked_for = |bytes| bytes == size_bytes || options.made_bytes() == Some(size_bytes);
    if !options.backing_bytes.is_none_or(is_asked_for) {
        let why = "exists and has another size than --backing-size says; leave that away to use it as it is";
        return Err(HostError::Size { path: name(), why });
    }
    if options.force {
        return check_journal(bench, backing, options);
    }
    let found = bench.find_superblock(backing);
    if matches!(found, Ok(Some(superblock)) if superblock.state == CacheState::Paired) {
        return Err(HostError::BackingIsCache { backing: name() });
    }
    match LabelPlace::find(bench, backing, options.backing.path())? {
        Some((_, label)) if label.state == LabelState::Paired => {
            Err(HostError::BackingPaired { backing: name(), cache: label.cache_name })
        }
        _ => Ok(()),
    }
}

/// Refuses to leave a backing in the middle of a group, which only its cache or its journal can mend.
fn check_journal(
    bench: &Bench<'_>,
    backing: &mut dyn Device,
    options: &FormatOptions,
) -> Result<(), HostError> {
    let label = match LabelPlace::find(bench, backing, options.backing.path()) {
        Ok(Some((_, label))) if label.state == LabelState::Paired => label,
        // What is damaged, or was never a backing, is to be overwritten.
        Ok(_) | Err(HostError::LabelDamaged { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    match journal_left(bench, backing, &options.backing, &label, &options.journal, Access::ReadWrite)? {
        Some((journal, head)) if head.tail != head.head => Err(HostError::HoldsGroups {
            backing: options.backing.to_string(),
            journal: journal.name,
            group: head.committed.group,
        }),
        _ => Ok(()),
    }
}

/// Bytes of the device that the cache is to have: a file is given that size, of a device a part may be used.
fn cache_bytes(cache: &DeviceInfo, options: &FormatOptions) -> Result<u64, HostError> {
    let refuse = |why| Err(HostError::Size { path: options.cache.to_string(), why });
    match options.cache_bytes {
        None if cache.size_bytes == 0 => refuse("is empty: give --size"),
        None => Ok(cache.size_bytes),
        Some(bytes) if cache.kind == DeviceKind::Block && bytes > cache.size_bytes => {
            refuse("is smaller than --size says")
        }
        Some(bytes) => Ok(bytes / BLOCK_BYTES * BLOCK_BYTES),
    }
}

/// The unit of the log that was asked for, or that suits the device.
fn align(cache: &DeviceInfo, options: &FormatOptions) -> Result<u32, HostError> {
    let refuse = |why| Err(HostError::Size { path: options.cache.to_string(), why });
    let unit = |block: u32| if block > 512 { 4096 } else { 512 };
    match options.align.unwrap_or(unit(cache.physical_block)) {
        _ if cache.logical_block > 4096 => {
            refuse("has logical blocks of more than 4096 bytes, which no log is made of")
        }
        512 if cache.logical_block > 512 => {
            refuse("has logical blocks of 4096 bytes: the log cannot be aligned to 512")
        }
        align @ (512 | 4096) => Ok(align),
        _ => refuse("takes a log aligned to 512 or 4096 bytes"),
    }
}

pub(crate) enum LayoutError {
    TooSmall { least_bytes: u64 },
    Random(io::Error),
}

/// The log of a new cache of so many bytes.
pub(crate) fn new_layout(cache_bytes: u64, align: u32) -> Result<Layout, LayoutError> {
    let least_bytes =
        Layout::SEGMENTS_OFFSET + u64::from(Layout::SEGMENT_COUNT_MIN) * u64::from(Layout::SEGMENT_BYTES_MIN);
    let geometry = Layout::geometry_for(cache_bytes).ok_or(LayoutError::TooSmall { least_bytes });
    let (segment_bytes, segment_count) = geometry?;
    Ok(Layout {
        cache_id: random_id().map_err(LayoutError::Random)?,
        generation: 0,
        align,
        segment_bytes,
        segment_count,
    })
}

/// The label that the backing has, whatever it says, or that its volume has left behind.
fn label_before(
    bench: &Bench<'_>,
    backing: &mut dyn Device,
    options: &FormatOptions,
) -> Result<Option<(LabelPlace, Label)>, HostError> {
    match LabelPlace::find(bench, backing, options.backing.path()) {
        // Only with --force does one come here with a damaged label. Behind a volume it is lost for good once the volume grows over it.
        Err(HostError::LabelDamaged { .. })
            if options.volume_bytes.is_none()
                && !matches!(LabelPlace::of(backing, options.backing.path(), 0), LabelPlace::SideFile(_)) =>
        {
            let why =
                "its label is damaged, so that nobody knows how large its volume is; give --volume-size";
            Err(HostError::Size { path: options.backing.to_string(), why })
        }
        Err(HostError::LabelDamaged { .. }) => Ok(None),
        found => found,
    }
}

/// The size that was asked for, or that the volume has had, or the backing's. A volume that grew by itself over the label behind its
/// end would have none any more, and nothing would tell an older copy of its cache from the latest one (P6).
fn volume_bytes(
    backing: &DeviceInfo,
    logical_block: u32,
    before: Option<u64>,
    options: &FormatOptions,
) -> Result<u64, HostError> {
    let refuse = |why| Err(HostError::Size { path: options.backing.to_string(), why });
    // A part of a block of the device cannot be written.
    let unit = u64::from(logical_block.max(backing.logical_block));
    // What is behind a volume that it was made for is for label and journal.
    let whole = options.backing_bytes.unwrap_or(backing.size_bytes);
    let bytes = options.volume_bytes.or(before).unwrap_or(whole / unit * unit);
    match bytes {
        0 => refuse("is empty: make it with `truncate -s SIZE`"),
        _ if bytes > backing.size_bytes => refuse("is smaller than the volume is to be"),
        _ if !bytes.is_multiple_of(512) => refuse("a volume is made of whole sectors of 512 bytes"),
        _ if !bytes.is_multiple_of(unit) => refuse(
            "a volume is made of whole logical blocks, those of its backing included; give a --volume-size that is a multiple of 4096",
        ),
        _ if bytes > VOLUME_BYTES_MAX => refuse("a volume has at most 4 PiB"),
        _ => Ok(bytes),
    }
}

/// Makes a device ready for a log: nothing of an earlier one is believed, and a file's blocks are all there.
fn prepare(
    bench: &Bench<'_>,
    cache: &mut dyn Device,
    bytes: u64,
    watch: &mut Watch<'_>,
) -> Result<(), HostError> {
    // First the old superblocks, so that a crash on the way leaves no cache rather than a broken one.
    let quietly = &mut Watch { progress: &mut |_, _| {}, stopped: &|| false, left: watch.left };
    write_zeroes(bench, cache, 0, Layout::SEGMENTS_OFFSET, quietly)?;
    let name = cache.info().name.clone();
    let written_before = match cache.info().kind {
        DeviceKind::File => {
            let survey = cache.survey().map_err(|e| HostError::system("look at", name.as_ref(), e))?;
            let extent = survey.at(0, bytes);
            extent.allocation == Allocation::Data && extent.len == bytes
        }
        // Nothing is gained by writing over a whole flash device, or over memory.
        DeviceKind::Block | DeviceKind::Mapped | DeviceKind::Remote => true,
    };
    if !written_before {
        write_zeroes(bench, cache, Layout::SEGMENTS_OFFSET, bytes, watch)?;
    }
    Ok(())
}

/// Writes zeroes from `from` to `to`, several pieces at a time, and makes them durable; unless it is stopped.
pub(crate) fn write_zeroes(
    bench: &Bench<'_>,
    device: &mut dyn Device,
    from: u64,
    to: u64,
    watch: &mut Watch<'_>,
) -> Result<(), HostError> {
    let zeroes = Buf::zeroed(CHUNK_BYTES as usize);
    let (mut next, mut under_way, mut written) = (from, 0, 0);
    let (mut done, mut failed) = (Vec::new(), None);
    // Whatever ends it, nothing is under way any more: the file may be cut off then.
    while under_way > 0 || failed.is_none() && written < to - from {
        if failed.is_none() && (watch.stopped)() {
            let path = device.info().name.clone();
            failed = Some(HostError::ToldToStop { path, left: watch.left });
        }
        while failed.is_none() && next < to && under_way < CHUNKS_UNDER_WAY_MAX {
            let len = CHUNK_BYTES.min(to - next);
            let bufs = vec![zeroes.slice(0, len as usize)];
            device.submit(
                next,
                DeviceOp::Write { offset: next, bufs, durable: false },
                Class::Foreground,
                bench.clock.now(),
            );
            next += len;
            under_way += 1;
        }
        device.poll(bench.clock.now(), &mut done);
        let waits = done.is_empty();
        for (offset, result) in done.drain(..) {
            under_way -= 1;
            if let Err(error) = result {
                let device = device.info().name.clone();
                failed.get_or_insert(HostError::Device { doing: "writing zeroes", device, error });
                continue;
            }
            written += CHUNK_BYTES.min(to - offset);
            (watch.progress)(written, to - from);
        }
        if waits && under_way > 0 {
            let now = bench.clock.now();
            let timeout = device.deadline().map(|at| std::time::Duration::from_nanos(at.since(now)));
            let waited = bench.ring.submit_and_wait(timeout, || true);
            waited.map_err(|e| HostError::system("write zeroes to", device.info().name.as_ref(), e))?;
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    bench.run(device, "flushing", DeviceOp::Flush).map(drop)
}

/// The label of a new pair; goes on counting the updates of one that is there, so that it is the newer of the two.
fn new_label(
    superblock: &Superblock,
    cache: &Path,
    place: &LabelPlace,
    bench: &Bench<'_>,
    backing: &mut dyn Device,
) -> Result<Option<Label>, HostError> {
    if *place == LabelPlace::Nowhere {
        return Ok(None);
    }
    let update = match place.read(bench, backing) {
        Ok(old) => old.map_or(0, |label| label.update),
        // Only with --force does one come here with a damaged label; whichever copy is left, both are written anew.
        Err(HostError::LabelDamaged { .. }) => 0,
        Err(e) => return Err(e),
    };
    Ok(Some(Label {
        update,
        backing_id: superblock.backing_id,
        cache_id: superblock.layout.cache_id,
        generation: superblock.layout.generation,
        phase: Phase::Committed,
        state: LabelState::Paired,
        in_use: false,
        volume_bytes: superblock.volume_bytes,
        logical_block: superblock.logical_block,
        time_ns: wall_ns(),
        host_id: host_id(),
        host_name: host_name(),
        cache_name: absolute(cache),
        journal_run: 0,
    }))
}
