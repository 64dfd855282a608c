//! The static probes (USDT) of a program's file: where they lie, and where each finds its first argument.
//!
//! They are notes of an ELF file: place, base, semaphore, then provider, name and arguments as texts ("8@%rax 4@%r14d").

use std::fs::File;
use std::io;

use object::read::ReadCache;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ReadRef};

/// Most probes of a file that are looked at.
const PROBES_MAX: usize = 4096;
/// Most sections of a file with probes, and most bytes of the notes that describe them: anybody may call a program of his own `postgres: x`.
const SECTIONS_MAX: usize = 4096;
const NOTES_BYTES_MAX: u64 = 4 << 20;
/// Type of a note that describes a probe.
const NOTE_PROBE: u32 = 3;

/// Where a probe's first argument lies when the probe is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// In a register; its offset in the kernel's `pt_regs`.
    Register(u16),
    /// In memory, so many bytes from where a register points.
    Memory(u16, i32),
    /// It is always the same.
    Constant(i32),
}

/// A probe in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub provider: String,
    pub name: String,
    /// Offset of the instruction in the file.
    pub offset: u64,
    /// Offset in the file of the counter that says that somebody listens; 0 if there is none.
    pub semaphore: u64,
    /// `None` if it has no arguments, or if this one is not understood.
    pub first: Option<Argument>,
}

/// The registers of `pt_regs` in their order, 8 bytes each, with the names of their lower parts.
#[cfg(target_arch = "x86_64")]
const REGISTERS: [&[&str]; 20] = [
    &["r15", "r15d"],
    &["r14", "r14d"],
    &["r13", "r13d"],
    &["r12", "r12d"],
    &["rbp", "ebp"],
    &["rbx", "ebx"],
    &["r11", "r11d"],
    &["r10", "r10d"],
    &["r9", "r9d"],
    &["r8", "r8d"],
    &["rax", "eax"],
    &["rcx", "ecx"],
    &["rdx", "edx"],
    &["rsi", "esi"],
    &["rdi", "edi"],
    &[],
    &["rip"],
    &[],
    &[],
    &["rsp"],
];

/// Offset of a register in `pt_regs`.
#[cfg(target_arch = "x86_64")]
fn register(name: &str) -> Option<u16> {
    REGISTERS.iter().position(|names| names.contains(&name)).map(|at| at as u16 * 8)
}

/// Offset of a register in `pt_regs`.
#[cfg(not(target_arch = "x86_64"))]
fn register(name: &str) -> Option<u16> {
    let number = match name {
        "sp" => 31,
        _ => name.strip_prefix(['x', 'w'])?.parse::<u16>().ok().filter(|n| *n < 31)?,
    };
    Some(number * 8)
}

