//! A volume without a cache is the backing as it is.

use forebay_block::{Allocation, BlockService, ErrorKind, Op};
use forebay_host::{Ending, Volume, VolumeConfig};

use crate::client::Client;
use crate::place::{MIB, Place, sparse};
use crate::stamp::{divide, work};

fn plain(bytes: u64) -> (Place, Volume) {
    let place = Place::new();
    sparse(&place.path("backing"), bytes);
    let volume = Volume::open(place.plain_config()).unwrap();
    (place, volume)
}

#[test]
fn what_is_written_is_read_and_is_in_the_file() {
    let (place, volume) = plain(4 * MIB);
    let client = Client(volume.handle());
    assert_eq!(client.0.info().size_bytes, 4 * MIB);
    let mut territories = divide(4 * MIB, 4, 1);
    work(&client, &mut territories, 300);
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
        assert_eq!(territory.bad, 0);
    }
    let status = client.0.status();
    assert!(status.reads > 0 && status.writes > 0 && status.flushes > 0 && status.bytes_to_backing > 0);
    volume.end(Ending::Keep).unwrap();
    let image = place.content("backing");
    territories.iter_mut().for_each(|t| t.check_image(&image));
}

#[test]
fn bad_requests_are_refused_and_so_are_late_ones() {
    let (_place, volume) = plain(MIB);
    let client = Client(volume.handle());
    for op in [
        Op::Read { offset: MIB, len: 512 },
        Op::Read { offset: 1, len: 512 },
        Op::Read { offset: 0, len: 1 << 30 },
        Op::Zero { offset: 0, len: 2 * MIB, unmap: true, fua: false },
    ] {
        assert_eq!(client.run(op).unwrap_err().kind, ErrorKind::Invalid);
    }
    volume.end(Ending::Keep).unwrap();
    assert_eq!(client.write(0, &[1; 512]).unwrap_err().kind, ErrorKind::Shutdown);
    assert!(client.0.destage().is_err());
    let _ = client.0.status();
}

#[test]
fn holes_are_told_from_data() {
    let (_place, volume) = plain(4 * MIB);
    let client = Client(volume.handle());
    client.write(MIB, &vec![1; 1 << 20]).unwrap();
    let extents: Vec<_> = client.status(0, 4 * MIB).iter().map(|e| (e.len, e.allocation)).collect();
    let expected = [(MIB, Allocation::Hole), (MIB, Allocation::Data), (2 * MIB, Allocation::Hole)];
    assert_eq!(extents, expected);
    let middle = client.status(MIB + 512, 512);
    assert_eq!((middle.len(), middle[0].len, middle[0].allocation), (1, 512, Allocation::Data));
}

#[test]
fn a_missing_backing_is_not_made() {
    let place = Place::new();
    let config = VolumeConfig::new("absent", None, place.spec("backing"));
    assert!(Volume::open(config).is_err());
    assert!(!place.path("backing").exists());
}
