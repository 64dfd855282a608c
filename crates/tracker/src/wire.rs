//! What the eBPF programs and this crate share, as `bpf/tracker.h` has it; a test holds the two together.

use std::borrow::Cow;

/// Most disks whose writes are tagged at a time.
pub(crate) const DISKS_MAX: usize = 64;
/// Most functions of the kernel whose place is told.
pub(crate) const RANGES_MAX: usize = 32;
/// What was dropped because the ring of tags, or that of first slots, was full.
pub(crate) const COUNT_TAGS_DROPPED: u32 = 0;
/// The same of signals.
pub(crate) const COUNT_SIGNALS_DROPPED: u32 = 1;

/// A write that was queued to an attached device. Without a file it ends before its name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawTag {
    pub sector: u64,
    pub mapping: u64,
    pub index: u64,
    pub bytes: u32,
    pub device: u32,
    pub flags: u32,
    pub tid: u32,
    pub tgid: u32,
    pub waiter: u32,
    pub critical: u8,
    pub via: u8,
    pub ioprio: u16,
    pub pages: u32,
    pub comm: [u8; 16],
    pub file: [u8; 32],
    pub dir: [u8; 16],
}

/// The request that has the first slot of an attached device's queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawSlot {
    pub sector: u64,
    pub device: u32,
    pub awaited: u32,
}

/// Anything else that the programs tell.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawSignal {
    pub kind: u32,
    pub tid: u32,
    pub tgid: u32,
    pub other: u32,
    pub wait: u32,
    pub critical: u32,
    pub value: u64,
    pub mapping: u64,
    pub index: u64,
    pub comm: [u8; 16],
}

/// Where a function of the kernel lies, and what a task waits for that sleeps in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawRange {
    pub from: u64,
    pub to: u64,
    pub wait: u32,
    pub reserved: u32,
}

/// What the rules say of a task.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawRole {
    pub critical: u32,
    pub seen: u32,
}

// SAFETY: these structures are `repr(C)`, hold integers alone and have no padding (the test below adds up their fields), so that
// every bit pattern is a value of theirs and every byte of theirs is initialised.
unsafe impl aya::Pod for RawRange {}
// SAFETY: as above.
unsafe impl aya::Pod for RawRole {}

/// The text in a field: what stands before the first zero.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
}

fn fields<const N: usize>(bytes: &[u8], at: &mut usize) -> Option<[u8; N]> {
    let field = bytes.get(*at..*at + N)?.try_into().ok()?;
    *at += N;
    Some(field)
}

/// What comes through a ring.
pub(crate) trait Message: Sized {
    /// Reads one as it came.
    fn read(bytes: &[u8]) -> Option<Self>;
}

impl RawTag {
    /// First byte of the write on the device, and the one behind its last.
    pub fn range(&self) -> (u64, u64) {
        let start = self.sector.saturating_mul(512);
        (start, start.saturating_add(u64::from(self.bytes)))
    }
}

impl Message for RawTag {
    fn read(bytes: &[u8]) -> Option<Self> {
        let at = &mut 0;
        Some(Self {
            sector: u64::from_ne_bytes(fields(bytes, at)?),
            mapping: u64::from_ne_bytes(fields(bytes, at)?),
            index: u64::from_ne_bytes(fields(bytes, at)?),
            bytes: u32::from_ne_bytes(fields(bytes, at)?),
            device: u32::from_ne_bytes(fields(bytes, at)?),
            flags: u32::from_ne_bytes(fields(bytes, at)?),
            tid: u32::from_ne_bytes(fields(bytes, at)?),
            tgid: u32::from_ne_bytes(fields(bytes, at)?),
            waiter: u32::from_ne_bytes(fields(bytes, at)?),
            critical: u8::from_ne_bytes(fields(bytes, at)?),
            via: u8::from_ne_bytes(fields(bytes, at)?),
            ioprio: u16::from_ne_bytes(fields(bytes, at)?),
            pages: u32::from_ne_bytes(fields(bytes, at)?),
            comm: fields(bytes, at)?,
            file: if *at < bytes.len() { fields(bytes, at)? } else { Default::default() },
            dir: if *at < bytes.len() { fields(bytes, at)? } else { Default::default() },
        })
    }
}

impl Message for RawSlot {
    fn read(bytes: &[u8]) -> Option<Self> {
        let at = &mut 0;
        Some(Self {
            sector: u64::from_ne_bytes(fields(bytes, at)?),
            device: u32::from_ne_bytes(fields(bytes, at)?),
            awaited: u32::from_ne_bytes(fields(bytes, at)?),
        })
    }
}

