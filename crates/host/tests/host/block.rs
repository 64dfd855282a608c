//! Caches and backings on block devices: where there is room for a label, and where there is none.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_device::DeviceSpec;
use forebay_format::pairing::Refusal;
use forebay_host::{
    Ending, FormatOptions, Formatted, HostError, JournalChoice, LabelPlace, PairOptions, Volume,
    VolumeConfig, format, pair_again,
};

use crate::client::Client;
use crate::place::{MIB, Place, refusal, sparse};
use crate::stamp::{divide, work};

const CACHE: u64 = 16 * MIB;
const BACKING: u64 = 8 * MIB;

/// A loop device, taken down when dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &Path) -> Option<Self> {
        let losetup = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
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
        force,
        journal: JournalChoice::Auto,
    };
    format(&options, &mut |_, _| {})
}

fn config(cache: &LoopDevice, backing: &LoopDevice) -> VolumeConfig {
    VolumeConfig::new("block", Some(cache.spec()), backing.spec())
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
