//! A backing without its cache (P4): `journaled` and `ordered` leave it consistent, and it is known as of when.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_device::decorate::{ErrorInjected, InjectHandle};
use forebay_engine::Role;
use forebay_format::journal::{Head, JOURNAL_HEAD_BYTES, JOURNAL_RING_OFFSET};
use forebay_host::{
    Ending, ErrorClass, HostError, JournalChoice, RecoverOptions, Recovered, Volume, format, recover,
    recover_group,
};
use forebay_policy::{GroupEnds, Settings, WritePolicy};

use crate::client::Client;
use crate::faults::injected;
use crate::place::{MIB, Place, refusal};

const BLOCK: usize = 4096;

fn journaled() -> Settings {
    Settings {
        write_policy: WritePolicy::Journaled,
        group_age_ms: 5,
        group_bytes: 64 << 10,
        ..Settings::default()
    }
}

fn open(place: &Place, settings: Settings) -> Volume {
    let mut config = place.config();
    config.settings = settings;
    Volume::open(config).unwrap()
}

fn look(place: &Place) -> Result<Recovered, HostError> {
    recover(
        &place.spec("backing"),
        &JournalChoice::Auto,
        RecoverOptions { look: true, ..RecoverOptions::default() },
    )
}

fn recovered(place: &Place) -> Result<Recovered, HostError> {
    recover(&place.spec("backing"), &JournalChoice::Auto, RecoverOptions::default())
}

/// Counts up block by block: block `n % 16` holds `n`, and `n` is written only when `n - 1` has been acknowledged.
fn count_up(place: &Place, settings: Settings, rounds: u64) {
    let volume = open(place, settings);
    let client = Client(volume.handle());
    for n in 1..=rounds {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&n.to_le_bytes());
        client.write(n % 16 * BLOCK as u64, &block).unwrap();
        if n % 64 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    volume.end(Ending::Abandon).unwrap();
}

/// The number up to which the backing alone has counted: the 16 blocks hold the last 16 numbers up to it.
fn counted(place: &Place) -> u64 {
    let image = place.content("backing");
    let number = |b: usize| u64::from_le_bytes(image[b * BLOCK..][..8].try_into().unwrap());
    let newest = (0..16).map(number).max().unwrap();
    for back in 0..16.min(newest) {
        let n = newest - back;
        assert_eq!(number((n % 16) as usize), n, "the backing has {newest}, but not {n}, which came before");
    }
    newest
}

#[test]
fn a_lost_cache_leaves_a_state_of_the_past() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    count_up(&place, journaled(), 2000);
    std::fs::remove_file(place.path("cache")).unwrap();
    let before = look(&place).unwrap();
    let done = recovered(&place).unwrap();
    let last = before.waiting.last().unwrap_or(&before.moment);
    assert_eq!(done.moment, *last);
    assert!(done.moment.group > 0 && counted(&place) > 16, "groups were committed while the volume ran");
    let again = recovered(&place).unwrap();
    assert_eq!((again.blocks_applied, again.moment), (0, done.moment));
}

#[test]
fn a_start_with_the_cache_applies_the_journal_first() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    count_up(&place, journaled(), 2000);
    let committed = {
        let seen = look(&place).unwrap();
        seen.waiting.last().unwrap_or(&seen.moment).group
    };
    let volume = open(&place, journaled());
    // 2000 is a multiple of 16.
    let block = Client(volume.handle()).read(0, BLOCK).unwrap();
    assert_eq!(block[..8], 2000u64.to_le_bytes(), "the cache has everything");
    volume.end(Ending::Destage).unwrap();
    assert!(look(&place).unwrap().moment.group >= committed);
    assert_eq!(counted(&place), 2000);
}

/// P9: what the backing refuses now and then while the journal is applied does not keep the volume from starting.
#[test]
fn a_backing_that_fails_now_and_then_is_brought_up_to_date() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let mut tried = 0;
    while tried == 0 {
        count_up(&place, journaled(), 1000);
        let waits = !look(&place).unwrap().waiting.is_empty();
        let (mut config, _, backing) = injected(&place);
        config.settings = journaled();
        backing.set(["write:eio:from=0:to=64K:times=3".parse().unwrap()]);
        let volume = Volume::open(config).unwrap();
        assert!(backing.fired() >= 3 || !waits, "the journal was applied");
        tried += u64::from(waits);
        backing.set([]);
        volume.end(Ending::Destage).unwrap();
        assert_eq!(counted(&place), 1000);
    }
}

