//! Making caches, and what is not overwritten.

use forebay_device::{Access, DeviceSpec, Ring, open};
use forebay_host::{CacheContent, Ending, ErrorClass, HostError, LabelPlace, format};

use crate::client::Client;
use crate::place::{MIB, Place, sparse};

fn refused(place: &Place, cache_bytes: u64, backing_bytes: u64) -> HostError {
    match place.format(cache_bytes, backing_bytes) {
        Ok(made) => panic!("{made:?}"),
        Err(e) => e,
    }
}

#[test]
fn a_cache_and_a_sparse_backing_are_made() {
    let place = Place::new();
    let mut steps = Vec::new();
    let made = format(&place.options(16 * MIB, 64 * MIB), &mut |done, all| steps.push((done, all))).unwrap();
    assert_eq!((made.volume_bytes, made.overwritten), (64 * MIB, None));
    assert!(matches!(made.label, LabelPlace::SideFile(_)));
    assert!(steps.windows(2).all(|w| w[0].0 < w[1].0) && steps.last().is_some_and(|(done, all)| done == all));
    // Every block of the cache is written, none of the backing.
    use std::os::unix::fs::MetadataExt;
    let blocks = |name: &str| std::fs::metadata(place.path(name)).unwrap().blocks() * 512;
    assert!(blocks("cache") >= made.layout.cache_bytes());
    assert!(blocks("backing") < MIB);
    place.run(Ending::Keep);
}

/// Sizes as people write them, such as 20MB: direct I/O is not lost over the last part of a block.
#[test]
fn a_cache_is_made_in_whole_blocks() {
    let place = Place::new();
    let round = place.format(20 * MIB, 64 * MIB).unwrap();
    let other = Place::new();
    let made = other.format(20_000_001, 64 * MIB).unwrap();
    assert_eq!(made.cache.direct, round.cache.direct);
    assert_eq!(std::fs::metadata(other.path("cache")).unwrap().len(), 19_996_672);
}

#[test]
fn nothing_is_left_of_what_failed() {
    let place = Place::new();
    let e = refused(&place, 4096, 64 * MIB);
    assert!(matches!(e, HostError::CacheTooSmall { bytes: 4096, .. }), "{e}");
    assert_eq!(std::fs::read_dir(place.directory.path()).unwrap().count(), 0);
    let mut options = place.options(16 * MIB, 64 * MIB);
    options.cache_bytes = None;
    let e = format(&options, &mut |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("--size"), "{e}");
    options = place.options(16 * MIB, 64 * MIB);
    options.backing_bytes = None;
    let e = format(&options, &mut |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("does not exist"), "{e}");
    assert_eq!(std::fs::read_dir(place.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_used_cache_is_not_overwritten_and_tells_what_it_holds() {
    let place = Place::formatted(16 * MIB, 64 * MIB);
    let e = refused(&place, 16 * MIB, 64 * MIB);
    assert!(matches!(e, HostError::BackingPaired { .. }), "{e}");
    assert_eq!(e.class(), ErrorClass::Refused);
    // With another backing it is the cache that counts.
    let other = |force| {
        let mut options = place.options(16 * MIB, 32 * MIB);
        options.backing = DeviceSpec::Path(place.path("other"));
        options.force = force;
        format(&options, &mut |_, _| {})
    };
    let e = other(false).unwrap_err();
    assert!(matches!(e, HostError::CacheUsed { content: CacheContent::Clean, .. }), "{e}");
    assert!(!place.path("other").exists());
    let volume = place.open();
    Client(volume.handle()).write(0, &[1; 8192]).unwrap();
    volume.end(Ending::Keep).unwrap();
    let e = other(false).unwrap_err();
    assert!(matches!(e, HostError::CacheUsed { content: CacheContent::Dirty(8192), .. }), "{e}");
    assert!(e.to_string().contains("8 KiB that the backing lacks; --force"), "{e}");
    assert_eq!(other(true).unwrap().overwritten, Some(CacheContent::Dirty(8192)));
    // The first backing's cache is gone, and it says so.
    let e = place.refusal();
    assert!(e.to_string().contains("another"), "{e}");
}

#[test]
fn other_data_and_swapped_devices_are_not_overwritten() {
    let place = Place::new();
    std::fs::write(place.path("cache"), vec![7; 16 << 20]).unwrap();
    let e = refused(&place, 16 * MIB, 64 * MIB);
    assert!(matches!(e, HostError::ForeignData { .. }), "{e}");
    assert!(place.content("cache").iter().all(|b| *b == 7));
    let mut options = place.options(16 * MIB, 64 * MIB);
    options.force = true;
    format(&options, &mut |_, _| {}).unwrap();
    let mut options = place.options(16 * MIB, 16 * MIB);
    (options.cache, options.backing) = (DeviceSpec::Path(place.path("new")), place.spec("cache"));
    let e = format(&options, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, HostError::BackingIsCache { .. }), "{e}");
    let mut options = place.options(16 * MIB, 64 * MIB);
    options.backing = options.cache.clone();
    let e = format(&options, &mut |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("in use by this process itself"), "{e}");
}

#[test]
fn a_damaged_label_is_overwritten_by_force_alone() {
    let place = Place::formatted(16 * MIB, 64 * MIB);
    std::fs::write(place.path("backing.forebay"), [7; 8192]).unwrap();
    let mut options = place.options(16 * MIB, 64 * MIB);
    options.cache = place.spec("new");
    let e = format(&options, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, HostError::LabelDamaged { .. }), "{e}");
    options.force = true;
    format(&options, &mut |_, _| {}).unwrap();
}

#[test]
fn devices_in_use_are_refused() {
    let place = Place::formatted(16 * MIB, 64 * MIB);
    for name in ["cache", "backing"] {
        let ring = Ring::new().unwrap();
        let holder = open(&place.spec(name), &ring, Access::ReadWrite).unwrap();
        let mut options = place.options(16 * MIB, 64 * MIB);
        options.force = true;
        let e = format(&options, &mut |_, _| {}).unwrap_err();
        assert_eq!(e.class(), ErrorClass::Refused, "{e}");
        assert!(e.to_string().contains("in use"), "{e}");
        let e = place.refusal();
        assert!(e.to_string().contains("in use"), "{e}");
        drop(holder);
    }
    place.run(Ending::Keep);
}

#[test]
fn a_file_that_is_there_is_used_as_it_is() {
    let place = Place::new();
    sparse(&place.path("cache"), 16 * MIB);
    // An odd number of sectors: the volume ends in the middle of a block.
    sparse(&place.path("backing"), 5 * MIB + 512);
    let mut options = place.options(0, 0);
    (options.cache_bytes, options.backing_bytes) = (None, None);
    let made = format(&options, &mut |_, _| {}).unwrap();
    assert_eq!(made.volume_bytes, 5 * MIB + 512);
    let volume = place.open();
    let client = Client(volume.handle());
    client.write(5 * MIB, &[9; 512]).unwrap();
    assert_eq!(client.read(5 * MIB - 512, 1024).unwrap()[..], [[0; 512], [9; 512]].concat());
    assert!(client.write(5 * MIB, &[9; 1024]).is_err());
    volume.end(Ending::Destage).unwrap();
    assert_eq!(place.content("backing")[5 << 20..], [9; 512]);
}
