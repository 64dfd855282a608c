//! The text in which the requests of a volume are recorded (`forebay serve --record-requests`), for who writes it and who reads it.
//!
//! What a line says is in `docs/reference/request-record.md`.

use std::fmt;
use std::str::{FromStr, SplitWhitespace};

use forebay_block::{Content, Criticality, Op, Origin};

use crate::bad_trace::BadTrace;

/// The first line.
pub const VERSION: &str = "forebay requests 1";

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data.
    Read,
    /// To write data.
    Write {
        /// Durable before it is acknowledged.
        fua: bool,
    },
    /// That what was acknowledged before is durable. It has no range: offset and length are 0.
    Flush,
    /// That the range reads as zeroes.
    Zero {
        /// The backing may give back the space.
        unmap: bool,
        /// Durable before it is acknowledged.
        fua: bool,
    },
    /// Which parts of the range are allocated.
    Status,
}

/// A request, without its data. Offset and length are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub kind: Kind,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Who issued it, as the volume saw it.
    pub origin: Origin,
}

impl Request {
    /// What there is to say of a request to a volume.
    pub fn new(op: &Op, origin: Origin) -> Self {
        let (kind, offset, len) = match op {
            Op::Read { offset, len } => (Kind::Read, *offset, *len as u64),
            Op::Write { offset, data, fua } => (Kind::Write { fua: *fua }, *offset, data.len() as u64),
            Op::Flush => (Kind::Flush, 0, 0),
            Op::Zero { offset, len, unmap, fua } => (Kind::Zero { unmap: *unmap, fua: *fua }, *offset, *len),
            Op::Status { offset, len, .. } => (Kind::Status, *offset, *len),
        };
        Self { kind, offset, len, origin }
    }
}

/// Something that happened to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Recording began.
    Begin {
        /// Bytes of the volume.
        volume_bytes: u64,
        /// Wall-clock time, nanoseconds since 1970.
        wall_ns: u64,
        /// Name of the volume.
        name: String,
    },
    /// A request came.
    Request {
        /// Its number.
        number: u64,
        /// What it asks for.
        request: Request,
    },
    /// A critical task came to wait for outstanding writes.
    Promote {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A request was answered.
    Answer {
        /// Its number.
        number: u64,
        /// The Linux errno that stands for the error; 0: it went well.
        errno: u32,
    },
    /// Lines that belong here were not recorded.
    Lost(u64),
    /// Recording ended.
    End {
        /// Requests recorded.
        requests: u64,
        /// Lines that were not recorded.
        lost: u64,
    },
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Nanoseconds since the beginning.
    pub at_ns: u64,
    /// What happened then.
    pub event: Event,
}

/// Reads a record.
///
/// # Errors
/// [`BadTrace`]: a line that is none of this format's. Whether the lines make sense together is not looked at, but that the
/// second one begins.
pub fn entries(text: &str) -> Result<Vec<Entry>, BadTrace> {
    let bad = |line: usize, what: String| BadTrace { line: line + 1, what };
    let whole = text.rfind('\n').map_or("", |last| &text[..last]);
    let mut lines = whole.lines().enumerate();
    if lines.next().is_none_or(|(_, line)| line.trim_end() != VERSION) {
        return Err(bad(0, format!("a record of requests begins with '{VERSION}'")));
    }
    let read = |(number, line): (usize, &str)| line.parse().map_err(|what| bad(number, what));
    let entries = lines.map(read).collect::<Result<Vec<Entry>, _>>()?;
    match entries.first() {
        Some(Entry { event: Event::Begin { .. }, .. }) => Ok(entries),
        _ => Err(bad(1, "the second line of a record of requests says how it begins".into())),
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at_ns)?;
        match &self.event {
            Event::Begin { volume_bytes, wall_ns, name } => {
                write!(f, "begin {volume_bytes} {wall_ns} {name}")
            }
            Event::Request { number, request } => {
                let Request { kind, offset, len, origin } = request;
                match kind {
                    Kind::Read => write!(f, "read {number} {offset} {len}")?,
                    Kind::Write { .. } => write!(f, "write {number} {offset} {len}")?,
                    Kind::Flush => write!(f, "flush {number}")?,
                    Kind::Zero { .. } => write!(f, "zero {number} {offset} {len}")?,
                    Kind::Status => write!(f, "status {number} {offset} {len}")?,
                }
                let (fua, unmap) = match *kind {
                    Kind::Write { fua } => (fua, false),
                    Kind::Zero { unmap, fua } => (fua, unmap),
                    Kind::Read | Kind::Flush | Kind::Status => (false, false),
                };
                for (_, word) in
                    [(fua, "fua"), (unmap, "unmap"), (origin.sync, "sync")].iter().filter(|w| w.0)
                {
                    write!(f, " {word}")?;
                }
                if origin.content != Content::default() {
                    write!(f, " content={}", origin.content.as_str())?;
                }
                if origin.criticality != Criticality::default() {
                    write!(f, " critical={}", origin.criticality.as_str())?;
                }
                let numbers = [
                    ("ioprio", u64::from(origin.ioprio)),
                    ("pid", u64::from(origin.pid)),
                    ("lane", origin.lane),
                ];
                numbers.iter().filter(|(_, n)| *n != 0).try_for_each(|(key, n)| write!(f, " {key}={n}"))
            }
            Event::Promote { offset, len } => write!(f, "promote {offset} {len}"),
            Event::Answer { number, errno: 0 } => write!(f, "answer {number}"),
            Event::Answer { number, errno } => write!(f, "answer {number} {errno}"),
            Event::Lost(count) => write!(f, "lost {count}"),
            Event::End { requests, lost } => write!(f, "end {requests} {lost}"),
        }
    }
}