impl Message for RawSignal {
    fn read(bytes: &[u8]) -> Option<Self> {
        let at = &mut 0;
        Some(Self {
            kind: u32::from_ne_bytes(fields(bytes, at)?),
            tid: u32::from_ne_bytes(fields(bytes, at)?),
            tgid: u32::from_ne_bytes(fields(bytes, at)?),
            other: u32::from_ne_bytes(fields(bytes, at)?),
            wait: u32::from_ne_bytes(fields(bytes, at)?),
            critical: u32::from_ne_bytes(fields(bytes, at)?),
            value: u64::from_ne_bytes(fields(bytes, at)?),
            mapping: u64::from_ne_bytes(fields(bytes, at)?),
            index: u64::from_ne_bytes(fields(bytes, at)?),
            comm: fields(bytes, at)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::FLAGS_OF_FLUSHES;
    use crate::rules::Critical;
    use crate::waits::Wait;

    const HEADER: &str = include_str!("../bpf/tracker.h");

    fn constant(name: &str) -> u64 {
        let line = HEADER.lines().find(|l| l.starts_with(&format!("#define {name} "))).unwrap();
        line.split_whitespace().nth(2).unwrap().parse().unwrap()
    }

    /// Bytes that the fields of a structure of the header take, in their order and without padding.
    fn header_fields(name: &str) -> Vec<(String, usize)> {
        let body = HEADER.split(&format!("struct {name} {{")).nth(1).unwrap().split("};").next().unwrap();
        let fields = body.lines().filter_map(|l| l.split(';').next()).filter(|l| !l.trim().is_empty());
        let field = |l: &str| {
            let (kind, field) = l.trim().rsplit_once(' ').unwrap();
            let bytes = match kind {
                "unsigned long long" => 8,
                "unsigned int" => 4,
                "unsigned short" => 2,
                "unsigned char" | "char" => 1,
                other => panic!("{other}"),
            };
            let (field, count) = field.split_once('[').unwrap_or((field, "1]"));
            (field.to_owned(), bytes * count.trim_end_matches(']').parse::<usize>().unwrap())
        };
        fields.map(field).collect()
    }

    #[test]
    fn structures_are_those_of_the_header() {
        let sizes = [
            ("fb_tag", size_of::<RawTag>()),
            ("fb_slot", size_of::<RawSlot>()),
            ("fb_signal", size_of::<RawSignal>()),
            ("fb_range", size_of::<RawRange>()),
            ("fb_role", size_of::<RawRole>()),
        ];
        for (name, size) in sizes {
            let fields = header_fields(name);
            assert_eq!(fields.iter().map(|(_, bytes)| bytes).sum::<usize>(), size, "{name} {fields:?}");
            let mut at = 0;
            for (field, bytes) in fields {
                let align = if ["comm", "file", "dir"].contains(&field.as_str()) { 1 } else { bytes };
                assert_eq!(at % align, 0, "{name}.{field} would be padded");
                at += bytes;
            }
        }
        let names: Vec<String> = header_fields("fb_tag").into_iter().map(|(n, _)| n).collect();
        assert_eq!(
            names.join(" "),
            "sector mapping index bytes device flags tid tgid waiter critical via ioprio pages comm file dir"
        );
        let names: Vec<String> = header_fields("fb_slot").into_iter().map(|(n, _)| n).collect();
        assert_eq!(names.join(" "), "sector device awaited");
        let names: Vec<String> = header_fields("fb_signal").into_iter().map(|(n, _)| n).collect();
        assert_eq!(names.join(" "), "type tid tgid other wait critical value mapping index comm");
    }

    #[test]
    fn constants_are_those_of_the_header() {
        for (name, value) in [
            ("FB_DISKS_MAX", DISKS_MAX as u64),
            ("FB_RANGES_MAX", RANGES_MAX as u64),
            ("FB_COUNT_TAGS_DROPPED", u64::from(COUNT_TAGS_DROPPED)),
            ("FB_COUNT_SIGNALS_DROPPED", u64::from(COUNT_SIGNALS_DROPPED)),
            ("FB_CRITICAL_DIRECT", u64::from(Critical::Yes.number())),
            ("FB_CRITICAL_REQUESTS", u64::from(Critical::Requests.number())),
            ("FB_CRITICAL_NEVER", u64::from(Critical::Never.number())),
            ("FB_FLUSH_FLAGS", u64::from(FLAGS_OF_FLUSHES)),
            ("FB_WAIT_KINDS", Wait::ALL.len() as u64 + 1),
        ] {
            assert_eq!(constant(name), value, "{name}");
        }
        for (i, wait) in Wait::ALL.iter().enumerate() {
            let name = format!("FB_WAIT_{}", wait.as_str().to_uppercase());
            assert_eq!(constant(&name), i as u64 + 1, "{name}");
            assert_eq!(Wait::from_number(i as u32 + 1), Some(*wait));
        }
        assert_eq!(Wait::from_number(0), None);
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let bytes: Vec<u8> = (0..size_of::<RawTag>() as u8).collect();
        let tag = RawTag::read(&bytes).unwrap();
        assert_eq!(tag.sector, u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(tag.comm[0], 56);
        assert_eq!(tag.critical, 48);
        assert_eq!((tag.file[0], tag.dir[15]), (72, bytes[bytes.len() - 1]));
        assert!(RawTag::read(&bytes[1..]).is_none());
        // As that of a write without a file.
        let short = RawTag::read(&bytes[..std::mem::offset_of!(RawTag, file)]).unwrap();
        assert_eq!(short, RawTag { file: [0; 32], dir: [0; 16], ..tag });
        assert!(RawTag::read(&bytes[..71]).is_none());
        let slot = RawSlot::read(&bytes[..size_of::<RawSlot>()]).unwrap();
        let [device, awaited] = [[8, 9, 10, 11], [12, 13, 14, 15]].map(u32::from_ne_bytes);
        assert_eq!((slot.sector, slot.device, slot.awaited), (tag.sector, device, awaited));
        let signal = RawSignal::read(&vec![1; size_of::<RawSignal>()]).unwrap();
        assert_eq!(signal.value, 0x0101_0101_0101_0101);
    }
}
