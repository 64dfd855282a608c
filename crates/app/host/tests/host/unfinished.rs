//! What is left of files by who died while it made them: nothing that a later start or format stumbles over, and nothing of
//! value is taken for it.

use std::fs;

use forebay_host::{Ending, HostError, JournalChoice, RecoverOptions, Volume, VolumeConfig, format, recover};
use forebay_policy::{Settings, WritePolicy};

use crate::client::Client;
use crate::place::{MIB, Place, refusal, sparse};

/// Size of a journal in a file.
const JOURNAL_BYTES: u64 = (128 << 20) + 8192;

fn journaled(place: &Place) -> VolumeConfig {
    let mut config = place.config();
    config.settings = Settings { write_policy: WritePolicy::Journaled, ..Settings::default() };
    config
}

fn served(config: VolumeConfig, byte: u8) {
    let volume = Volume::open(config).unwrap();
    let client = Client(volume.handle());
    client.write(0, &[byte; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap()[..], [byte; 4096]);
    volume.end(Ending::Destage).unwrap();
}

#[test]
fn an_unfinished_journal_is_finished() {
    for bytes in [0, 512, 4096, 8192, 100_000] {
        let place = Place::formatted(8 * MIB, 4 * MIB);
        sparse(&place.path("backing.journal"), bytes);
        served(journaled(&place), 1);
        assert_eq!(place.path("backing.journal").metadata().unwrap().len(), JOURNAL_BYTES, "{bytes}");
        // The same where the user has said where it lies.
        sparse(&place.path("elsewhere"), bytes);
        let mut config = journaled(&place);
        config.journal = JournalChoice::At(place.spec("elsewhere"));
        served(config, 2);
        assert_eq!(place.path("elsewhere").metadata().unwrap().len(), JOURNAL_BYTES, "{bytes}");
    }
}

#[test]
fn a_short_journal_that_holds_anything_is_left_alone() {
    for at in [0, 511, 99_999] {
        let place = Place::formatted(8 * MIB, 4 * MIB);
        let mut bytes = vec![0; 100_000];
        bytes[at] = 1;
        fs::write(place.path("backing.journal"), &bytes).unwrap();
        assert!(matches!(refusal(journaled(&place)), HostError::JournalTooSmall { .. }));
        assert_eq!(place.content("backing.journal"), bytes);
    }
}

#[test]
fn a_journal_cut_to_nothing_is_a_missing_one_for_who_needs_it() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let volume = Volume::open(journaled(&place)).unwrap();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Abandon).unwrap();
    sparse(&place.path("backing.journal"), 0);
    let backing = place.content("backing");
    let e = recover(&place.spec("backing"), &JournalChoice::Auto, RecoverOptions::default()).unwrap_err();
    assert!(matches!(e, HostError::NothingToRecover { .. }), "{e}");
    let mut options = place.options(8 * MIB, 4 * MIB);
    (options.cache, options.force) = (place.spec("new"), true);
    let e = format(&options, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, HostError::JournalMissing { .. }), "{e}");
    assert_eq!((place.content("backing") == backing, place.content("backing.journal").len()), (true, 0));
    assert!(!place.path("new").exists(), "what a refused format has made is gone");
    // The cache has everything that it was needed for.
    let volume = Volume::open(journaled(&place)).unwrap();
    assert_eq!(Client(volume.handle()).read(0, 4096).unwrap()[..], [1; 4096]);
    volume.end(Ending::Destage).unwrap();
}

/// A file that cannot have the journal's size is not left behind.
#[test]
fn a_journal_that_cannot_be_made_leaves_nothing() {
    let place = Place::formatted(8 * MIB, 4 * MIB);
    let missing = place.path("no-such-directory").join("journal");
    let mut config = journaled(&place);
    config.journal = JournalChoice::At(forebay_device::DeviceSpec::Path(missing.clone()));
    assert!(matches!(refusal(config), HostError::JournalTakesNothing { .. }));
    assert!(!missing.exists());
    served(journaled(&place), 1);
}

#[test]
fn empty_files_of_an_unfinished_format_are_taken_up() {
    let place = Place::new();
    sparse(&place.path("cache"), 0);
    sparse(&place.path("backing"), 0);
    // One that is refused leaves them as they were.
    let mut options = place.options(8 * MIB, 4 * MIB);
    options.volume_bytes = Some(8 * MIB);
    assert!(format(&options, &mut |_, _| {}).is_err());
    assert_eq!((place.content("cache").len(), place.content("backing").len()), (0, 0));
    place.format(8 * MIB, 4 * MIB).unwrap();
    served(place.config(), 3);
    // A backing of another size is none of these.
    let other = Place::new();
    sparse(&other.path("backing"), MIB);
    assert!(matches!(other.format(8 * MIB, 4 * MIB), Err(HostError::Size { .. })));
    assert_eq!(other.content("backing").len() as u64, MIB);
}