/// Both copies are whole by their checksums. Neither `recover` nor a start with the cache that needs the journal believes them, and nothing is changed.
#[test]
fn a_journal_that_says_what_cannot_be_is_corrupt() {
    type Forge = fn(&mut Head);
    let forgeries: [(&str, Forge); 3] = [
        ("volume_bytes", |head| head.volume_bytes += 1 << 20),
        ("ring_bytes", |head| head.ring_bytes *= 64),
        ("applied", |head| head.applied.group = head.committed.group + 1),
    ];
    let place = Place::formatted(8 * MIB, 4 * MIB);
    count_up(&place, journaled(), 500);
    let (backing, journal) = (place.content("backing"), place.content("backing.journal"));
    for (field, forge) in forgeries {
        let mut forged = journal.clone();
        let mut head = Head::newest(&journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        forge(&mut head);
        for copy in forged.chunks_exact_mut(JOURNAL_HEAD_BYTES as usize).take(2) {
            copy.copy_from_slice(&head.encode());
        }
        std::fs::write(place.path("backing.journal"), forged).unwrap();
        let mut config = place.config();
        (config.settings, config.journal) = (journaled(), JournalChoice::At(place.spec("backing.journal")));
        for e in [look(&place).unwrap_err(), recovered(&place).unwrap_err(), refusal(config)] {
            assert_eq!(e.class(), ErrorClass::Corrupt, "{field}: {e}");
            assert!(e.to_string().contains(&format!("'{field}'")), "{e}");
        }
        assert!(place.content("backing") == backing, "{field}");
    }
    std::fs::write(place.path("backing.journal"), journal).unwrap();
    recovered(&place).unwrap();
}

#[test]
fn what_is_not_known_to_be_consistent_is_refused() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let unknown = |place: &Place| {
        let e = recovered(place).unwrap_err();
        assert!(matches!(e, HostError::NothingToRecover { .. }), "{e}");
        assert_eq!(e.class(), ErrorClass::Refused);
    };
    unknown(&place);
    count_up(&place, Settings::default(), 100);
    unknown(&place);
    count_up(&place, journaled(), 100);
    // A run without the journal goes on without it; nobody may apply it later.
    let mut config = place.config();
    config.journal = JournalChoice::None;
    Volume::open(config).unwrap().end(Ending::Abandon).unwrap();
    unknown(&place);
}

/// What belongs to a backing, byte for byte.
fn side(place: &Place) -> [Vec<u8>; 3] {
    ["backing", "backing.forebay", "backing.journal"].map(|name| place.content(name))
}

#[test]
fn no_backing_is_left_in_the_middle_of_a_group_unasked() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    while look(&place).map_or(true, |seen| seen.waiting.is_empty()) {
        count_up(&place, journaled(), 500);
    }
    let left = side(&place);
    let anew = |journal: JournalChoice| {
        let mut options = place.options(8 * MIB, 4 * MIB);
        (options.cache, options.force, options.journal) = (place.spec("new"), true, journal);
        format(&options, &mut |_, _| {})
    };
    let alone = || {
        let mut config = place.plain_config();
        config.accept_stale = true;
        Volume::open(config)
    };
    let refused = |e: HostError, words: &str| {
        assert_eq!(e.class(), ErrorClass::Refused, "{e}");
        assert!(e.to_string().contains(words) && e.to_string().contains("--journal none"), "{e}");
    };
    refused(anew(JournalChoice::Auto).unwrap_err(), "would stay inconsistent");
    assert!(side(&place) == left, "refused, and changed something");

    std::fs::rename(place.path("backing.journal"), place.path("elsewhere")).unwrap();
    refused(anew(JournalChoice::Auto).unwrap_err(), "is not found");
    refused(alone().err().unwrap(), "is not found");
    let elsewhere = JournalChoice::At(place.spec("elsewhere"));
    refused(anew(elsewhere.clone()).unwrap_err(), "would stay inconsistent");
    recover(&place.spec("backing"), &elsewhere, RecoverOptions::default()).unwrap();
    counted(&place);
    anew(elsewhere).unwrap();

    // Once more from what was left, with the journal given up, by each of the two.
    for (name, content) in ["backing", "backing.forebay", "elsewhere"].iter().zip(&left) {
        std::fs::write(place.path(name), content).unwrap();
    }
    anew(JournalChoice::None).unwrap();
    for (name, content) in ["backing", "backing.forebay"].iter().zip(&left) {
        std::fs::write(place.path(name), content).unwrap();
    }
    let mut config = place.plain_config();
    (config.accept_stale, config.journal) = (true, JournalChoice::None);
    Volume::open(config).unwrap().end(Ending::Abandon).unwrap();
}

