//! TPC-C on PostgreSQL, as in the benchmark of admission, but with a checkpoint nearly all the time.

use std::rc::Rc;

use super::contender::Contender;
use super::shown::{Slice, Waits};
use super::{Bench, Load};
use crate::BenchError;
use crate::admission_postgresql::SCRIPTS;
use crate::postgresql::{self, PostgreSql, Running};

/// Files of the log, of 16 MB each: more than are written from one checkpoint to the next. They are there before it begins and used again, so that nobody
/// waits for zeroes.
const LOG_SEGMENTS: u32 = 80;
/// The same, of a quick run.
const LOG_SEGMENTS_QUICK: u32 = 6;

/// Buffers for 40% of the database. A checkpoint each 30 s, by time: one that comes more often makes backends log whole pages, which is no work of the
/// background. As in the versions of the paper's time, which are older than 9.6, half of the time between two is the target, and what a checkpoint writes
/// goes to the drive as the kernel pleases: most of it at once, in the end. No parallel workers, with which plans would differ from run to run.
fn configuration(warehouses: u32, log_segments: u32) -> String {
    let (buffers_mib, log_mib) = ((warehouses * 5).max(16), log_segments * 16);
    format!(
        "shared_buffers = {buffers_mib}MB\nmin_wal_size = {log_mib}MB\nmax_wal_size = {log_mib}MB\ncheckpoint_timeout = 30s\n\
         checkpoint_completion_target = 0.5\ncheckpoint_flush_after = 0\nbgwriter_flush_after = 0\nlog_checkpoints = on\n\
         max_parallel_workers_per_gather = 0\nlisten_addresses = ''\nmax_connections = 100\n"
    )
}

/// The database.
pub(crate) struct OrderEntry {
    database: PostgreSql,
}

impl OrderEntry {
    pub(crate) fn prepare(bench: &Bench<'_>) -> Result<Self, BenchError> {
        let warehouses = bench.plan.warehouses;
        let log_segments = if bench.plan.quick { LOG_SEGMENTS_QUICK } else { LOG_SEGMENTS };
        let load = postgresql::Load {
            schema: include_str!("../tpcc/schema.sql"),
            log_segments,
            scripts: SCRIPTS,
            warehouses,
            // Each is at home in one warehouse.
            clients: warehouses.clamp(8, 64),
            protocol: "prepared",
            // With room for what neighbours write, too.
            image_bytes: (1 << 30) + (u64::from(log_segments) << 24) + (u64::from(warehouses) << 26),
            configuration: configuration(warehouses, log_segments),
        };
        let database = PostgreSql::prepare(bench.options, load, &bench.plan.settings, &bench.store)?;
        Ok(Self { database })
    }

    /// A server on a fresh copy, which is thrown away.
    pub(crate) fn serve(&self, bench: &Bench<'_>, contender: Contender) -> Result<Running<'_>, BenchError> {
        let site = contender.site(bench.plan, "postgresql");
        let mut running = self.database.serve(&bench.options.forebay, &site)?;
        running.needs_no_checkpoint_at_its_end();
        running.warm_up()?;
        Ok(running)
    }
}

/// Runs the load, first without counting.
pub(crate) fn measure(bench: &Bench<'_>, running: &Running<'_>) -> Result<Slice, BenchError> {
    running.pgbench(bench.plan.warm)?;
    let (before, told) = (Waits::of(&running.daemon)?, running.told()?.len());
    let transactions = running.pgbench(bench.plan.postgresql_time())?;
    let waits_ms = Waits::of(&running.daemon)?.since(&before);
    let took = running.told()?.get(told..).map(checkpoints).unwrap_or_default();
    Ok(Slice {
        seconds: bench.plan.postgresql_time().as_secs_f64(),
        latencies_us: transactions.latencies_us,
        late: 0,
        background: [("checkpoints", took)].into(),
        waits_ms,
        neighbour_bytes_per_second: 0.0,
    })
}

impl Load for Rc<OrderEntry> {
    fn measure(&self, bench: &Bench<'_>, contender: Contender) -> Result<Slice, BenchError> {
        measure(bench, &self.serve(bench, contender)?)
    }
}

/// Seconds that each checkpoint took which the server's log tells of.
fn checkpoints(log: &str) -> Vec<f64> {
    let complete = |line: &str| {
        let (_, told) = line.split_once("checkpoint complete:")?;
        let (_, total) = told.split_once("total=")?;
        total.split_once(' ')?.0.parse().ok()
    };
    log.lines().filter_map(complete).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_that_have_ended_are_known_from_the_log() {
        let log = "2026-11-28 09:00:00 UTC [1] LOG:  checkpoint starting: wal\n\
                   2026-11-28 09:00:09 UTC [1] LOG:  checkpoint complete: wrote 906 buffers (44.2%); 0 WAL file(s) added, 0 removed, 6 recycled; \
                   write=8.250 s, sync=0.501 s, total=8.957 s; sync files=40, longest=0.100 s, average=0.013 s; distance=98304 kB\n\
                   2026-11-28 09:00:10 UTC [1] LOG:  checkpoint starting: time\n";
        assert_eq!(checkpoints(log), [8.957]);
    }
}
