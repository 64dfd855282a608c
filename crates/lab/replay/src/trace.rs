//! Traces of requests: Forebay's own records ([`crate::request_log`]), and what fio writes and reads, logs of `write_iolog`, versions
//! 2 and 3 (fio's documentation, "Trace file format"). `blktrace` output becomes one by `fio --read_iolog=FILE --write_iolog=FILE`.

use std::collections::{BTreeMap, HashMap};

use forebay_block::Origin;

use crate::bad_trace::BadTrace;
use crate::request_log::{self, Event, Kind, Request};

/// Files begin at multiples of this in the volume.
const FILE_ALIGN: u64 = 1 << 20;
/// Most that a volume may be long, in bytes.
const VOLUME_BYTES_MAX: u64 = 1 << 46;
/// Longest request, in bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
const SECTOR: u64 = 512;

/// What a client does next. Offsets and lengths are bytes, and multiples of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks for something.
    Request(Request),
    /// Waits until its earlier requests have been answered.
    Settle,
    /// Waits until its request that is this step has been answered; steps are counted from 0.
    Answered(usize),
    /// A critical task comes to wait for outstanding writes of these bytes.
    Promote {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// What one client does, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its steps.
    pub steps: Vec<Step>,
    /// Bytes of the volume that they need.
    pub volume_bytes: u64,
    /// The steps say which answers a request waited for. So no other limit says how many are under way.
    pub has_answers: bool,
}

struct Line<'a> {
    file: &'a str,
    action: &'a str,
    range: Option<(u64, u64)>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str, with_time: bool) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        if with_time {
            let time = words.next().unwrap_or_default();
            time.parse::<u64>().map_err(|_| format!("'{time}' is not a time"))?;
        }
        let (Some(file), Some(action)) = (words.next(), words.next()) else {
            return Err("a file and an action are missing".into());
        };
        let mut bytes = || match words.next() {
            None => Ok(None),
            Some(word) => {
                word.parse::<u64>().map(Some).map_err(|_| format!("'{word}' is not a number of bytes"))
            }
        };
        let range = bytes()?.zip(bytes()?);
        Ok(Self { file, action, range })
    }

    /// The range in whole sectors.
    fn sectors(&self) -> Result<(u64, u64), String> {
        let (offset, len) = self.range.ok_or("an offset and a length are missing")?;
        let first = offset / SECTOR * SECTOR;
        let end = offset.checked_add(len).filter(|end| *end <= VOLUME_BYTES_MAX);
        let end = end.ok_or_else(|| format!("byte {offset} is behind what a volume can have"))?;
        match end.next_multiple_of(SECTOR) - first {
            0 => Err("the length is 0".into()),
            len if len > REQUEST_BYTES_MAX => {
                Err(format!("{len} bytes are more than one request takes (64 MiB)"))
            }
            len => Ok((first, len)),
        }
    }
}

