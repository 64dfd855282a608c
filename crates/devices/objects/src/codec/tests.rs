//! Samples of all kinds of objects: each is read as it was written, and any flipped bit is found.

use super::*;
use crate::face::{Claim, Named, Position, Writer};

const VOLUME: [u8; 16] = [0xA1; 16];
const STAMP: Stamp = Stamp { nonce: [0xB2; 16], time_ns: 1_700_000_000_000_000_001 };

const fn at(epoch: u64, seq: u64) -> Position {
    Position { epoch, seq }
}

const fn identity(epoch: u64, seq: u64) -> Identity {
    Identity { volume: VOLUME, at: at(epoch, seq) }
}

fn log() -> (LogHead, Vec<u8>) {
    let mut head = LogHead::new(identity(3, 7), STAMP, 4096);
    head.commit = true;
    head.before = at(2, 9);
    head.extents = vec![
        Extent { start: 8, sectors: 9, kind: ExtentKind::Data },
        Extent { start: 100, sectors: 3000, kind: ExtentKind::Zero },
        Extent { start: 4093, sectors: 3, kind: ExtentKind::Moved(at(1, 5), 17) },
    ];
    head.notes = vec![Note::Named("now".to_owned(), at(3, 6)), Note::Unnamed("then".to_owned(), at(1, 2))];
    let data = (0..12 * 512_u32).map(|n| (n / 7) as u8).collect();
    (head, data)
}

fn claim() -> Claim {
    let writer = Writer { nonce: STAMP.nonce, host: "db1".to_owned() };
    Claim { epoch: 3, writer, time_ns: STAMP.time_ns, takeover: true }
}

fn manifest() -> Manifest {
    Manifest {
        identity: identity(3, 7),
        stamp: STAMP,
        volume_sectors: 4096,
        as_of_ns: 12,
        object_parts: 1,
        extent_parts: 2,
        ended: vec![Ended { epoch: 1, count: 4, fence: 6 }, Ended { epoch: 2, count: 9, fence: 9 }],
        named: vec![Named { name: "then".to_owned(), at: at(1, 2) }],
    }
}

fn objects() -> ObjectPart {
    let entry = |seq| ObjectEntry { at: at(3, seq), data_at: 144, sectors: 16 };
    ObjectPart(vec![entry(4), entry(6)])
}

fn extents() -> ExtentPart {
    let extent = |start, object| StoredExtent { start, sectors: 8, pos: 3, object };
    ExtentPart(vec![(0, vec![extent(0, 1), extent(8, 0)]), (7, vec![extent(8184, 1)])])
}

fn volume() -> VolumeMark {
    VolumeMark { volume: VOLUME, sectors: 4096, stamp: STAMP }
}

fn fence() -> Fence {
    Fence { identity: identity(2, 9), stamp: STAMP, by: 3 }
}

fn pointer() -> Pointer {
    Pointer { identity: identity(3, 7), stamp: STAMP, name: "then".to_owned() }
}

/// One object of each kind, as bytes.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let (head, data) = log();
    vec![
        ("volume", volume().encode()),
        ("claim", claim_bytes(VOLUME, &claim())),
        ("log", head.encode(&data)),
        ("fence", fence().encode()),
        ("manifest", manifest().encode()),
        ("objects", objects().encode(identity(3, 7), STAMP, 0)),
        ("extents", extents().encode(identity(3, 7), STAMP, 2)),
        ("pointer", pointer().encode()),
    ]
}

/// The bytes of the format: what this release has written once, a later one reads. They are seeds of the fuzz target `object`, too.
#[test]
fn what_is_written_is_what_was_written_before() {
    let files: [(&str, &[u8]); 8] = [
        ("volume", include_bytes!("../../../../../fuzz/corpus/object/seed-volume")),
        ("claim", include_bytes!("../../../../../fuzz/corpus/object/seed-claim")),
        ("log", include_bytes!("../../../../../fuzz/corpus/object/seed-log")),
        ("fence", include_bytes!("../../../../../fuzz/corpus/object/seed-fence")),
        ("manifest", include_bytes!("../../../../../fuzz/corpus/object/seed-manifest")),
        ("objects", include_bytes!("../../../../../fuzz/corpus/object/seed-objects")),
        ("extents", include_bytes!("../../../../../fuzz/corpus/object/seed-extents")),
        ("pointer", include_bytes!("../../../../../fuzz/corpus/object/seed-pointer")),
    ];
    for ((name, bytes), (file, before)) in samples().iter().zip(files) {
        assert_eq!(*name, file);
        assert!(bytes == before, "{name}");
    }
}

