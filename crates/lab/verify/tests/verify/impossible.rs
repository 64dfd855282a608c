//! Each rule, broken by something that is whole: the verifier reports corruption, and recovery refuses.

use forebay_block::{BlockNo, Seq};
use forebay_engine::RecoveryError;
use forebay_format::record::{ExtentKind, RecordHeader};
use forebay_format::rules::{Impossible, SEGMENT_BLOCKS_MAX};
use forebay_verify::{Finding, FindingKind, Severity, check};

use super::recovery::{forge_record, forge_trailer, recover};
use super::targets::mend;
use super::writer::{SEGMENT_BYTES, VOLUME_BLOCKS, Writer};

const DATA: ExtentKind = ExtentKind::Data;

/// Two sealed segments and an open one, with data, zeroes and void blocks.
fn log(align: u32) -> Writer {
    let mut w = Writer::new(align, 8);
    while w.live.len() < 3 {
        w.record(&[
            (w.last_seq() % 90, 3, DATA),
            (300, 5, ExtentKind::Zero),
            (500, 2, ExtentKind::Supersede),
        ]);
    }
    w.record(&[(7, 1, DATA), (300, 5, ExtentKind::Zero), (500, 2, ExtentKind::Supersede)]);
    w.record(&[]);
    w
}

/// Both refuse the image, for this reason.
fn refused(name: &str, image: &[u8], what: Impossible) {
    let report = check(&image).unwrap();
    let said = |f: &&Finding| f.kind == FindingKind::ImpossibleValue;
    let finding = report.findings.iter().find(said).unwrap_or_else(|| panic!("{name}: {report}"));
    assert_eq!((report.verdict, report.exit_code()), (Severity::Corruption, 4), "{name}: {report}");
    match recover(image).unwrap() {
        Err(RecoveryError::Impossible { segment, offset, what: found }) => {
            assert_eq!((found, offset), (what, finding.offset), "{name}: {report}");
            assert_eq!(Some(segment), finding.segment, "{name}");
            assert!(finding.message.contains(&what.to_string()), "{name}: {}", finding.message);
        }
        other => panic!("{name}: {other:?}\n{report}"),
    }
}

#[test]
fn a_log_as_it_should_be_is_taken() {
    for align in [512, 4096] {
        let image = log(align).bytes;
        assert_eq!(check(&image).unwrap().exit_code(), 0);
        assert!(recover(&image).unwrap().unwrap().blocks_dirty > 0);
    }
}

#[test]
fn records_that_are_no_torn_writes() {
    type Forge = fn(&mut RecordHeader);
    let end = VOLUME_BLOCKS;
    let cases: &[(&str, Impossible, Forge)] = &[
        ("data behind the end", Impossible::BehindEnd, |h| h.extents[0].block = BlockNo(VOLUME_BLOCKS)),
        ("zeroes over the end", Impossible::BehindEnd, |h| h.extents[1].block = BlockNo(VOLUME_BLOCKS - 1)),
        ("zeroes without end", Impossible::BehindEnd, |h| h.extents[1].count = u32::MAX),
        ("void behind the end", Impossible::BehindEnd, |h| h.extents[2].block = BlockNo(VOLUME_BLOCKS)),
        ("durable before it was written", Impossible::Foresight, |h| h.durable_upto = h.seq),
        ("destaged before it was written", Impossible::Foresight, |h| h.clean_upto = h.seq),
        ("a log that begins behind it", Impossible::Tail, |h| h.tail = h.segment_seq + 1),
        ("a log that begins nowhere", Impossible::Tail, |h| h.tail = 0),
        ("no blocks", Impossible::Field("extent"), |h| h.extents[1].count = 0),
        ("blocks that no volume has", Impossible::Field("extent"), |h| h.extents[1].block = BlockNo(1 << 40)),
        ("a number that none reaches", Impossible::Field("durable_upto"), |h| h.durable_upto = Seq(u64::MAX)),
    ];
    assert!(end * 4096 < u64::from(u32::MAX) * 4096, "or zeroes without end would fit");
    for align in [512, 4096] {
        let w = log(align);
        let open = w.live.back().unwrap();
        // The last record with extents is the last but one, so that a later one proves it.
        let at = w.at(open, open.records[open.records.len() - 2]);
        for (name, what, forge) in cases {
            let mut image = w.bytes.clone();
            forge_record(&mut image, &w.layout(), at, forge);
            assert_ne!(image, w.bytes, "{name}");
            refused(name, &image, *what);
        }
    }
}

