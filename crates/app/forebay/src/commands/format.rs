//! `forebay format`: make a cache and pair it with a backing.

use std::cmp::Ordering;

use clap::ArgAction;
use forebay_control::{FailureKind, Progress};
use forebay_device::{DeviceSpec, OpenError};
use forebay_host::{CacheContent, FormatOptions, HostError, JournalRoom, LabelPlace};

use crate::config::parse_logical_block;
use crate::failure::{Failure, Outcome, from_host};
use crate::meter::Meter;
use crate::output::print;
use crate::plan;
use crate::stop;
use forebay_policy::size;

/// What a volume leaves of its backing for a label at the end.
const LABEL_ROOM_BYTES: u64 = 12 << 10;

/// Arguments of `forebay format`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    forebay format /dev/nvme0n1p4 --backing /dev/sdb --volume-size 99G\n  \
    forebay format cache.fb --size 8G --backing disk.img --backing-size 100G\n\n\
On a block device or NBD export a volume that is 300M smaller leaves room behind its end for the journal of --write-policy journaled. \
On one that is used to its end, serve with --journal LOCATION.")]
pub struct Args {
    /// The cache to make: a file or block device, pmem:PATH or emulate:KIND:file=PATH
    cache: DeviceSpec,

    /// The store behind it: a file, block device, NBD export (nbd://HOST:PORT/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH), image of a Ceph cluster (rbd:POOL/IMAGE) or volume in an object store
    /// (s3://BUCKET/PREFIX). What is on it stays as it is
    #[arg(long)]
    backing: DeviceSpec,

    /// Size of the cache; needed for a file that does not exist yet
    #[arg(long, value_parser = size::parse_some)]
    size: Option<u64>,

    /// Make a sparse backing file if there is none; or an image of a Ceph cluster or a volume in an object store, with room for label
    /// and journal behind this size
    #[arg(long, value_name = "SIZE", value_parser = size::parse_some)]
    backing_size: Option<u64>,

    /// Size of the volume [default: that of the volume whose label lies at the backing's end; else the whole backing]. On a block
    /// device, NBD export or image, 12 KiB less leave room for a label, which tells a foreign or stale backing with certainty
    #[arg(long, value_name = "SIZE", value_parser = size::parse_some)]
    volume_size: Option<u64>,

    /// Unit of the log, 512 or 4096 bytes [default: the physical block of the cache's device]. 512 writes less, but
    /// needs a device that does not tear what lies beside a write when power is cut
    #[arg(long, value_name = "BYTES", value_parser = ["512", "4096"])]
    align: Option<String>,

    /// Logical block of the volume: 512, 1024, 2048 or 4096 bytes [default: what the backing's label says, the backing's own where
    /// there is none]. With a smaller one than the backing's, what is made on the volume needs Forebay to be read
    #[arg(long, value_name = "SIZE", value_parser = parse_logical_block)]
    logical_block: Option<u32>,

    /// Overwrite a used cache or other data, and take the backing away from the cache that it has
    #[arg(long, action = ArgAction::SetTrue)]
    force: bool,

    /// With --force: where the journal of the backing's last run lies, if not where `forebay serve` puts it by itself. It must hold
    /// nothing that the backing needs to be consistent (`forebay recover` sees to that); `none` gives it up
    #[arg(long, value_name = "LOCATION", requires = "force")]
    journal: Option<String>,
}

/// Never touches the volume's data.
pub fn run(args: Args) -> Outcome {
    let options = FormatOptions {
        cache: args.cache,
        backing: args.backing,
        cache_bytes: args.size,
        backing_bytes: args.backing_size,
        volume_bytes: args.volume_size,
        align: args.align.and_then(|a| a.parse().ok()),
        logical_block: args.logical_block,
        force: args.force,
        journal: plan::journal(args.journal.as_deref()).map_err(|e| Failure::new(FailureKind::Usage, e))?,
    };
    let mut meter = Meter::new("wrote");
    let formatted = forebay_host::format_unless(&stop::asked(), &options, &mut |done, total_bytes| {
        meter.show(Progress { remaining_bytes: total_bytes.saturating_sub(done), total_bytes });
    });
    meter.end();
    let made = formatted.map_err(|e| failure(e, &options))?;
    let label = match &made.label {
        LabelPlace::SideFile(file) => format!("the backing's label is {}", file.path().display()),
        LabelPlace::Behind(offset) => format!("the backing's label lies behind the volume, at byte {offset}"),
        LabelPlace::Nowhere => "the backing has no room for a label and is known by its fingerprint".into(),
    };
    if made.label == LabelPlace::Nowhere {
        eprintln!("warning: {}", unlabelled(&options.backing, made.backing.size_bytes));
    }
    let size = match made.volume_bytes_before {
        None => String::new(),
        Some(before) if before == made.volume_bytes && options.volume_bytes.is_none() => {
            "the volume has the size that the backing's label says\n".to_owned()
        }
        Some(before) => resized(before, made.volume_bytes),
    };
    if let Some(lack) = made.backing_lack {
        eprintln!(
            "warning: {} is sparse and its file system has {} free of the {} that it may take: writes fail when there is no more room",
            options.backing,
            size::show(lack.free_bytes),
            size::show(lack.needed_bytes)
        );
    }
    let overwritten =
        made.overwritten.map(|was| format!("overwritten: a used cache, {}\n", held(was))).unwrap_or_default();
    let journal = match made.journal {
        JournalRoom::Enough => String::new(),
        JournalRoom::Lacking(roomy) => no_journal(roomy),
    };
    print(&format!(
        "{overwritten}made a cache of {} in {} ({} segments of {}; {})\npaired with {} for a volume of {} in blocks of {}; {label}\n{size}{journal}",
        size::show(made.layout.cache_bytes()),
        options.cache,
        made.layout.segment_count,
        size::show(made.layout.segment_bytes.into()),
        made.cache.durability,
        options.backing,
        size::show(made.volume_bytes),
        made.logical_block,
    ))
}

