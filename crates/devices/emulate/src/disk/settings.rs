//! Parameters of a disk.

use super::seek::SeekCurve;
use crate::parameter::{BadSetting, Parameter};

/// Parameters of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Size in bytes of the disk whose first part the device is; 0: the device is the whole disk, however small it is,
    /// so that its ends are a full stroke apart.
    pub size_bytes: u64,
    /// Revolutions a minute.
    pub rpm: u64,
    /// Tracks of a cylinder.
    pub heads: u64,
    /// Sustained bytes a second at the outer edge, where the device begins.
    pub rate_outer_bytes: u64,
    /// Sustained bytes a second at the inner edge, where it ends.
    pub rate_inner_bytes: u64,
    /// Time from one track to the next in a transfer, in nanoseconds; the tracks are skewed by as much.
    pub track_switch_ns: u64,
    /// Seek to the next cylinder for a read.
    pub seek_single_ns: u64,
    /// Mean seek between two random cylinders for a read.
    pub seek_average_ns: u64,
    /// Seek from edge to edge for a read.
    pub seek_full_ns: u64,
    /// How much longer a seek for a write settles.
    pub write_settle_ns: u64,
    /// Time that the controller needs for a command, before the head can set out.
    pub command_ns: u64,
    /// Bytes a second between the disk's buffer and the host.
    pub link_rate_bytes: u64,
    /// Commands that the disk knows at a time, and among which it chooses (NCQ); 1: in order of arrival.
    pub queue: u64,
    /// A command that has waited so long goes first.
    pub age_ns_max: u64,
    /// Whether writes complete in the volatile write cache (1), or on the medium (0).
    pub write_cache: u64,
    /// Size of the write cache in bytes.
    pub cache_bytes: u64,
    /// How far the disk reads on behind a read, while it has nothing else to do, in bytes.
    pub read_ahead_bytes: u64,
    /// Where the spindle stands at time 0.
    pub seed: u64,
}

impl DiskSettings {
    /// Seagate Savvio 10K.4 600 GB SAS (ST9600204SS; product manual 100539221 rev. A): 10,000 rpm, 6 heads, 72 to 135
    /// MB/s sustained, seeks 0.30 / 3.8 / 7.81 ms (read; single track, average, full stroke) and 4.4 ms (write,
    /// average), 0.2 ms of overhead, SAS 6 Gb/s. The track switch follows from the average of 677,557 bytes a track:
    /// at the mean rate of 103.5 MB/s a track takes 6.546 ms, of which the turn is 6 ms. Write cache in use, 16 MB
    /// buffer of which half takes writes, read-ahead, queue and age limit: typical, from no data sheet.
    pub(crate) const SAVVIO_10K4: Self = Self {
        size_bytes: 0,
        rpm: 10_000,
        heads: 6,
        rate_outer_bytes: 135_000_000,
        rate_inner_bytes: 72_000_000,
        track_switch_ns: 546_000,
        seek_single_ns: 300_000,
        seek_average_ns: 3_800_000,
        seek_full_ns: 7_810_000,
        write_settle_ns: 600_000,
        command_ns: 200_000,
        link_rate_bytes: 600_000_000,
        queue: 32,
        age_ns_max: 500_000_000,
        write_cache: 1,
        cache_bytes: 8 << 20,
        read_ahead_bytes: 1 << 20,
        seed: 1,
    };

    /// Two drives of one maker and time. Seagate Constellation ES.3 4 TB SAS (product manual rev. C): 7,200 rpm, 10
    /// heads, 83 to 175 MB/s sustained; 400,000 MB on the 320,800 tracks of a surface, from which the track switch
    /// follows as above. Its seek times are not in the pages at hand; they are those of the Seagate Constellation SAS
    /// (ST9500430SS; product manual rev. E): 0.5 / 8.0 / 17.35 ms (read) and 8.4 ms (write, average), 0.2 ms of overhead.
    /// Of the 128 MB buffer half takes writes; the rest as for the other disk.
    pub(crate) const CONSTELLATION_ES3: Self = Self {
        rpm: 7_200,
        heads: 10,
        rate_outer_bytes: 175_000_000,
        rate_inner_bytes: 83_000_000,
        track_switch_ns: 1_333_000,
        seek_single_ns: 500_000,
        seek_average_ns: 8_000_000,
        seek_full_ns: 17_350_000,
        write_settle_ns: 400_000,
        cache_bytes: 64 << 20,
        ..Self::SAVVIO_10K4
    };

