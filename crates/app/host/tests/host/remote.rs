//! Backings on other machines, as the host sees all kinds of them: here a file, under an address that is none.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use forebay_block::{BlockService, Class, DeviceOp, DeviceResult, Nanos};
use forebay_device::{
    Access, Device, DeviceInfo, DeviceKind, DeviceSpec, OpenError, RemoteSpec, Ring, Sign, open,
};
use forebay_format::pairing::Refusal;
use forebay_host::{
    Ending, FormatOptions, Formatted, HostError, JournalChoice, JournalRoom, LabelPlace, PairOptions,
    RecoverOptions, Recovered, Volume, VolumeConfig, format, pair_again, recover, recover_group,
};
use forebay_policy::{Settings, WritePolicy};

use crate::client::Client;
use crate::place::{MIB, Place, refusal, sparse};

/// What a volume needs behind its end for its label.
const LABEL_BYTES: u64 = 12 << 10;

#[derive(Debug)]
struct Store {
    address: PathBuf,
    file: PathBuf,
    has_journal: bool,
}

/// Is made beside a store when it is taken away from another host.
const TAKEN: &str = "taken";

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.display().fmt(f)
    }
}

impl Store {
    fn system(&self, doing: &'static str, source: io::Error) -> OpenError {
        OpenError::System { doing, path: self.address.clone(), source }
    }
}

impl RemoteSpec for Store {
    fn as_path(&self) -> &Path {
        &self.address
    }

    fn open(&self, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
        let inner = open(&DeviceSpec::Path(self.file.clone()), ring, access)?;
        if access == Access::TakeOver {
            fs::write(self.file.with_added_extension(TAKEN), []).map_err(|e| self.system("take", e))?;
        }
        let info = DeviceInfo { name: self.to_string(), kind: DeviceKind::Remote, ..inner.info().clone() };
        Ok(Box::new(StoreDevice { inner, info }))
    }

    fn make(&self, size_bytes: u64) -> Result<bool, OpenError> {
        match File::create_new(&self.file).and_then(|file| file.set_len(size_bytes)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|()| true).map_err(|e| self.system("make", e)),
        }
    }

    fn is_made(&self) -> bool {
        true
    }

    fn remove(&self) -> Result<(), OpenError> {
        fs::remove_file(&self.file).map_err(|e| self.system("remove", e))
    }

    fn journal_beside(&self) -> Option<Arc<dyn RemoteSpec>> {
        let beside = |path: &Path| path.with_added_extension("journal");
        let (address, file) = (beside(&self.address), beside(&self.file));
        self.has_journal.then(|| Arc::new(Self { address, file, has_journal: false }) as _)
    }
}

struct StoreDevice {
    inner: Box<dyn Device>,
    info: DeviceInfo,
}

impl Device for StoreDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        self.inner.submit(tag, op, class, now);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        self.inner.poll(now, done);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }

    fn recognize_by(&mut self, sign: Option<Sign>) {
        self.inner.recognize_by(sign);
    }
}

/// A store of this place, which keeps a journal beside a backing or does not.
fn store(place: &Place, has_journal: bool) -> DeviceSpec {
    let (address, file) = (PathBuf::from("far:pool/image"), place.path("image"));
    DeviceSpec::Remote(Arc::new(Store { address, file, has_journal }))
}

fn options(place: &Place, has_journal: bool) -> FormatOptions {
    FormatOptions { backing: store(place, has_journal), ..place.options(8 * MIB, 4 * MIB) }
}

/// A pair with a store that somebody else has made, in which there is room for a label alone.
fn formatted(place: &Place, has_journal: bool) -> Formatted {
    sparse(&place.path("image"), 4 * MIB);
    let volume_bytes = Some(4 * MIB - LABEL_BYTES);
    let options = FormatOptions { volume_bytes, backing_bytes: None, ..options(place, has_journal) };
    format(&options, &mut |_, _| {}).unwrap()
}