/// A failure as the flags that were given explain it.
fn failure(e: HostError, options: &FormatOptions) -> Failure {
    let backing = options.backing.to_string();
    match (&e, options.cache_bytes) {
        (HostError::CacheTooSmall { least_bytes, .. }, Some(bytes)) => {
            let (asked, least) =
                (size::show_beside(bytes, *least_bytes), size::show_beside(*least_bytes, bytes));
            let message = format!("a cache of {asked} is too small; the least is {least}");
            Failure::new(FailureKind::Usage, message)
        }
        (HostError::Size { path, .. }, _) if sizes_are_given(options) && *path == backing => {
            Failure::new(FailureKind::Usage, e.to_string())
        }
        (HostError::Open(OpenError::Missing { path }), _) if path.display().to_string() == backing => {
            let message = format!("{backing} does not exist; give --backing-size to make it");
            Failure::new(FailureKind::Failed, message)
        }
        // It advises what this command has not.
        (HostError::Open(OpenError::InUse { path, holder }), _) if path.display().to_string() == backing => {
            let advice = format!("run `forebay recover {backing} --takeover` first");
            let holder = holder.replace("give --takeover", &advice);
            Failure::new(from_host(&e).kind, format!("{backing} is in use by {holder}"))
        }
        _ => from_host(&e),
    }
}

/// Whether a size that does not fit was given, and not found.
fn sizes_are_given(options: &FormatOptions) -> bool {
    let is_odd = |bytes: u64| options.backing.remote().is_some() && !bytes.is_multiple_of(512);
    options.volume_bytes.is_some() || options.backing_bytes.is_some_and(is_odd)
}

/// What a backing without a label lacks, and how it gets one.
fn unlabelled(backing: &DeviceSpec, backing_bytes: u64) -> String {
    let roomy = backing_bytes.saturating_sub(LABEL_ROOM_BYTES) / 4096 * 4096;
    let longer = if backing.remote().is_some() { "make the backing 12 KiB larger, or " } else { "" };
    format!(
        "without a label an older copy of the cache is taken for the latest one, also by another host, and then overwrites newer data; to \
         have one, {longer}give a --volume-size of at most {roomy} bytes"
    )
}

/// What an explicit --volume-size has made of a volume that was there.
fn resized(before: u64, now: u64) -> String {
    let shown = size::show_beside(before, now);
    match now.cmp(&before) {
        Ordering::Equal => String::new(),
        Ordering::Less => {
            format!("the volume had {shown} before: what lies behind its new end is no part of it any more\n")
        }
        Ordering::Greater => format!(
            "the volume had {shown} before: where label and journal lay behind its end is a part of it now\n"
        ),
    }
}

/// What an overwritten cache held.
fn held(was: CacheContent) -> String {
    match was {
        CacheContent::Clean => "which held nothing that the backing lacks".to_owned(),
        CacheContent::Dirty(bytes) => format!("which held {} that the backing lacks", size::show(bytes)),
        CacheContent::Unreadable => {
            "whose log cannot be read, so that it may have held data that the backing lacks".to_owned()
        }
    }
}

/// What to do if `journaled` is wanted; `roomy` is the largest volume that leaves room for its journal.
fn no_journal(roomy: Option<u64>) -> String {
    let smaller = roomy.map(|bytes| format!("a --volume-size of at most {}M, or ", bytes >> 20));
    format!(
        "there is no room for a journal behind the volume: --write-policy journaled will need {}--journal LOCATION on the same store\n",
        smaller.unwrap_or_default()
    )
}