/// Whether an object is read as the sample of this name.
fn is_read(name: &str, bytes: &[u8]) -> Result<bool, Damage> {
    let size = bytes.len() as u64;
    Ok(match name {
        "volume" => VolumeMark::decode(bytes)? == volume(),
        "claim" => claim_of(bytes, VOLUME, 3)? == claim(),
        "log" => LogHead::decode(bytes, size, &identity(3, 7))? == log().0,
        "fence" => Fence::decode(bytes, &identity(2, 9))? == fence(),
        "manifest" => Manifest::decode(bytes, &identity(3, 7))? == manifest(),
        "objects" => ObjectPart::decode(bytes, &identity(3, 7), 0)? == objects(),
        "extents" => ExtentPart::decode(bytes, &identity(3, 7), 2)? == extents(),
        _ => Pointer::decode(bytes, &identity(3, 7))? == pointer(),
    })
}

#[test]
fn every_kind_is_read_as_it_was_written_and_every_flipped_bit_is_found() {
    for (name, bytes) in samples() {
        assert_eq!(is_read(name, &bytes), Ok(true), "{name}");
        let head = head_bytes(&bytes).unwrap();
        for bit in 0..head * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(is_read(name, &bad).is_err(), "{name}: bit {bit}");
        }
        assert!(is_read(name, &bytes[..head - 1]).is_err());
    }
}

#[test]
fn an_object_under_another_name_or_of_another_kind_is_found() {
    let (head, data) = log();
    let bytes = head.encode(&data);
    let decode = |identity: &Identity| LogHead::decode(&bytes, bytes.len() as u64, identity);
    let other = Identity { volume: [0; 16], ..identity(3, 7) };
    for wrong in [identity(3, 8), identity(2, 7), other] {
        assert_eq!(decode(&wrong), Err(Damage::Foreign));
    }
    assert_eq!(Fence::decode(&bytes, &identity(3, 7)), Err(Damage::Kind));
    assert_eq!(LogHead::decode(&bytes, bytes.len() as u64 - 1, &identity(3, 7)), Err(Damage::Truncated));
    let part = objects().encode(identity(3, 7), STAMP, 1);
    assert_eq!(ObjectPart::decode(&part, &identity(3, 7), 0), Err(Damage::Foreign));
}

#[test]
fn any_range_of_a_payload_proves_itself() {
    let (head, data) = log();
    let bytes = head.encode(&data);
    let payload = &bytes[head_bytes(&bytes).unwrap()..];
    assert_eq!(payload.len() as u64, payload_bytes(12));
    for pos in 0..12 {
        for sectors in 1..=12 - pos {
            let span = Span::of(12, pos, sectors);
            let part = &payload[span.from() as usize..(span.from() + span.len()) as usize];
            let read = read_pieces(&identity(3, 7), span, part).unwrap();
            let from = span.offset_of(pos);
            assert!(
                read[from..from + sectors as usize * 512]
                    == data[pos as usize * 512..][..sectors as usize * 512]
            );
            // Another object's piece, another piece of this one, and one that is cut short.
            assert_eq!(read_pieces(&identity(3, 8), span, part), Err(span.first));
            let moved = Span { first: span.first + 1, ..span };
            assert_eq!(read_pieces(&identity(3, 7), moved, part), Err(span.first + 1));
            assert!(read_pieces(&identity(3, 7), span, &part[..part.len() - 1]).is_err());
        }
    }
    for bit in 0..payload.len() * 8 {
        let mut bad = payload.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        let piece = (bit / 8 / 4100) as u32;
        assert_eq!(read_pieces(&identity(3, 7), Span::of(12, 0, 12), &bad), Err(piece));
    }
}

#[test]
fn a_name_of_a_host_is_cut_at_a_character() {
    let mut claim = claim();
    claim.writer.host = format!("{}\u{20ac}", "x".repeat(254));
    let read = claim_of(&claim_bytes(VOLUME, &claim), VOLUME, 3).unwrap();
    assert_eq!(read.writer.host, "x".repeat(254));
}

#[test]
fn the_header_lies_as_the_document_says() {
    let bytes = fence().encode();
    assert_eq!(bytes.len(), 128);
    assert_eq!(&bytes[..8], b"FBOBJECT");
    assert_eq!(bytes[8..12], [0x02, 0xEC, 0x7C, 0xC6]);
    assert_eq!(bytes[12..16], [1, 0, 4, 0]);
    assert_eq!((&bytes[16..32], &bytes[32..48]), (&VOLUME[..], &STAMP.nonce[..]));
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(
        [48, 56, 64, 72, 80, 88, 96, 104, 112, 120].map(number),
        [2, 9, STAMP.time_ns, 0, 0, 0, 3, 0, 0, 0]
    );
}
