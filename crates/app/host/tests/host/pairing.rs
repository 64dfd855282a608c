//! Which caches and backings run together, and what the others are told (P6).

use forebay_block::BlockNo;
use forebay_device::DeviceSpec;
use forebay_format::label::{LABEL_COPY_BYTES, Label};
use forebay_format::pairing::Refusal;
use forebay_format::record::RecordHeader;
use forebay_format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use forebay_host::{Ending, ErrorClass, HostError, JournalChoice, PairOptions, PairedAgain, Volume};
use forebay_policy::WritePolicy;

use crate::client::Client;
use crate::place::{MIB, Place, refusal};

const CACHE: u64 = 16 * MIB;
const BACKING: u64 = 8 * MIB;

fn pairing(e: HostError) -> Refusal {
    assert_eq!(e.class(), ErrorClass::Refused, "{e}");
    match e {
        HostError::Pairing { refusal, .. } => refusal,
        other => panic!("{other}"),
    }
}

#[test]
fn an_older_copy_of_either_side_is_refused() {
    for ending in [Ending::Keep, Ending::Destage, Ending::Abandon] {
        let place = Place::formatted(CACHE, BACKING);
        for name in ["cache", "backing", "backing.forebay"] {
            place.copy(name, &format!("old-{name}"));
        }
        place.run(ending);
        for name in ["cache", "backing", "backing.forebay"] {
            place.copy(name, &format!("new-{name}"));
        }
        place.copy("old-cache", "cache");
        assert!(matches!(pairing(place.refusal()), Refusal::StaleCache { cache: 0, backing: 1 }));
        place.copy("new-cache", "cache");
        place.copy("old-backing", "backing");
        place.copy("old-backing.forebay", "backing.forebay");
        assert!(matches!(pairing(place.refusal()), Refusal::StaleBacking { cache: 1, backing: 0 }));
        place.copy("new-backing", "backing");
        place.copy("new-backing.forebay", "backing.forebay");
        place.run(Ending::Keep);
    }
}

#[test]
fn a_foreign_cache_or_backing_is_refused() {
    let (one, two) = (Place::formatted(CACHE, BACKING), Place::formatted(CACHE, BACKING));
    let mut config = one.config();
    config.cache = Some(two.spec("cache"));
    assert!(matches!(pairing(refusal(config)), Refusal::ForeignCache { .. }));
    let mut config = one.config();
    config.backing = two.spec("backing");
    assert!(matches!(pairing(refusal(config)), Refusal::ForeignCache { .. }));
    std::fs::remove_file(one.path("backing.forebay")).unwrap();
    assert!(matches!(pairing(one.refusal()), Refusal::LabelMissing));
}

#[test]
fn truncated_swapped_damaged_and_missing_devices_are_refused() {
    let place = Place::formatted(CACHE, BACKING);
    let set_len = |name: &str, bytes| {
        std::fs::OpenOptions::new().write(true).open(place.path(name)).unwrap().set_len(bytes).unwrap();
    };
    let mut config = place.config();
    (config.cache, config.backing) = (Some(place.spec("backing")), place.spec("cache"));
    assert!(matches!(refusal(config), HostError::NotACache { .. }));
    place.copy("cache", "whole");
    for bytes in [CACHE - MIB, 600 << 10, 100 << 10] {
        set_len("cache", bytes);
        let e = place.refusal();
        assert!(matches!(e, HostError::CacheTruncated { found_bytes, .. } if found_bytes == bytes), "{e}");
    }
    set_len("cache", 0);
    let e = place.refusal();
    assert!(
        matches!(&e, HostError::CacheLost { was, .. } if *was == place.path("cache").display().to_string()),
        "{e}"
    );
    place.copy("whole", "cache");
    set_len("backing", BACKING - 4096);
    let e = place.refusal();
    assert!(matches!(e, HostError::BackingTruncated { .. }), "{e}");
    assert_eq!(e.class(), ErrorClass::Refused);
    set_len("backing", BACKING);
    let mut bytes = place.content("cache");
    bytes[20] ^= 1;
    std::fs::write(place.path("cache"), &bytes).unwrap();
    place.run(Ending::Keep);
    let mut bytes = place.content("cache");
    bytes[20] ^= 1;
    bytes[(512 << 10) + 20] ^= 1;
    std::fs::write(place.path("cache"), &bytes).unwrap();
    let e = place.refusal();
    assert_eq!(e.class(), ErrorClass::Corrupt, "{e}");
    std::fs::remove_file(place.path("backing")).unwrap();
    let e = place.refusal();
    assert!(e.to_string().contains("does not exist") && !place.path("backing").exists(), "{e}");
}

