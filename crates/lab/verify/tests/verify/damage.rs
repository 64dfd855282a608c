//! Damage of each kind, and what is said of it.

use std::io;

use forebay_format::checksum::crc32c;
use forebay_format::record::ExtentKind;
use forebay_format::superblock::{CacheState, SUPERBLOCK_OFFSETS};
use forebay_verify::{CheckError, FINDINGS_MAX, Finding, FindingKind, Report, Severity, Source, check};

use super::writer::{SEGMENT_BYTES, Segment, VOLUME_BLOCKS, Writer};

const DATA: ExtentKind = ExtentKind::Data;

/// A log of `n` records with two blocks each, block `10 * seq` and the next.
fn log(n: u64) -> Writer {
    let mut w = Writer::new(512, 8);
    for seq in 1..=n {
        w.record(&[(10 * seq % VOLUME_BLOCKS, 2, DATA)]);
    }
    w
}

/// Where record `seq` lies in the image.
fn place(w: &Writer, seq: u64) -> (Segment, std::ops::Range<usize>) {
    let s = w.live.iter().rfind(|s| s.first_seq <= seq).unwrap().clone();
    let i = (seq - s.first_seq) as usize;
    let end = s.records.get(i + 1).copied().unwrap_or(s.end);
    let range = w.at(&s, s.records[i])..w.at(&s, end);
    (s, range)
}

fn only(report: &Report) -> &Finding {
    assert_eq!(report.findings.len(), 1, "{report}");
    &report.findings[0]
}

fn found(report: &Report) -> Vec<FindingKind> {
    report.findings.iter().map(|f| f.kind).collect()
}