#[test]
fn a_backing_without_a_label_is_named() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    count_up(&place, journaled(), 100);
    std::fs::write(place.path("blank"), vec![0; MIB as usize]).unwrap();
    let blank = place.spec("blank");
    let e = recover(&blank, &JournalChoice::Auto, RecoverOptions::default()).unwrap_err();
    assert!(
        e.to_string().ends_with("blank has no label, so that nothing is known of it; nothing was changed"),
        "{e}"
    );
    let all = [place.spec("backing"), blank].map(|spec| (spec, JournalChoice::Auto));
    let left = side(&place);
    let e = recover_group(&all, false).unwrap_err();
    assert!(matches!(&e, HostError::NoLabel { backing, among: true } if backing.ends_with("blank")), "{e}");
    assert!(e.to_string().contains("name the members of one consistency group"), "{e}");
    assert!(side(&place) == left && e.class() == ErrorClass::Refused);
}

#[test]
fn ordered_knows_as_of_when_the_backing_is() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let ordered = Settings { write_policy: WritePolicy::Ordered, ..Settings::default() };
    count_up(&place, ordered, 300);
    let volume = open(&place, ordered);
    volume.end(Ending::Destage).unwrap();
    assert!(recovered(&place).unwrap().moment.time_ns > 0);
    assert_eq!(counted(&place), 300);
}

/// A volume whose backing has caught up with its policy.
fn consistent(place: &Place, settings: Settings) -> Volume {
    let volume = open(place, settings);
    while !volume.handle().status().backing_consistent {
        std::thread::sleep(Duration::from_millis(1));
    }
    volume
}

#[test]
fn with_group_ends_points_the_backing_is_at_a_declared_point_only() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let settings = Settings { group_ends: GroupEnds::Points, ..journaled() };
    let volume = consistent(&place, settings);
    let client = Client(volume.handle());
    let mut last = 0;
    for n in 1..=350u64 {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&n.to_le_bytes());
        client.write(n % 16 * BLOCK as u64, &block).unwrap();
        if n % 100 == 0 {
            let point = volume.handle().mark(&format!("after {n}")).unwrap();
            assert!(point > last, "{point} after {last}");
            assert_eq!(volume.handle().status().backing_point, point);
            last = point;
        }
    }
    let status = volume.handle().status();
    assert_eq!((status.points, status.groups_cut), (3, 0));
    volume.end(Ending::Abandon).unwrap();
    let seen = look(&place).unwrap();
    let named = seen.waiting.last().unwrap_or(&seen.moment);
    assert_eq!((named.point, named.label.as_str()), (last, "after 300"));
    let done = recovered(&place).unwrap();
    assert_eq!((done.moment.point, done.moment.label.as_str()), (last, "after 300"));
    assert_eq!(counted(&place), 300, "50 more were acknowledged");
}

#[test]
fn with_group_ends_flushes_each_flush_is_a_point() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let settings = Settings { group_ends: GroupEnds::Flushes, ..journaled() };
    let volume = consistent(&place, settings);
    let client = Client(volume.handle());
    for n in 1..=350u64 {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&n.to_le_bytes());
        client.write(n % 16 * BLOCK as u64, &block).unwrap();
        if n % 50 == 0 && n < 350 {
            client.flush().unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let status = volume.handle().status();
    assert!(status.points > 0 && status.groups_cut == 0, "{status:?}");
    volume.end(Ending::Abandon).unwrap();
    assert!(recovered(&place).unwrap().moment.point > 0);
    let n = counted(&place);
    assert!(n > 0 && n.is_multiple_of(50) && n < 350, "{n} is no flush");
}

