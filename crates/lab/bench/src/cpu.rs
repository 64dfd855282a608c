//! CPU time of processes and threads.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// User and system time that process `pid` with all its threads has used so far; zero if it is gone.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let ticks = fs::read_to_string(format!("/proc/{pid}/stat")).map_or(0, |stat| ticks_in(&stat));
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64)
}

/// User and system time that the calling thread has used so far, in steps of a nanosecond.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time in clock ticks: fields 14 and 15, counted behind the name in parentheses, which may hold anything.
pub(crate) fn ticks_in(stat: &str) -> u64 {
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0 };
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    ticks.fold(0, u64::saturating_add)
}