    pub(crate) fn slots(&mut self) -> Vec<(Parameter, &mut u64)> {
        vec![
            (
                Parameter::bytes(
                    "size",
                    0,
                    "the disk whose first part the device is; 0: it is the whole disk",
                ),
                &mut self.size_bytes,
            ),
            (Parameter::count("rpm", 60, 1_000_000, "revolutions a minute"), &mut self.rpm),
            (Parameter::count("heads", 1, 1024, "tracks of a cylinder"), &mut self.heads),
            (Parameter::rate("rate-outer", "sustained, where the device begins"), &mut self.rate_outer_bytes),
            (Parameter::rate("rate-inner", "sustained, where the device ends"), &mut self.rate_inner_bytes),
            (Parameter::time("track-switch", "from track to track in a transfer"), &mut self.track_switch_ns),
            (Parameter::time("seek-single", "to the next cylinder"), &mut self.seek_single_ns),
            (Parameter::time("seek-average", "between two random cylinders"), &mut self.seek_average_ns),
            (Parameter::time("seek-full", "from edge to edge"), &mut self.seek_full_ns),
            (
                Parameter::time("write-settle", "how much longer a seek for a write takes"),
                &mut self.write_settle_ns,
            ),
            (Parameter::time("command", "the controller's time for a command"), &mut self.command_ns),
            (Parameter::rate("link-rate", "between buffer and host"), &mut self.link_rate_bytes),
            (Parameter::count("queue", 1, 256, "commands to choose among (NCQ)"), &mut self.queue),
            (
                Parameter::time("age-max", "a command that has waited so long goes first"),
                &mut self.age_ns_max,
            ),
            (Parameter::switch("write-cache", "writes complete in a volatile cache"), &mut self.write_cache),
            (Parameter::bytes("cache", 4096, "size of that cache"), &mut self.cache_bytes),
            (
                Parameter::bytes("read-ahead", 0, "how far the disk reads on when idle"),
                &mut self.read_ahead_bytes,
            ),
            (Parameter::count("seed", 0, u64::MAX, "where the spindle stands at time 0"), &mut self.seed),
        ]
    }

    /// Time of a revolution in nanoseconds.
    pub(crate) fn turn_ns(&self) -> u64 {
        60_000_000_000 / self.rpm
    }

    /// Size of the disk whose first part a device is.
    pub(crate) fn disk_bytes(&self, device_bytes: u64) -> Result<u64, BadSetting> {
        match self.size_bytes {
            0 => Ok(device_bytes),
            size if size < device_bytes => Err(BadSetting::new(format!(
                "size={size} is smaller than the device, which has {device_bytes} bytes"
            ))),
            size => Ok(size),
        }
    }

    /// How long the arm takes to go how far.
    pub(crate) fn curve(&self) -> Result<SeekCurve, BadSetting> {
        SeekCurve::new(self.seek_single_ns, self.seek_average_ns, self.seek_full_ns).ok_or_else(|| {
            BadSetting::new(
                "no arm seeks like that: seek-average lies between a third and 11 fifteenths of the way from \
                 seek-single to seek-full",
            )
        })
    }

    /// Whether the parameters go together.
    pub(crate) fn check(&self) -> Result<(), BadSetting> {
        if self.rate_inner_bytes > self.rate_outer_bytes {
            return Err(BadSetting::new("rate-inner is greater than rate-outer"));
        }
        self.curve().map(drop)
    }
}