impl Trace {
    /// Reads a log of requests. Each request comes as soon as it may: times and pauses count for nothing.
    ///
    /// - fio's: files in it lie one behind the other in the volume, by name.
    /// - Forebay's own record ([`crate::request_log`]): requests have their origin and force, promotions come in their place, and
    ///   each request waits for the answers that came before it. Questions about allocation are left out.
    ///
    /// # Errors
    /// [`BadTrace`].
    pub fn parse(text: &str) -> Result<Self, BadTrace> {
        let version = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let trace = match version.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["fio", "version", "2", "iolog"] => Self::of_fio(text, false)?,
            ["fio", "version", "3", "iolog"] => Self::of_fio(text, true)?,
            ["forebay", "requests", "1"] => Self::of_record(text)?,
            _ => {
                let what = format!(
                    "a trace begins with 'fio version 2 iolog', 'fio version 3 iolog' or '{}'",
                    request_log::VERSION
                );
                return Err(BadTrace { line: 1, what });
            }
        };
        if Self::working_set(std::slice::from_ref(&trace)) == 0 {
            let what = "the trace reads and writes nothing".into();
            return Err(BadTrace { line: text.lines().count(), what });
        }
        Ok(trace)
    }

    fn of_fio(text: &str, with_time: bool) -> Result<Self, BadTrace> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let mut steps: Vec<(&str, Step)> = Vec::new();
        let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
        for (number, line) in lines.skip(1) {
            let parsed = Line::parse(line, with_time).and_then(|line| {
                let request = match line.action {
                    "add" | "open" | "close" | "wait" => return Ok(None),
                    "sync" | "datasync" => request(Kind::Flush, (0, 0)),
                    "read" => request(Kind::Read, line.sectors()?),
                    "write" => request(Kind::Write { fua: false }, line.sectors()?),
                    "trim" => request(Kind::Zero { unmap: true, fua: false }, line.sectors()?),
                    other => return Err(format!("'{other}' is not an action of fio's logs")),
                };
                Ok(Some((line.file, request)))
            });
            let parsed = parsed.map_err(|what| BadTrace { line: number + 1, what })?;
            let Some((file, request)) = parsed else { continue };
            let end = ends.entry(file).or_default();
            *end = (request.offset + request.len).max(*end);
            match request.kind {
                Kind::Flush => {
                    steps.extend(
                        [Step::Settle, Step::Request(request), Step::Settle].map(|step| (file, step)),
                    );
                }
                _ => steps.push((file, Step::Request(request))),
            }
        }
        let (mut bases, mut volume_bytes) = (BTreeMap::new(), 0);
        for (file, end) in ends {
            bases.insert(file, volume_bytes);
            volume_bytes += end.next_multiple_of(FILE_ALIGN);
        }
        let steps = steps.into_iter().map(|(file, step)| step.moved(bases[file])).collect();
        Ok(Self { steps, volume_bytes, has_answers: false })
    }

    fn of_record(text: &str) -> Result<Self, BadTrace> {
        let mut trace = Self { has_answers: true, ..Self::default() };
        // Which step a request is; `None` for one that is not replayed.
        let mut places: HashMap<u64, Option<usize>> = HashMap::new();
        // The version is line 1.
        for (line, entry) in (2..).zip(request_log::entries(text)?) {
            let bad = |what: &str| BadTrace { line, what: what.to_owned() };
            match entry.event {
                Event::Begin { volume_bytes, .. } if line == 2 && volume_bytes <= VOLUME_BYTES_MAX => {
                    trace.volume_bytes = volume_bytes;
                }
                Event::Begin { .. } if line == 2 => return Err(bad("no volume is so large")),
                Event::Begin { .. } => return Err(bad("a record begins once")),
                Event::Request { number, request } => {
                    request.check(trace.volume_bytes).map_err(|what| bad(&what))?;
                    let counts =
                        request.kind == Kind::Flush || request.len > 0 && request.kind != Kind::Status;
                    let place = counts.then_some(trace.steps.len());
                    if places.insert(number, place).is_some() {
                        return Err(bad("another request has this number"));
                    }
                    trace.steps.extend(counts.then_some(Step::Request(request)));
                }
                Event::Promote { offset, len } => trace.steps.push(Step::Promote { offset, len }),
                Event::Answer { number, .. } => match places.get_mut(&number).map(Option::take) {
                    Some(place) => trace.steps.extend(place.map(Step::Answered)),
                    None => return Err(bad("no request has this number")),
                },
                Event::Lost(_) | Event::End { .. } => {}
            }
        }
        Ok(trace)
    }

    /// Bytes of the volume of which anything is read or written, in whole blocks of 4096: the working set. What is only discarded
    /// does not count.
    pub fn working_set(traces: &[Self]) -> u64 {
        const BLOCK: u64 = 4096;
        let mut ranges: Vec<(u64, u64)> = traces
            .iter()
            .flat_map(|trace| &trace.steps)
            .filter_map(|step| step.request())
            .filter(|request| !matches!(request.kind, Kind::Zero { unmap: true, .. }) && request.len > 0)
            .map(|Request { offset, len, .. }| {
                (offset / BLOCK * BLOCK, (offset + len).next_multiple_of(BLOCK))
            })
            .collect();
        ranges.sort_unstable();
        let (mut sum, mut upto) = (0, 0);
        for (start, end) in ranges {
            sum += end.saturating_sub(start.max(upto));
            upto = upto.max(end);
        }
        sum
    }
}

impl Step {
    /// What it asks for.
    pub const fn request(&self) -> Option<&Request> {
        match self {
            Self::Request(request) => Some(request),
            Self::Settle | Self::Answered(_) | Self::Promote { .. } => None,
        }
    }

    fn moved(self, by: u64) -> Self {
        match self {
            Self::Request(request) => Self::Request(Request { offset: request.offset + by, ..request }),
            other => other,
        }
    }
}

/// Of a client of which nothing more is known.
fn request(kind: Kind, (offset, len): (u64, u64)) -> Request {
    Request { kind, offset, len, origin: Origin::default() }
}