/// Superblocks and records that are whole by their checksums, and say what cannot be: exit code 4, and nothing is changed.
#[test]
fn a_cache_that_says_what_cannot_be_is_corrupt() {
    let place = Place::formatted(CACHE, BACKING);
    let volume = place.open();
    Client(volume.handle()).write(0, &[7; 8192]).unwrap();
    volume.end(Ending::Abandon).unwrap();
    let (cache, backing) = (place.content("cache"), place.content("backing"));
    let superblock = Superblock::newest(&cache, &cache[512 << 10..]).unwrap();
    let with = |volume_bytes| {
        let forged = Superblock { volume_bytes, ..superblock.clone() }.encode();
        let mut bytes = cache.clone();
        SUPERBLOCK_OFFSETS.iter().for_each(|at| bytes[*at as usize..][..4096].copy_from_slice(&forged));
        bytes
    };
    let layout = superblock.layout;
    let first = (layout.segment_offset(0) + u64::from(layout.align)) as usize;
    let mut behind_end = cache.clone();
    // The last extent of the first record with one is moved behind the volume's end.
    let at = (first..cache.len()).step_by(layout.align as usize).find(|at| {
        let header = RecordHeader::decode(&layout, 1, (at - first) as u32 + layout.align, &cache[*at..]);
        header.is_ok_and(|mut h| {
            let Some(extent) = h.extents.last_mut() else { return false };
            extent.block = BlockNo(BACKING / 4096);
            let len = h.header_bytes(layout.align);
            h.encode(&layout, &mut behind_end[*at..*at + len]);
            true
        })
    });
    assert!(at.is_some());
    for (name, bytes) in
        [("1", with(1)), ("larger", with(BACKING * 2)), ("smaller", with(4096)), ("record", behind_end)]
    {
        std::fs::write(place.path("cache"), bytes).unwrap();
        let e = place.refusal();
        assert_eq!(e.class(), ErrorClass::Corrupt, "{name}: {e}");
        assert!(place.content("backing") == backing, "{name}: {e}");
    }
}

#[test]
fn a_volume_is_served_once() {
    let place = Place::formatted(CACHE, BACKING);
    let volume = place.open();
    let e = place.refusal();
    assert!(e.to_string().contains("in use"), "{e}");
    assert_eq!(e.class(), ErrorClass::Refused);
    let e = refusal(place.plain_config());
    assert!(e.to_string().contains("in use"), "{e}");
    volume.end(Ending::Keep).unwrap();
    place.run(Ending::Keep);
}

#[test]
fn another_host_is_refused_until_it_has_stopped_or_is_said_to_be_dead() {
    let place = Place::formatted(CACHE, BACKING);
    place.run(Ending::Abandon);
    let path = place.path("backing.forebay");
    let mut region = std::fs::read(&path).unwrap();
    let mut label = Label::newest(&region).unwrap();
    assert!(label.in_use);
    label.host_id = [7; 16];
    label.host_name = "elsewhere".into();
    let at = Label::copy_offset(label.update) as usize;
    region[at..at + LABEL_COPY_BYTES].copy_from_slice(&label.encode());
    std::fs::write(&path, &region).unwrap();
    let e = place.refusal();
    assert!(e.to_string().contains("elsewhere"), "{e}");
    assert!(matches!(pairing(e), Refusal::OtherHost { .. }));
    let mut config = place.config();
    config.takeover = true;
    Volume::open(config).unwrap().end(Ending::Keep).unwrap();
    place.run(Ending::Keep);
}

#[test]
fn without_its_cache_a_backing_is_served_only_if_that_is_wanted_and_then_the_cache_is_void() {
    let place = Place::formatted(CACHE, BACKING);
    let volume = place.open();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Keep).unwrap();
    let e = refusal(place.plain_config());
    assert!(matches!(e, HostError::WithoutItsCache { .. }), "{e}");
    assert_eq!(e.class(), ErrorClass::Refused);
    let mut config = place.plain_config();
    config.accept_stale = true;
    let volume = Volume::open(config).unwrap();
    assert_eq!(Client(volume.handle()).read(0, 512).unwrap()[..], [0; 512]);
    volume.end(Ending::Keep).unwrap();
    assert!(matches!(pairing(place.refusal()), Refusal::BackingMovedOn(_)));
    Volume::open(place.plain_config()).unwrap().end(Ending::Keep).unwrap();
}

