//! Declaring a consistency point: one line to the daemon's control socket, one line back.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest name of a point, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Longest line that is read: a number, a sentence, or how far the daemon is.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// A daemon that says nothing for so long does not answer: while it works it says several times a second how far it is.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Declares a consistency point on `volume`, with a name of at most [`LABEL_BYTES_MAX`] bytes, which may be empty. It has everything
/// that was acknowledged before the call and nothing issued after it returned; it returns the point's number when the group that
/// ends there is committed on the backing's side, which takes as long as the backing takes: the daemon is given up only if it says
/// nothing for 30 seconds.
///
/// The daemon is found by its default control socket; [`mark_at`] takes another.
///
/// # Errors
/// Of the system calls, [`io::ErrorKind::PermissionDenied`] if a process of another user than root and our own listens there,
/// [`io::ErrorKind::TimedOut`] if the daemon does not answer, and [`io::ErrorKind::Other`] with a sentence if the daemon refuses, as under a write policy other than
/// `journaled`.
pub fn mark(volume: &str, label: &str) -> io::Result<u64> {
    mark_at(&default_socket(volume)?, volume, label)
}

/// As [`mark`], with the path of the daemon's control socket.
///
/// # Errors
/// As [`mark`].
pub fn mark_at(socket: &Path, volume: &str, label: &str) -> io::Result<u64> {
    if label.len() > LABEL_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a point's label has at most 64 bytes"));
    }
    let answer = asked(socket, &request(volume, label), SILENCE_MAX).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the daemon on {} does not answer", socket.display()),
        ),
        _ => e,
    })?;
    point(&answer).ok_or_else(|| io::Error::other(refusal(&answer)))
}

/// The line with which the daemon answers.
fn asked(socket: &Path, request: &str, silence: Duration) -> io::Result<String> {
    let mut stream = connect(socket, silence)?;
    stream.set_read_timeout(Some(silence))?;
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        (&mut reader).take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        if !line.starts_with("{\"progress\":") {
            return Ok(line);
        }
    }
}

/// Connects; what is sent, the connection itself among it, may take so long.
fn connect(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    // SAFETY: an address of zeroes is one without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = socket.as_os_str().as_bytes();
    // A zero has to follow.
    if path.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path of the control socket is too long",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it has just been opened, and nobody else has it.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    stream.set_write_timeout(Some(limit))?;
    let len = std::mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives longer than the call, and is as long as it says.
    match unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => believed(stream, socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The connection, if a process of root or of our own user listens there, or in `/run/forebay` one of that directory's owner: whoever
/// else answers could make up a point that is none.
fn believed(stream: UnixStream, socket: &Path) -> io::Result<UnixStream> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = std::mem::size_of_val(&peer) as libc::socklen_t;
    let (fd, value) = (stream.as_raw_fd(), (&raw mut peer).cast());
    // SAFETY: both pointers are to variables that live longer than the call, and the length is that of the first.
    if unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this call takes and changes nothing.
    let own = unsafe { libc::geteuid() };
    let directory = Path::new("/run/forebay");
    let appointed = || {
        socket.parent() == Some(directory)
            && std::fs::symlink_metadata(directory).is_ok_and(|meta| meta.uid() == peer.uid)
    };
    if peer.uid == 0 || peer.uid == own || appointed() {
        return Ok(stream);
    }
    let why =
        format!("{} is answered by a process of user {}, who is not believed", socket.display(), peer.uid);
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Where a daemon listens when nobody says otherwise.
fn default_socket(volume: &str) -> io::Result<PathBuf> {
    // SAFETY: this call takes and changes nothing.
    let directory = match unsafe { libc::geteuid() } {
        0 => PathBuf::from("/run"),
        _ => std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "XDG_RUNTIME_DIR is not set; name the control socket")
        })?,
    };
    Ok(directory.join("forebay").join(format!("{volume}.sock")))
}

