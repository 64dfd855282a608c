//! What people are told is in words: no Rust, no numbers of the system's errors, and no path that depends on where one stands.

use std::fs;
use std::path::{Path, PathBuf};

use crate::usage::forebay;
use crate::volume::Place;

/// Crates whose words are for who develops Forebay: a trace of the simulator, a judge of its own.
const FOR_DEVELOPERS: [&str; 2] = ["sim", "stamp"];

/// The sources of all other crates, without their tests.
fn sources() -> Vec<(PathBuf, String)> {
    let entries = |directory: &Path| {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut left: Vec<PathBuf> = entries(crates)
        .iter()
        .flat_map(|folder| entries(folder))
        .filter(|path| FOR_DEVELOPERS.iter().all(|name| !path.ends_with(name)))
        .map(|path| path.join("src"))
        .collect();
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()));
        }
    }
    assert!(found.len() > 200, "only {} sources", found.len());
    found
}

#[test]
fn no_message_is_made_of_debug_text() {
    let is_fault = |statement: &str| {
        ["assert", "panic!", "unreachable!", "impl fmt::Debug"].iter().any(|what| statement.contains(what))
    };
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (n, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let debug = line.contains(":?}") || line.contains("tracing::") && line.contains(", ?");
            // What a violated invariant says is for developers; its text may stand some lines below its macro.
            let around = lines[n.saturating_sub(4)..=n].concat();
            assert!(!debug || is_fault(&around), "{}:{}: {line}", path.display(), n + 1);
        }
    }
}

#[test]
fn no_error_shows_the_number_of_the_systems() {
    for (path, text) in sources() {
        for variant in text.split("#[error(").skip(1) {
            let end = variant.find("#[error(").unwrap_or(variant.len());
            let variant = &variant[..end.min(variant.len())];
            let message = variant.split(")]").next().unwrap_or_default();
            let fields = variant.split(")]").nth(1).unwrap_or_default();
            let fields = fields.split("},").next().unwrap_or_default();
            let holds_io = fields.contains("io::Error");
            let shows =
                message.contains("{source}") || message.contains("{0}") || message.contains("transparent");
            assert!(
                !(holds_io && shows),
                "{}: {message}: an `io::Error` is shown by `words_of`",
                path.display()
            );
        }
    }
}

