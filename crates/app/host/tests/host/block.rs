//! Caches and backings on block devices: where there is room for a label, and where there is none.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_block::{BlockService, Buf, ErrorKind, Op, Origin};
use forebay_device::{DeviceSpec, OpenError};
use forebay_format::pairing::Refusal;
use forebay_host::{
    Ending, FormatOptions, Formatted, HostError, JournalChoice, JournalRoom, LabelPlace, PairOptions, Volume,
    VolumeConfig, format, pair_again,
};
use forebay_policy::WritePolicy;

use crate::client::Client;
use crate::place::{MIB, Place, refusal, sparse};
use crate::stamp::{divide, work};

const CACHE: u64 = 16 * MIB;
const BACKING: u64 = 8 * MIB;

/// A loop device, taken down when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &Path) -> Option<Self> {
        Self::with(&[], file)
    }

    fn with(flags: &[&str], file: &Path) -> Option<Self> {
        let losetup = Command::new("losetup").args(["--find", "--show"]).args(flags).arg(file).output();
        match losetup {
            Ok(out) if out.status.success() => {
                Some(Self(String::from_utf8(out.stdout).unwrap().trim().into()))
            }
            other => {
                eprintln!("SKIP: no loop device: {other:?}");
                assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no loop device: {other:?}");
                None
            }
        }
    }

    fn spec(&self) -> DeviceSpec {
        DeviceSpec::Path(self.0.clone())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A cache and two backings on loop devices.
fn devices(place: &Place) -> Option<(LoopDevice, LoopDevice, LoopDevice)> {
    for (name, bytes) in [("c", CACHE), ("b", BACKING), ("b2", BACKING)] {
        sparse(&place.path(name), bytes);
    }
    let device = |name: &str| LoopDevice::new(&place.path(name));
    Some((device("c")?, device("b")?, device("b2")?))
}

fn make(
    cache: &LoopDevice,
    backing: &LoopDevice,
    volume_bytes: Option<u64>,
    force: bool,
) -> Result<Formatted, HostError> {
    let options = FormatOptions {
        cache: cache.spec(),
        backing: backing.spec(),
        cache_bytes: None,
        backing_bytes: None,
        volume_bytes,
        align: None,
        logical_block: None,
        force,
        journal: JournalChoice::Auto,
    };
    format(&options, &mut |_, _| {})
}

fn config(cache: &LoopDevice, backing: &LoopDevice) -> VolumeConfig {
    VolumeConfig::new("block", Some(cache.spec()), backing.spec())
}

/// With a cache, after its removal, and for who sends sectors of 512 bytes all the same.
#[test]
fn a_volume_has_the_logical_block_of_its_backing() {
    let place = Place::new();
    sparse(&place.path("b"), BACKING);
    sparse(&place.path("c"), CACHE);
    let large = ["--sector-size", "4096"];
    let Some(backing) = LoopDevice::with(&large, &place.path("b")) else { return };
    let Some(cache) = LoopDevice::new(&place.path("c")) else { return };
    let made = make(&cache, &backing, Some(BACKING - 12288), false).unwrap();
    assert_eq!(made.logical_block, 4096);
    let logical_block = |volume: &Volume| volume.handle().info().logical_block;
    let mut territories = divide(BACKING - 12288, 2, 43);
    for (told, wanted) in [(None, 4096), (Some(512), 512), (None, 512), (Some(4096), 4096), (None, 4096)] {
        let volume = Volume::open(VolumeConfig { logical_block: told, ..config(&cache, &backing) }).unwrap();
        assert_eq!(logical_block(&volume), wanted, "{told:?}");
        work(&Client(volume.handle()), &mut territories, 50);
        let ending = if told == Some(4096) { Ending::Abandon } else { Ending::Destage };
        volume.end(ending).unwrap();
    }
    Volume::open(config(&cache, &backing)).unwrap().end(Ending::Release).unwrap();
    let alone = || VolumeConfig::new("block", None, backing.spec());
    let volume = Volume::open(alone()).unwrap();
    assert_eq!(logical_block(&volume), 4096);
    let client = Client(volume.handle());
    work(&client, &mut territories, 300);
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
    volume.end(Ending::Keep).unwrap();
    let volume = Volume::open(VolumeConfig { logical_block: Some(512), ..alone() }).unwrap();
    assert_eq!(logical_block(&volume), 512);
    drop(volume);
    let e = make(&cache, &backing, Some(BACKING - 512), true).unwrap_err();
    assert!(matches!(e, HostError::Size { .. }) && e.to_string().contains("multiple of 4096"), "{e}");
}

#[test]
fn what_can_only_be_read_is_not_written_to() {
    let place = Place::new();
    let Some((cache, backing, _)) = devices(&place) else { return };
    make(&cache, &backing, Some(BACKING - 12288), false).unwrap();
    let volume = Volume::open(config(&cache, &backing)).unwrap();
    let mut territories = divide(BACKING - 12288, 2, 47);
    work(&Client(volume.handle()), &mut territories, 200);
    volume.end(Ending::Abandon).unwrap();
    drop((cache, backing));
    let read_only = |name: &str| LoopDevice::with(&["--read-only"], &place.path(name));
    let (Some(cache), Some(backing)) = (read_only("c"), read_only("b")) else { return };
    let before = [place.content("c"), place.content("b")];
    let e = refusal(config(&cache, &backing));
    assert!(matches!(&e, HostError::Open(OpenError::ReadOnly { .. })), "{e}");
    assert_eq!(e.class().exit_code(), 3);
    let looking = || VolumeConfig { read_only: true, ..config(&cache, &backing) };
    let volume = Volume::open(looking()).unwrap();
    let handle = volume.handle();
    assert!(handle.info().read_only && handle.status().dirty_bytes > 0);
    let client = Client(handle.clone());
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
    let submit = |op: Op| {
        let (sender, receiver) = std::sync::mpsc::channel();
        handle.submit(op, Origin::default(), Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().map(drop).map_err(|e| e.kind)
    };
    let zero = |unmap| Op::Zero { offset: 0, len: 4096, unmap, fua: false };
    for op in [Op::Write { offset: 0, data: Buf::zeroed(512), fua: false }, zero(false), zero(true)] {
        assert_eq!(submit(op), Err(ErrorKind::ReadOnly));
    }
    assert_eq!(submit(Op::Flush), Ok(()));
    let refused = [handle.destage().unwrap_err(), handle.mark("m").unwrap_err()];
    assert!(refused.iter().all(|e| e.class().exit_code() == 3), "{refused:?}");
    volume.end(Ending::Keep).unwrap();
    for ending in [Ending::Release, Ending::Destage, Ending::Keep] {
        let ended = Volume::open(looking()).unwrap().end(ending);
        assert_eq!(matches!(ended, Err(HostError::ReadOnly { .. })), ending != Ending::Keep, "{ended:?}");
    }
    let alone = VolumeConfig { read_only: true, ..VolumeConfig::new("block", None, backing.spec()) };
    assert!(matches!(refusal(alone), HostError::WithoutItsCache { .. }));
    drop(Volume::open(looking()).unwrap());
    assert!([place.content("c"), place.content("b")] == before, "something was written");
    drop((cache, backing));
    let writable = |name: &str| LoopDevice::new(&place.path(name));
    let (Some(cache), Some(backing)) = (writable("c"), writable("b")) else { return };
    let volume = Volume::open(config(&cache, &backing)).unwrap();
    let client = Client(volume.handle());
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
    volume.end(Ending::Destage).unwrap();
}

#[test]
fn a_disk_that_is_full_to_its_end_is_known_by_its_fingerprint() {
    let place = Place::new();
    let Some((cache, backing, other)) = devices(&place) else { return };
    let made = make(&cache, &backing, None, false).unwrap();
    assert_eq!((made.label, made.volume_bytes), (LabelPlace::Nowhere, BACKING));
    let mut territories = divide(BACKING, 2, 41);
    for ending in [Ending::Abandon, Ending::Keep] {
        let volume = Volume::open(config(&cache, &backing)).unwrap();
        let client = Client(volume.handle());
        work(&client, &mut territories, 50);
        volume.end(ending).unwrap();
    }
    let e = refusal(config(&cache, &other));
    assert!(matches!(e, HostError::Pairing { refusal: Refusal::ForeignBacking { .. }, .. }), "{e}");
    let volume = Volume::open(config(&cache, &backing)).unwrap();
    let client = Client(volume.handle());
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
    volume.end(Ending::Release).unwrap();
    let image = place.content("b");
    territories.iter_mut().for_each(|t| t.check_image(&image));
}

/// The volume that `format` names as leaving room can be journaled, one that fills its disk cannot, and is told what to do.
#[test]
fn a_disk_with_room_behind_its_volume_can_be_journaled() {
    let place = Place::new();
    let Some((cache, small, _other)) = devices(&place) else { return };
    assert_eq!(make(&cache, &small, None, true).unwrap().journal, JournalRoom::Lacking(None));
    sparse(&place.path("large"), 1024 * MIB);
    let Some(backing) = LoopDevice::new(&place.path("large")) else { return };
    let journaled = || {
        let mut config = config(&cache, &backing);
        config.settings.write_policy = WritePolicy::Journaled;
        config
    };
    let JournalRoom::Lacking(Some(roomy)) = make(&cache, &backing, None, true).unwrap().journal else {
        panic!("a volume fills its disk and has room for a journal")
    };
    assert!(roomy >= 768 * MIB && roomy.is_multiple_of(MIB), "{roomy}");
    let said = refusal(journaled()).to_string();
    assert!(said.contains("--journal LOCATION") && said.contains("--volume-size"), "{said}");
    assert_eq!(make(&cache, &backing, Some(roomy), true).unwrap().journal, JournalRoom::Enough);
    let volume = Volume::open(journaled()).unwrap();
    Client(volume.handle()).write(0, &[7; 4096]).unwrap();
    volume.end(Ending::Keep).unwrap();
}

#[test]
fn a_label_behind_the_volume_pairs_a_disk() {
    let place = Place::new();
    let Some((cache, backing, _other)) = devices(&place) else { return };
    let volume_bytes = BACKING - 12288;
    let made = make(&cache, &backing, Some(volume_bytes), false).unwrap();
    assert!(matches!(made.label, LabelPlace::Behind(at) if at >= volume_bytes));
    let volume = Volume::open(config(&cache, &backing)).unwrap();
    let client = Client(volume.handle());
    client.write(volume_bytes - 4096, &[7; 4096]).unwrap();
    assert!(client.write(volume_bytes - 512, &[7; 1024]).is_err());
    volume.end(Ending::Keep).unwrap();
    // The label is wiped: it is made anew in its place.
    let file = std::fs::File::options().write(true).open(&backing.0).unwrap();
    let LabelPlace::Behind(at) = made.label else { unreachable!("as was just seen") };
    file.write_all_at(&[0; 8192], at).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(matches!(
        refusal(config(&cache, &backing)),
        HostError::Pairing { refusal: Refusal::LabelMissing, .. }
    ));
    let (journal, label_is_lost) = (JournalChoice::None, true);
    let options = PairOptions { cache: cache.spec(), backing: backing.spec(), journal, label_is_lost };
    assert!(matches!(pair_again(&options).unwrap().label, LabelPlace::Behind(at) if at >= volume_bytes));
    Volume::open(config(&cache, &backing)).unwrap().end(Ending::Keep).unwrap();
    let plain = || VolumeConfig::new("block", None, backing.spec());
    assert!(matches!(refusal(plain()), HostError::WithoutItsCache { .. }));
    assert!(matches!(make(&cache, &backing, None, false), Err(HostError::BackingPaired { .. })));
    Volume::open(config(&cache, &backing)).unwrap().end(Ending::Release).unwrap();
    assert!(place.content("b")[volume_bytes as usize..].iter().all(|b| *b == 0), "no trace is left");
    drop(Volume::open(plain()).unwrap());
    assert_eq!(place.content("b")[volume_bytes as usize - 4096..volume_bytes as usize], [7; 4096]);
    // One that is made anew is as large, and has its label where it was.
    make(&cache, &backing, Some(volume_bytes), false).unwrap();
    let again = make(&cache, &backing, None, true).unwrap();
    assert_eq!((again.volume_bytes, again.label), (volume_bytes, LabelPlace::Behind(at)));
}

#[test]
fn what_lies_on_a_disk_is_adopted_as_it_is() {
    let place = Place::new();
    let Some((cache, backing, _other)) = devices(&place) else { return };
    let made = Command::new("mkfs.ext4").arg("-q").arg(&backing.0).status();
    assert!(made.is_ok_and(|s| s.success()));
    make(&cache, &backing, None, false).unwrap();
    Volume::open(config(&cache, &backing)).unwrap().end(Ending::Release).unwrap();
    let checked = Command::new("e2fsck").arg("-fn").arg(&backing.0).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    // Used as a cache, the same disk is refused: its file system would be lost.
    let e = make(&backing, &cache, None, false).unwrap_err();
    assert!(matches!(e, HostError::ForeignData { .. }), "{e}");
}