impl Request {
    /// Whether a volume of this length takes it.
    fn check(&self, volume_bytes: u64) -> Result<(), String> {
        let end = self.offset.checked_add(self.len).filter(|end| *end <= volume_bytes);
        if end.is_none() {
            return Err(format!("byte {} is behind the volume's end", self.offset));
        }
        if !self.offset.is_multiple_of(SECTOR) || !self.len.is_multiple_of(SECTOR) {
            return Err("a request is not made of whole 512-byte sectors".into());
        }
        match self.kind {
            Kind::Read | Kind::Write { .. } if self.len > REQUEST_BYTES_MAX => {
                Err(format!("{} bytes are more than one request takes (64 MiB)", self.len))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_a_log_are_read() {
        let two = "fio version 2 iolog\nb add\na add\na open\nb write 0 4096\na read 1000 100\nb wait 100\nb sync\n\
                   b trim 8192 512\na close\n";
        let flush = Step::Request(request(Kind::Flush, (0, 0)));
        let wanted = [
            Step::Request(request(Kind::Write { fua: false }, (FILE_ALIGN, 4096))),
            Step::Request(request(Kind::Read, (512, 1024))),
            Step::Settle,
            flush.moved(FILE_ALIGN),
            Step::Settle,
            Step::Request(request(Kind::Zero { unmap: true, fua: false }, (FILE_ALIGN + 8192, 512))),
        ];
        let trace = Trace::parse(two).unwrap();
        assert_eq!(trace.steps, wanted);
        assert_eq!(trace.volume_bytes, 2 * FILE_ALIGN);
        assert_eq!(Trace::working_set(&[trace]), 2 * 4096);
        let three = "fio version 3 iolog\n0 /f add\n1 /f open\n17 /f write 0 4096\n18 /f datasync\n";
        let write = Step::Request(request(Kind::Write { fua: false }, (0, 4096)));
        assert_eq!(Trace::parse(three).unwrap().steps, [write, Step::Settle, flush, Step::Settle]);
    }

    #[test]
    fn a_record_keeps_what_the_engine_decides_by_and_what_waited_for_what() {
        let text = "forebay requests 1\n0 begin 65536 1 db\n5 write 7 0 4096 fua critical=direct pid=9\n6 status 8 0 65536\n\
                    7 answer 8\n8 promote 0 4096\n9 read 10 512 0\n9 answer 7\n9 answer 10 5\n10 zero 11 0 65536 unmap\n11 flush 12\n\
                    12 lost 4\n13 answer 12\n14 end 5 4\n";
        let trace = Trace::parse(text).unwrap();
        let origin = Origin { criticality: forebay_block::Criticality::Direct, pid: 9, ..Origin::default() };
        let write = Request { origin, ..request(Kind::Write { fua: true }, (0, 4096)) };
        let wanted = [
            Step::Request(write),
            Step::Promote { offset: 0, len: 4096 },
            Step::Answered(0),
            Step::Request(request(Kind::Zero { unmap: true, fua: false }, (0, 65536))),
            Step::Request(request(Kind::Flush, (0, 0))),
            Step::Answered(4),
        ];
        assert_eq!(trace, Trace { steps: wanted.to_vec(), volume_bytes: 65536, has_answers: true });
        assert_eq!(Trace::working_set(&[trace]), 4096);
    }

    #[test]
    fn a_record_that_makes_no_sense_is_refused() {
        let told = |lines: &str| {
            let text = format!("forebay requests 1\n0 begin 65536 1 db\n{lines}");
            Trace::parse(&text).unwrap_err().to_string()
        };
        assert!(told("1 write 1 65024 1024\n").contains("line 3: byte 65024 is behind the volume's end"));
        assert!(told("1 write 1 100 512\n").contains("whole 512-byte sectors"));
        assert!(
            told("1 write 1 0 512\n2 write 1 0 512\n").contains("line 4: another request has this number")
        );
        assert!(told("1 answer 1\n").contains("no request has this number"));
        assert!(told("1 begin 512 1 db\n").contains("begins once"));
        assert!(told("1 flush 1\n").contains("reads and writes nothing"));
        let large = "forebay requests 1\n0 begin 99999999999999999 1 db\n1 read 1 0 512\n";
        assert!(Trace::parse(large).unwrap_err().to_string().contains("line 2: no volume is so large"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let told = |text: &str| Trace::parse(text).unwrap_err().to_string();
        assert!(told("").contains("line 1: a trace begins with"));
        assert!(told("fio version 9 iolog\n").contains("line 1: a trace begins with"));
        assert!(told("fio version 2 iolog\na write 0\n").contains("line 2: an offset and a length"));
        assert!(told("fio version 2 iolog\na write 0 x\n").contains("'x' is not a number"));
        assert!(told("fio version 2 iolog\na write 0 0\n").contains("length is 0"));
        assert!(
            told("fio version 2 iolog\na write 18446744073709551615 4\n").contains("behind what a volume")
        );
        assert!(told("fio version 2 iolog\na write 0 99999999999\n").contains("more than one request"));
        assert!(told("fio version 2 iolog\na leap 0 1\n").contains("'leap' is not an action"));
        assert!(told("fio version 3 iolog\na write 0 4096\n").contains("'a' is not a time"));
        assert!(
            told("fio version 2 iolog\na open\na sync\n")
                .contains("line 3: the trace reads and writes nothing")
        );
        assert!(told("fio version 2 iolog\n\na\n").contains("line 3: a file and an action"));
    }
}
