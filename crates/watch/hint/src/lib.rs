//! What an application can tell Forebay: that the calling thread works for a request, so that whatever it writes and waits for is
//! awaited; and that its data is whole at this moment (`mark`).
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let critical = forebay_hint::Critical::begin()?;
//! // ... read the request, write, fsync, answer ...
//! drop(critical);
//! # Ok(())
//! # }
//! ```
//!
//! The hint stands in the thread's I/O priority (`ioprio_set(2)`), in bits that the kernel passes on with each write. It costs two
//! system calls, needs no privilege and no daemon, is inherited by threads and processes that are made, and does no harm where
//! there is no Forebay. A daemon may believe it of some users and control groups only (`forebay serve --hints`).
//! `include/forebay.h` is the same for C.

mod mark;

use std::io;
use std::marker::PhantomData;

pub use mark::{LABEL_BYTES_MAX, mark, mark_at};

const WHO_PROCESS: libc::c_int = 1;
const CLASS_SHIFT: u32 = 13;
const HINT_SHIFT: u32 = 3;
const HINT_MASK: i64 = 1023 << HINT_SHIFT;
const HINT_CRITICAL: i64 = 763;
/// Best effort, level 4: what a thread has that never chose an I/O priority.
const DEFAULT: i64 = 2 << CLASS_SHIFT | 4;

/// While this lives, the thread that made it is critical.
#[derive(Debug)]
pub struct Critical {
    before: i64,
    /// It belongs to the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Critical {
    /// Marks the calling thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] before Linux 6.5, which does not know such bits; else those of the system calls, as where a sandbox
    /// forbids them.
    pub fn begin() -> io::Result<Self> {
        let before = get()?;
        set(marked(before)).map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel takes no hints, as those from Linux 6.5 on do",
            ),
            _ => e,
        })?;
        Ok(Self { before, thread: PhantomData })
    }

    /// Leaves the thread marked, for good: what it executes, and whatever it starts, is critical.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Critical {
    fn drop(&mut self) {
        // What could be set can be set back; if not, a hint is wrong, which does no harm.
        let _ = set(self.before);
    }
}

fn marked(before: i64) -> i64 {
    let plain = if before >> CLASS_SHIFT == 0 { DEFAULT } else { before & !HINT_MASK };
    plain | HINT_CRITICAL << HINT_SHIFT
}

fn get() -> io::Result<i64> {
    // SAFETY: this system call takes integers alone.
    let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn set(value: i64) -> io::Result<()> {
    // SAFETY: this system call takes integers alone.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: [&str; 2] =
        [include_str!("../include/forebay.h"), include_str!("../../tracker/bpf/tracker.h")];

    #[test]
    fn the_mark_is_there_as_long_as_its_owner() {
        let before = get().unwrap();
        let critical = Critical::begin().unwrap();
        assert_eq!(get().unwrap(), marked(before));
        assert_eq!(get().unwrap() >> HINT_SHIFT & 1023, HINT_CRITICAL);
        std::thread::spawn(move || assert_eq!(get().unwrap(), marked(before), "it is inherited"))
            .join()
            .unwrap();
        drop(critical);
        assert_eq!(get().unwrap(), before);
    }

    #[test]
    fn the_class_and_level_are_kept() {
        assert_eq!(marked(3 << CLASS_SHIFT | 7), 3 << CLASS_SHIFT | 763 << 3 | 7);
        assert_eq!(marked(0), 2 << CLASS_SHIFT | 763 << 3 | 4);
        assert_eq!(marked(marked(0)), marked(0));
    }

    /// The header is C and C++ that compiles without a warning, and its `forebay_mark` speaks as this crate does.
    #[test]
    fn a_point_can_be_declared_from_c() {
        use std::io::{BufRead, BufReader, Write};
        use std::process::Command;
        let directory = std::env::temp_dir().join(format!("forebay-header-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (source, program, socket) =
            (directory.join("mark.c"), directory.join("mark"), directory.join("socket"));
        let text = "#include <errno.h>\n#include <stdio.h>\n#include \"forebay.h\"\nint main(int n, char **a) { (void)n; \
                    long long point = forebay_mark(a[1], \"db\", a[2]); printf(\"%lld %d\\n\", point, errno); return 0; }\n";
        std::fs::write(&source, text).unwrap();
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
        let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", include, "-o"];
        let Ok(built) = Command::new("cc").args(flags).arg(&program).arg(&source).status() else {
            assert!(std::env::var_os("CI").is_none(), "there is no C compiler");
            eprintln!("SKIP: there is no C compiler");
            return;
        };
        assert!(built.success());
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            let answers = [
                "{\"progress\":{\"remaining_bytes\":1,\"total_bytes\":2}}\n{\"result\":{\"points\":[712]}}\n",
                "{\"error\":{\"kind\":\"refused\",\"message\":\"no\"}}\n",
            ];
            answers.map(|answer| {
                let (stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                (&stream).write_all(answer.as_bytes()).unwrap();
                line
            })
        });
        let run = |label: &str| {
            let out = Command::new(&program).arg(&socket).arg(label).output().unwrap();
            String::from_utf8(out.stdout).unwrap()
        };
        assert_eq!(run("a \"quoted\"\n\\name"), "712 0\n");
        assert_eq!(run(""), format!("-1 {}\n", libc::ECANCELED));
        assert_eq!(run(&"x".repeat(65)), format!("-1 {}\n", libc::EINVAL));
        // SAFETY: this call takes and changes nothing.
        if unsafe { libc::geteuid() } == 0 {
            let theirs = std::env::temp_dir().join(format!("forebay-header-{}-nobody", std::process::id()));
            let listens = || {
                // SAFETY: the call takes integers alone, and changes the user of this thread alone.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
                std::os::unix::net::UnixListener::bind(&theirs).unwrap()
            };
            let _listener = std::thread::scope(|scope| scope.spawn(listens).join().unwrap());
            let out = Command::new(&program).arg(&theirs).arg("").output().unwrap();
            std::fs::remove_file(&theirs).unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("-1 {}\n", libc::EPERM));
        }
        let asked = daemon.join().unwrap();
        let expected =
            r#"{"command":"mark","volumes":["db"],"label":"a \"quoted\"\u000a\\name","progress":true}"#;
        assert_eq!(asked.map(|line| line.trim_end().to_owned())[0], expected);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn c_and_the_tracker_say_the_same() {
        for header in HEADERS {
            let number = |suffix: &str| {
                let line =
                    header.lines().find(|l| l.split_whitespace().nth(1).is_some_and(|w| w.ends_with(suffix)));
                line.unwrap().split_whitespace().nth(2).unwrap().parse::<i64>().unwrap()
            };
            assert_eq!(number("_HINT_CRITICAL"), HINT_CRITICAL);
            assert_eq!(number("_HINT_SHIFT"), i64::from(HINT_SHIFT));
        }
    }
}