#[test]
fn swapped_blocks() {
    let mut w = log(5);
    let (_, r) = place(&w, 3);
    let data = r.start + 512;
    let (a, b) = w.bytes[data..data + 8192].split_at_mut(4096);
    a.swap_with_slice(b);
    let report = check(&w.bytes).unwrap();
    assert_eq!(found(&report), [FindingKind::DataDamaged; 2]);
    assert_eq!(report.verdict, Severity::Corruption);
    assert_eq!((report.findings[1].block, report.findings[1].seq), (Some(31), Some(3)));
    assert_eq!(report.findings[1].offset, data as u64 + 4096);
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn damaged_data_is_judged_by_what_is_lost() {
    let mut w = log(3);
    w.record(&[(10, 1, DATA)]);
    w.record(&[(500, 1, DATA)]);
    let report = |w: &Writer, seq: u64| {
        let mut image = w.bytes.clone();
        image[place(w, seq).1.start + 600] ^= 1;
        check(&image).unwrap()
    };
    assert_eq!(only(&report(&w, 2)).severity, Severity::Corruption);
    let overwritten = report(&w, 1);
    assert_eq!(only(&overwritten).severity, Severity::Recoverable);
    assert!(only(&overwritten).message.contains("record 4 has a newer version"), "{overwritten}");
    assert_eq!(overwritten.exit_code(), 4);
    w.clean_upto = 2;
    w.record(&[(500, 1, DATA)]);
    let destaged = report(&w, 2);
    assert_eq!(only(&destaged).severity, Severity::Recoverable);
    assert!(only(&destaged).message.contains("the backing has it"), "{destaged}");
}

#[test]
fn swapped_segments() {
    let mut w = log(25);
    let (a, b) = (w.at(&w.live[0], 0), w.at(&w.live[1], 0));
    let first = w.bytes[a..a + SEGMENT_BYTES as usize].to_vec();
    w.bytes.copy_within(b..b + SEGMENT_BYTES as usize, a);
    w.bytes[b..b + SEGMENT_BYTES as usize].copy_from_slice(&first);
    let report = check(&w.bytes).unwrap();
    assert_eq!(report.verdict, Severity::Corruption);
    assert!(report.findings[0].message.contains("misdirected"), "{report}");
}

#[test]
fn segment_that_is_still_of_the_last_lap() {
    let mut w = Writer::new(512, 6);
    let mut before = Vec::new();
    while w.live.back().is_none_or(|s| s.segment_seq < 9) {
        // The image as it was before anything was written into segment 8 of the log.
        if w.live.back().is_none_or(|s| s.segment_seq < 8) {
            before = w.bytes.clone();
        }
        w.record(&[(w.last_seq() % 900, 3, DATA)]);
        if w.live.len() == 5 {
            w.destage(2);
        }
    }
    assert_eq!(check(&w.bytes).unwrap().verdict, Severity::Ok);
    let reused = w.live[w.live.len() - 2].clone();
    assert_eq!(reused.segment_seq, 8);
    let range = w.at(&reused, 0)..w.at(&reused, SEGMENT_BYTES);
    assert!(before[range.clone()].starts_with(b"FBSEGMNT"));
    w.bytes[range.clone()].copy_from_slice(&before[range]);
    let report = check(&w.bytes).unwrap();
    assert_eq!(found(&report), [FindingKind::SegmentMissing], "{report}");
    assert_eq!(report.verdict, Severity::Corruption);
}

#[test]
fn lost_record_that_was_durable() {
    let w = log(25);
    for seq in [2, 9, 20, 23, 24] {
        let (s, r) = place(&w, seq);
        let mut image = w.bytes.clone();
        image[r].fill(0);
        let report = check(&image).unwrap();
        let sealed = s.summary_bytes > 0;
        let kinds = found(&report);
        assert_eq!(kinds[0], FindingKind::RecordDamaged, "{report}");
        assert_eq!(report.verdict, Severity::Corruption);
        // In a sealed segment the summary knows what the record said, so that the damage is told block by block.
        assert_eq!(kinds.len(), if sealed { 3 } else { 1 }, "{report}");
        assert_eq!(report.findings[0].seq, Some(seq));
        assert_eq!(report.log.records, if sealed { 25 } else { 24 });
        assert_eq!(report.log.last_seq, 25);
    }
}

#[test]
fn lost_segment() {
    let w = log(30);
    for i in 0..3 {
        let s = &w.live[i];
        let mut image = w.bytes.clone();
        image[w.at(s, 0)..w.at(s, SEGMENT_BYTES)].fill(0);
        let report = check(&image).unwrap();
        assert_eq!(found(&report), [FindingKind::SegmentMissing], "{report}");
        assert_eq!(report.verdict, Severity::Corruption);
        assert!(report.findings[0].message.contains(&format!("segment {} of the log", i + 1)), "{report}");
    }
}

#[test]
fn first_write_of_the_newest_segment_was_lost_over_an_earlier_lap() {
    for sealed in [false, true] {
        let mut w = Writer::new(512, 6);
        let mut before = Vec::new();
        while w.live.back().is_none_or(|s| s.segment_seq < 8) {
            before = w.bytes.clone();
            w.record(&[(w.last_seq() % 900, 3, DATA)]);
            if w.live.len() == 5 {
                w.destage(2);
            }
        }
        w.record(&[(1, 1, DATA)]);
        w.record(&[(2, 1, DATA)]);
        if sealed {
            w.seal();
        }
        let s = w.live.back().unwrap().clone();
        let lost = w.at(&s, 0)..w.at(&s, s.records[1]);
        assert!(before[lost.clone()].starts_with(b"FBSEGMNT"), "an earlier lap was there");
        assert_eq!(check(&w.bytes).unwrap().verdict, Severity::Ok);
        w.bytes[lost.clone()].copy_from_slice(&before[lost]);
        let report = check(&w.bytes).unwrap();
        let kinds = [FindingKind::RecordDamaged, FindingKind::SegmentHeaderDamaged];
        assert_eq!(found(&report), kinds, "{report}");
        assert_eq!(report.verdict, Severity::Corruption);
        assert_eq!(report.log.last_seq, w.last_seq());
    }
}

#[test]
fn damaged_segment_header_is_made_good_by_the_first_record() {
    let mut w = super::writer::wrapped(512);
    w.record(&[]);
    for s in w.live.clone() {
        let mut image = w.bytes.clone();
        image[w.at(&s, 44)] ^= 1;
        let report = check(&image).unwrap();
        assert_eq!(only(&report).kind, FindingKind::SegmentHeaderDamaged, "{report}");
        assert_eq!(report.verdict, Severity::Recoverable);
        assert_eq!(report.log.records, check(&w.bytes).unwrap().log.records);
    }
}

#[test]
fn damage_after_a_clean_stop_is_told_block_by_block() {
    let mut w = log(5);
    w.in_flight = 9;
    w.record(&[(700, 2, DATA)]);
    w.stop();
    let at = place(&w, 6).1.start + 512 + 4096 + 3;
    w.bytes[at] ^= 1;
    let report = check(&w.bytes).unwrap();
    assert_eq!(only(&report).kind, FindingKind::DataDamaged, "{report}");
    assert_eq!((only(&report).block, report.verdict), (Some(701), Severity::Corruption));
    assert_eq!(report.log.last_seq, 7);
}

#[test]
fn torn_tail() {
    let w = log(24);
    let (_, r) = place(&w, 24);
    for keep in [0, 512, 512 + 4096] {
        let mut image = w.bytes.clone();
        image[r.start + keep..r.end].fill(0);
        let report = check(&image).unwrap();
        assert_eq!(report.exit_code(), 0);
        assert_eq!(report.log.last_seq, 23);
        if keep > 0 {
            assert_eq!(only(&report).kind, FindingKind::TornTail);
            assert_eq!(report.verdict, Severity::Note);
        }
    }
}

#[test]
fn gap_in_what_was_in_flight() {
    let mut w = log(10);
    w.in_flight = 4;
    for _ in 0..4 {
        w.record(&[(700, 1, DATA)]);
    }
    let (_, r) = place(&w, 12);
    for wipe in [r.clone(), r.start + 512..r.end] {
        let mut image = w.bytes.clone();
        image[wipe].fill(0);
        let report = check(&image).unwrap();
        assert_eq!(only(&report).kind, FindingKind::TornTail, "{report}");
        assert_eq!((report.log.last_seq, report.log.records_torn), (11, 2));
    }
}

#[test]
fn run_that_went_on_after_a_tear() {
    let mut w = Writer::new(512, 8);
    w.in_flight = 4;
    while w.live.len() < 2 || w.live[1].records.len() < 2 {
        w.record(&[(w.last_seq(), 3, DATA)]);
    }
    // A power cut takes the last record of segment 1 and its summary; two records in segment 2 stay behind.
    let torn = w.clone();
    let s = torn.live[0].clone();
    let last = s.first_seq + s.records.len() as u64 - 1;
    let from = place(&torn, last).1.start;
    let mut image = torn.bytes.clone();
    image[from..torn.at(&s, SEGMENT_BYTES)].fill(0);
    let report = check(&image).unwrap();
    assert_eq!(only(&report).kind, FindingKind::TornTail, "{report}");
    assert_eq!(report.log.last_seq, last - 1);
    // The next run goes on in segment 1 and opens another segment 2 elsewhere.
    let mut next = Writer::new(512, 8);
    next.in_flight = 4;
    while next.last_seq() < last - 1 {
        next.record(&[(next.last_seq(), 3, DATA)]);
    }
    next.start();
    next.record(&[(1, 1, DATA)]);
    let one_more = next.clone();
    while next.live.len() < 3 {
        next.record(&[(next.last_seq(), 3, DATA)]);
    }
    for (w, segments) in [(one_more, 1), (next, 3)] {
        let mut bytes = w.bytes.clone();
        let s2 = torn.live[1].clone();
        let old = torn.at(&s2, 0)..torn.at(&s2, SEGMENT_BYTES);
        let to = w.layout().segment_offset(7) as usize;
        bytes[to..to + old.len()].copy_from_slice(&torn.bytes[old]);
        // The leftover says that it is segment 1 of the device; written to place 7 it would be misplaced.
        let header = forebay_format::segment::SegmentHeader {
            generation: 1,
            segment_seq: 2,
            first_seq: forebay_block::Seq(s2.first_seq),
            index: 7,
        };
        header.encode(&w.layout(), &mut bytes[to..]);
        let report = check(&bytes).unwrap();
        assert_eq!(report.verdict, Severity::Ok, "{report}");
        assert_eq!(report.log.segments_live, segments);
        assert_eq!(report.log.last_seq, w.last_seq());
    }
}

#[test]
fn nothing_may_be_torn_after_a_clean_stop() {
    let mut w = log(5);
    w.stop();
    let (_, r) = place(&w, 6);
    let mut image = w.bytes.clone();
    image[r.clone()].fill(0);
    let report = check(&image).unwrap();
    assert_eq!(only(&report).kind, FindingKind::CleanStopBroken);
    assert_eq!(report.verdict, Severity::Corruption);
    // The stop was recorded in the log; the superblock had not learned of it yet.
    w.superblock.clean_stop = false;
    w.write_superblocks();
    assert_eq!(check(&w.bytes).unwrap().verdict, Severity::Ok);
}

#[test]
fn summaries() {
    let w = log(25);
    let s = w.live[0].clone();
    let end = w.at(&s, SEGMENT_BYTES);
    let start = end - s.summary_bytes;
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut image = w.bytes.clone();
        change(&mut image[start..end]);
        let report = check(&image).unwrap();
        assert_eq!(report.log.records, 25);
        assert_eq!(only(&report).segment, Some(s.index));
        (report.findings[0].kind, report.exit_code())
    };
    assert_eq!(with(&|b| b.fill(0)), (FindingKind::SummaryMissing, 0));
    assert_eq!(with(&|b| b.fill(0xA5)), (FindingKind::SummaryMissing, 0));
    let n = s.summary_bytes;
    assert!(n >= 1024);
    assert_eq!(with(&|b| b[..512].fill(0)), (FindingKind::SummaryMissing, 0));
    assert_eq!(with(&|b| b[n - 512..].fill(0)), (FindingKind::SummaryMissing, 0));
    assert_eq!(with(&|b| b[20] ^= 8), (FindingKind::SummaryDamaged, 4));
    assert_eq!(with(&|b| b[n - 500] ^= 8), (FindingKind::SummaryDamaged, 4));
    let mut image = w.bytes.clone();
    image[end - 1] ^= 8;
    assert!(check(&image).unwrap().findings.is_empty(), "the trailer's padding says nothing");
}

