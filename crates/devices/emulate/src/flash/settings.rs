//! Parameters of an SSD.

use crate::parameter::Parameter;

/// Parameters of an SSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashSettings {
    /// Dies that work at the same time.
    pub dies: u64,
    /// Median latency of a random read of 4 KiB at depth 1, in nanoseconds.
    pub read_latency_ns: u64,
    /// The 99th percentile of that latency.
    pub read_latency_ns_p99: u64,
    /// Latency of a sequential read of 4 KiB, which the drive has read ahead.
    pub read_ahead_latency_ns: u64,
    /// Median latency of a write of 4 KiB at depth 1 that finds room in the buffer.
    pub write_latency_ns: u64,
    /// Commands a second that the controller takes: random reads of 4 KiB at a large depth.
    pub iops: u64,
    /// Sustained random writes of 4 KiB a second, when the buffer is full.
    pub write_iops: u64,
    /// Bytes a second of sequential reads.
    pub read_rate_bytes: u64,
    /// Sustained bytes a second of sequential writes, when the buffer is full.
    pub write_rate_bytes: u64,
    /// Bytes a second of the link, each way.
    pub link_rate_bytes: u64,
    /// The buffer for writes in bytes.
    pub buffer_bytes: u64,
    /// Capacitors keep the buffer through a power cut (1), so that a flush need not empty it; or not (0).
    pub power_loss_protection: u64,
    /// Time of a flush, after emptying the buffer if it has to, in nanoseconds.
    pub flush_ns: u64,
    /// Longest that a read waits for a die to suspend its programming, in nanoseconds.
    pub suspend_ns: u64,
    /// Start of the random numbers.
    pub seed: u64,
}

impl FlashSettings {
    /// Intel SSD DC S4500 (product specification): random 4 KiB reads 72,000 and writes 33,000 a second at depth 32,
    /// sequential 500 and 490 MB/s, typical latency sequential 36 us, random 110 us (read) and 52 us (write), reads
    /// within 300 us at 99.9 % (from which the 99th percentile of a log-normal follows), power-loss protection. Link:
    /// SATA 6 Gb/s after 8b/10b and framing. Dies, buffer, flush and suspend: typical, from no data sheet.
    pub(crate) const SATA: Self = Self {
        dies: 32,
        read_latency_ns: 110_000,
        read_latency_ns_p99: 232_000,
        read_ahead_latency_ns: 36_000,
        write_latency_ns: 52_000,
        iops: 72_000,
        write_iops: 33_000,
        read_rate_bytes: 500_000_000,
        write_rate_bytes: 490_000_000,
        link_rate_bytes: 550_000_000,
        buffer_bytes: 64 << 20,
        power_loss_protection: 1,
        flush_ns: 50_000,
        suspend_ns: 150_000,
        seed: 1,
    };

    /// Intel SSD DC P4500 1 TB (Lenovo product guide): random 4 KiB reads 279,500 and writes 30,500 a second,
    /// sequential 3.2 and 0.6 GB/s, typical latency sequential read 10 us, random 85 us (read) and 20 us (write).
    /// The tail is that of its successor in AnandTech's test of enterprise drives (99.99 % within 2.5 times the mean).
    /// Link: PCIe 3.0 x4 after 128b/130b and packet headers. Dies, buffer, flush and suspend: typical, from no data
    /// sheet.
    pub(crate) const NVME: Self = Self {
        dies: 32,
        read_latency_ns: 85_000,
        read_latency_ns_p99: 150_000,
        read_ahead_latency_ns: 10_000,
        write_latency_ns: 20_000,
        iops: 279_500,
        write_iops: 30_500,
        read_rate_bytes: 3_200_000_000,
        write_rate_bytes: 600_000_000,
        link_rate_bytes: 3_500_000_000,
        buffer_bytes: 128 << 20,
        power_loss_protection: 1,
        flush_ns: 15_000,
        suspend_ns: 150_000,
        seed: 1,
    };

    pub(crate) fn slots(&mut self) -> Vec<(Parameter, &mut u64)> {
        const IOPS_MAX: u64 = 1_000_000_000;
        vec![
            (Parameter::count("dies", 1, 4096, "dies that work at the same time"), &mut self.dies),
            (
                Parameter::time("read-latency", "median of a random 4 KiB read at depth 1"),
                &mut self.read_latency_ns,
            ),
            (Parameter::time("read-latency-p99", "99th percentile of that"), &mut self.read_latency_ns_p99),
            (
                Parameter::time("read-ahead-latency", "a sequential 4 KiB read at depth 1"),
                &mut self.read_ahead_latency_ns,
            ),
            (
                Parameter::time("write-latency", "median of a 4 KiB write that finds room in the buffer"),
                &mut self.write_latency_ns,
            ),
            (Parameter::count("iops", 1, IOPS_MAX, "commands a second of the controller"), &mut self.iops),
            (
                Parameter::count("write-iops", 1, IOPS_MAX, "sustained random 4 KiB writes a second"),
                &mut self.write_iops,
            ),
            (Parameter::rate("read-rate", "sequential reads"), &mut self.read_rate_bytes),
            (Parameter::rate("write-rate", "sustained sequential writes"), &mut self.write_rate_bytes),
            (Parameter::rate("link-rate", "the link to the host, each way"), &mut self.link_rate_bytes),
            (Parameter::bytes("buffer", 4096, "DRAM buffer for writes"), &mut self.buffer_bytes),
            (Parameter::switch("plp", "the buffer survives a power cut"), &mut self.power_loss_protection),
            (
                Parameter::time("flush", "a flush, once the buffer is empty if it has to be"),
                &mut self.flush_ns,
            ),
            (
                Parameter::time("suspend", "longest wait of a read for a die that programs"),
                &mut self.suspend_ns,
            ),
            (Parameter::count("seed", 0, u64::MAX, "start of the random numbers"), &mut self.seed),
        ]
    }
}
