//! Usage and exit codes, as scripts rely on them.

use assert_cmd::Command;
use tempfile::TempDir;

/// The binary, in a world of its own: no default socket of this machine can be reached but root's.
pub fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env_remove("FOREBAY_LOG");
    command
}

/// Exit code and standard error of `forebay ARGS`.
pub fn fails(args: &[&str]) -> (i32, String) {
    let output = forebay().args(args).output().unwrap();
    assert!(output.stdout.is_empty(), "{args:?} failed and printed to standard output");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn wrong_usage_is_2_and_names_what_is_allowed() {
    for (args, words) in [
        (&[][..], "Usage"),
        (&["polish"], "polish"),
        (&["flush"], "<NAME>"),
        (&["flush", "../db"], "'../db' cannot be the name of a volume"),
        (&["set", "db"], "KEY=VALUE"),
        (&["set", "db", "on-full=explode"], "'explode' is not one of wait, bypass"),
        (&["set", "db", "colour=red"], "write-policy"),
        (&["set", "db", "colour=red"], "ranges, endurance"),
        (&["set", "db", "admision=all"], "did you mean `admission`?"),
        (&["set", "db", "group-size=1G"], "4K to 128M"),
        (&["format", "c", "--size", "0", "--backing", "b"], "'0' is no size for anything"),
        (&["format", "c", "--size", "4XB", "--backing", "b"], "'4XB' is not a size"),
        (&["grow", "c", "--size", "0G"], "'0G' is no size for anything"),
        (&["serve", "--destage-on-stop=maybe"], "'maybe' is neither yes nor no"),
        (
            &["serve", "--name", "db", "--no-cache", "--backing", "emulate:hdd-10"],
            "'hdd-10' is not a kind of device",
        ),
        (&["format", "emulate:hdd-10k:file=c,rmp=5400", "--backing", "b"], "hdd-10k has no parameter 'rmp'"),
        (&["status", "--json", "--prometheus"], "cannot be used with"),
        (&["--log", "verbose!", "status"], "--log"),
        (&["sim", "--seed", "1", "--minutes", "nan"], "more than 0 and at most 1000000"),
        (&["sim", "--seed", "1", "--minutes", "1e300"], "more than 0 and at most 1000000"),
        (&["sim", "--seed", "1", "--minutes", "0"], "more than 0 and at most 1000000"),
        (&["sim", "--seed", "1", "--seeds", "0"], "'0' is not a number from 1 on"),
        (&["sim", "--seed", "1", "--events", "0"], "'0' is not a number from 1 on"),
        (
            &["set", "db", "critical=true"],
            "'critical' is set at the start: restart the daemon with --critical",
        ),
        (&["set", "db", "rules=redis"], "'rules' is set at the start: restart the daemon with --rules"),
        (&["set", "db", "logical_block=512"], "restart the daemon with --logical-block"),
        (&["set", "db", "admission=cp", "admit=all"], "admission is given twice"),
        (
            &["set", "db", "group-age=9000h"],
            "'9000h' is not within the times that a group may have, 0ms to 8760h",
        ),
        (&["serve", "--group-age", "99999999999h"], "0ms to 8760h"),
        (&["serve", "--max-staleness", "99999999h"], "a time from 10ms to 8760h"),
        (&["serve", "--group-age", "-5s"], "'-5s' is not a time"),
        (&["format", "c", "--size", "-1", "--backing", "b"], "'-1' is not a size"),
        (&["mark", "db", "--wait", "-1s"], "'-1s' is not a time"),
        (
            &["inspect", "c", "--block", "99999999999999999999"],
            "'99999999999999999999' is not the number of a block",
        ),
        (&["inspect", "c", "--block", "1G"], "counted from 0 in blocks of 4 KiB"),
        (
            &["sim", "--seed", "1", "--jobs", "999999999999"],
            "'999999999999' is not a number of threads from 1 to 256",
        ),
        (&["sim", "--seed", "1", "--jobs", "0"], "from 1 to 256"),
        (&["mark", "db", "--wait", "long"], "'long' is not a time"),
        (
            &["serve", "--name", "db", "--no-cache", "--backing", "nbd://h/e?timeout=0s"],
            "between 1s and 3600s",
        ),
        (&["bench", "admission-redis", "--policies", "all,most"], "'most' is not one of all, sync"),
        (&["bench", "admission-redis", "--cache-model", "tape"], "'tape' is not a kind of device"),
        (&["bench", "admission-redis", "--with", "on-full"], "expected NAME=VALUE"),
        (
            &["bench", "admission-redis", "--with", "on-ful=bypass"],
            "no flag --on-ful; did you mean --on-full?",
        ),
        (&["bench", "admission-redis", "--with", "on-full=explode"], "[possible values: wait, bypass]"),
        (&["bench", "admission-redis", "--with", "admission=cp"], "--admission is what the benchmark sets"),
        (&["bench", "admission-redis", "--caches", "16M,1K"], "a cache of 1 KiB is too small; the least is"),
    ] {
        let (code, error) = fails(args);
        assert_eq!(code, 2, "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
}

/// A hint is there where it helps, and nowhere else.
#[test]
fn a_flag_that_is_not_known_is_not_offered_as_a_value() {
    let (code, error) = fails(&["mark", "db", "--read-only"]);
    assert!(code == 2 && error.contains("'--read-only'") && !error.contains("tip"), "{error}");
    let (code, error) = fails(&["run", "--critical", "--all"]);
    assert!(code == 2 && error.contains("tip"), "{error}");
}

#[test]
fn the_simulator_says_the_same_whatever_its_threads() {
    let dir = TempDir::new().unwrap();
    let said = |jobs: &str, until: [&str; 2]| {
        let args = ["sim", "--seed", "77", until[0], until[1], "--jobs", jobs, "--out"];
        let output = forebay().args(args).arg(dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let time = String::from_utf8_lossy(&output.stderr);
        assert!(time.contains(" s on ") && !time.contains("for a seed"), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for until in [["--events", "100000"], ["--seeds", "40"]] {
        let alone = said("1", until);
        assert!(alone.contains("events  ") && alone.ends_with("no promise is broken\n"), "{alone}");
        for jobs in ["2", "3"] {
            assert_eq!(said(jobs, until), alone, "{until:?}, {jobs} threads");
        }
    }
}

#[test]
fn a_daemon_that_is_not_there_is_1_and_one_sentence() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("db.sock");
    for command in ["flush", "status"] {
        let (code, error) = fails(&[command, "db", "--control", socket.to_str().unwrap()]);
        assert_eq!(code, 1);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.starts_with("error: no daemon answers on ") && error.contains("forebay serve"),
            "{error}"
        );
    }
}

#[test]
fn help_version_and_completions_are_0() {
    for args in [&["--help"][..], &["--version"], &["flush", "--help"], &["completions", "bash"], &["man"]] {
        let output = forebay().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}