#[test]
fn progress_that_goes_back() {
    let mut w = log(512);
    w.clean_upto = 4;
    w.record(&[]);
    w.clean_upto = 3;
    w.record(&[]);
    refused("destaged", &w.bytes, Impossible::WentBack);
    let mut w = log(512);
    w.destage(2);
    w.record(&[]);
    let last = w.live.back().unwrap();
    let at = w.at(last, *last.records.last().unwrap());
    w.record(&[]);
    let (layout, tail) = (w.layout(), w.tail());
    forge_record(&mut w.bytes, &layout, at, |h| h.tail = tail + 1);
    refused("tail", &w.bytes, Impossible::WentBack);
}

#[test]
fn a_segment_of_more_blocks_than_one_can_hold() {
    let mut w = log(512);
    w.superblock.volume_bytes = 1 << 40;
    w.write_superblocks();
    let half = (SEGMENT_BLOCKS_MAX / 2 + 1) as u32;
    let zeroes = [(0, half, ExtentKind::Zero)];
    let one = w.clone();
    let w = {
        w.record(&zeroes);
        w
    };
    assert!(recover(&w.bytes).unwrap().is_ok(), "so many one can");
    let mut twice = w;
    twice.record(&zeroes);
    refused("by two records", &twice.bytes, Impossible::TooManyBlocks);
    let mut over = one;
    over.record(&[zeroes[0], zeroes[0]]);
    refused("by extents that overlap", &over.bytes, Impossible::TooManyBlocks);
    // By what a summary says.
    twice.seal();
    refused("sealed", &twice.bytes, Impossible::TooManyBlocks);
}

#[test]
fn headers_and_summaries() {
    for align in [512, 4096] {
        let w = log(align);
        let (first, layout) = (&w.live[0], w.layout());
        let mut image = w.bytes.clone();
        let header = w.at(first, 0);
        image[header + 48..header + 56].fill(0);
        mend(&mut image[header..], 8, align as usize);
        refused("no first record", &image, Impossible::Field("segment_seq"));

        let trailer = w.at(first, SEGMENT_BYTES) - align as usize;
        let forged = |forge: &dyn Fn(&mut [u8], &mut [u8])| {
            let mut image = w.bytes.clone();
            forge_trailer(&mut image, &layout, trailer, forge);
            assert_ne!(image, w.bytes);
            image
        };
        let image = forged(&|_, trailer| trailer[64..72].fill(0x11));
        refused("destaged before it was written", &image, Impossible::Foresight);
        let image = forged(&|_, trailer| trailer[72..80].copy_from_slice(&99u64.to_le_bytes()));
        refused("a log that begins behind it", &image, Impossible::Tail);
        let image = forged(&|_, trailer| trailer[12..16].copy_from_slice(&u32::MAX.to_le_bytes()));
        refused("a body of any length", &image, Impossible::Field("body length"));
        // The first entry: offset, length of the header, numbers; then its extents.
        let image = forged(&|body, _| body[4..8].fill(0));
        refused("a record without a header", &image, Impossible::Field("header length"));
        let image = forged(&|body, _| body[16..24].copy_from_slice(&VOLUME_BLOCKS.to_le_bytes()));
        let report = check(&image).unwrap();
        assert_eq!(report.findings[0].kind, FindingKind::SummaryDisagrees, "{report}");
        let refusal = recover(&image).unwrap().unwrap_err();
        let behind_end = matches!(refusal, RecoveryError::Impossible { what: Impossible::BehindEnd, .. });
        assert!(behind_end, "{refusal}");
    }
}