/// The summary of the lap before differs in a few bits only: it is taken for what was there before, not for damage.
#[test]
fn summary_of_an_earlier_lap_that_is_much_like_the_missing_one() {
    let mut w = log(25);
    let s = w.live[0].clone();
    let end = w.at(&s, SEGMENT_BYTES);
    let trailer = &mut w.bytes[end - 512..end];
    // Its number in the order of the log is 3 instead of 1, and its checksum fits.
    trailer[40] = 3;
    trailer[8..12].fill(0);
    let crc = crc32c(trailer);
    trailer[8..12].copy_from_slice(&crc.to_le_bytes());
    let report = check(&w.bytes).unwrap();
    assert_eq!(only(&report).kind, FindingKind::SummaryMissing, "{report}");
}

#[test]
fn superblocks() {
    let [a, b] = SUPERBLOCK_OFFSETS.map(|o| o as usize);
    let mut w = log(3);
    let old = w.superblock.clone();
    w.superblock.update += 1;
    w.superblock.layout.generation += 1;
    let new = w.superblock.clone();
    let with = |first: &[u8], second: &[u8]| {
        let mut image = w.bytes.clone();
        image[a..a + 4096].copy_from_slice(first);
        image[b..b + 4096].copy_from_slice(second);
        check(&image)
    };
    let (old, new) = (old.encode(), new.encode());
    let interrupted = with(&new, &old).unwrap();
    assert_eq!(interrupted.verdict, Severity::Note);
    assert_eq!(interrupted.generation, 2);
    assert_eq!(with(&old, &new).unwrap().verdict, Severity::Recoverable);
    assert_eq!(found(&with(&[0; 4096], &old).unwrap()), [FindingKind::SuperblockDamaged]);
    assert_eq!(found(&with(&old, &[0; 4096]).unwrap()), [FindingKind::SuperblockDamaged]);
    assert!(matches!(with(&[0; 4096], &[0; 4096]), Err(CheckError::NoCache)));
    let mut bad = old;
    bad[99] ^= 1;
    let damaged = with(&bad, &bad).unwrap_err();
    assert!(matches!(damaged, CheckError::SuperblocksDamaged));
    assert_eq!(damaged.exit_code(), 4);
}

