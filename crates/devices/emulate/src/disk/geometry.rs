//! Where bytes lie on a disk: zones from the outer edge to the inner one, tracks, and the angle on a track.

use super::settings::DiskSettings;
use crate::memory::TRANSFER_NS_MAX;

/// Zones with equally many cylinders, of which each has tracks of one size (a Deskstar 7K500 has as many).
const ZONES: u64 = 30;
/// Bytes and lengths of tracks are multiples of a sector.
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug)]
struct Zone {
    start: u64,
    end: u64,
    track_bytes: u64,
    tracks: u64,
    /// Tracks of the zones before.
    first_track: u64,
}

/// Where a byte lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    /// Number of the track from the outer edge, counting those of all surfaces.
    pub(crate) track: u64,
    /// Number of the cylinder, comparable within a disk only.
    pub(crate) cylinder: u64,
    /// Where the cylinder lies: 0 is the outer edge, 1 the inner one.
    pub(crate) radius: f64,
    /// When the byte passes the head in each turn, in nanoseconds after the index.
    pub(crate) angle_ns: u64,
    track_left_bytes: u64,
    track_bytes: u64,
    zone_left_bytes: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    zones: Vec<Zone>,
    heads: u64,
    turn_ns: u64,
    switch_ns: u64,
}

impl Geometry {
    pub(crate) fn new(settings: &DiskSettings, disk_bytes: u64) -> Self {
        let (turn_ns, switch_ns) = (settings.turn_ns(), settings.track_switch_ns);
        // The sustained rate covers the turn and the way to the next track.
        let track_bytes: Vec<u64> = (0..ZONES)
            .map(|z| {
                let (outer, inner) = (settings.rate_outer_bytes, settings.rate_inner_bytes);
                let rate = outer - (outer - inner) * z / (ZONES - 1);
                let bytes = u128::from(rate) * u128::from(turn_ns + switch_ns) / 1_000_000_000;
                ((bytes as u64) / SECTOR_BYTES * SECTOR_BYTES).max(SECTOR_BYTES)
            })
            .collect();
        let total: u64 = track_bytes.iter().sum();
        let (mut zones, mut start, mut cumulated, mut first_track) = (Vec::new(), 0, 0, 0);
        for bytes in track_bytes {
            cumulated += bytes;
            let end = (u128::from(disk_bytes) * u128::from(cumulated) / u128::from(total)) as u64;
            let end = if cumulated == total { disk_bytes } else { end / SECTOR_BYTES * SECTOR_BYTES };
            let tracks = (end - start).div_ceil(bytes);
            if tracks > 0 {
                zones.push(Zone { start, end, track_bytes: bytes, tracks, first_track });
            }
            (start, first_track) = (end, first_track + tracks);
        }
        Self { zones, heads: settings.heads, turn_ns, switch_ns }
    }

    /// Where a byte lies; the end of the disk lies where its last byte does.
    pub(crate) fn place(&self, offset: u64) -> Place {
        let at = self.zones.partition_point(|z| z.end <= offset);
        let Some(zone) = self.zones.get(at).or(self.zones.last()) else {
            return Place {
                track: 0,
                cylinder: 0,
                radius: 0.0,
                angle_ns: 0,
                track_left_bytes: 1,
                track_bytes: 1,
                zone_left_bytes: 1,
            };
        };
        let within = offset.min(zone.end - 1) - zone.start;
        let (index, in_track) = (within / zone.track_bytes, within % zone.track_bytes);
        let track = zone.first_track + index;
        let (cylinder, cylinders) = (index / self.heads, zone.tracks.div_ceil(self.heads));
        let zone_number = at.min(self.zones.len() - 1) as f64;
        let skew_ns = u128::from(track) * u128::from(self.switch_ns);
        let turned_ns = u128::from(in_track) * u128::from(self.turn_ns) / u128::from(zone.track_bytes);
        Place {
            track,
            cylinder: (zone.first_track + index) / self.heads,
            radius: (zone_number + cylinder as f64 / cylinders as f64) / self.zones.len() as f64,
            angle_ns: ((skew_ns + turned_ns) % u128::from(self.turn_ns)) as u64,
            track_left_bytes: (zone.track_bytes - in_track).min(zone.end - zone.start - within),
            track_bytes: zone.track_bytes,
            zone_left_bytes: zone.end - zone.start - within,
        }
    }