fn number<T: FromStr>(word: Option<&str>, what: &str) -> Result<T, String> {
    let word = word.ok_or_else(|| format!("{what} is missing"))?;
    word.parse().map_err(|_| format!("'{word}' is not {what}"))
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let at_ns = number(words.next(), "a time")?;
        let word = words.next().ok_or("what happened is missing")?;
        let event = match word {
            "begin" => Event::Begin {
                volume_bytes: number(words.next(), "a number of bytes")?,
                wall_ns: number(words.next(), "a time")?,
                name: words.next().ok_or("the volume's name is missing")?.to_owned(),
            },
            "promote" => {
                let (offset, len) = range(&mut words)?;
                Event::Promote { offset, len }
            }
            "answer" => Event::Answer {
                number: number(words.next(), "a request's number")?,
                errno: words.next().map_or(Ok(0), |word| number(Some(word), "an errno"))?,
            },
            "lost" => Event::Lost(number(words.next(), "a count")?),
            "end" => Event::End {
                requests: number(words.next(), "a count")?,
                lost: number(words.next(), "a count")?,
            },
            kind => {
                let number = number(words.next(), "a request's number")?;
                Event::Request { number, request: request(kind, &mut words)? }
            }
        };
        match words.next() {
            Some(word) => Err(format!("'{word}' is too much")),
            None => Ok(Self { at_ns, event }),
        }
    }
}

fn range(words: &mut SplitWhitespace<'_>) -> Result<(u64, u64), String> {
    Ok((number(words.next(), "a byte offset")?, number(words.next(), "a number of bytes")?))
}

/// What follows a request's number.
fn request(kind: &str, words: &mut SplitWhitespace<'_>) -> Result<Request, String> {
    let mut kind = match kind {
        "read" => Kind::Read,
        "write" => Kind::Write { fua: false },
        "flush" => Kind::Flush,
        "zero" => Kind::Zero { unmap: false, fua: false },
        "status" => Kind::Status,
        other => return Err(format!("'{other}' is nothing that happens to a volume")),
    };
    let (offset, len) = if kind == Kind::Flush { (0, 0) } else { range(words)? };
    let mut origin = Origin::default();
    for word in words {
        let unknown = || format!("'{word}' says nothing of such a request");
        match (word.split_once('='), &mut kind) {
            (None, Kind::Write { fua } | Kind::Zero { fua, .. }) if word == "fua" => *fua = true,
            (None, Kind::Zero { unmap, .. }) if word == "unmap" => *unmap = true,
            (None, _) if word == "sync" => origin.sync = true,
            (Some(("content", value)), _) => {
                let content = Content::ALL.iter().find(|content| content.as_str() == value);
                origin.content = *content.ok_or_else(unknown)?;
            }
            (Some(("critical", value)), _) => {
                let criticality = Criticality::ALL.iter().find(|criticality| criticality.as_str() == value);
                origin.criticality = *criticality.ok_or_else(unknown)?;
            }
            (Some(("ioprio", value)), _) => origin.ioprio = number(Some(value), "an I/O priority")?,
            (Some(("pid", value)), _) => origin.pid = number(Some(value), "a process")?,
            (Some(("lane", value)), _) => origin.lane = number(Some(value), "a connection")?,
            _ => return Err(unknown()),
        }
    }
    Ok(Request { kind, offset, len, origin })
}

