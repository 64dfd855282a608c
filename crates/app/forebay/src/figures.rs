//! What the engine says of a volume, in the words of the status contract.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_block::Clients;
use forebay_control::{Knob, VolumeState, VolumeStatus, rfc3339};
use forebay_device::StoreFigures;
use forebay_engine::Status;
use forebay_policy::{AdmissionReason, Ranges, Settings, WritePolicy};

use crate::diagnosis::Names;
use crate::health::health;
use crate::plan::VolumePlan;
use crate::staleness_histogram::StalenessHistogram;

/// What the engine does not know.
pub struct Surroundings {
    /// Size of the volume, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes.
    pub logical_block_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// What a durable write to the cache outlives; empty without a cache.
    pub cache_durability: String,
    /// What a durable write to the backing outlives.
    pub backing_durability: String,
    /// The kernel block device.
    pub device: Option<String>,
    /// What was set of the kernel for it.
    pub knobs: Vec<Knob>,
    /// What the admission policy `range` lets in.
    pub ranges: String,
    /// Bytes a day that may be written to the cache; 0: any.
    pub endurance_bytes_a_day: u64,
    /// Sources of criticality that are missing.
    pub criticality_missing: Vec<String>,
    /// How often it lagged behind by how much.
    pub staleness: StalenessHistogram,
    /// Where the volume is offered.
    pub exports: Vec<String>,
    /// Clients there, as far as they can be told from each other.
    pub clients: Clients,
    /// Since the volume began to start.
    pub uptime: Duration,
    /// For how long the volume's thread has not answered.
    pub unanswered: Duration,
    /// Its devices, for messages.
    pub names: Names,
    /// What its backing costs, if that is paid for.
    pub store: Option<StoreFigures>,
}

/// Age of the oldest write that the backing lacks.
pub fn staleness_seconds(s: &Status, wall_ns: u64) -> f64 {
    s.oldest_missing_ns.map_or(0, |oldest| wall_ns.saturating_sub(oldest)) as f64 / 1e9
}

/// The status of a volume, from the engine's figures and what is around it.
pub fn volume_status(
    plan: &VolumePlan,
    s: &Status,
    settings: &Settings,
    wall_ns: u64,
    around: Surroundings,
) -> VolumeStatus {
    let caches = plan.cache.is_some() && settings.write_policy != WritePolicy::WriteThrough;
    let (state, illness) = health(s, &around.names, wall_ns, around.unanswered, caches);
    let complete = s.dirty_bytes == 0 && state != VolumeState::Starting;
    let store = around.store.unwrap_or_default();
    let named = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
        let counts = counts.iter().filter(|_| around.store.is_some());
        counts.map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    VolumeStatus {
        name: plan.name.clone(),
        state,
        degraded_since: illness.as_ref().map(|illness| rfc3339(illness.since_ns)),
        degraded_seconds: illness.as_ref().map_or(0.0, |i| wall_ns.saturating_sub(i.since_ns) as f64 / 1e9),
        reason: illness.map(|illness| illness.reason),
        size_bytes: around.size_bytes,
        logical_block_bytes: around.logical_block_bytes,
        read_only: around.read_only,
        cache_bytes: s.cache_bytes,
        cache_used_bytes: s.cache_used_bytes,
        cached_bytes: s.cached_bytes,
        dirty_bytes: s.dirty_bytes,
        staleness_bytes: s.missing_bytes,
        staleness_seconds: staleness_seconds(s, wall_ns),
        recovery_point: match s.oldest_missing_ns {
            _ if complete => Some(rfc3339(wall_ns)),
            None if s.backing_consistent => Some(rfc3339(wall_ns)),
            Some(oldest) if s.backing_consistent => Some(rfc3339(oldest.min(wall_ns))),
            _ => None,
        },
        backing_consistent: complete || s.backing_consistent,
        write_policy: settings.write_policy.to_string(),
        order: settings.order.to_string(),
        admission: settings.admission.to_string(),
        ranges: around.ranges,
        endurance_bytes_a_day: around.endurance_bytes_a_day,
        criticality_missing: around.criticality_missing,
        journal_caching: settings.journal_caching.to_string(),
        journals: Ranges::new(s.journals.clone()).unwrap_or_default().to_string(),
        on_full: settings.on_full.to_string(),
        durability: settings.durability.to_string(),
        scheduler: settings.scheduler.to_string(),
        cache: plan.cache.as_ref().map(ToString::to_string).unwrap_or_default(),
        backing: plan.backing.to_string(),
        cache_durability: around.cache_durability,
        backing_durability: around.backing_durability,
        exports: around.exports,
        nbd_clients: around.clients.now,
        nbd_refused: around.clients.refused,
        nbd_displaced: around.clients.displaced,
        device: around.device,
        background_dirty: plan.background_dirty.to_string(),
        knobs: around.knobs,
        pid: std::process::id(),
        uptime_seconds: around.uptime.as_secs_f64(),
        reads: s.reads,
        read_bytes_hit: s.read_bytes_hit,
        read_bytes_missed: s.read_bytes_missed,
        writes: s.writes,
        flushes: s.flushes,
        bytes_acknowledged: s.bytes_acknowledged,
        bytes_to_cache: s.bytes_to_cache,
        bytes_to_backing: s.bytes_to_backing,
        bytes_to_journal: s.bytes_to_journal,
        groups: s.groups,
        groups_waiting: s.groups_waiting,
        groups_cut: s.groups_cut,
        points: s.points,
        backing_point: s.backing_point,
        consistency_group: plan.group.as_ref().map(|group| group.names.clone()).unwrap_or_default(),
        common_point: s.common_point,
        common_prepared: s.common_prepared,
        group_ends: settings.group_ends.to_string(),
        max_staleness: settings.max_staleness.to_string(),
        holds: s.holds,
        paces: s.paces,
        staleness_histogram: around.staleness.cumulative(),
        staleness_histogram_sum: around.staleness.sum_seconds(),
        writes_admitted: s.writes_admitted,
        writes_bypassed: s.writes_bypassed,
        writes_reissued: s.reasons.get(AdmissionReason::Reissued),
        writes_by_reason: by_reason(s),
        stalls: s.stalls,
        errors: s.errors,
        checksum_failures: s.checksum_failures,
        cache_errors: s.cache_errors,
        backing_errors: s.backing_errors,
        records: s.records,
        backing_outstanding: s.backing_outstanding,
        backing_waiting_critical: s.backing_waiting_critical,
        backing_waiting_noncritical: s.backing_waiting_noncritical,
        backing_promoted: s.backing_promoted,
        backing_holds: s.backing_holds,
        store_requests: named(&[
            ("create", store.creates),
            ("get", store.gets),
            ("list", store.lists),
            ("delete", store.deletes),
            ("retry", store.retries),
        ]),
        store_bytes: named(&[
            ("sent", store.bytes_sent),
            ("moved", store.bytes_moved),
            ("checkpoints", store.bytes_checkpoints),
            ("received", store.bytes_received),
        ]),
        store_objects: store.objects,
        store_stored_bytes: store.stored_bytes,
        store_live_bytes: store.live_bytes,
        requests: s.requests,
        memory_bytes: resident_bytes(),
        index_bytes: s.index_bytes,
        index_blocks: s.index_blocks,
        index_bytes_per_block: if s.index_blocks == 0 {
            0.0
        } else {
            s.index_bytes as f64 / s.index_blocks as f64
        },
    }
}

