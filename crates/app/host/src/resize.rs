//! Changing the size of a cache that is not being served, and removing it for good.

use std::path::Path;

use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open};
use forebay_format::Layout;
use forebay_format::identities::Update;
use forebay_format::superblock::{CacheState, Superblock};

use crate::error::{CacheContent, HostError};
use crate::format::{
    FormatOptions, Formatted, LayoutError, Watch, cache_content, check_room, format, new_layout, write_zeroes,
};
use crate::journal::JournalChoice;
use crate::pair::{Pair, Places};
use crate::superblocks::Bench;

/// Makes a cache larger, dirty or clean: a file to `cache_bytes`, a device to what it now has. Returns the new
/// geometry; the segments' size stays. It ends early when it is `stopped`.
///
/// # Errors
/// [`HostError`]; the cache is as it was then.
pub fn grow(
    stopped: &dyn Fn() -> bool,
    spec: &DeviceSpec,
    cache_bytes: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Layout, HostError> {
    let (ring, clock) = means(spec.path())?;
    let bench = Bench { ring: &ring, clock: &clock };
    let mut cache = open(spec, &ring, Access::ReadWrite)?;
    let mut superblock = bench.superblock(&mut *cache)?;
    let before = superblock.layout.cache_bytes();
    let wanted = cache_bytes.unwrap_or(cache.info().size_bytes);
    let segment_bytes = u64::from(superblock.layout.segment_bytes);
    let count = wanted.saturating_sub(Layout::SEGMENTS_OFFSET) / segment_bytes;
    let count = count.min(u64::from(Layout::SEGMENT_COUNT_MAX)) as u32;
    if count <= superblock.layout.segment_count {
        let why = "would gain no segment by that; `forebay shrink` makes a cache smaller";
        return Err(HostError::Size { path: spec.to_string(), why });
    }
    let size_before = cache.info().size_bytes;
    if size_before < wanted {
        check_room(spec.path(), wanted)?;
        let bytes = wanted / 4096 * 4096;
        cache.resize(bytes).map_err(|e| HostError::system("change the size of", spec.path(), e))?;
    }
    superblock.layout.segment_count = count;
    // Zeroes first: nothing that happens to lie there can then be taken for a part of the log.
    let watch = &mut Watch { progress, stopped, left: "it has the size that it had" };
    let zeroed = write_zeroes(&bench, &mut *cache, before, superblock.layout.cache_bytes(), watch);
    if let Err(error) = zeroed {
        if size_before < wanted {
            let shortened = cache.resize(size_before);
            shortened.map_err(|e| HostError::system("give its former size back to", spec.path(), e))?;
        }
        return Err(error);
    }
    for update in superblock.updates() {
        if let Update::Superblock { offset, bytes } = update {
            bench.write(&mut *cache, offset, bytes)?;
        }
    }
    Ok(superblock.layout)
}

/// Makes a cache smaller, which must hold nothing that the backing lacks: it is made anew.
///
/// # Errors
/// [`HostError`]; [`HostError::CacheDirty`] if the volume must be flushed first.
pub fn shrink(
    cache: &DeviceSpec,
    backing: &DeviceSpec,
    cache_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Formatted, HostError> {
    let superblock = {
        let (ring, clock) = means(cache.path())?;
        let bench = Bench { ring: &ring, clock: &clock };
        let mut pair = claimed(&ring, &clock, cache, backing)?;
        if cache_bytes >= pair.identities.superblock.layout.cache_bytes() {
            let why = "is not larger than that; `forebay grow` makes a cache larger";
            return Err(HostError::Size { path: cache.to_string(), why });
        }
        if let Err(LayoutError::TooSmall { least_bytes }) = new_layout(cache_bytes, 512) {
            return Err(HostError::CacheTooSmall { bytes: cache_bytes, least_bytes });
        }
        let superblock = pair.identities.superblock.clone();
        pair.release(&bench)?;
        superblock
    };
    let options = FormatOptions {
        cache: cache.clone(),
        backing: backing.clone(),
        cache_bytes: Some(cache_bytes),
        backing_bytes: None,
        volume_bytes: Some(superblock.volume_bytes),
        align: Some(superblock.layout.align),
        logical_block: Some(superblock.logical_block),
        force: false,
        journal: JournalChoice::Auto,
    };
    format(&options, progress)
}

/// Removes a cache that is not being served from its volume for good. It must hold nothing that the backing lacks;
/// afterwards the backing needs no Forebay.
///
/// # Errors
/// [`HostError`]; [`HostError::CacheDirty`] if the volume must be flushed first.
pub fn release(cache: &DeviceSpec, backing: &DeviceSpec) -> Result<(), HostError> {
    let (ring, clock) = means(cache.path())?;
    let mut pair = claimed(&ring, &clock, cache, backing)?;
    pair.release(&Bench { ring: &ring, clock: &clock })
}

fn means(path: &Path) -> Result<(Ring, Clock), HostError> {
    let ring = Ring::new().map_err(|e| HostError::system("open", path, e))?;
    Ok((ring, Clock::start()))
}

/// Claims a cache and its backing, which must belong together, with nothing in the one that the other lacks.
fn claimed(ring: &Ring, clock: &Clock, cache: &DeviceSpec, backing: &DeviceSpec) -> Result<Pair, HostError> {
    let places = Places {
        cache: cache.clone(),
        backing: backing.clone(),
        journal: JournalChoice::Auto,
        logical_block: None,
    };
    let mut pair = Pair::open(ring, clock, &places, Access::ReadWrite, None)?;
    pair.decide(false)?;
    let bench = Bench { ring, clock };
    match content(&bench, &mut *pair.cache, &pair.identities.superblock) {
        CacheContent::Clean => Ok(pair),
        CacheContent::Dirty(dirty_bytes) => {
            Err(HostError::CacheDirty { cache: cache.to_string(), dirty_bytes })
        }
        CacheContent::Unreadable => Err(HostError::Damaged {
            what: format!("the log of {cache}"),
            error: forebay_format::FormatError::Checksum,
        }),
    }
}

fn content(bench: &Bench<'_>, cache: &mut dyn Device, superblock: &Superblock) -> CacheContent {
    match superblock.state {
        CacheState::Paired => cache_content(bench, cache, superblock),
        CacheState::Released | CacheState::Retired => CacheContent::Clean,
    }
}