/// Failures of every kind, from the real program.
#[test]
fn failures_of_every_kind_are_one_sentence_in_words() {
    let place = Place::new();
    fs::create_dir(place.path("directory")).unwrap();
    fs::write(place.path("text"), "plain").unwrap();
    fs::write(place.path("plan"), "no plan").unwrap();
    let long = "x".repeat(200);
    let commands: &[&[&str]] = &[
        &["format", "missing/cache", "--size", "32M", "--backing", "backing", "--force"],
        &["format", "directory", "--size", "32M", "--backing", "backing", "--force"],
        &["format", "new", "--size", "32M", "--backing", "missing"],
        &["format", "text", "--backing", "backing", "--force"],
        &["serve", "--name", "db", "--cache", "missing", "--backing", "backing"],
        &["serve", "--name", "db", "--cache", "text", "--backing", "backing"],
        &["serve", "--name", "db", "--cache", "directory", "--backing", "backing"],
        &["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", &long],
        &["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "text"],
        &[
            "serve",
            "--name",
            "db",
            "--cache",
            "cache",
            "--backing",
            "backing",
            "--control",
            "c",
            "--nbd",
            "unix:missing/nbd",
        ],
        &[
            "serve",
            "--name",
            "db",
            "--cache",
            "cache",
            "--backing",
            "backing",
            "--control",
            "c",
            "--nbd",
            "tcp:192.0.2.1:1",
        ],
        &[
            "serve",
            "--name",
            "db",
            "--cache",
            "cache",
            "--backing",
            "backing",
            "--control",
            "c",
            "--fuse",
            "missing/file",
        ],
        &["serve", "--config", "missing"],
        &["serve", "--config", "directory"],
        &["check", "missing"],
        &["check", "directory"],
        &["inspect", "missing"],
        &["grow", "missing", "--size", "1G"],
        &["recover", "missing"],
        &["pair", "missing", "--backing", "backing"],
        &["status", "db", "--control", "directory"],
        &["status", "db", "--control", &long],
        &["flush", "db", "--control", "text"],
        &["attach", "db", "--control", "missing"],
        &["sim", "--plan", "missing"],
        &["sim", "--plan", "plan"],
        &["run", "--critical", "--", "./missing"],
    ];
    for args in commands {
        let output =
            forebay().args(["--log", "off"]).args(*args).current_dir(place.path("")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{args:?} succeeds");
        for bad in ["os error", "Os {", "Some(", "None", "Error {", "Err(", "\\\"", "kind:"] {
            assert!(!said.contains(bad), "{args:?}: {said}");
        }
        assert!(said.lines().any(|line| line.starts_with("error: ")), "{args:?}: {said}");
        // Beside the shape of the command, that is all.
        let sentences = said.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(sentences, 1, "{args:?}: {said}");
    }
    let (_, error) = place.fails(&["serve", "--name", "db", "--cache", "missing", "--backing", "backing"]);
    assert!(error.contains(place.path("missing").to_str().unwrap()), "the path is absolute: {error}");
}

#[test]
fn a_cache_that_was_overwritten_is_told_by_its_backing() {
    let place = Place::new();
    fs::write(place.path("cache"), vec![0; 32 << 20]).unwrap();
    let (code, error) = place.fails(&["serve", "--name", "db", "--cache", "cache", "--backing", "backing"]);
    assert_eq!(code, 3, "{error}");
    let was = format!("is paired with the cache {}", place.path("cache").display());
    assert!(error.contains("is not a Forebay cache, but ") && error.contains(&was), "{error}");
    assert!(error.contains("--accept-stale"), "{error}");
}

/// The configuration that would let nothing in, or change nothing, is refused or told.
#[test]
fn what_would_have_no_effect_is_said() {
    let place = Place::new();
    let serve = |more: &[&'static str]| {
        let base =
            ["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "control"];
        [&base[..], more].concat()
    };
    for (more, words) in [
        (&["--admission", "range"][..], "admission is range and there are no ranges"),
        (&["--tls", "certificates", "--nbd", "unix:nbd"], "tls is for NBD clients on TCP"),
        (&["--tls", "certificates"], "tls is for NBD clients on TCP"),
    ] {
        let (code, error) = place.fails(&serve(more));
        assert_eq!(code, 2, "{more:?}: {error}");
        assert!(error.contains(words), "{more:?}: {error}");
    }
    let daemon = place.serve(&[
        "--nbd",
        "tcp:0.0.0.0:0",
        "--nbd",
        "tcp:127.0.0.1:0",
        "--group-ends",
        "points",
        "--ranges",
        "0-16M",
        "--endurance",
        "1G",
        "--order",
        "barrier",
        "--accept-stale",
    ]);
    for words in [
        "group-ends has no effect under write-policy write-back; it is for journaled",
        "order has no effect under write-policy write-back; it is for ordered",
        "ranges has no effect under admission all",
        "endurance has no effect under admission all",
        "accept-stale has no effect with a cache",
        "whoever reaches tcp:0.0.0.0:0 can read and write",
    ] {
        place.await_log(words);
    }
    assert_eq!(place.log().matches("whoever reaches").count(), 1, "{}", place.log());
    let set = |change: &[&str]| {
        let args = [&["set", "db", "--control", "control"], change].concat();
        let output = place.command(&args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(
        set(&["group-size=1MiB"]),
        (0, "warning: group-size has no effect under write-policy write-back; it is for journaled\n".into())
    );
    assert_eq!(
        set(&["group-size=1MiB", "write-policy=journaled", "group-ends=anywhere"]),
        (0, String::new())
    );
    assert_eq!(set(&["max-staleness=1.5s", "endurance=10GB", "admission=adaptive"]), (0, String::new()));
    assert_eq!(place.status()["endurance_bytes_a_day"], 10_000_000_000_u64);
    assert_eq!(set(&["admission=range"]), (0, String::new()));
    let (code, error) = set(&["ranges="]);
    assert!(code == 2 && error.contains("there are no ranges"), "{code}: {error}");
    let (code, error) = set(&["endurence=1G"]);
    assert!(
        code == 2 && error.contains("did you mean `endurance`?") && error.contains("ranges"),
        "{code}: {error}"
    );
    let output = place.command(&["flush", "dbb", "--control", "control"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("did you mean `db`?"), "{error}");
    daemon.stop();
    // 64 MiB of 4 KiB.
    assert!(place.ok(&["inspect", "cache", "--block", "16383"]).contains("block 16383"));
    let (code, error) = place.fails(&["inspect", "cache", "--block", "16384"]);
    assert_eq!(code, 2, "{error}");
    assert!(
        error.contains("block 16384 lies behind the end of the volume, which has the blocks 0 to 16383"),
        "{error}"
    );
}

/// Settings that leave nothing to do, each with what is told of it.
#[test]
fn settings_that_leave_nothing_to_do_are_told() {
    let place = Place::new();
    fs::write(place.path("empty.toml"), "").unwrap();
    fs::write(place.path("rules.toml"), "[[rule]]\nuser = \"nosuchuser\"\ncritical = true\n").unwrap();
    for (flags, words) in [
        (
            &["--admission", "range", "--ranges", "20G-30G"][..],
            &["no range lies in the volume, which has 64 MiB, so that no write enters the cache"][..],
        ),
        (&["--admission", "cp"], &["admission is cp, and nobody is critical"]),
        (
            &["--admission", "cp+pi+ioi", "--hints", "none"],
            &["admission is cp+pi+ioi, and nobody is critical"],
        ),
        (
            &[
                "--write-policy",
                "journaled",
                "--group-ends",
                "points",
                "--admission",
                "sync",
                "--on-full",
                "bypass",
            ],
            &[
                "admission has no effect under group-ends points",
                "on-full has no effect under group-ends points",
            ],
        ),
        (
            &["--hints", "user=nosuchuser", "--rules", "postgresql@nosuch", "--rules", "rules.toml"],
            &["speak of the user 'nosuchuser'", "speak of the user 'nosuch'"],
        ),
        (&["--rules", "empty.toml"], &["empty.toml has no rule"]),
        (&["--read-only", "--destage-on-stop"], &["destage-on-stop has no effect on a read-only volume"]),
    ] {
        fs::write(place.path("log"), "").unwrap();
        let daemon = place.serve(flags);
        words.iter().for_each(|words| place.await_log(words));
        assert!(daemon.stop().success());
    }
    fs::write(place.path("log"), "").unwrap();
    let daemon = place.serve(&["--admission", "cp", "--critical", "--ranges", "0-16M"]);
    assert!(!place.log().contains("nobody is critical"), "{}", place.log());
    let set = |change: &[&str]| {
        let args = [&["set", "db", "--control", "control"], change].concat();
        String::from_utf8(place.command(&args).output().unwrap().stderr).unwrap()
    };
    assert!(set(&["admission=range", "ranges=20G-30G"]).contains("warning: no range lies in the volume"));
    assert_eq!(set(&["ranges=0-1M"]), "");
    assert!(daemon.stop().success());
    let daemon = place.serve(&[]);
    assert!(set(&["admission=cp"]).contains("warning: admission is cp, and nobody is critical"));
    assert!(daemon.stop().success());
}

/// Each names what is wrong, where that is from the root on, and what to do.
#[test]
fn what_is_wrong_is_named_where_it_is() {
    let place = Place::new();
    let at = |name: &str| place.path(name).display().to_string();
    for (file, text) in [
        ("number.toml", "[[volume]]\nname = \"db\"\ngroup-size = 16\n"),
        ("value.toml", "[[volume]]\nname = \"db\"\nwrite-policy = \"write-bakc\"\n"),
        ("rules.toml", "[[rule]]\ncritical = true\n"),
        ("plan", "no plan"),
    ] {
        fs::write(place.path(file), text).unwrap();
    }
    fs::create_dir(place.path("tls")).unwrap();
    fs::write(place.path("tls/server-cert.pem"), "no certificate").unwrap();
    let serve = ["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "control"];
    let tls =
        |directory: &'static str| [&serve[..], &["--nbd", "tcp:127.0.0.1:0", "--tls", directory]].concat();
    for (args, code, words) in [
        (vec!["status", "db", "--control", "backing"], 1, format!("{} is not a socket", at("backing"))),
        (tls("nodir"), 1, format!("cannot use {}: No such file or directory", at("nodir/server-cert.pem"))),
        (tls("tls"), 1, format!("cannot use {}: ", at("tls/server-cert.pem"))),
        (
            vec!["serve", "--config", "number.toml"],
            2,
            format!("{}:3:14: group-size wants a text: write its value in quotes", at("number.toml")),
        ),
        (
            vec!["serve", "--config", "value.toml"],
            2,
            format!("{}:3:16: write-policy: 'write-bakc' is not one of", at("value.toml")),
        ),
        (vec!["serve", "--config", "value.toml"], 2, "did you mean `write-back`?".to_owned()),
        ([&serve[..], &["--rules", "./rules.toml"]].concat(), 2, format!("rules of {}: ", at("rules.toml"))),
        (vec!["sim", "--plan", "plan"], 2, format!("{} cannot be replayed", at("plan"))),
        (
            vec!["format", "new", "--size", "1", "--backing", "backing"],
            2,
            "a cache of 1 B is too small; the least is ".to_owned(),
        ),
        (
            vec![
                "format",
                "new",
                "--size",
                "32M",
                "--backing",
                "backing",
                "--volume-size",
                "1000",
                "--force",
            ],
            2,
            "backing".to_owned(),
        ),
        (
            vec!["format", "new", "--size", "32M", "--backing", "backing", "--volume-size", "20G", "--force"],
            2,
            "backing".to_owned(),
        ),
        (
            vec!["format", "new", "--size", "32M", "--backing", "nosuch"],
            1,
            format!("{} does not exist; give --backing-size to make it", at("nosuch")),
        ),
    ] {
        let (found, error) = place.fails(&args);
        assert!(error.contains(&words), "{args:?}: {error}");
        assert_eq!(found, code, "{args:?}: {error}");
        assert!(!error.contains("os error"), "{args:?}: {error}");
    }
}

#[test]
fn status_tells_of_points_and_of_clients() {
    let place = Place::new();
    let daemon = place.serve(&["--write-policy", "journaled", "--group-ends", "points"]);
    place.ask(&["mark", "db"]);
    let text = place.ask(&["status", "db"]);
    for words in [
        "in blocks of 512 bytes",
        "points",
        "1 committed; the backing alone is at point 1",
        "NBD clients",
        "0 connected, 0 refused, 0 displaced",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(daemon.stop().success());
    let daemon = place.serve(&[]);
    assert!(!place.ask(&["status", "db"]).contains("  points"));
    assert!(daemon.stop().success());
    assert!(place.ok(&["check", "cache"]).contains("volume     64 MiB, logical blocks of 512 bytes"));
    let made = place.ok(&["format", "cache", "--size", "32M", "--backing", "backing", "--force"]);
    assert!(made.contains("overwritten: a used cache, which held nothing that the backing lacks"), "{made}");
}