fn by_reason(s: &Status) -> BTreeMap<String, u64> {
    AdmissionReason::ALL.iter().map(|reason| (reason.to_string(), s.reasons.get(*reason))).collect()
}

/// Resident memory of this process in bytes; 0 if the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    crate::resident::bytes_in(&status)
}

#[cfg(test)]
mod tests {
    use forebay_engine::State;

    use super::*;

    const NOW_NS: u64 = 1_800_000_000_000_000_000;

    fn status(figures: &Status) -> VolumeStatus {
        let plan = VolumePlan {
            background_dirty: crate::background_dirty::BackgroundDirty::default(),
            record_requests: None,
            group: None,
            name: "db".into(),
            cache: "cache".parse().ok(),
            backing: "backing".parse().unwrap(),
            nbd: Vec::new(),
            fuse: None,
            accept_stale: false,
            read_only: false,
            logical_block: None,
            takeover: false,
            decorate: Vec::new(),
            journal: Default::default(),
            settings: Settings::default(),
            ranges: Default::default(),
            endurance: 0,
            critical_nbd: Vec::new(),
            critical: false,
            critical_rate: None,
            warnings: Vec::new(),
            is_for_nbd_alone: false,
        };
        let around = Surroundings {
            knobs: Vec::new(),
            size_bytes: 1 << 30,
            logical_block_bytes: 512,
            read_only: false,
            cache_durability: String::new(),
            backing_durability: String::new(),
            device: None,
            ranges: String::new(),
            endurance_bytes_a_day: 0,
            criticality_missing: Vec::new(),
            staleness: StalenessHistogram::default(),
            exports: Vec::new(),
            clients: Clients::default(),
            uptime: Duration::from_secs(5),
            unanswered: Duration::ZERO,
            names: Names::default(),
            store: None,
        };
        volume_status(&plan, figures, &plan.settings, NOW_NS, around)
    }

    #[test]
    fn a_recovery_point_is_told_only_where_there_is_one() {
        let clean = Status { state: Some(State::Healthy), ..Status::default() };
        assert_eq!(status(&clean).recovery_point, Some(rfc3339(NOW_NS)));
        let starting = Status { state: Some(State::Starting), ..clean.clone() };
        assert_eq!(status(&starting).recovery_point, None, "what is dirty is not known yet");
        let missing =
            Status { missing_bytes: 4096, oldest_missing_ns: Some(NOW_NS - 1_500_000_000), ..clean.clone() };
        let dirty = Status { dirty_bytes: 4096, ..missing.clone() };
        let dirty = status(&dirty);
        assert_eq!((dirty.recovery_point, dirty.staleness_bytes), (None, 4096));
        let ordered = Status { backing_consistent: true, dirty_bytes: 4096, ..missing.clone() };
        let as_of = Some(rfc3339(NOW_NS - 1_500_000_000));
        assert_eq!(status(&ordered).recovery_point, as_of, "consistent, but stale");
        assert!((dirty.staleness_seconds - 1.5).abs() < 1e-6);
        let ahead = Status { oldest_missing_ns: Some(NOW_NS + 1), ..clean.clone() };
        assert_eq!(status(&ahead).staleness_seconds, 0.0, "the clock was set back");
    }

    #[test]
    fn an_empty_index_has_no_cost_for_each_block() {
        let figures = Status { index_bytes: 4096, ..Status::default() };
        assert_eq!(status(&figures).index_bytes_per_block, 0.0);
        let figures = Status { index_bytes: 4096, index_blocks: 256, ..Status::default() };
        assert_eq!(status(&figures).index_bytes_per_block, 16.0);
        assert!(resident_bytes() > 1 << 16);
    }
}
