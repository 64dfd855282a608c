//! CPU time of processes.

use std::fs;
use std::time::Duration;

/// User and system time that process `pid` with all its threads has used so far; zero if it is gone.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return Duration::ZERO };
    // Fields 14 and 15, counted behind the name in parentheses, which may hold anything.
    let Some((_, rest)) = stat.rsplit_once(')') else { return Duration::ZERO };
    let ticks: u64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64)
}
