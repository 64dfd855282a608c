//! Reading a line from a socket within limits, so that who connects and says nothing holds up nobody for ever.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How much a line may take.
#[derive(Clone, Copy)]
pub(crate) struct LineLimits {
    /// Until its first byte.
    pub(crate) first: Duration,
    /// From there to its end, however few bytes come at a time.
    pub(crate) whole: Duration,
    /// Its length in bytes, its end included.
    pub(crate) bytes: usize,
}

/// Why there is no line.
pub(crate) enum NoLine {
    /// The other end has closed, with nothing begun.
    Ended,
    /// Nothing, or no end of the line, came in time.
    Silent,
    /// It is longer than it may be.
    TooLong,
    /// Anything else.
    Io(io::Error),
}

/// Reads a line, with its end where it has one: the last before the other end closes may lack it.
pub(crate) fn read_line(reader: &mut BufReader<UnixStream>, limits: LineLimits) -> Result<Vec<u8>, NoLine> {
    let mut line = Vec::new();
    let mut until = Instant::now() + limits.first;
    loop {
        if reader.buffer().is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoLine::Silent);
            }
            reader.get_ref().set_read_timeout(Some(left)).map_err(NoLine::Io)?;
        }
        let came = match reader.fill_buf() {
            Ok(came) => came,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(e) => return Err(NoLine::Io(e)),
        };
        if came.is_empty() {
            return if line.is_empty() { Err(NoLine::Ended) } else { Ok(line) };
        }
        if line.is_empty() {
            until = Instant::now() + limits.whole;
        }
        let end = came.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(came.len());
        line.extend(came.iter().take(taken));
        reader.consume(taken);
        if line.len() > limits.bytes || line.len() == limits.bytes && end.is_none() {
            return Err(NoLine::TooLong);
        }
        if end.is_some() {
            return Ok(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;

    const LIMITS: LineLimits =
        LineLimits { first: Duration::from_millis(200), whole: Duration::from_millis(300), bytes: 16 };

    #[test]
    fn lines_are_cut_where_they_end() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(b"one\ntwo\nlast").unwrap();
        drop(theirs);
        let mut reader = BufReader::new(ours);
        for expected in ["one\n", "two\n", "last"] {
            assert_eq!(read_line(&mut reader, LIMITS).ok(), Some(expected.as_bytes().to_vec()));
        }
        assert!(matches!(read_line(&mut reader, LIMITS), Err(NoLine::Ended)));
    }

    #[test]
    fn who_says_nothing_or_drips_is_given_up() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let mut reader = BufReader::new(ours);
        assert!(matches!(read_line(&mut reader, LIMITS), Err(NoLine::Silent)));
        let dripping = thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        assert!(matches!(read_line(&mut reader, LIMITS), Err(NoLine::Silent | NoLine::TooLong)));
        drop(reader);
        dripping.join().unwrap();
    }

    #[test]
    fn a_connection_that_was_reset_is_an_error_at_once() {
        let (theirs, mut ours) = UnixStream::pair().unwrap();
        ours.write_all(b"never read").unwrap();
        drop(theirs);
        assert!(matches!(read_line(&mut BufReader::new(ours), LIMITS), Err(NoLine::Io(_))));
    }

    #[test]
    fn a_line_has_a_length() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(b"123456789012345\n1234567890123456\n").unwrap();
        let mut reader = BufReader::new(ours);
        assert_eq!(read_line(&mut reader, LIMITS).ok().map(|line| line.len()), Some(16));
        assert!(matches!(read_line(&mut reader, LIMITS), Err(NoLine::TooLong)));
    }
}