#[test]
fn superblock_that_is_older_than_the_log() {
    let mut w = log(3);
    let old = w.superblock.encode();
    w.start();
    for i in 0..20 {
        w.record(&[(i, 1, DATA)]);
    }
    for at in SUPERBLOCK_OFFSETS {
        w.bytes[at as usize..][..4096].copy_from_slice(&old);
    }
    let report = check(&w.bytes).unwrap();
    assert!(report.findings.iter().any(|f| f.message.contains("older copy")), "{report}");
    assert_eq!(report.verdict, Severity::Corruption);
}

#[test]
fn truncated_image() {
    let w = log(25);
    let report = check(&w.bytes[..w.bytes.len() - 4096].to_vec()).unwrap();
    assert_eq!(found(&report), [FindingKind::ImageTruncated]);
    assert_eq!(report.verdict, Severity::Corruption);
    let report = check(&w.bytes[..(1 << 20) + 70_000].to_vec()).unwrap();
    assert_eq!(report.findings[0].kind, FindingKind::ImageTruncated);
    let report = check(&w.bytes[..100_000].to_vec()).unwrap();
    assert_eq!(report.findings[0].kind, FindingKind::SuperblockDamaged);
    assert!(matches!(check(&w.bytes[..100].to_vec()), Err(CheckError::SuperblocksDamaged)));
    assert!(matches!(check(&Vec::new()), Err(CheckError::NoCache)));
}

