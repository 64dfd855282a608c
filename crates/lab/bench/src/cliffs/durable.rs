//! Durable writes to a volume on the disk of the directory, against what that disk and a round trip take.

use std::time::Duration;

use forebay_device::{Clock, DeviceSpec, Ring};

use crate::daemon::Daemon;
use crate::generator::{Generator, Kind, Load, OPERATION_BYTES, Timing};
use crate::hollow::Hollow;
use crate::load::{self, Shape};
use crate::report::median;
use crate::volume::{make_file, make_volume, open_device};
use crate::{BenchError, Options};

/// Writes under way.
const DEPTHS: [usize; 2] = [1, 16];
const SPAN_BYTES: u64 = 32 << 20;
const CACHE_BYTES: u64 = 512 << 20;
const BACKING_BYTES: u64 = 64 << 20;

/// Microseconds for each write, medians of the rounds: the reciprocal of writes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Durable {
    /// The disk itself, one and sixteen at a time.
    pub(crate) raw_us: [f64; 2],
    /// A volume over NBD.
    pub(crate) volume_us: [f64; 2],
    /// A server that does nothing, one at a time.
    pub(crate) round_trip_us: f64,
}

impl Durable {
    /// Durable writes a second, sixteen at a time, against those of the disk.
    pub(crate) fn depth_16_of_raw(&self) -> f64 {
        self.raw_us[1] / self.volume_us[1].max(f64::MIN_POSITIVE)
    }

    /// What one write at a time takes at the least, against what it takes: the disk's write, and a round trip.
    pub(crate) fn depth_1_of_limit(&self) -> f64 {
        (self.raw_us[0] + self.round_trip_us) / self.volume_us[0].max(f64::MIN_POSITIVE)
    }
}

/// Measures all of it in turn, for so many rounds.
pub(crate) fn durable(options: &Options, rounds: u32, time: Duration) -> Result<Durable, BenchError> {
    let dir = options.scratch.join("durable");
    let (cache, backing) = make_volume(&dir, "volume", CACHE_BYTES, BACKING_BYTES)?;
    let raw = dir.join("raw");
    make_file(&raw, SPAN_BYTES)?;
    let ring = Ring::new().map_err(|e| BenchError::system("set up io_uring", e))?;
    let clock = Clock::start();
    let mut raw = open_device(&raw, &ring)?;
    let (cache, backing) = (DeviceSpec::Path(cache), DeviceSpec::Path(backing));
    let daemon = Daemon::start(&[], &options.forebay, &dir, Some(&cache), &backing, false, &[])?;
    let mut volume = Generator::connect(&daemon.nbd, 0)?;
    let server = Hollow::start(&dir.join("hollow.sock"))?;
    let mut hollow = Generator::connect(&server.socket, 0)?;
    let over_nbd = |generator: &mut Generator, depth| {
        let load = Load { kind: Kind::Write, depth, span_bytes: SPAN_BYTES, fua: false };
        let timing = Timing { settle: time / 8, counted: time };
        generator.run(load, timing).map(|slice| 1e6 / slice.per_second().max(f64::MIN_POSITIVE))
    };
    let (mut raw_us, mut volume_us, mut round_trip_us) = ([vec![], vec![]], [vec![], vec![]], Vec::new());
    for _ in 0..rounds {
        for (n, depth) in DEPTHS.into_iter().enumerate() {
            options.go_on()?;
            let shape = Shape { name: "raw", bytes: OPERATION_BYTES, depth };
            let sample = load::raw(&ring, &clock, &mut *raw, shape, true, SPAN_BYTES, time)?;
            raw_us[n].push(1e6 / sample.per_second().max(f64::MIN_POSITIVE));
            volume_us[n].push(over_nbd(&mut volume, depth)?);
        }
        round_trip_us.push(over_nbd(&mut hollow, 1)?);
    }
    drop(hollow);
    server.end()?;
    Ok(Durable {
        raw_us: raw_us.map(median),
        volume_us: volume_us.map(median),
        round_trip_us: median(round_trip_us),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_one_write_at_a_time_is_the_disk_and_a_round_trip() {
        let durable = Durable { raw_us: [100.0, 18.0], volume_us: [168.0, 36.0], round_trip_us: 44.0 };
        assert_eq!(durable.depth_16_of_raw(), 0.5);
        assert!((durable.depth_1_of_limit() - 144.0 / 168.0).abs() < 1e-9);
    }
}
