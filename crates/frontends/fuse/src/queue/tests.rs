use super::*;

fn queue_with(attributes: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("queue/iosched")).unwrap();
    fs::create_dir(dir.path().join("bdi")).unwrap();
    for (name, value) in attributes {
        fs::write(dir.path().join(name), value).unwrap();
    }
    dir
}

fn read(dir: &tempfile::TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).unwrap()
}

fn set_up(dir: &tempfile::TempDir, limits: &QueueLimits) -> (Queue, QueueSetup) {
    Queue::set_up_in(dir.path().to_owned(), limits, &Found::look_in(dir.path()), |_| None)
}

const ALL: &[(&str, &str)] = &[
    ("queue/write_cache", "write through\n"),
    ("queue/max_sectors_kb", "1280\n"),
    ("queue/scheduler", "[none] bfq kyber\n"),
    ("queue/wbt_lat_usec", "2000\n"),
    ("queue/nr_requests", "256\n"),
    ("bdi/max_ratio_fine", "1000000\n"),
    ("bdi/min_ratio", "0\n"),
];

#[test]
fn slots_are_reserved_and_the_throttle_is_off_and_all_is_restored() {
    // It comes with the scheduler, which is here from the start.
    let dir = queue_with(&[ALL, &[("queue/iosched/slice_idle", "8\n")]].concat());
    let (queue, setup) = set_up(&dir, &QueueLimits { background_dirty: 1, ..QueueLimits::default() });
    assert!(setup.reserved && setup.refused.is_empty() && setup.unrecorded.is_none(), "{setup:?}");
    assert_eq!(read(&dir, "queue/scheduler"), "bfq");
    assert_eq!(read(&dir, "queue/wbt_lat_usec"), "0");
    assert_eq!(read(&dir, "queue/nr_requests"), "128");
    assert_eq!(read(&dir, "queue/max_sectors_kb"), "1024");
    let knob =
        |name: &str| setup.knobs.iter().find(|k| k.name == name).map(|k| (k.set.as_str(), k.before.as_str()));
    assert_eq!(knob("queue/scheduler"), Some(("bfq", "none")));
    assert_eq!(knob("queue/iosched/slice_idle"), Some(("0", "")));
    assert_eq!(knob("queue/nr_requests"), Some(("128", "256")));
    assert_eq!(knob("bdi/max_ratio_fine").map(|k| k.1), Some("1000000"));
    queue.restore();
    assert_eq!(read(&dir, "queue/scheduler"), "none");
    assert_eq!(read(&dir, "queue/wbt_lat_usec"), "2000");
    assert_eq!(read(&dir, "queue/nr_requests"), "256");
    assert_eq!(read(&dir, "queue/max_sectors_kb"), "1280");
    assert_eq!(read(&dir, "bdi/max_ratio_fine").trim(), "1000000");
}

#[test]
fn without_the_scheduler_the_throttle_stays() {
    let without: Vec<_> = ALL.iter().copied().filter(|(n, _)| *n != "queue/scheduler").collect();
    let dir = queue_with(&without);
    let (_, setup) = set_up(&dir, &QueueLimits::default());
    assert!(!setup.reserved);
    assert_eq!(setup.refused.len(), 1, "{setup:?}");
    assert_eq!(read(&dir, "queue/wbt_lat_usec"), "-1");
    assert_shown(&dir, &setup);
    // The kernel has schedulers, and not this one.
    std::os::unix::fs::symlink("/proc/sys/kernel/ostype", dir.path().join("queue/scheduler")).unwrap();
    let (_, setup) = set_up(&dir, &QueueLimits::default());
    assert!(!setup.reserved && !setup.refused.is_empty(), "{setup:?}");
    assert_eq!(read(&dir, "queue/wbt_lat_usec"), "-1");
    assert_shown(&dir, &setup);
}

/// A status tells what is set, not what was meant.
fn assert_shown(dir: &tempfile::TempDir, setup: &QueueSetup) {
    assert!(setup.knobs.iter().all(|k| k.set != RESERVING), "{setup:?}");
    for knob in &setup.knobs {
        assert_eq!(knobs::read(dir.path(), &knob.name).as_ref(), Some(&knob.set), "{}", knob.name);
    }
}

