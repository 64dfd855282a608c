//! CPU time of processes and threads.

use std::fs;
use std::time::Duration;

use nix::unistd::Pid;
use rustix::time::{ClockId, clock_gettime};

use crate::BenchError;

/// User and system time that process `pid` with all its threads has used so far; zero if it is gone.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let ticks = fs::read_to_string(format!("/proc/{pid}/stat")).map_or(0, |stat| ticks_in(&stat));
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64)
}

/// User and system time that process `pid` with all its threads has used so far, in steps of a nanosecond.
///
/// # Errors
/// [`BenchError::System`] if it is gone.
pub(crate) fn precise_cpu_time(pid: u32) -> Result<Duration, BenchError> {
    let clock = nix::time::ClockId::pid_cpu_clock_id(Pid::from_raw(pid.cast_signed()));
    let time = clock.and_then(nix::time::clock_gettime);
    time.map(Duration::from).map_err(|e| BenchError::system("read the processor time of a process", e.into()))
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_time_of_a_process_has_that_of_threads_that_are_gone() {
        let own = std::process::id();
        let before = precise_cpu_time(own).unwrap();
        let work = || {
            let begun = thread_cpu_time();
            while thread_cpu_time() < begun + Duration::from_millis(3) {}
        };
        thread::spawn(work).join().unwrap();
        assert!(precise_cpu_time(own).unwrap() >= before + Duration::from_millis(3));
        // Linux numbers processes below this.
        assert!(precise_cpu_time(1 << 22).is_err(), "there is no such process");
    }
}
