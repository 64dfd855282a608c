//! Declaring a consistency point: one line to the daemon's control socket, one line back.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Longest name of a point, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Longest answer that is read: a number, or a sentence.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Declares a consistency point on `volume`, with a name of at most [`LABEL_BYTES_MAX`] bytes, which may be empty. It has everything
/// that was acknowledged before the call and nothing issued after it returned; it returns the point's number when the group that
/// ends there is committed on the backing's side, which takes as long as the backing takes.
///
/// The daemon is found by its default control socket; [`mark_at`] takes another.
///
/// # Errors
/// Of the system calls, and [`io::ErrorKind::Other`] with a sentence if the daemon refuses, as under a write policy other than
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
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(request(volume, label).as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut answer)?;
    point(&answer).ok_or_else(|| io::Error::other(refusal(&answer)))
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
    format!("{{\"command\":\"mark\",\"volumes\":[{}],\"label\":{}}}\n", quoted(volume), quoted(label))
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
    fn asked(answer: &'static str, call: impl FnOnce(&Path) -> io::Result<u64>) -> (io::Result<u64>, String) {
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
        let (point, line) = asked(answer, |socket| mark_at(socket, "db", "a \"quoted\"\n\\name"));
        assert_eq!(point.unwrap(), 712);
        let expected = r#"{"command":"mark","volumes":["db"],"label":"a \"quoted\"\u000a\\name"}"#;
        assert_eq!(line.trim_end(), expected);
    }

    #[test]
    fn a_refusal_is_told_in_its_words() {
        let answer = "{\"error\":{\"kind\":\"refused\",\"message\":\"the write policy is write-back\"}}\n";
        let (point, _) = asked(answer, |socket| mark_at(socket, "db", ""));
        assert_eq!(point.unwrap_err().to_string(), "the write policy is write-back");
        let nobody = mark_at(Path::new("/nonexistent/socket"), "db", "");
        assert_eq!(nobody.unwrap_err().kind(), io::ErrorKind::NotFound);
        let long = mark_at(Path::new("/nonexistent/socket"), "db", &"x".repeat(65));
        assert_eq!(long.unwrap_err().kind(), io::ErrorKind::InvalidInput);
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
