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
    ("forebay-objects", &["forebay-block"]),
    // Of the NBD crate it uses the codec, which serves both sides.
    (
        "forebay-device",
        &[
            "forebay-block",
            "forebay-emulate",
            "forebay-guard",
            "forebay-nbd",
            "forebay-objects",
            "forebay-record",
        ],
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

/// What lies in each folder of `crates/`, and of which folders crates there may use crates. Arrows go both ways between `devices` and
/// `frontends`: NBD uses the guard of sockets, and the device that is an NBD client uses the codec of the server. Devices use the
/// recorder of `lab`. What `lab` and `app` may use in detail says ARROWS.
const FOLDERS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("devices", &["core", "frontends", "lab"]),
    ("frontends", &["core", "devices"]),
    ("watch", &["core"]),
    ("lab", &["core", "devices", "frontends", "app"]),
    ("app", &["core", "devices", "frontends", "watch", "lab"]),
];

/// Most lines of a file, with its tests.
const LINES_MAX: usize = 600;

/// Longer ones, and why.
const LONG_FILES: &[(&str, &str)] =
    &[("host/src/error.rs", "one list of all that a volume is refused for, with a sentence for each")];

/// Rooms of the engine, lower ones first: each may use those before it. The coordinator is the last, and nobody calls it.
const ROOMS: &[&str] = &[
    "tables",
    "pause",
    "mutation",
    "wakes",
    "interface",
    "watch",
    "locks",
    "map",
    "log",
    "reading",
    "order",
    "groups",
    "backing",
    "client",
    "failure",
    "staleness",
    "stop",
    "plain",
    "engine",
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
fn crates_lie_in_folders_that_say_what_belongs_together() {
    let metadata = metadata();
    let folder = |name: &str| -> Option<String> {
        let package = metadata.packages.iter().find(|p| p.name.as_str() == name)?;
        Some(package.manifest_path.parent()?.parent()?.file_name()?.to_owned())
    };
    let page = include_str!("../../../../docs/design/architecture.md");
    for (krate, used) in dependencies() {
        let own = folder(&krate).unwrap();
        let Some((_, allowed)) = FOLDERS.iter().find(|(name, _)| *name == own) else {
            panic!("{krate} lies in {own}, which is new: say in FOLDERS what it may use");
        };
        for other in used.iter().filter_map(|d| folder(d)) {
            assert!(
                other == own || allowed.contains(&other.as_str()),
                "{krate} in {own} must not use {other}"
            );
        }
        let name = krate.trim_start_matches("forebay-");
        let row = format!("| `{own}/` | `{name}` |");
        assert!(page.contains(&row), "the table in architecture.md lacks a row that begins with {row}");
    }
}

#[test]
fn arrows_between_the_engines_rooms_point_downwards() {
    let room_of = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let floor = |room: &str| ROOMS.iter().position(|r| *r == room);
    let mut seen = BTreeSet::new();
    for (module, used) in modules("engine") {
        let room = room_of(&module);
        let Some(own) = floor(&room) else { panic!("{room} is a new room: say in ROOMS where it stands") };
        seen.insert(own);
        for other in &used {
            let above = floor(&room_of(other)).is_none_or(|other| other > own);
            assert!(!above, "{module} uses {other}, which stands above {room}");
        }
    }
    assert_eq!(seen.len(), ROOMS.len(), "a room of the list has no file");
}

#[test]
fn no_file_is_too_long_or_named_for_nothing() {
    for krate in metadata().packages.iter().map(|p| p.name.trim_start_matches("forebay-").to_owned()) {
        for file in sources(&krate) {
            let lines = std::fs::read_to_string(&file).unwrap().lines().count();
            let name = file.file_stem().unwrap().to_str().unwrap();
            assert!(!["common", "util", "utils", "helpers", "misc"].contains(&name), "{}", file.display());
            let reason = LONG_FILES.iter().any(|(end, _)| file.ends_with(end));
            assert!(lines <= LINES_MAX || reason, "{} has {lines} lines", file.display());
        }
    }
}

#[test]
fn the_core_uses_no_crate_that_does_io_keeps_time_or_is_random() {
    let all = dependencies();
    for krate in ["forebay-format", "forebay-policy", "forebay-engine", "forebay-emulate", "forebay-objects"]
    {
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
    for krate in ["policy", "format", "engine", "objects"] {
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
        let text = std::fs::read_to_string(fuzz.join("src").join(path)).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for used in code.split("forebay_").skip(1) {
            let name = used.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let is_crate = used[name.len()..].starts_with("::");
            assert!(
                !is_crate || manifest.contains(&format!("forebay-{name} = ")),
                "{path} uses forebay-{name}, which fuzz/Cargo.toml lacks"
            );
        }
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
    let is_it = |name: &str| name == package || name == krate;
    let package = metadata.packages.iter().find(|p| is_it(p.name.as_str())).unwrap();
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

/// Crates in which no module leads back to itself by what modules use of each other outside their tests: each can be understood before
/// those that use it. Whoever needs one of its users has something in the wrong place.
const WITHOUT_CIRCLES: &[&str] = &[
    "bench", "block", "control", "device", "emulate", "forebay", "guard", "hint", "objects", "policy",
    "replay",
];

#[test]
fn modules_use_each_other_in_one_direction() {
    for krate in WITHOUT_CIRCLES {
        let uses = modules(krate);
        for start in uses.keys() {
            let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(module) = open.pop() {
                open.extend(uses[module].iter().filter(|used| reached.insert(*used)));
            }
            let circle: Vec<&&String> =
                reached.iter().filter(|other| leads_to(&uses, other, start)).collect();
            assert!(circle.is_empty(), "{krate}: these modules use each other in a circle: {circle:?}");
        }
    }
}

fn leads_to(uses: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        open.extend(uses[module].iter().map(String::as_str).filter(|used| reached.insert(*used)));
    }
    reached.contains(to)
}

/// What each module of a crate, named as in a path from the crate on, uses of the others by `crate::` and `super::`. What the
/// crate's root has is no module's.
fn modules(krate: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut texts = BTreeMap::new();
    for file in sources(krate) {
        let path = file.to_str().unwrap().rsplit_once("/src/").unwrap().1;
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        if !matches!(path, "lib" | "main") && !path.ends_with("tests") {
            texts.insert(path.replace('/', "::"), std::fs::read_to_string(&file).unwrap());
        }
    }
    let used_by = |module: &String, text: &String| {
        let mut used = BTreeSet::new();
        for path in paths(text) {
            let mut at: Vec<&str> = module.split("::").collect();
            for part in path.split("::") {
                match part {
                    "crate" => at.clear(),
                    "super" => drop(at.pop()),
                    part => at.push(part),
                }
            }
            // What is named last may lie in a module, and in something of it.
            while !at.is_empty() && !texts.contains_key(&at.join("::")) {
                at.pop();
            }
            used.insert(at.join("::"));
        }
        used.retain(|other| other != module && !other.is_empty());
        used
    };
    texts.iter().map(|(module, text)| (module.clone(), used_by(module, text))).collect()
}

/// Every path in a file, outside of comments and its module of tests, that begins with `crate::` or `super::`.
fn paths(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let mut found = Vec::new();
    let mut rest = code.as_str();
    while let Some(at) = ["crate::", "super::"].iter().filter_map(|root| rest.find(root)).min() {
        rest = tree("", &rest[at..], &mut found);
    }
    found
}

/// Notes the paths that the text begins with, each behind `before`: one, or with braces several. Returns what follows.
fn tree<'a>(before: &str, text: &'a str, found: &mut Vec<String>) -> &'a str {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '*';
    let (path, mut rest) = text.split_at(text.find(|c| !is_path(c)).unwrap_or(text.len()));
    let path = format!("{before}{path}");
    if !rest.starts_with('{') {
        found.push(path.trim_end_matches(['*', ':']).to_owned());
        return rest;
    }
    while !rest.starts_with('}') && rest.len() > 1 {
        rest = tree(&path, rest[1..].trim_start(), found);
        // What a thing is called here.
        rest = &rest[rest.find([',', '}']).unwrap_or(rest.len())..];
    }
    &rest[1.min(rest.len())..]
}

#[test]
fn paths_are_found_in_code() {
    let code = "use crate::a::{b, c::{D, E as F}, self};\nfn f() { super::g::h(); } // crate::not\nuse crate::x::*;\n\
                #[cfg(test)]\nmod tests {\nuse crate::not;\n}";
    assert_eq!(
        paths(code),
        ["crate::a::b", "crate::a::c::D", "crate::a::c::E", "crate::a::self", "super::g::h", "crate::x"]
    );
}
