//! Entry points that take any bytes for a record: the fuzz targets of `fuzz/`, which includes this file, and of the tests
//! beside it. Each must return: no panic, no overflow, no memory that a damaged field asks for.

use std::io::Cursor;

use crc_fast::{CrcAlgorithm, checksum};
use forebay_record::{Action, Cause, Crash, Disk, Fate, Reader, Role, SECTOR_BYTES};

const HEAD_BYTES: usize = 64;
/// Devices beyond this size are not rebuilt: they take memory, as they should.
const DEVICE_BYTES_MAX: u64 = 1 << 20;

/// Random bytes never have a right checksum, so the record is read as it is, and then with all checksums made right.
pub fn recording(data: &[u8]) {
    read(data);
    let mut bytes = data.to_vec();
    mend(&mut bytes);
    read(&bytes);
}

fn crc32c(bytes: &[u8]) -> [u8; 4] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Makes the checksums right, as far as the lengths of the entries lead to further ones.
fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while bytes.len() - at >= HEAD_BYTES {
        let end = at + HEAD_BYTES;
        if at > 0 {
            let len = u32::from_le_bytes([bytes[at + 48], bytes[at + 49], bytes[at + 50], bytes[at + 51]]);
            let end = end.saturating_add(len as usize).min(bytes.len());
            let crc = crc32c(&bytes[at + HEAD_BYTES..end]);
            bytes[at + 52..at + 56].copy_from_slice(&crc);
            let crc = crc32c(&bytes[at..at + 60]);
            bytes[at + 60..at + HEAD_BYTES].copy_from_slice(&crc);
            at = end;
        } else {
            let crc = crc32c(&bytes[..60]);
            bytes[60..HEAD_BYTES].copy_from_slice(&crc);
            at = end;
        }
    }
}

/// Reads all entries, counts them again without their data, and follows each device as far as it makes sense.
fn read(bytes: &[u8]) {
    let len = bytes.len() as u64;
    let open = || Reader::new(Cursor::new(bytes), len);
    let Ok(mut reader) = open() else { return };
    let mut disks = Role::ALL.map(|_| Disk::new(None).ok());
    let mut entries = 0;
    let end = loop {
        match reader.next_entry() {
            Ok(Some(entry)) => {
                entries += 1;
                assert_eq!(entry.number, entries, "entries have no gaps");
                let place = &mut disks[entry.role as usize];
                if is_small(&entry.action) && place.as_mut().is_some_and(|disk| disk.apply(entry).is_err()) {
                    *place = None;
                }
            }
            end => break end,
        }
    };
    if end.is_ok() {
        assert_eq!(open().and_then(Reader::count).ok(), Some(entries), "a record has one length");
    }
    disks.iter().flatten().for_each(crash);
}

fn is_small(action: &Action) -> bool {
    match action {
        Action::Open { size_bytes, .. } => *size_bytes <= DEVICE_BYTES_MAX,
        Action::Write { offset, .. } => *offset <= DEVICE_BYTES_MAX,
        Action::Zero { .. } | Action::Flush { .. } | Action::End { .. } => true,
    }
}

/// Whatever a crash leaves lies on the device, and a run can go on from it.
fn crash(disk: &Disk) {
    let sectors = disk.size_bytes().div_ceil(SECTOR_BYTES as u64);
    for cause in [Cause::Kill, Cause::PowerCut] {
        for fate in Fate::ALL {
            let crash = Crash { cause, fate, seed: 7 };
            let survivor = disk.survivor(crash);
            assert!(
                survivor.unsettled().all(|(sector, data)| sector < sectors && data.len() == SECTOR_BYTES)
            );
            let next = disk.crashed(crash).expect("memory has no errors");
            assert_eq!(next.size_bytes(), disk.size_bytes());
            for sector in 0..sectors {
                let [mut left, mut begun] = [[1; SECTOR_BYTES]; 2];
                survivor.read(sector, &mut left).expect("memory has no errors");
                let kept = Crash { cause: Cause::Kill, fate: Fate::Kept, seed: 7 };
                next.survivor(kept).read(sector, &mut begun).expect("memory has no errors");
                assert_eq!(left, begun, "the next run begins with what the crash left");
            }
        }
    }
}
