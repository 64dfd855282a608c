//! What the eBPF programs and this crate share, as `bpf/tracker.h` has it; a test holds the two together.

use std::borrow::Cow;
use std::mem::offset_of;

use zerocopy::{FromBytes, IntoBytes};

/// Most disks whose writes are tagged at a time.
pub(crate) const DISKS_MAX: usize = 64;
/// Most functions of the kernel whose place is told.
pub(crate) const RANGES_MAX: usize = 32;
/// In the flags of a function: whoever waits in it for a page's write-back has locked no page.
pub(crate) const RANGE_UNLOCKED: u32 = 256;
/// What was dropped because the ring of tags, or that of first slots, was full.
pub(crate) const COUNT_TAGS_DROPPED: u32 = 0;
/// The same of signals.
pub(crate) const COUNT_SIGNALS_DROPPED: u32 = 1;
/// Numbers that a task may have; there is a number of 16 bits for each in the map of roles.
pub(crate) const TIDS_MAX: usize = 4_194_304;
/// In such a number, beside how critical the task is: it has written to a volume, or was told of.
pub(crate) const ROLE_SEEN: u16 = 16;
/// And: its hint is believed, although not everybody's is.
pub(crate) const ROLE_HEARD: u16 = 32;
/// Which rate its rule has stands from this bit on.
pub(crate) const ROLE_RATE_SHIFT: u32 = 8;
/// Most rules with a rate.
pub(crate) const RATES_MAX: usize = 32;
/// Of a tag: critical by the task's own word.
pub(crate) const CRITICAL_HINTED: u8 = 5;
/// Where it is said whether hints are believed of some only.
pub(crate) const COUNT_HINTS_LIMITED: u32 = 7;

/// A write that was queued to an attached device. Without a page it ends before its mapping, without a file before its name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub(crate) struct RawTag {
    pub sector: u64,
    pub bytes: u32,
    pub device: u32,
    pub flags: u32,
    pub tid: u32,
    pub waiter: u32,
    pub critical: u8,
    pub via: u8,
    pub ioprio: u16,
    pub comm: [u8; 16],
    pub payers: u32,
    pub pages: u32,
    pub mapping: u64,
    pub index: u64,
    pub file: [u8; 32],
    pub dir: [u8; 16],
}

/// The request that has the first slot of an attached device's queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub(crate) struct RawSlot {
    pub sector: u64,
    pub device: u32,
    pub awaited: u32,
    pub payers: u32,
    pub unused: u32,
}

/// Anything else that the programs tell.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
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
    pub flags: u32,
}

// SAFETY: this structure is `repr(C)`, holds integers alone and has no padding (the test below adds up its fields), so that
// every bit pattern is a value of it and every byte of it is initialised.
unsafe impl aya::Pod for RawRange {}

/// The text in a field: what stands before the first zero.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
}

/// What comes through a ring, as the programs have it in memory.
pub(crate) trait Message: FromBytes + IntoBytes + Sized {
    /// Lengths in bytes that one may have. What is behind its end is 0.
    const LENGTHS: &'static [usize];

    /// Reads one as it came; `None` if it is none.
    fn read(bytes: &[u8]) -> Option<Self> {
        if !Self::LENGTHS.contains(&bytes.len()) {
            return None;
        }
        let mut message = Self::new_zeroed();
        message.as_mut_bytes().get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(message)
    }
}

impl RawTag {
    /// First byte of the write on the device, and the one behind its last.
    pub fn range(&self) -> (u64, u64) {
        let start = self.sector.saturating_mul(512);
        (start, start.saturating_add(u64::from(self.bytes)))
    }
}

impl Message for RawTag {
    const LENGTHS: &'static [usize] = &[offset_of!(Self, mapping), offset_of!(Self, file), size_of::<Self>()];
}

impl Message for RawSlot {
    const LENGTHS: &'static [usize] = &[size_of::<Self>()];
}