#[test]
fn log_of_a_retired_cache_is_not_judged() {
    let mut w = log(5);
    w.superblock.state = CacheState::Retired;
    w.write_superblocks();
    w.bytes[(1 << 20) + 600] ^= 1;
    let report = check(&w.bytes).unwrap();
    assert_eq!(only(&report).kind, FindingKind::LogVoid);
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn list_of_findings_is_bounded() {
    let mut w = Writer::new(512, 100);
    for i in 0..700 {
        w.record(&[(i, 2, DATA)]);
    }
    w.stop();
    for s in w.live.clone() {
        for at in s.records.iter().copied().filter(|at| at + 4096 < s.end) {
            let from = w.at(&w.live[(s.segment_seq - 1) as usize], at) + 512;
            w.bytes[from] ^= 1;
            w.bytes[from + 4096] ^= 1;
        }
    }
    let report = check(&w.bytes).unwrap();
    assert_eq!(report.findings.len(), FINDINGS_MAX);
    assert!(report.findings_left_out >= 390, "{}", report.findings_left_out);
    assert_eq!(report.verdict, Severity::Corruption);
}

/// A medium on which a range cannot be read.
struct BadSectors {
    bytes: Vec<u8>,
    bad: std::ops::Range<u64>,
}

impl Source for BadSectors {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset < self.bad.end && self.bad.start < offset + buf.len() as u64 {
            return Err(io::Error::other("bad sector"));
        }
        self.bytes.read_at(buf, offset)
    }
}

#[test]
fn unreadable_sectors() {
    let w = log(25);
    let (_, r) = place(&w, 5);
    let bad = r.start as u64 + 512..r.start as u64 + 1024;
    let report = check(&BadSectors { bytes: w.bytes.clone(), bad }).unwrap();
    assert!(found(&report).contains(&FindingKind::Unreadable), "{report}");
    assert_eq!(report.verdict, Severity::Corruption);
    let free = w.layout().segment_offset(7);
    let report = check(&BadSectors { bytes: w.bytes.clone(), bad: free..free + 1 }).unwrap();
    assert_eq!(only(&report).kind, FindingKind::Unreadable);
    let everywhere = BadSectors { bytes: vec![0; 64 << 20], bad: 0..64 << 20 };
    assert!(matches!(check(&everywhere), Err(CheckError::NoCache | CheckError::Io(_))));
}