fn files(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.directory.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn serve(place: &Place, has_journal: bool, write_policy: WritePolicy) -> Result<Volume, HostError> {
    let mut config = VolumeConfig::new("test", Some(place.spec("cache")), store(place, has_journal));
    config.settings = Settings { write_policy, group_age_ms: 5, ..Settings::default() };
    Volume::open(config)
}

fn recovered(place: &Place) -> Result<Recovered, HostError> {
    recover(&store(place, true), &JournalChoice::Auto, RecoverOptions::default())
}

#[test]
fn a_store_that_was_made_goes_again_if_nothing_comes_of_it() {
    let place = Place::new();
    let small = FormatOptions { cache_bytes: Some(4096), ..options(&place, false) };
    assert!(matches!(format(&small, &mut |_, _| {}), Err(HostError::CacheTooSmall { .. })));
    assert_eq!(files(&place), Vec::<String>::new());
    // One that was there stays.
    fs::write(place.path("image"), vec![7; 4 * MIB as usize]).unwrap();
    assert!(format(&small, &mut |_, _| {}).is_err());
    assert_eq!(place.content("image"), vec![7; 4 * MIB as usize]);
    // What is made has room for the label behind the volume, and keeps it.
    let place = Place::new();
    let made = format(&options(&place, false), &mut |_, _| {}).unwrap();
    assert!(matches!(made.label, LabelPlace::Behind(at) if at >= 4 * MIB), "{:?}", made.label);
    assert_eq!((made.volume_bytes, files(&place)), (4 * MIB, vec!["cache".to_owned(), "image".to_owned()]));
}

#[test]
fn nothing_lies_beside_it_but_what_it_keeps_itself() {
    let place = Place::new();
    let made = formatted(&place, false);
    assert!(matches!(made.label, LabelPlace::Behind(at) if at < 4 * MIB), "{:?}", made.label);
    assert!(matches!(made.journal, JournalRoom::Lacking(_)));
    assert!(matches!(serve(&place, false, WritePolicy::Journaled), Err(HostError::NoJournal { .. })));
    let volume = serve(&place, false, WritePolicy::WriteBack).unwrap();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Destage).unwrap();
    assert_eq!(files(&place), ["cache", "image"]);
    assert_eq!(place.content("image")[..4096], [1; 4096]);
}

#[test]
fn its_own_journal_is_made_at_the_first_start_and_found_again() {
    let place = Place::new();
    assert_eq!(formatted(&place, true).journal, JournalRoom::Enough);
    // Who only looks for it makes none.
    assert!(matches!(recovered(&place), Err(HostError::NothingToRecover { .. })));
    assert_eq!(files(&place), ["cache", "image"]);
    let volume = serve(&place, true, WritePolicy::Journaled).unwrap();
    let client = Client(volume.handle());
    for n in 1..=200_u8 {
        client.write(u64::from(n % 8) * 4096, &[n; 4096]).unwrap();
    }
    while volume.handle().status().groups == 0 {
        std::thread::yield_now();
    }
    volume.end(Ending::Abandon).unwrap();
    assert_eq!(files(&place), ["cache", "image", "image.journal"]);
    let journal = place.content("image.journal").len();
    fs::remove_file(place.path("cache")).unwrap();
    assert!(recovered(&place).unwrap().moment.group > 0);
    assert_eq!(place.content("image.journal").len(), journal);
}

#[test]
fn its_address_is_no_path() {
    let place = Place::new();
    formatted(&place, false);
    let cache = FormatOptions { cache: store(&place, false), ..options(&place, false) };
    assert!(matches!(format(&cache, &mut |_, _| {}), Err(HostError::RemoteCache { .. })));
    // The label is lost, and the cache knows the address again.
    let image = File::options().write(true).open(place.path("image")).unwrap();
    image.write_all_at(&[0; LABEL_BYTES as usize], 4 * MIB - LABEL_BYTES).unwrap();
    let (cache, backing, journal) = (place.spec("cache"), store(&place, false), JournalChoice::Auto);
    let found = match pair_again(&PairOptions { cache, backing, journal, label_is_lost: false }) {
        Err(HostError::LabelUnvouched { found }) => found,
        other => panic!("{other:?}"),
    };
    assert!(found.is_in_place && found.backing_name == "far:pool/image", "{found:?}");
}

fn again(place: &Place, volume_bytes: Option<u64>) -> Result<Formatted, HostError> {
    let again = options(place, false);
    format(&FormatOptions { backing_bytes: None, volume_bytes, force: true, ..again }, &mut |_, _| {})
}