impl Message for RawSignal {
    const LENGTHS: &'static [usize] = &[size_of::<Self>()];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::FLAGS_OF_FLUSHES;
    use crate::rates::{Payers, Rate};
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
            "sector bytes device flags tid waiter critical via ioprio comm payers pages mapping index file dir"
        );
        let names: Vec<String> = header_fields("fb_slot").into_iter().map(|(n, _)| n).collect();
        assert_eq!(names.join(" "), "sector device awaited payers unused");
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
            ("FB_TIDS_MAX", TIDS_MAX as u64),
            ("FB_ROLE_SEEN", u64::from(ROLE_SEEN)),
            ("FB_ROLE_HEARD", u64::from(ROLE_HEARD)),
            ("FB_ROLE_RATE_SHIFT", u64::from(ROLE_RATE_SHIFT)),
            ("FB_RATES_MAX", RATES_MAX as u64),
            ("FB_COUNT_HINTS_LIMITED", u64::from(COUNT_HINTS_LIMITED)),
            ("FB_CRITICAL_HINTED", u64::from(CRITICAL_HINTED)),
            ("FB_RANGE_UNLOCKED", u64::from(RANGE_UNLOCKED)),
            ("FB_CRITICAL_DIRECT", u64::from(Critical::Yes.number())),
            ("FB_CRITICAL_REQUESTS", u64::from(Critical::Requests.number())),
            ("FB_CRITICAL_NEVER", u64::from(Critical::Never.number())),
            ("FB_FLUSH_FLAGS", u64::from(FLAGS_OF_FLUSHES)),
            ("FB_WAIT_KINDS", Wait::ALL.len() as u64 + 1),
        ] {
            assert_eq!(constant(name), value, "{name}");
        }
        // The map can be mapped as one row of numbers, without gaps.
        let together = constant("FB_ROLES_TOGETHER");
        assert_eq!((TIDS_MAX as u64 % (together * 4096), together % 8), (0, 0));
        assert_eq!(constant("FB_ROLE_RATE"), u64::from(u16::MAX) >> ROLE_RATE_SHIFT << ROLE_RATE_SHIFT);
        assert!(RATES_MAX <= Payers::BITS as usize && RATES_MAX <= usize::from(Rate::MAX));
        let criticals = [Critical::No, Critical::Yes, Critical::Requests, Critical::Never];
        assert!(criticals.iter().all(|c| u64::from(c.number()) & !constant("FB_ROLE_CRITICAL") == 0));
        let bits = ["CRITICAL", "SEEN", "HEARD", "RATE"].map(|name| constant(&format!("FB_ROLE_{name}")));
        assert_eq!(bits.iter().fold(0, |all, one| all ^ one), bits.iter().sum(), "none overlap: {bits:?}");
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
        assert_eq!((tag.critical, tag.comm[0]), (28, 32));
        assert_eq!((tag.file[0], tag.dir[15]), (72, bytes[bytes.len() - 1]));
        assert!(RawTag::read(&bytes[1..]).is_none());
        // As that of a write without a file, and of one without a page.
        let no_file = RawTag::read(&bytes[..offset_of!(RawTag, file)]).unwrap();
        assert_eq!(no_file, RawTag { file: [0; 32], dir: [0; 16], ..tag });
        let no_page = RawTag::read(&bytes[..offset_of!(RawTag, mapping)]).unwrap();
        assert_eq!(no_page, RawTag { mapping: 0, index: 0, ..no_file });
        // With the ring's own header of 8 bytes.
        assert_eq!(offset_of!(RawTag, mapping) + 8, 64, "one line of the cache");
        for cut in [0, 55, 63, 71, 103, 119] {
            assert!(RawTag::read(&bytes[..cut]).is_none(), "{cut}");
        }
        let slot = RawSlot::read(&bytes[..size_of::<RawSlot>()]).unwrap();
        let [device, awaited] = [[8, 9, 10, 11], [12, 13, 14, 15]].map(u32::from_ne_bytes);
        assert_eq!((slot.sector, slot.device, slot.awaited), (tag.sector, device, awaited));
        assert!(RawSlot::read(&bytes).is_none() && RawSignal::read(&bytes).is_none(), "too long");
        let signal = RawSignal::read(&vec![1; size_of::<RawSignal>()]).unwrap();
        assert_eq!(signal.value, 0x0101_0101_0101_0101);
    }
}