/// What a flush command has said to be on the backing is known to be there after a kill: the backing needs its cache no more. Any
/// write since makes it need it again, and so does a cache that is not there, or is an older copy.
#[test]
fn after_a_flush_and_a_kill_a_backing_is_served_without_its_cache() {
    let place = Place::formatted(CACHE, BACKING);
    let refused = |words: &str| {
        let e = refusal(place.plain_config());
        assert!(matches!(e, HostError::WithoutItsCache { .. }) && e.to_string().contains(words), "{e}");
    };
    let volume = place.open();
    let client = Client(volume.handle());
    client.write(0, &[1; 8192]).unwrap();
    volume.handle().destage().unwrap();
    let flushed = place.content("cache");
    client.write(4096, &[2; 4096]).unwrap();
    volume.end(Ending::Abandon).unwrap();
    refused("holds 4 KiB that the backing lacks");

    let volume = place.open();
    assert_eq!(volume.recovery().blocks_dirty, 1);
    volume.handle().destage().unwrap();
    volume.end(Ending::Abandon).unwrap();
    let sound = place.content("cache");
    std::fs::remove_file(place.path("cache")).unwrap();
    refused("is not at hand");
    std::fs::write(place.path("cache"), flushed).unwrap();
    refused("is not at hand");
    std::fs::write(place.path("cache"), sound).unwrap();
    let volume = Volume::open(place.plain_config()).unwrap();
    assert_eq!(Client(volume.handle()).read(0, 8192).unwrap()[..], [[1; 4096], [2; 4096]].concat());
    volume.end(Ending::Keep).unwrap();
    assert!(matches!(pairing(place.refusal()), Refusal::BackingMovedOn(_)));
}

fn pair_again(place: &Place, cache: &str, label_is_lost: bool) -> Result<PairedAgain, HostError> {
    let (cache, backing) = (place.spec(cache), place.spec("backing"));
    forebay_host::pair_again(&PairOptions { cache, backing, journal: JournalChoice::Auto, label_is_lost })
}

/// Puts dirty data into the cache of a volume.
fn write_journaled(place: &Place, policy: WritePolicy, value: u8) {
    let mut config = place.config();
    config.settings.write_policy = policy;
    if policy != WritePolicy::Journaled {
        config.journal = JournalChoice::None;
    }
    let volume = Volume::open(config).unwrap();
    Client(volume.handle()).write(0, &[value; 4096]).unwrap();
    volume.end(Ending::Keep).unwrap();
}

#[test]
fn a_lost_or_damaged_label_is_made_anew_if_the_user_vouches_for_it() {
    for policy in [WritePolicy::WriteBack, WritePolicy::Journaled] {
        let place = Place::formatted(CACHE, BACKING);
        place.copy("cache", "first");
        write_journaled(&place, policy, 1);
        place.copy("cache", "older");
        write_journaled(&place, policy, 2);
        assert!(matches!(pair_again(&place, "cache", true), Err(HostError::LabelNotLost { .. })));
        assert!(matches!(
            pairing(pair_again(&place, "older", true).unwrap_err()),
            Refusal::StaleCache { .. }
        ));
        for damaged in [false, true] {
            match damaged {
                false => {
                    std::fs::remove_file(place.path("backing.forebay")).unwrap();
                    let e = place.refusal();
                    assert!(e.to_string().contains("`forebay pair`"), "{e}");
                    assert!(matches!(pairing(e), Refusal::LabelMissing));
                }
                true => {
                    let mut region = std::fs::read(place.path("backing.forebay")).unwrap();
                    region.iter_mut().skip(100).step_by(1000).for_each(|b| *b ^= 1);
                    std::fs::write(place.path("backing.forebay"), region).unwrap();
                    let e = place.refusal();
                    assert!(matches!(e, HostError::LabelDamaged { .. }), "{e}");
                    assert!(
                        e.class() == ErrorClass::Corrupt && e.to_string().contains("`forebay pair`"),
                        "{e}"
                    );
                }
            }
            let before = (place.content("cache"), place.content("backing"));
            let e = pair_again(&place, "cache", false).unwrap_err();
            assert!(matches!(e, HostError::LabelUnvouched { .. }) && e.class() == ErrorClass::Refused, "{e}");
            if policy == WritePolicy::WriteBack && !damaged {
                assert!(e.to_string().contains("holds 4 KiB that the backing lacks"), "{e}");
            }
            if policy == WritePolicy::Journaled {
                let e = pair_again(&place, "older", true).unwrap_err();
                assert!(matches!(pairing(e), Refusal::StaleCache { .. }), "the journal knows better");
            }
            let found = pair_again(&place, "cache", true).unwrap();
            // Serving it has made a journal meanwhile.
            assert_eq!(found.journal_agrees, policy == WritePolicy::Journaled || damaged);
            assert!(
                before == (place.content("cache"), place.content("backing")),
                "more than the label was changed"
            );
            place.copy("cache", "current");
            for old in ["first", "older"] {
                place.copy(old, "cache");
                assert!(matches!(pairing(place.refusal()), Refusal::StaleCache { .. }), "{old}");
            }
            place.copy("current", "cache");
            let volume = place.open();
            assert_eq!(Client(volume.handle()).read(0, 4096).unwrap()[..], [2; 4096]);
            volume.end(Ending::Keep).unwrap();
            place.copy("cache", "now");
            place.copy("current", "cache");
            assert!(matches!(pairing(place.refusal()), Refusal::StaleCache { .. }), "it has run since");
            place.copy("now", "cache");
        }
    }
}