/// A user's own least is finer than a percent.
#[test]
fn parts_of_dirty_memory_are_in_millionths_where_the_kernel_has_them() {
    let limits = QueueLimits { background_dirty: 1, ..QueueLimits::default() };
    let fine = [("bdi/max_ratio_fine", "420000"), ("bdi/min_ratio_fine", "31234")];
    let coarse = [("bdi/max_ratio", "42"), ("bdi/min_ratio", "3")];
    let both = [fine, coarse].concat();
    for (files, used, unused) in [(&both[..], &fine[..], &coarse[..]), (&coarse[..], &coarse[..], &[])] {
        let dir = queue_with(files);
        let (queue, setup) = set_up(&dir, &QueueLimits { reserve: false, ..limits });
        assert!(setup.refused.iter().all(|refused| !refused.starts_with("bdi")), "{setup:?}");
        assert!(queue.background.is_some());
        let names: Vec<_> = used.iter().map(|(name, _)| *name).collect();
        assert_eq!(setup.knobs.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(), names);
        assert_ne!(read(&dir, names[0]).trim(), used[0].1);
        assert_eq!(read(&dir, names[1]), "0");
        unused.iter().for_each(|(name, value)| assert_eq!(read(&dir, name), *value));
        queue.restore();
        used.iter().for_each(|(name, value)| assert_eq!(read(&dir, name), *value));
    }
}

#[test]
fn of_a_device_that_somebody_still_has_the_record_stays() {
    let (dir, records) = (queue_with(ALL), tempfile::tempdir().unwrap());
    let path = records.path().join("db.knobs");
    let with_record = || {
        let (limits, found) = (QueueLimits::default(), Found::look_in(dir.path()));
        let keep = |_: &[Knob]| Some(Ok(Record::empty(&path)));
        Queue::set_up_in(dir.path().to_owned(), &limits, &found, keep).0
    };
    with_record().finish(true);
    assert!(!path.exists(), "all is as it was");
    with_record().forget();
    assert!(!path.exists(), "it is of no use");
    with_record().finish(false);
    assert!(path.exists(), "there is something to put right");
    knobs::put_right(records.path());
    assert!(!path.exists(), "and nobody holds it");
}

#[test]
fn what_a_former_user_left_is_not_kept_and_is_put_back() {
    let dir = queue_with(ALL);
    fs::write(dir.path().join("queue/scheduler"), "none bfq [kyber]\n").unwrap();
    fs::write(dir.path().join("queue/iosched/read_lat_nsec"), "77").unwrap();
    let limits = QueueLimits { reserve: false, ..QueueLimits::default() };
    let (queue, setup) = set_up(&dir, &limits);
    assert!(!setup.reserved && setup.refused.is_empty(), "{setup:?}");
    assert_eq!(read(&dir, "queue/scheduler"), "none");
    // It goes with the scheduler.
    fs::write(dir.path().join("queue/iosched/read_lat_nsec"), "2000000").unwrap();
    queue.restore();
    assert_eq!(read(&dir, "queue/scheduler"), "kyber");
    assert_eq!(read(&dir, "queue/iosched/read_lat_nsec"), "77");

    let attributes = [
        ("queue/nomerges", "2\n", "0"),
        ("queue/rq_affinity", "0\n", "1"),
        ("queue/add_random", "1\n", "0"),
        ("queue/stable_writes", "1\n", "0"),
        ("queue/rotational", "1\n", "0"),
        ("queue/read_ahead_kb", "0\n", "128"),
        ("queue/write_zeroes_unmap_max_bytes", "0\n", "8192"),
        ("bdi/max_ratio_fine", "300000\n", "1000000"),
        ("bdi/min_ratio", "20\n", "0"),
    ];
    const HARDWARE: [(&str, &str); 1] = [("queue/write_zeroes_unmap_max_hw_bytes", "8192\n")];
    let found: Vec<_> = attributes.iter().map(|(name, found, _)| (*name, *found)).collect();
    let dir = queue_with(&[ALL, &found, &HARDWARE].concat());
    let (queue, setup) = set_up(&dir, &QueueLimits::default());
    assert!(setup.reserved && setup.refused.is_empty(), "{setup:?}");
    for (name, _, set) in attributes {
        assert_eq!(read(&dir, name), set, "{name}");
    }
    queue.restore();
    for (name, found, _) in attributes {
        assert_eq!(read(&dir, name), found.trim(), "{name}");
    }
}

