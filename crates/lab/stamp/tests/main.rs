//! The client against files: it must be content with a file that keeps its word, and with no other.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_stamp::{Report, SECTOR_BYTES, State, TargetSpec, VerifyOptions, WriteOptions, verify, write};

const SECTORS: u64 = 8 << 11;

struct Volume {
    _dir: tempfile::TempDir,
    path: PathBuf,
    state: State,
}

impl Volume {
    fn written() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        File::create(&path).unwrap().set_len(SECTORS * SECTOR_BYTES as u64).unwrap();
        let mut volume = Self { _dir: dir, path, state: State::blank(7, SECTORS) };
        let report = volume.write(1);
        assert!(report.is_right() && !report.lost, "{:?}", report.told);
        assert!(report.writes > 100 && report.reads > 50 && report.zeroes > 10 && report.flushes > 5);
        volume
    }

    fn write(&mut self, seed: u64) -> Report {
        let options = WriteOptions {
            target: self.target(),
            time: Duration::from_secs(600),
            operations: 400,
            threads: 4,
            largest_bytes: 256 << 10,
            mix: "60,25,8,7".parse().unwrap(),
            seed,
            allowed: Vec::new(),
            stop_on_error: false,
            patience: Duration::from_secs(60),
            acks: None,
        };
        write(&options, &mut self.state).unwrap()
    }

    fn target(&self) -> TargetSpec {
        TargetSpec::File(self.path.clone())
    }

    fn verify(&self) -> Report {
        let options = VerifyOptions {
            target: self.target(),
            allowed: Vec::new(),
            quiet: true,
            patience: Duration::from_secs(60),
        };
        verify(&options, &mut self.state.clone()).unwrap()
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn sector(image: &[u8], sector: usize) -> &[u8] {
    &image[sector * SECTOR_BYTES..][..SECTOR_BYTES]
}

#[test]
fn what_was_written_is_right() {
    let mut volume = Volume::written();
    let report = volume.verify();
    assert!(report.is_right(), "{:?}", report.told);
    assert_eq!(report.sectors_compared, SECTORS);
    assert!(volume.write(2).is_right());
    assert!(volume.verify().is_right());
}

#[test]
fn a_sector_of_an_earlier_round_is_found() {
    let mut volume = Volume::written();
    let before = bytes(&volume.path);
    volume.write(2);
    let after = bytes(&volume.path);
    let changed = (0..SECTORS as usize).filter(|s| sector(&before, *s) != sector(&after, *s));
    let stale: Vec<usize> = changed.step_by(50).collect();
    assert!(stale.len() > 10);
    let file = File::options().write(true).open(&volume.path).unwrap();
    for s in &stale {
        file.write_all_at(sector(&before, *s), (*s * SECTOR_BYTES) as u64).unwrap();
    }
    assert_eq!(volume.verify().sectors_wrong, stale.len() as u64);
}

#[test]
fn a_sector_in_another_place_is_found() {
    let volume = Volume::written();
    let image = bytes(&volume.path);
    let stamped: Vec<usize> = (0..SECTORS as usize).filter(|s| sector(&image, *s)[0] != 0).collect();
    let file = File::options().write(true).open(&volume.path).unwrap();
    file.write_all_at(sector(&image, stamped[0]), (stamped[9] * SECTOR_BYTES) as u64).unwrap();
    let report = volume.verify();
    assert_eq!(report.sectors_wrong, 1);
    assert!(report.told[0].contains("misdirected"), "{:?}", report.told);
}

#[test]
fn lost_data_is_found() {
    let volume = Volume::written();
    File::options()
        .write(true)
        .open(&volume.path)
        .unwrap()
        .write_all_at(&[0; SECTOR_BYTES], {
            let image = bytes(&volume.path);
            let stamped = (0..SECTORS as usize).find(|s| sector(&image, *s)[0] != 0).unwrap();
            (stamped * SECTOR_BYTES) as u64
        })
        .unwrap();
    assert_eq!(volume.verify().sectors_wrong, 1);
}