    /// Nanoseconds that the head takes over a range once it is over its first byte.
    pub(crate) fn transfer_ns(&self, mut offset: u64, mut len: u64) -> u64 {
        let mut ns = 0u64;
        while len > 0 {
            let place = self.place(offset);
            // Whole tracks of a zone at once, but for the last, behind which there may be no other.
            let whole = (len.min(place.zone_left_bytes) / place.track_bytes).saturating_sub(1);
            if place.track_left_bytes == place.track_bytes && whole > 0 {
                ns = ns.saturating_add(whole.saturating_mul(self.turn_ns + self.switch_ns));
                (offset, len) = (offset + whole * place.track_bytes, len - whole * place.track_bytes);
                continue;
            }
            let part = place.track_left_bytes.min(len);
            ns = ns.saturating_add(self.turning_ns(part, place.track_bytes));
            (offset, len) = (offset + part, len - part);
            if len > 0 {
                ns = ns.saturating_add(self.switch_ns);
            }
        }
        ns.min(TRANSFER_NS_MAX)
    }

    /// How far the head comes from `offset` in so many nanoseconds, at most to `limit`.
    pub(crate) fn reach(&self, mut offset: u64, mut ns: u64, limit: u64) -> u64 {
        while offset < limit {
            let place = self.place(offset);
            let part = place.track_left_bytes.min(limit - offset);
            let part_ns = self.turning_ns(part, place.track_bytes);
            if part_ns > ns {
                let bytes = u128::from(ns) * u128::from(place.track_bytes) / u128::from(self.turn_ns);
                return offset + bytes as u64 / SECTOR_BYTES * SECTOR_BYTES;
            }
            offset += part;
            ns = (ns - part_ns).saturating_sub(self.switch_ns);
        }
        limit
    }

    fn turning_ns(&self, bytes: u64, track_bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.turn_ns)).div_ceil(u128::from(track_bytes)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERA: u64 = 1_000_000_000_000;

    #[test]
    fn the_published_tracks_come_out() {
        let disk = Geometry::new(&DiskSettings::SAVVIO_10K4, 600_000_000_000);
        let tracks: u64 = disk.zones.iter().map(|z| z.tracks).sum();
        // 147,620 on each of six surfaces.
        assert!((tracks as f64 / (6.0 * 147_620.0) - 1.0).abs() < 0.01, "{tracks}");
        let disk = Geometry::new(&DiskSettings::CONSTELLATION_ES3, 4 * TERA);
        let tracks: u64 = disk.zones.iter().map(|z| z.tracks).sum();
        assert!((tracks as f64 / (10.0 * 320_800.0) - 1.0).abs() < 0.01, "{tracks}");
    }

    #[test]
    fn every_byte_has_one_place_and_places_go_inwards() {
        for size in [512, 4096, 1 << 20, 64 << 20, 600_000_000_000] {
            let disk = Geometry::new(&DiskSettings::SAVVIO_10K4, size);
            let (mut last, mut at) = (disk.place(0), 0);
            while at < size {
                let place = disk.place(at);
                assert!(place.radius >= last.radius && place.track >= last.track && place.radius < 1.0);
                assert!(place.angle_ns < disk.turn_ns);
                last = place;
                at += (size / 1000).max(512) / 512 * 512;
            }
            assert_eq!(disk.place(size), disk.place(size));
        }
    }

    #[test]
    fn a_transfer_reaches_where_it_ends() {
        let disk = Geometry::new(&DiskSettings::SAVVIO_10K4, TERA);
        for (offset, len) in [
            (0, 512),
            (4096, 1 << 20),
            (TERA / 2, 100 << 20),
            (TERA - 8192, 8192),
            (512, TERA / 3 / 512 * 512),
        ] {
            let ns = disk.transfer_ns(offset, len);
            assert_eq!(disk.reach(offset, ns, TERA), offset + len, "{offset} {len}");
            assert!(disk.reach(offset, ns - ns / 10, TERA) < offset + len);
        }
        let rate = (1u64 << 30) as f64 * 1e9 / disk.transfer_ns(0, 1 << 30) as f64;
        assert!((rate / 135e6 - 1.0).abs() < 0.01, "{rate}");
    }

    #[test]
    fn skew_makes_the_next_track_come_just_in_time() {
        let disk = Geometry::new(&DiskSettings::SAVVIO_10K4, TERA);
        let (start, len) = (disk.place(0), disk.place(0).track_bytes);
        let next = disk.place(len);
        assert_eq!(next.track, start.track + 1);
        let arrives = (start.angle_ns + disk.transfer_ns(0, len) + disk.switch_ns) % disk.turn_ns;
        assert_eq!(arrives, next.angle_ns);
    }
}