#[test]
fn a_point_needs_groups() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    for policy in [WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Ordered] {
        let volume = open(&place, Settings { write_policy: policy, ..Settings::default() });
        let refusal = volume.handle().mark("").unwrap_err();
        assert_eq!(refusal.class(), ErrorClass::Refused);
        assert!(refusal.to_string().contains(policy.as_str()), "{refusal}");
        let handle = volume.handle();
        volume.end(Ending::Keep).unwrap();
        assert!(matches!(handle.mark(""), Err(HostError::Stopped { .. })));
    }
}

#[test]
fn a_damaged_or_foreign_journal_changes_nothing() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let slow = Settings { group_age_ms: 60_000, group_bytes: 1 << 20, ..journaled() };
    // What the first start needs is committed at once; the last group stays in the journal if it has not been destaged.
    count_up(&place, slow, 400);
    let head = place.content("backing.journal")[..8192].to_vec();
    let damage = |at: usize| {
        let mut journal = place.content("backing.journal");
        journal[at] ^= 1;
        std::fs::write(place.path("backing.journal"), journal).unwrap();
    };
    let before = place.content("backing");
    for at in [20, 4096 + 20] {
        if head[at - 20..at].iter().any(|b| *b != 0) {
            damage(at);
            assert_eq!(recovered(&place).unwrap_err().class(), ErrorClass::Corrupt);
            damage(at);
        }
    }
    std::fs::write(place.path("backing.journal"), vec![7; 64 << 10]).unwrap();
    assert!(recovered(&place).is_err());
    assert!(place.content("backing") == before);
    let mut config = place.config();
    config.settings = journaled();
    assert_eq!(refusal(config).class(), ErrorClass::Failed, "the journal is too small");
    let other = Place::formatted(8 * MIB, 4 * MIB);
    count_up(&other, journaled(), 100);
    other.copy("backing.journal", "stranger");
    std::fs::copy(other.path("stranger"), place.path("backing.journal")).unwrap();
    let mut config = place.config();
    config.settings = journaled();
    assert!(matches!(refusal(config), HostError::ForeignJournal { .. }));
}

/// P5, P9: what the cache loses of a group that is committed is in the journal.
#[test]
fn what_the_cache_loses_after_its_commit_is_taken_from_the_journal() {
    for sick in ["flipped", "read:eio"] {
        let place = Place::formatted(8 * MIB, 4 * MIB);
        let (cache, backing) = (InjectHandle::default(), InjectHandle::default());
        let handles = (cache.clone(), backing.clone());
        let mut config = place.config();
        config.settings = journaled();
        config.decorate = Some(Box::new(move |role, device| match role {
            Role::Cache => Box::new(ErrorInjected::new(device, handles.0.clone())),
            Role::Backing => Box::new(ErrorInjected::new(device, handles.1.clone())),
            Role::Journal => device,
        }));
        let volume = Volume::open(config).unwrap();
        while !volume.handle().status().backing_consistent {
            std::thread::sleep(Duration::from_millis(1));
        }
        let client = Client(volume.handle());
        let image: Vec<u8> = (0..100 * BLOCK).map(|i| (i / 7) as u8).collect();
        backing.set(["write:eio".parse().unwrap()]);
        client.write(0, &image).unwrap();
        while client.0.status().missing_bytes > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(client.0.status().dirty_bytes > 0, "the backing takes nothing");
        match sick {
            "flipped" => {
                let file = std::fs::File::options().write(true).open(place.path("cache")).unwrap();
                let mut log = place.content("cache").split_off(MIB as usize);
                log.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
                file.write_all_at(&log, MIB).unwrap();
                file.sync_all().unwrap();
            }
            rule => cache.set([rule.parse().unwrap()]),
        }
        // What destaging had read before is tried, in vain, and read anew.
        let missed = || {
            let status = client.0.status();
            status.checksum_failures + status.cache_errors
        };
        while missed() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        backing.set([]);
        client.0.destage().unwrap();
        assert!(client.0.status().backing_consistent, "{sick}");
        assert!(place.content("backing")[..image.len()] == image, "{sick}");
        assert!(
            client.read(0, image.len()).unwrap()[..] == image,
            "{sick}: what is clean is read from the backing"
        );
        volume.end(Ending::Abandon).unwrap();
    }
}
