//! The tools that people use: libnbd's, QEMU's, fio. Needed where `CI=true`, else skipped if missing.

use std::path::Path;
use std::process::{Command, Output};

use crate::serve::{MIB, Serve, Wish, uri};

/// Whether the test can run: `program` is there. A machine of the CI must have it.
pub fn have(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|d| d.join(program).exists());
    if !found {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{program} is missing");
        eprintln!("SKIP: {program} is not installed");
    }
    found
}

/// Runs a command to its end; returns what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let Output { status, stdout, stderr } = Command::new(program).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&stdout).into_owned();
    if status.success() { Ok(printed) } else { Err(printed + &String::from_utf8_lossy(&stderr)) }
}

fn big() -> Serve {
    Serve::with(Wish { size_bytes: 64 * MIB, tcp: true, ..Wish::default() })
}

/// A file of noise with a hole in it.
fn make_image(path: &Path, len: usize) {
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len / 8).flat_map(|_| noise()).collect();
    bytes[len / 4..len / 2].fill(0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    if !have("nbdinfo") {
        return;
    }
    let serve = big();
    let shown = run("nbdinfo", &["--json", &uri(&serve.socket(), "vol")]).unwrap();
    for expected in [
        "\"export-size\": 67108864",
        "\"base:allocation\"",
        "\"can_multi_conn\": true",
        "\"can_fua\": true",
        "\"can_flush\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_df\": true",
        "\"can_cache\": false",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"structured\": true",
    ] {
        assert!(shown.contains(expected), "{expected} is not in {shown}");
    }
    assert!(run("nbdinfo", &["--list", &uri(&serve.socket(), "")]).unwrap().contains("export=\"vol\""));
    assert!(run("nbdinfo", &[&uri(&serve.socket(), "other")]).is_err());
    let tcp = serve.server.addresses()[1].to_string().replace("tcp:", "nbd://");
    assert_eq!(run("nbdinfo", &["--size", &tcp]).unwrap().trim(), "67108864");
}

#[test]
fn nbdcopy_copies_in_and_out() {
    if !have("nbdcopy") {
        return;
    }
    let serve = big();
    let [source, target] = ["source", "target"].map(|n| serve.directory.path().join(n));
    make_image(&source, 64 << 20);
    let uri = uri(&serve.socket(), "");
    run("nbdcopy", &["--connections=4", "--requests=32", "--flush", source.to_str().unwrap(), &uri]).unwrap();
    run("nbdcopy", &["--connections=4", "--requests=32", &uri, target.to_str().unwrap()]).unwrap();
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&target).unwrap());
    if have("nbdinfo") {
        let map = run("nbdinfo", &["--map", &uri]).unwrap();
        let hole = map.lines().find(|l| l.contains("hole")).unwrap();
        assert_eq!(hole.split_whitespace().take(2).collect::<Vec<_>>(), ["16777216", "16777216"], "{map}");
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    if !have("qemu-img") {
        return;
    }
    let serve = big();
    let source = serve.directory.path().join("source");
    make_image(&source, 64 << 20);
    let (source, uri) = (source.to_str().unwrap(), uri(&serve.socket(), "vol"));
    assert!(run("qemu-img", &["info", &uri]).unwrap().contains("64 MiB"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]).unwrap();
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]).unwrap();
    assert!(run("qemu-img", &["map", "--output=json", &uri]).unwrap().contains("\"zero\": true"));
}

#[test]
fn qemu_io_writes_reads_discards_and_meets_errors() {
    if !have("qemu-io") {
        return;
    }
    let serve = big();
    let uri = uri(&serve.socket(), "vol");
    let io = |commands: &[&str]| {
        let mut arguments = vec!["-f", "raw"];
        arguments.extend(commands.iter().flat_map(|c| ["-c", *c]));
        arguments.push(&uri);
        let shown = run("qemu-io", &arguments).unwrap();
        assert!(!shown.contains("failed") && !shown.contains("error"), "{shown}");
    };
    io(&["write -P 1 0 3M", "write -P 2 -f 512 512", "aio_write -P 3 1M 64k", "aio_flush", "flush"]);
    io(&["read -P 1 0 512", "read -P 2 512 512", "read -P 3 1M 64k"]);
    io(&[
        "write -z 0 64k",
        "write -z -u 64k 64k",
        "discard 128k 64k",
        "read -P 0 0 192k",
        "read -P 1 192k 64k",
    ]);
    let past = run("qemu-io", &["-f", "raw", "-c", "write 63M 2M", &uri]);
    assert!(past.is_err() || past.unwrap().contains("failed"));
}

#[test]
fn fio_verifies_mixed_sizes_at_depth() {
    if !have("fio") {
        return;
    }
    let serve = big();
    for depth in ["1", "16", "64"] {
        run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &format!("--uri={}", uri(&serve.socket(), "vol")),
                "--rw=randrw",
                "--bsrange=512-1M",
                "--blockalign=512",
                "--size=64M",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--fsync=32",
                &format!("--iodepth={depth}"),
                &format!("--randseed={depth}"),
            ],
        )
        .unwrap();
    }
    let counts = serve.server.status().exports[0].counts;
    assert!(counts.writes > 100 && counts.reads > 100 && counts.errors == 0, "{counts:?}");
}
