//! Memory that a process has.

/// Resident memory in bytes, as `/proc/PID/status` says; 0 if it does not.
pub fn bytes_in(status: &str) -> u64 {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}