/// Whoever makes a new cache for a volume, for whatever reason the old one is given up, has the same volume: else it would grow over its
/// label, and an older copy of the cache would be taken for the latest one.
#[test]
fn a_volume_keeps_its_size_and_its_label_when_it_gets_another_cache() {
    let place = Place::new();
    let first = format(&options(&place, false), &mut |_, _| {}).unwrap();
    assert_eq!((first.volume_bytes_before, first.journal), (None, JournalRoom::Enough));
    let is_as_before = |made: &Formatted| {
        let is = (made.volume_bytes, made.volume_bytes_before, &made.label, made.journal);
        assert_eq!(is, (4 * MIB, Some(4 * MIB), &first.label, JournalRoom::Enough));
    };
    // Taken away from its cache.
    let volume = serve(&place, false, WritePolicy::WriteBack).unwrap();
    place.copy("cache", "old");
    Client(volume.handle()).write(4 * MIB - 4096, &[1; 4096]).unwrap();
    volume.end(Ending::Destage).unwrap();
    is_as_before(&again(&place, None).unwrap());
    let stale = VolumeConfig::new("test", Some(place.spec("old")), store(&place, false));
    let e = refusal(stale);
    assert!(matches!(e, HostError::Pairing { refusal: Refusal::ForeignCache { .. }, .. }), "{e}");
    serve(&place, false, WritePolicy::Journaled).unwrap().end(Ending::Destage).unwrap();
    // Served without its cache, and after its cache was removed.
    for is_removed in [false, true] {
        if is_removed {
            serve(&place, false, WritePolicy::WriteBack).unwrap().end(Ending::Release).unwrap();
        }
        let alone =
            VolumeConfig { accept_stale: true, ..VolumeConfig::new("test", None, store(&place, false)) };
        let volume = Volume::open(alone).unwrap();
        assert_eq!(volume.handle().info().size_bytes, 4 * MIB, "removed: {is_removed}");
        volume.end(Ending::Keep).unwrap();
        is_as_before(&again(&place, None).unwrap());
        assert!(serve(&place, false, WritePolicy::Journaled).is_ok());
    }
    assert_eq!(place.content("image")[4 * MIB as usize - 4096..4 * MIB as usize], [1; 4096]);
}

#[test]
fn a_volume_has_another_size_only_if_that_is_said() {
    let place = Place::new();
    format(&options(&place, false), &mut |_, _| {}).unwrap();
    let whole = place.content("image").len() as u64;
    for (asked, label_stays) in [(2 * MIB, true), (3 * MIB, true), (whole, false)] {
        let before = again(&place, None).unwrap().volume_bytes;
        let made = again(&place, Some(asked)).unwrap();
        assert_eq!((made.volume_bytes, made.volume_bytes_before), (asked, Some(before)));
        assert_eq!(made.label != LabelPlace::Nowhere, label_stays, "{asked}");
    }
    // One that is damaged tells nothing of the volume.
    let place = Place::new();
    let LabelPlace::Behind(at) = format(&options(&place, false), &mut |_, _| {}).unwrap().label else {
        panic!("its label lies behind the volume")
    };
    let image = File::options().write(true).open(place.path("image")).unwrap();
    for copy in [at, at + 4096] {
        image.write_all_at(&[9; 64], copy + 16).unwrap();
    }
    let e = again(&place, None).unwrap_err();
    assert!(e.to_string().contains("give --volume-size"), "{e}");
    assert_eq!(again(&place, Some(4 * MIB)).unwrap().label, LabelPlace::Behind(at));
}

/// The owner may be well: it is not cut off for what is refused all the same.
#[test]
fn what_is_refused_is_not_taken_over() {
    let place = Place::new();
    format(&options(&place, true), &mut |_, _| {}).unwrap();
    place.copy("cache", "older");
    let volume = serve(&place, true, WritePolicy::WriteBack).unwrap();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Abandon).unwrap();
    let was_taken = || files(&place).iter().any(|name| name.ends_with(TAKEN));
    let mut config = VolumeConfig::new("test", Some(place.spec("older")), store(&place, true));
    config.takeover = true;
    let e = refusal(config);
    assert!(matches!(e, HostError::Pairing { refusal: Refusal::StaleCache { .. }, .. }), "{e}");
    let alone = VolumeConfig { takeover: true, ..VolumeConfig::new("test", None, store(&place, true)) };
    assert!(matches!(refusal(alone), HostError::WithoutItsCache { .. }));
    let takeover = RecoverOptions { takeover: true, ..RecoverOptions::default() };
    let recovered = || recover(&store(&place, true), &JournalChoice::Auto, takeover);
    assert!(matches!(recovered(), Err(HostError::NothingToRecover { .. })));
    let members = [(store(&place, true), JournalChoice::Auto)];
    assert!(matches!(recover_group(&members, true), Err(HostError::NothingToRecover { .. })));
    assert!(!was_taken(), "{:?}", files(&place));
    // What is not refused is.
    serve(&place, true, WritePolicy::Journaled).unwrap().end(Ending::Destage).unwrap();
    recovered().unwrap();
    assert!(was_taken());
}