fn request(volume: &str, label: &str) -> String {
    format!(
        "{{\"command\":\"mark\",\"volumes\":[{}],\"label\":{},\"progress\":true}}\n",
        quoted(volume),
        quoted(label)
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\x1f' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The number in `{"result":{"points":[7]}}`.
fn point(answer: &str) -> Option<u64> {
    let digits = answer.strip_prefix("{\"result\":{\"points\":[")?;
    digits.split_once(']')?.0.parse().ok()
}

/// The sentence in `{"error":{"kind":"refused","message":"..."}}`, as it stands in the line.
fn refusal(answer: &str) -> &str {
    let said = answer.split_once("\"message\":\"").map(|(_, rest)| rest.trim_end());
    said.map(|rest| rest.trim_end_matches("\"}}")).unwrap_or("the daemon's answer is not understood")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// A daemon that answers one line, and the line that it was asked.
    fn answered(
        answer: &'static str,
        call: impl FnOnce(&Path) -> io::Result<u64>,
    ) -> (io::Result<u64>, String) {
        let path = std::env::temp_dir().join(format!("forebay-hint-{}-{}", std::process::id(), answer.len()));
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            line
        });
        let result = call(&path);
        std::fs::remove_file(&path).unwrap();
        (result, daemon.join().unwrap())
    }

    #[test]
    fn the_daemon_is_asked_and_its_number_returned() {
        let answer = "{\"result\":{\"points\":[712]}}\n";
        let (point, line) = answered(answer, |socket| mark_at(socket, "db", "a \"quoted\"\n\\name"));
        assert_eq!(point.unwrap(), 712);
        let expected =
            r#"{"command":"mark","volumes":["db"],"label":"a \"quoted\"\u000a\\name","progress":true}"#;
        assert_eq!(line.trim_end(), expected);
    }

    #[test]
    fn a_refusal_is_told_in_its_words() {
        let answer = "{\"error\":{\"kind\":\"refused\",\"message\":\"the write policy is write-back\"}}\n";
        let (point, _) = answered(answer, |socket| mark_at(socket, "db", ""));
        assert_eq!(point.unwrap_err().to_string(), "the write policy is write-back");
        let nobody = mark_at(Path::new("/nonexistent/socket"), "db", "");
        assert_eq!(nobody.unwrap_err().kind(), io::ErrorKind::NotFound);
        let long = mark_at(Path::new("/nonexistent/socket"), "db", &"x".repeat(65));
        assert_eq!(long.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn another_users_word_is_not_taken() {
        // SAFETY: this call takes and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            eprintln!("SKIP: needs root");
            return;
        }
        let path = std::env::temp_dir().join(format!("forebay-hint-{}-nobody", std::process::id()));
        let listener = thread::scope(|scope| {
            let listens = || {
                // SAFETY: the call takes integers alone, and changes the user of this thread alone.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
                UnixListener::bind(&path).unwrap()
            };
            scope.spawn(listens).join().unwrap()
        });
        let e = mark_at(&path, "db", "").unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(e.kind() == io::ErrorKind::PermissionDenied && e.to_string().contains("65534"), "{e}");
        let mut asked = String::new();
        listener.accept().unwrap().0.read_to_string(&mut asked).unwrap();
        assert_eq!(asked, "");
    }

    #[test]
    fn progress_is_no_answer() {
        let answer =
            "{\"progress\":{\"remaining_bytes\":1,\"total_bytes\":2}}\n{\"result\":{\"points\":[9]}}\n";
        assert_eq!(answered(answer, |socket| mark_at(socket, "db", "")).0.unwrap(), 9);
    }

    #[test]
    fn who_takes_nothing_and_says_nothing_is_given_up() {
        let path = std::env::temp_dir().join(format!("forebay-hint-{}-silent", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let e = asked(&path, "{}\n", Duration::from_millis(50)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
        let mut taken = Vec::new();
        let e = loop {
            match connect(&path, Duration::from_millis(50)) {
                Ok(stream) => taken.push(stream),
                Err(e) => break e,
            }
        };
        assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
        std::fs::remove_file(&path).unwrap();
        drop(listener);
    }

    #[test]
    fn what_is_not_understood_is_no_point() {
        for answer in
            ["", "{}", "{\"result\":{\"points\":[7", "{\"result\":\"done\"}", "{\"result\":{\"points\":[]}}"]
        {
            assert_eq!(point(answer), None, "{answer}");
            assert!(refusal(answer).contains("not understood"));
        }
    }
}
