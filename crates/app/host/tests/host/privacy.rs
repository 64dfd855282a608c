//! Other users of the machine get at a volume's data by none of its files, and nothing that they have put beside a backing is used.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use forebay_host::{Ending, ErrorClass, JournalChoice, Volume, VolumeConfig, format, keep_private};
use forebay_policy::{Settings, WritePolicy};
use rustix::process::{Gid, Uid};

use crate::client::Client;
use crate::place::{MIB, Place, refusal, sparse};

const NOBODY: u32 = 65534;
const FILES: [&str; 3] = ["cache", "backing.forebay", "backing.journal"];

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        eprintln!("SKIP: needs root");
    }
    root
}

/// Does something as an unprivileged user, which the thread for it becomes alone.
fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let become_nobody = || {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        what()
    };
    std::thread::scope(|scope| scope.spawn(become_nobody).join().unwrap())
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// In a directory that everybody can look into, a backing of this mode.
fn place(mode: u32) -> Place {
    let place = Place::new();
    chmod(place.directory.path(), 0o755);
    sparse(&place.path("backing"), 4 * MIB);
    chmod(&place.path("backing"), mode);
    place
}

fn journaled(place: &Place) -> VolumeConfig {
    let settings = Settings { write_policy: WritePolicy::Journaled, ..Settings::default() };
    VolumeConfig { settings, ..place.config() }
}

fn served(config: VolumeConfig) {
    let volume = Volume::open(config).unwrap();
    Client(volume.handle()).write(0, &[1; 4096]).unwrap();
    volume.end(Ending::Destage).unwrap();
}

#[test]
fn nobody_reads_a_volume_whose_backing_is_private() {
    if !is_root() {
        return;
    }
    for backing in [0o600, 0o644] {
        let place = place(backing);
        place.format(8 * MIB, 4 * MIB).unwrap();
        let mut config = journaled(&place);
        config.journal = JournalChoice::At(place.spec("named"));
        served(config);
        served(journaled(&place));
        fs::write(place.path("for all"), "").unwrap();
        chmod(&place.path("for all"), 0o644);
        let opens = |name: &str| as_nobody(|| File::open(place.path(name)).is_ok());
        assert!(opens("for all"));
        for name in FILES.iter().chain(&["named"]) {
            assert!(place.path(name).exists() && !opens(name), "{name}");
        }
    }
}

#[test]
fn files_have_the_owner_and_mode_of_the_backing() {
    if !is_root() {
        return;
    }
    let place = place(0o660);
    chown(place.path("backing"), Some(NOBODY), Some(7)).unwrap();
    place.format(8 * MIB, 4 * MIB).unwrap();
    served(journaled(&place));
    for name in FILES {
        let meta = fs::metadata(place.path(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (NOBODY, 7, 0o660), "{name}");
    }
    // A backing that is made is for its maker alone, and so is all that is made beside it.
    let other = Place::new();
    other.format(8 * MIB, 4 * MIB).unwrap();
    let modes =
        ["backing", "cache", "backing.forebay"].map(|name| fs::metadata(other.path(name)).unwrap().mode());
    assert_eq!(modes.map(|mode| mode & 0o777), [0o600; 3]);
}

#[test]
fn what_is_for_more_users_than_the_backing_is_told_of_and_narrowed() {
    let place = place(0o600);
    place.format(8 * MIB, 4 * MIB).unwrap();
    served(journaled(&place));
    FILES.iter().for_each(|name| chmod(&place.path(name), 0o644));
    let keep = |look_only| {
        let journal = JournalChoice::Auto;
        keep_private(Some(&place.spec("cache")), &place.spec("backing"), &journal, look_only)
    };
    let modes = || FILES.map(|name| fs::metadata(place.path(name)).unwrap().mode() & 0o777);
    let told = keep(true);
    assert!(told.len() == 3 && told.iter().all(|t| t.contains("`chmod 600 ")), "{told:?}");
    assert_eq!(modes(), [0o644; 3]);
    let told = keep(false);
    assert!(told.len() == 3 && told.iter().all(|t| t.contains("had mode 644")), "{told:?}");
    assert_eq!(modes(), [0o600; 3]);
    assert!(keep(false).is_empty());
    // A link where a journal could be is not followed, whatever it leads to.
    fs::remove_file(place.path("backing.journal")).unwrap();
    fs::write(place.path("victim"), "").unwrap();
    chmod(&place.path("victim"), 0o644);
    symlink(place.path("victim"), place.path("backing.journal")).unwrap();
    assert!(keep(false).is_empty());
    assert_eq!(fs::metadata(place.path("victim")).unwrap().mode() & 0o777, 0o644);
}

/// Puts something beside a backing that another user may have put there, and sees that it is refused and stays as it is.
fn hostile(name: &str, refused: impl Fn(&Place) -> forebay_host::HostError) {
    type Puts = fn(&Place, &Path);
    let ways: [(&str, Puts); 5] = [
        ("symbolic link", |place, path| symlink(place.path("victim"), path).unwrap()),
        ("symbolic link", |place, path| symlink(place.path("absent"), path).unwrap()),
        ("hard link", |place, path| fs::hard_link(place.path("victim"), path).unwrap()),
        ("no regular file", |_, path| {
            let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(rustix::fs::CWD, path, fifo, mode, 0).unwrap();
        }),
        ("user nobody", |_, path| {
            fs::write(path, "").unwrap();
            chown(path, Some(NOBODY), None).unwrap();
            chmod(path, 0o666);
        }),
    ];
    for (why, put) in ways.iter().filter(|(why, _)| !why.starts_with("user") || is_root()) {
        let place = place(0o600);
        fs::write(place.path("victim"), vec![0; 1 << 20]).unwrap();
        if name == "backing.journal" {
            place.format(8 * MIB, 4 * MIB).unwrap();
        }
        put(&place, &place.path(name));
        let e = refused(&place);
        assert!(e.to_string().contains(why) && e.class() == ErrorClass::Refused, "{why}: {e}");
        assert_eq!(place.content("victim"), vec![0; 1 << 20]);
        assert!(!place.path("absent").exists());
    }
}

#[test]
fn a_label_that_another_user_has_put_there_is_not_used() {
    hostile("backing.forebay", |place| {
        let e = place.format(8 * MIB, 4 * MIB).unwrap_err();
        assert!(!place.path("cache").exists(), "what a refused format has made is gone");
        e
    });
    // Nor is one that comes later.
    let place = place(0o600);
    place.format(8 * MIB, 4 * MIB).unwrap();
    fs::rename(place.path("backing.forebay"), place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), place.path("backing.forebay")).unwrap();
    assert!(refusal(place.config()).to_string().contains("symbolic link"));
}

#[test]
fn a_journal_that_another_user_has_put_there_is_not_used() {
    hostile("backing.journal", |place| {
        let e = refusal(journaled(place));
        // Who needs no journal is served without.
        served(place.config());
        e
    });
}

#[test]
fn links_that_the_user_names_are_followed() {
    let place = place(0o600);
    let other = Place::new();
    symlink(place.path("backing"), other.path("backing")).unwrap();
    fs::write(place.path("cache"), "").unwrap();
    symlink(place.path("cache"), other.path("cache")).unwrap();
    other.format(8 * MIB, 4 * MIB).unwrap();
    served(journaled(&other));
    assert!(place.path("backing.forebay").exists() && place.path("backing.journal").exists());
    assert_eq!(fs::metadata(place.path("cache")).unwrap().mode() & 0o777, 0o600);
    let mut options = other.options(8 * MIB, 4 * MIB);
    options.force = true;
    format(&options, &mut |_, _| {}).unwrap();
}
