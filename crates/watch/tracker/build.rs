//! Compiles the eBPF programs with clang. The object is CO-RE: it fits every kernel with BTF.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    for file in ["tracker.bpf.c", "tracker.h", "kernel.h"] {
        println!("cargo:rerun-if-changed=bpf/{file}");
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let machine = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "-D__TARGET_ARCH_arm64",
        _ => "-D__TARGET_ARCH_x86",
    };
    let object = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("tracker.bpf.o");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", machine])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-unused-function"])
        .args(["-c", "bpf/tracker.bpf.c", "-o"])
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} cannot compile bpf/tracker.bpf.c: {status}"),
        Err(e) => panic!("{clang} cannot be run ({e}); `make setup` installs it"),
    }
}