/// What is set may be what somebody else had set before.
#[test]
fn a_user_who_has_what_is_set_keeps_it() {
    let dir = queue_with(ALL);
    for (name, value) in [
        ("queue/scheduler", "none [bfq]\n"),
        ("queue/iosched/slice_idle", "8\n"),
        ("queue/wbt_lat_usec", "0\n"),
        ("queue/nr_requests", "128\n"),
        ("queue/max_sectors_kb", "1024\n"),
    ] {
        fs::write(dir.path().join(name), value).unwrap();
    }
    let (queue, setup) = set_up(&dir, &QueueLimits::default());
    assert!(
        setup.knobs.iter().any(|k| (k.name.as_str(), k.set.as_str(), k.before.as_str())
            == ("queue/iosched/slice_idle", "0", "8"))
    );
    queue.restore();
    for (name, found) in [
        ("queue/scheduler", "bfq"),
        ("queue/iosched/slice_idle", "8"),
        ("queue/wbt_lat_usec", "0"),
        ("queue/nr_requests", "128"),
        ("queue/max_sectors_kb", "1024"),
    ] {
        assert_eq!(read(&dir, name).trim(), found, "{name}");
    }
}

#[test]
fn what_was_there_is_on_record_before_anything_is_changed() {
    let dir = queue_with(ALL);
    let path = dir.path().to_owned();
    let (_, setup) =
        Queue::set_up_in(path.clone(), &QueueLimits::default(), &Found::look_in(dir.path()), |knobs| {
            assert!(
                knobs
                    .iter()
                    .filter(|k| !k.before.is_empty())
                    .all(|k| knobs::read(&path, &k.name).as_ref() == Some(&k.before))
            );
            assert!(knobs.iter().any(|k| k.set == RESERVING && k.before == NONE), "{knobs:?}");
            Some(Err("db.knobs: no".to_owned()))
        });
    assert_eq!(setup.unrecorded.as_deref(), Some("db.knobs: no"));
    assert!(setup.reserved, "it is attached all the same");
}

#[test]
fn a_queue_that_sends_no_flush_is_told() {
    let dir = queue_with(ALL);
    send_flushes(dir.path()).unwrap();
    assert_eq!(read(&dir, "queue/write_cache"), "write back");
    let attribute = dir.path().join("queue/write_cache");
    // Takes what is written, and shows something else.
    fs::remove_file(&attribute).unwrap();
    std::os::unix::fs::symlink("/dev/null", &attribute).unwrap();
    assert_eq!(send_flushes(dir.path()).unwrap_err(), "the kernel makes it ''");
    // Has none.
    fs::remove_file(&attribute).unwrap();
    assert_eq!(send_flushes(dir.path()).unwrap_err(), "No such file or directory");
}

#[test]
fn what_the_kernel_does_not_take_is_told_and_the_rest_is_set() {
    let dir = queue_with(ALL);
    let attribute = dir.path().join("queue/nomerges");
    std::os::unix::fs::symlink("/dev/null", &attribute).unwrap();
    fs::remove_file(dir.path().join("bdi/max_ratio_fine")).unwrap();
    let (_, setup) = set_up(&dir, &QueueLimits { background_dirty: 10_000, ..QueueLimits::default() });
    assert_eq!(setup.refused[0], "nomerges=0: the kernel makes it ''");
    assert!(setup.refused[1].starts_with("bdi/max_ratio=") && setup.refused.len() == 2, "{setup:?}");
    assert!(setup.reserved);
    assert_eq!(read(&dir, "queue/max_sectors_kb"), "1024");
}
