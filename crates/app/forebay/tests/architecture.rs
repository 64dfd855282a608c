//! The arrows between crates, and where unsafe code and foreign crates may be (`docs/design/architecture.md`, Crates).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Which crates of the workspace each crate may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("forebay-block", &[]),
    // What there is to know of other users of the machine.
    ("forebay-guard", &["forebay-block"]),
    ("forebay-format", &["forebay-block"]),
    ("forebay-policy", &["forebay-block"]),
    ("forebay-engine", &["forebay-block", "forebay-format", "forebay-policy"]),
    // It is used by who makes a record and by who judges by it.
    ("forebay-record", &[]),
    ("forebay-emulate", &["forebay-block"]),
    // Of the NBD crate it uses the codec, which serves both sides.
    (
        "forebay-device",
        &["forebay-block", "forebay-emulate", "forebay-guard", "forebay-nbd", "forebay-record"],
    ),
    ("forebay-control", &["forebay-block", "forebay-guard", "forebay-policy"]),
    (
        "forebay-host",
        &[
            "forebay-block",
            "forebay-format",
            "forebay-policy",
            "forebay-engine",
            "forebay-device",
            "forebay-guard",
        ],
    ),
    ("forebay-nbd", &["forebay-block", "forebay-guard"]),
    ("forebay-fuse", &["forebay-block"]),
    ("forebay-tracker", &["forebay-block", "forebay-policy"]),
    // It is for applications.
    ("forebay-hint", &[]),
    ("forebay-verify", &["forebay-block", "forebay-format"]),
    // It measures the engine also by itself, without the host.
    (
        "forebay-bench",
        &[
            "forebay-block",
            "forebay-control",
            "forebay-device",
            "forebay-engine",
            "forebay-format",
            "forebay-host",
            "forebay-nbd",
            "forebay-policy",
        ],
    ),
    // It judges the others, so that it may share no mistake with them.
    ("forebay-stamp", &["forebay-format", "forebay-record"]),
    (
        "forebay-sim",
        &[
            "forebay-block",
            "forebay-format",
            "forebay-policy",
            "forebay-emulate",
            "forebay-engine",
            "forebay-verify",
        ],
    ),
    (
        "forebay-replay",
        &["forebay-block", "forebay-format", "forebay-policy", "forebay-emulate", "forebay-engine"],
    ),
];

/// Foreign crates that `format`, `policy` and `engine` may use: none of them does I/O, keeps time or is random.
const PURE: &[&str] = &["crc-fast", "foldhash", "thiserror", "zerocopy"];

/// Crates with code that cannot be proved by the compiler: system calls, mappings, FFI.
const UNSAFE: &[&str] =
    &["forebay-block", "forebay-device", "forebay-fuse", "forebay-hint", "forebay-nbd", "forebay-tracker"];

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo metadata")
}

/// What each crate of the workspace uses outside its tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let normal = |kind| matches!(kind, DependencyKind::Normal | DependencyKind::Build);
    metadata()
        .packages
        .iter()
        .map(|p| {
            let used = p.dependencies.iter().filter(|d| normal(d.kind)).map(|d| d.name.clone()).collect();
            (p.name.to_string(), used)
        })
        .collect()
}

#[test]
fn arrows_between_crates_point_downwards() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for (krate, used) in dependencies().iter().filter(|(krate, _)| *krate != "forebay") {
        let Some(allowed) = allowed.get(krate.as_str()) else {
            panic!("{krate} is new: say in ARROWS what it may use");
        };
        for other in used.iter().filter(|d| d.starts_with("forebay")) {
            assert!(allowed.contains(&other.as_str()), "{krate} must not use {other}");
        }
    }
}

#[test]
fn the_core_uses_no_crate_that_does_io_keeps_time_or_is_random() {
    let all = dependencies();
    for krate in ["forebay-format", "forebay-policy", "forebay-engine", "forebay-emulate"] {
        for other in all[krate].iter().filter(|d| !d.starts_with("forebay")) {
            assert!(
                PURE.contains(&other.as_str()),
                "{krate} uses {other}, which is not in the list of pure crates"
            );
        }
    }
}

#[test]
fn the_core_does_not_reach_for_the_world_through_std() {
    for krate in ["policy", "format", "engine"] {
        for file in sources(krate) {
            let text = std::fs::read_to_string(&file).unwrap();
            for word in [
                "std::fs",
                "std::net",
                "std::thread",
                "std::env",
                "std::process",
                "Instant::now",
                "SystemTime",
            ] {
                assert!(!text.contains(word), "{} uses {word}", file.display());
            }
        }
    }
}

#[test]
fn crates_forbid_unsafe_code_but_for_those_that_need_it() {
    for package in &metadata().packages {
        if UNSAFE.contains(&package.name.as_str()) {
            continue;
        }
        for target in package.targets.iter().filter(|t| t.is_lib() || t.is_bin()) {
            let text = std::fs::read_to_string(&target.src_path).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe code",
                target.src_path
            );
        }
    }
}

/// The simulator's planted bugs are for tests: no crate asks for them outside of its tests, and no feature switches them on.
#[test]
fn planted_bugs_are_in_no_program() {
    let metadata = metadata();
    let engine = metadata.packages.iter().find(|p| p.name.as_str() == "forebay-engine").unwrap();
    assert_eq!(
        engine.features.get("mutations"),
        Some(&Vec::new()),
        "the feature exists, and is all that it says"
    );
    for package in &metadata.packages {
        let enables = |f: &String| f.contains("mutations");
        for (name, features) in package.features.iter().filter(|(name, _)| *name != "mutations") {
            assert!(!features.iter().any(enables), "{}: the feature {name} switches them on", package.name);
        }
        for d in package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development) {
            assert!(!d.features.iter().any(enables), "{} asks {} for them", package.name, d.name);
        }
    }
}

/// The fuzz targets are a workspace of their own, which no other test builds.
#[test]
fn every_fuzz_target_is_whole() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz");
    let read = |file: &str| std::fs::read_to_string(fuzz.join(file)).unwrap();
    let (lib, manifest, readme) = (read("src/lib.rs"), read("Cargo.toml"), read("README.md"));
    let paths = lib.lines().filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    for path in paths {
        assert!(fuzz.join("src").join(path).is_file(), "fuzz/src/lib.rs includes {path}, which is not there");
    }
    let mut targets = 0;
    for file in std::fs::read_dir(fuzz.join("fuzz_targets")).unwrap() {
        let file = file.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap();
        targets += 1;
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "fuzz/Cargo.toml lacks {name}");
        assert!(readme.contains(&format!("`{name}`")), "fuzz/README.md lacks {name}");
        let corpus = std::fs::read_dir(fuzz.join("corpus").join(name));
        assert!(corpus.is_ok_and(|mut seeds| seeds.next().is_some()), "{name} has no seeds");
    }
    assert!(targets > 20, "{targets}");
}

/// The Rust files of `crates/FOLDER/KRATE/src`.
fn sources(krate: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let package = format!("forebay-{krate}");
    let metadata = metadata();
    let package = metadata.packages.iter().find(|p| p.name.as_str() == package).unwrap();
    let mut directories = vec![package.manifest_path.parent().unwrap().join("src").into_std_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{krate} has no sources");
    files
}