/// Reads the first of some arguments, as x86-64 (`8@%rax`, `8@-8(%rbp)`, `-4@$3`) or arm64 (`8@x0`, `8@[sp, 8]`, `-4@3`) spells it.
fn first_argument(arguments: &str) -> Option<Argument> {
    // Blanks stand between arguments and, on arm64, within brackets.
    let (_, rest) = arguments.trim_start().split_once('@')?;
    if let Some(inner) = rest.strip_prefix('[') {
        let (base, offset) =
            inner.split_once(']')?.0.split_once(',').unwrap_or((inner.split(']').next()?, "0"));
        return Some(Argument::Memory(register(base.trim())?, offset.trim().parse().ok()?));
    }
    let operand = rest.split_whitespace().next()?;
    if let Some((offset, base)) = operand.split_once('(') {
        let offset = if offset.is_empty() { 0 } else { offset.parse().ok()? };
        return Some(Argument::Memory(register(base.strip_suffix(')')?.trim_start_matches('%'))?, offset));
    }
    match register(operand.trim_start_matches('%')) {
        Some(register) => Some(Argument::Register(register)),
        None => operand.trim_start_matches('$').parse().ok().map(Argument::Constant),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

/// The probes of a file.
pub(crate) fn of_file(file: File) -> io::Result<Vec<Probe>> {
    let cache = ReadCache::new(file);
    parse(&cache).map_err(io::Error::other)
}

pub(crate) fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Vec<Probe>, object::Error> {
    let file = object::File::parse(data)?;
    if !file.is_64() || !file.is_little_endian() {
        return Ok(Vec::new());
    }
    if file.sections().take(SECTIONS_MAX + 1).count() > SECTIONS_MAX {
        return Ok(Vec::new());
    }
    let Some(notes) = file.section_by_name(".note.stapsdt").filter(|s| s.size() <= NOTES_BYTES_MAX) else {
        return Ok(Vec::new());
    };
    let base = file.section_by_name(".stapsdt.base").map_or(0, |s| s.address());
    // The kernel wants offsets in the file.
    let place = |address: u64| {
        file.segments().find_map(|segment| {
            let (offset, len) = segment.file_range();
            let within = address.checked_sub(segment.address())?;
            (within < len).then(|| offset.checked_add(within)).flatten()
        })
    };
    let mut probes = Vec::new();
    let mut rest = notes.data()?;
    while probes.len() < PROBES_MAX {
        let Some((kind, description, next)) = note(rest) else { break };
        rest = next;
        if kind == NOTE_PROBE
            && let Some(probe) = probe(description, base, place)
        {
            probes.push(probe);
        }
    }
    Ok(probes)
}

/// Type and description of the first note, and the notes behind it.
fn note(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (name_len, len, kind) = (half(bytes, 0)?, half(bytes, 4)?, half(bytes, 8)?);
    let start = 12usize.checked_add(name_len.checked_next_multiple_of(4)?)?;
    let end = start.checked_add(len)?;
    let description = bytes.get(start..end)?;
    Some((kind as u32, description, bytes.get(end.checked_next_multiple_of(4)?..).unwrap_or_default()))
}

fn probe(description: &[u8], base: u64, place: impl Fn(u64) -> Option<u64>) -> Option<Probe> {
    let (at, noted_base, semaphore) = (word(description, 0)?, word(description, 8)?, word(description, 16)?);
    // The file may have been moved in memory since the notes were written (prelink).
    let moved = if base == 0 { 0 } else { base.wrapping_sub(noted_base) };
    let mut texts = description.get(24..)?.split(|b| *b == 0).map(String::from_utf8_lossy);
    let (provider, name, arguments) = (texts.next()?, texts.next()?, texts.next()?);
    let semaphore = match semaphore {
        0 => 0,
        address => place(address.wrapping_add(moved))?,
    };
    Some(Probe {
        provider: provider.into_owned(),
        name: name.into_owned(),
        offset: place(at.wrapping_add(moved))?,
        semaphore,
        first: first_argument(&arguments),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn arguments_are_where_their_text_says() {
        for (text, argument) in [
            ("8@%rax 4@%r14d", Some(Argument::Register(80))),
            ("8@%r15", Some(Argument::Register(0))),
            ("8@-24(%rbp) 4@$1", Some(Argument::Memory(32, -24))),
            ("8@(%rsp)", Some(Argument::Memory(152, 0))),
            ("-4@$-7", Some(Argument::Constant(-7))),
            ("8@%xmm0", None),
            ("8@8(%rip,%rax,4)", None),
            ("", None),
        ] {
            assert_eq!(first_argument(text), argument, "{text}");
        }
    }

    #[test]
    fn notes_are_read_one_by_one() {
        let describe = |name: &str, at: u64| {
            let mut d = Vec::new();
            [at, 0x5000, 0x9000].iter().for_each(|w: &u64| d.extend(w.to_le_bytes()));
            d.extend(format!("postgresql\0{name}\08@$5\0").bytes());
            d
        };
        let mut bytes = Vec::new();
        for (kind, description) in
            [(3u32, describe("a", 0x1000)), (1, vec![1, 2]), (3, describe("bb", 0x1010))]
        {
            bytes.extend(8u32.to_le_bytes());
            bytes.extend((description.len() as u32).to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(b"stapsdt\0");
            bytes.extend(&description);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let (mut rest, mut found) = (bytes.as_slice(), Vec::new());
        while let Some((kind, description, next)) = note(rest) {
            if kind == NOTE_PROBE {
                // As if the file had been moved by 0x100, and lay in memory where it lies in the file.
                found.push(probe(description, 0x5100, Some).unwrap());
            }
            rest = next;
        }
        let expected = |name: &str, offset| Probe {
            provider: "postgresql".into(),
            name: name.into(),
            offset,
            semaphore: 0x9100,
            first: Some(Argument::Constant(5)),
        };
        assert_eq!(found, [expected("a", 0x1100), expected("bb", 0x1110)]);
    }

    #[test]
    fn a_file_without_probes_has_none() {
        assert!(
            of_file(File::open("/proc/self/exe").unwrap())
                .unwrap()
                .iter()
                .all(|p| p.provider != "postgresql")
        );
        assert!(parse(&b"no such file"[..]).is_err());
    }

    proptest! {
        /// Whatever a file says, it is read to its end.
        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut rest = bytes.as_slice();
            while let Some((_, description, next)) = note(rest) {
                prop_assert!(next.len() < rest.len());
                let _ = probe(description, 1, Some);
                rest = next;
            }
            let _ = first_argument(&String::from_utf8_lossy(&bytes));
        }
    }
}
