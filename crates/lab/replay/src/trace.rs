//! Traces of requests as fio writes and reads them: logs of `write_iolog`, versions 2 and 3 (fio's documentation, "Trace file
//! format"). `blktrace` output becomes one by `fio --read_iolog=FILE --write_iolog=FILE`.

use std::collections::BTreeMap;

use thiserror::Error;

/// Files begin at multiples of this in the volume.
const FILE_ALIGN: u64 = 1 << 20;
/// Most that a volume may be long, in bytes.
const VOLUME_BYTES_MAX: u64 = 1 << 46;
/// Longest request, in bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
const SECTOR: u64 = 512;

/// One request of a client. Offsets and lengths are bytes, and multiples of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads.
    Read {
        /// Byte offset.
        offset: u64,
        /// Bytes, above 0.
        len: u64,
    },
    /// Writes.
    Write {
        /// Byte offset.
        offset: u64,
        /// Bytes, above 0.
        len: u64,
    },
    /// Discards.
    Trim {
        /// Byte offset.
        offset: u64,
        /// Bytes, above 0.
        len: u64,
    },
    /// A flush, once the client's earlier requests have been answered.
    Sync,
}

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct BadTrace {
    /// From 1.
    pub line: usize,
    /// One sentence.
    pub what: String,
}

/// What one client asks for, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its requests.
    pub steps: Vec<Step>,
    /// Bytes of the volume that they need.
    pub volume_bytes: u64,
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
    /// Reads a log; files in it lie one behind the other in the volume, by name. Times and waits are not kept: each request comes as soon
    /// as it may.
    ///
    /// # Errors
    /// [`BadTrace`].
    pub fn parse(text: &str) -> Result<Self, BadTrace> {
        let bad = |line: usize, what: String| BadTrace { line: line + 1, what };
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let version = lines.next().map(|(_, line)| line.split_whitespace().collect::<Vec<_>>());
        let with_time = match version.as_deref() {
            Some(["fio", "version", "2", "iolog"]) => false,
            Some(["fio", "version", "3", "iolog"]) => true,
            _ => {
                let what = "a trace begins with 'fio version 2 iolog' or 'fio version 3 iolog'";
                return Err(bad(0, what.into()));
            }
        };
        let mut steps: Vec<(&str, Step)> = Vec::new();
        let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
        for (number, line) in lines {
            let parsed = Line::parse(line, with_time).and_then(|line| {
                let step = match line.action {
                    "add" | "open" | "close" | "wait" => return Ok(None),
                    "sync" | "datasync" => Step::Sync,
                    "read" => line.sectors().map(|(offset, len)| Step::Read { offset, len })?,
                    "write" => line.sectors().map(|(offset, len)| Step::Write { offset, len })?,
                    "trim" => line.sectors().map(|(offset, len)| Step::Trim { offset, len })?,
                    other => return Err(format!("'{other}' is not an action of fio's logs")),
                };
                Ok(Some((line.file, step)))
            });
            let Some((file, step)) = parsed.map_err(|what| bad(number, what))? else { continue };
            let end = ends.entry(file).or_default();
            *end = step.end().max(*end);
            steps.push((file, step));
        }
        let (mut bases, mut volume_bytes) = (BTreeMap::new(), 0);
        for (file, end) in ends {
            bases.insert(file, volume_bytes);
            volume_bytes += end.next_multiple_of(FILE_ALIGN);
        }
        if !steps.iter().any(|(_, step)| *step != Step::Sync) {
            return Err(bad(
                text.lines().count().saturating_sub(1),
                "the trace reads and writes nothing".into(),
            ));
        }
        let steps = steps.into_iter().map(|(file, step)| step.moved(bases[file])).collect();
        Ok(Self { steps, volume_bytes })
    }

    /// Bytes of the volume of which anything is read or written, in whole blocks of 4096: the working set.
    pub fn working_set(traces: &[Self]) -> u64 {
        const BLOCK: u64 = 4096;
        let mut ranges: Vec<(u64, u64)> = traces
            .iter()
            .flat_map(|trace| &trace.steps)
            .filter_map(|step| step.range())
            .map(|(offset, len)| (offset / BLOCK * BLOCK, (offset + len).next_multiple_of(BLOCK)))
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
    /// Offset and length of what it concerns.
    pub fn range(self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len } | Self::Write { offset, len } | Self::Trim { offset, len } => {
                Some((offset, len))
            }
            Self::Sync => None,
        }
    }

    fn end(self) -> u64 {
        self.range().map_or(0, |(offset, len)| offset + len)
    }

    fn moved(self, by: u64) -> Self {
        match self {
            Self::Read { offset, len } => Self::Read { offset: offset + by, len },
            Self::Write { offset, len } => Self::Write { offset: offset + by, len },
            Self::Trim { offset, len } => Self::Trim { offset: offset + by, len },
            Self::Sync => Self::Sync,
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
        let wanted = [
            Step::Write { offset: FILE_ALIGN, len: 4096 },
            Step::Read { offset: 512, len: 1024 },
            Step::Sync,
            Step::Trim { offset: FILE_ALIGN + 8192, len: 512 },
        ];
        let trace = Trace::parse(two).unwrap();
        assert_eq!(trace.steps, wanted);
        assert_eq!(trace.volume_bytes, 2 * FILE_ALIGN);
        assert_eq!(Trace::working_set(&[trace]), 3 * 4096);
        let three = "fio version 3 iolog\n0 /f add\n1 /f open\n17 /f write 0 4096\n18 /f datasync\n";
        assert_eq!(Trace::parse(three).unwrap().steps, [Step::Write { offset: 0, len: 4096 }, Step::Sync]);
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