#[test]
fn a_label_is_not_made_for_a_cache_that_is_void_or_another_backings() {
    let place = Place::formatted(CACHE, BACKING);
    write_journaled(&place, WritePolicy::Journaled, 1);
    let mut other = place.options(CACHE, BACKING);
    (other.cache, other.backing) = (place.spec("cache2"), place.spec("backing2"));
    forebay_host::format(&other, &mut |_, _| {}).unwrap();
    std::fs::remove_file(place.path("backing.forebay")).unwrap();
    let e = pair_again(&place, "cache2", true).unwrap_err();
    assert!(matches!(pairing(e), Refusal::ForeignBacking { .. }), "the journal is another cache's");
    assert!(matches!(pair_again(&place, "backing2", true), Err(HostError::NotACache { .. })));
    pair_again(&place, "cache", true).unwrap();
    place.open().end(Ending::Release).unwrap();
    assert!(matches!(pairing(pair_again(&place, "cache", true).unwrap_err()), Refusal::CacheReleased));
    assert!(!place.path("backing.forebay").exists());
}

#[test]
fn a_released_cache_is_not_used_again_and_leaves_no_trace() {
    let place = Place::formatted(CACHE, BACKING);
    let volume = place.open();
    Client(volume.handle()).write(4096, &[5; 4096]).unwrap();
    volume.end(Ending::Release).unwrap();
    assert_eq!(place.content("backing")[4096..8192], [5; 4096]);
    assert!(!place.path("backing.forebay").exists());
    assert!(matches!(pairing(place.refusal()), Refusal::CacheReleased));
    let volume = Volume::open(place.plain_config()).unwrap();
    assert_eq!(Client(volume.handle()).read(4096, 4096).unwrap()[..], [5; 4096]);
    drop(volume);
    // Such a cache may be made anew without force.
    let mut options = place.options(CACHE, BACKING);
    options.backing_bytes = None;
    forebay_host::format(&options, &mut |_, _| {}).unwrap();
    place.run(Ending::Keep);
}

#[test]
fn a_backing_is_known_by_whichever_link_it_is_given() {
    let place = Place::formatted(CACHE, BACKING);
    std::os::unix::fs::symlink(place.path("backing"), place.path("link")).unwrap();
    let mut config = place.config();
    config.backing = DeviceSpec::Path(place.path("link"));
    let volume = Volume::open(config).unwrap();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Keep).unwrap();
    let mut config = place.plain_config();
    config.backing = DeviceSpec::Path(place.path("link"));
    assert!(matches!(refusal(config), HostError::WithoutItsCache { .. }));
}

#[test]
fn a_start_that_is_cut_off_does_no_harm() {
    use forebay_device::decorate::{ErrorInjected, InjectHandle};
    use forebay_engine::Role;
    let place = Place::formatted(CACHE, BACKING);
    let volume = place.open();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Keep).unwrap();
    // Each of the superblock's copies may be the one that the crash prevents.
    for after in [0, 1] {
        let handle = InjectHandle::new([format!("durable:eio:once:after={after}").parse().unwrap()]);
        let mut config = place.config();
        let injected = handle.clone();
        config.decorate = Some(Box::new(move |role, device| match role {
            Role::Cache => Box::new(ErrorInjected::new(device, injected.clone())),
            Role::Backing | Role::Journal => device,
        }));
        assert_eq!(refusal(config).class(), ErrorClass::Failed);
        assert_eq!(handle.fired(), 1);
        let volume = place.open();
        assert_eq!(Client(volume.handle()).read(0, 4096).unwrap()[..], [1; 4096]);
        volume.end(Ending::Keep).unwrap();
    }
}