#[cfg(test)]
mod tests {
    use forebay_block::Buf;

    use super::*;

    fn ops() -> Vec<Op> {
        let zero = |unmap, fua| Op::Zero { offset: 512, len: 1 << 40, unmap, fua };
        vec![
            Op::Read { offset: 512, len: 1024 },
            Op::Write { offset: 4096, data: Buf::zeroed(512), fua: false },
            Op::Write { offset: 4096, data: Buf::zeroed(512), fua: true },
            Op::Flush,
            zero(false, false),
            zero(true, false),
            zero(false, true),
            zero(true, true),
            Op::Status { offset: 0, len: 4096, extents_max: 1 },
        ]
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let mut origins = vec![
            Origin::default(),
            Origin { sync: true, ioprio: 16388, pid: 7, lane: 9, ..Origin::default() },
        ];
        origins.extend(Content::ALL.iter().map(|content| Origin { content: *content, ..Origin::default() }));
        origins.extend(Criticality::ALL.iter().map(|c| Origin { criticality: *c, ..Origin::default() }));
        let mut wanted = vec![Event::Begin { volume_bytes: 1 << 40, wall_ns: 1, name: "db".into() }];
        for (number, op) in (1..).zip(ops()) {
            for origin in &origins {
                wanted.push(Event::Request { number, request: Request::new(&op, *origin) });
            }
        }
        wanted.extend([
            Event::Promote { offset: 4096, len: 512 },
            Event::Answer { number: 1, errno: 0 },
            Event::Answer { number: 2, errno: 5 },
            Event::Lost(3),
            Event::End { requests: 2, lost: 3 },
        ]);
        let wanted: Vec<Entry> = (0..).zip(wanted).map(|(at_ns, event)| Entry { at_ns, event }).collect();
        let lines: Vec<String> = wanted.iter().map(Entry::to_string).collect();
        assert_eq!(entries(&format!("{VERSION}\n{}\n", lines.join("\n"))).unwrap(), wanted);
    }

    #[test]
    fn the_page_in_the_reference_says_what_is_written() {
        let page = include_str!("../../../../docs/reference/request-record.md");
        let (_, example) = page.split_once("```text\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let read = entries(example).unwrap();
        assert_eq!(read.len(), 6);
        let again: String = read.iter().map(|entry| format!("{entry}\n")).collect();
        assert_eq!(format!("{VERSION}\n{again}"), example);
        let named =
            Content::ALL.iter().map(|c| c.as_str()).chain(Criticality::ALL.iter().map(|c| c.as_str()));
        for word in named.filter(|word| !["data", "none"].contains(word)) {
            assert!(page.contains(&format!("`{word}`")), "{word}");
        }
    }

    #[test]
    fn a_line_that_a_kill_cut_off_counts_for_nothing() {
        let text = format!("{VERSION}\n0 begin 4096 1 db\n5 write 1 0 4096\n9 wri");
        assert_eq!(entries(&text).unwrap().len(), 2);
        assert!(
            entries(&format!("{text}\n")).unwrap_err().to_string().contains("line 4: a request's number")
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let told =
            |line: &str| entries(&format!("{VERSION}\n0 begin 4096 1 db\n{line}\n")).unwrap_err().to_string();
        assert!(told("x write 1 0 512").contains("line 3: 'x' is not a time"));
        assert!(told("1").contains("what happened is missing"));
        assert!(told("1 leap 1 0 512").contains("'leap' is nothing that happens"));
        assert!(told("1 write 1 0").contains("a number of bytes is missing"));
        assert!(told("1 read 1 0 512 fua").contains("'fua' says nothing of such a request"));
        assert!(told("1 write 1 0 512 unmap").contains("'unmap' says nothing"));
        assert!(told("1 write 1 0 512 content=poem").contains("'content=poem' says nothing"));
        assert!(told("1 write 1 0 512 pid=-1").contains("'-1' is not a process"));
        assert!(told("1 answer 1 5 5").contains("'5' is too much"));
        assert!(
            entries("forebay requests 2\n")
                .unwrap_err()
                .to_string()
                .contains("line 1: a record of requests begins")
        );
        assert!(
            entries(&format!("{VERSION}\n1 lost 1\n"))
                .unwrap_err()
                .to_string()
                .contains("line 2: the second line")
        );
    }
}
