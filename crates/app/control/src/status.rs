//! What a volume tells of itself: the contract behind `forebay status`, its JSON and the metrics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the volume is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Recovering; requests wait.
    Starting,
    /// Serving.
    Healthy,
    /// Serving, but a device below it fails or does not answer.
    Degraded,
    /// Serving, but writers wait for destaging to make room.
    Full,
    /// Refusing everything, because another host has taken the backing over.
    Fenced,
    /// Refusing new requests, finishing those under way.
    Stopping,
    /// Not served, though the daemon was started to serve it.
    Refused,
    /// Its daemon does not answer.
    Unreachable,
    /// Its daemon was killed.
    Gone,
}

impl VolumeState {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Starting,
        Self::Healthy,
        Self::Degraded,
        Self::Full,
        Self::Fenced,
        Self::Stopping,
        Self::Refused,
        Self::Unreachable,
        Self::Gone,
    ];

    /// The spelling in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Full => "full",
            Self::Fenced => "fenced",
            Self::Stopping => "stopping",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Gone => "gone",
        }
    }
}

/// How a field of [`VolumeStatus`] is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Text, or a choice: a label of the metric `forebay_info`.
    Label,
    /// The state, exported as one metric for each value.
    State,
    /// Anything that has no metric, such as a list.
    Detail,
    /// Numbers that only rise, by the value of this label, under this metric's name.
    Counters(&'static str, &'static str),
    /// How many looks saw at most so much, by this bound, under this metric's name; the field with this name has the sum.
    Histogram(&'static str, &'static str),
    /// A number that rises and falls, under this metric's name.
    Gauge(&'static str),
    /// A number that only rises until the daemon restarts, under this metric's name.
    Counter(&'static str),
}

/// One field of [`VolumeStatus`], described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its key in JSON.
    pub name: &'static str,
    /// What it means, with its unit.
    pub help: &'static str,
    /// How it is measured and exported.
    pub measure: Measure,
}

macro_rules! described {
    ($(#[$meta:meta])* $struct:ident { $(#[doc = $help:literal] $measure:expr => $field:ident: $type:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $struct { $(#[doc = $help] pub $field: $type),+ }

        impl $struct {
            /// Every field in the order of the documentation; help texts are those of the struct.
            pub const FIELDS: &'static [Field] = &[
                $(Field { name: stringify!($field), help: $help, measure: $measure }),+
            ];
        }
    };
}

use Measure::{Counter, Counters, Detail, Gauge, Histogram, Label, State};

described! {
    /// The figures of a volume. Counters start at 0 with the daemon. Keys of the JSON are the fields' names; keys are
    /// added over time, never renamed or removed.
    VolumeStatus {
        #[doc = "Name of the volume."]
        Label => name: String,
        #[doc = "What the volume is doing: `starting`, `healthy`, `degraded`, `full`, `fenced` or `stopping`; `refused`, `unreachable` or `gone` where there are [no figures](#volumes-without-figures)."]
        State => state: VolumeState,
        #[doc = "What is wrong, in words, and what continues meanwhile; while `state` is `degraded` or `fenced`, or `full` with a backing that fails. Null otherwise."]
        Detail => reason: Option<String>,
        #[doc = "Since when (RFC 3339, UTC) that has been so; null while nothing is wrong."]
        Detail => degraded_since: Option<String>,
        #[doc = "For how many seconds that has been so; 0 while nothing is wrong."]
        Gauge("forebay_degraded_seconds") => degraded_seconds: f64,
        #[doc = "Size of the volume, in bytes."]
        Gauge("forebay_size_bytes") => size_bytes: u64,
        #[doc = "Logical block of the volume, in bytes: the least request that NBD clients are told, and the sector size of the kernel block device."]
        Gauge("forebay_logical_block_bytes") => logical_block_bytes: u64,
        #[doc = "The volume is served with `--read-only`: writes are refused, and nothing is written to cache or backing."]
        Detail => read_only: bool,
        #[doc = "Bytes of the cache device that can hold data."]
        Gauge("forebay_cache_size_bytes") => cache_bytes: u64,
        #[doc = "Bytes of the cache device that hold log segments."]
        Gauge("forebay_cache_used_bytes") => cache_used_bytes: u64,
        #[doc = "Bytes that are cached, dirty and clean."]
        Gauge("forebay_cached_bytes") => cached_bytes: u64,
        #[doc = "Bytes in the cache that are newer than the backing."]
        Gauge("forebay_dirty_bytes") => dirty_bytes: u64,
        #[doc = "How much acknowledged data would be missing if the cache were lost now, in bytes."]
        Gauge("forebay_staleness_bytes") => staleness_bytes: u64,
        #[doc = "Age in seconds of the oldest acknowledged write that the backing lacks, an upper bound; 0 if it lacks none. A block that is written again counts from then on, except under `ordered`."]
        Gauge("forebay_staleness_seconds") => staleness_seconds: f64,
        #[doc = "The time (RFC 3339, UTC) as of which the backing alone is complete; null while it is not consistent as of any time, as under `write-back` with dirty data."]
        Detail => recovery_point: Option<String>,
        #[doc = "The backing alone, without the cache, is consistent now: complete, or as of `recovery_point` under `ordered`."]
        Detail => backing_consistent: bool,
        #[doc = "When and in which order writes reach the backing."]
        Label => write_policy: String,
        #[doc = "What `ordered` keeps in order: `completion` (every acknowledgement) or `barrier` (flushes and FUA writes)."]
        Label => order: String,
        #[doc = "Which writes enter the cache."]
        Label => admission: String,
        #[doc = "The ranges in bytes that the admission policy `range` lets in, `START-END,...`; the end is excluded."]
        Detail => ranges: String,
        #[doc = "Bytes a day that may be written to the cache before the admission policy `adaptive` tightens; 0: any."]
        Gauge("forebay_endurance_bytes_a_day") => endurance_bytes_a_day: u64,
        #[doc = "What becomes of blocks of journals: `keep`, `skip` (not kept once they are on the backing) or `bypass`."]
        Label => journal_caching: String,
        #[doc = "Journals that were found by the shape of their writes, in bytes, `START-END,...`; the end is excluded."]
        Detail => journals: String,
        #[doc = "What a write does when the cache has no room: `wait` or `bypass`."]
        Label => on_full: String,
        #[doc = "What an acknowledged plain write survives: `write` (a power cut) or `flush` (a power cut only after a later flush)."]
        Label => durability: String,
        #[doc = "Which operation of the backing starts next: `rcp`, `fifo`, `deadline`, `cfq`, `cfq-idle`, `split-a`, `split-d` or `qasio` (`serve --scheduler`)."]
        Label => scheduler: String,
        #[doc = "The cache, as given to `serve`; empty with `--no-cache`."]
        Label => cache: String,
        #[doc = "The backing, as given to `serve`."]
        Label => backing: String,
        #[doc = "What a durable write to the cache outlives, in words; empty with `--no-cache`."]
        Detail => cache_durability: String,
        #[doc = "What a durable write to the backing outlives, in words."]
        Detail => backing_durability: String,
        #[doc = "Where the volume is offered: `unix:PATH` and `tcp:HOST:PORT` (NBD), `fuse:FILE`."]
        Detail => exports: Vec<String>,
        #[doc = "NBD clients at the addresses where the volume is offered."]
        Gauge("forebay_nbd_clients") => nbd_clients: u64,
        #[doc = "NBD connections to these addresses for which there was no place."]
        Counter("forebay_nbd_connections_refused_total") => nbd_refused: u64,
        #[doc = "NBD connections to these addresses whose handshake made no progress, and which gave their place to another one."]
        Counter("forebay_nbd_connections_displaced_total") => nbd_displaced: u64,
        #[doc = "Path of the kernel block device made by `attach`; null if there is none."]
        Detail => device: Option<String>,
        #[doc = "Share of memory that pages of that device may have dirty before their write-back begins; `system`: what the system allows."]
        Label => background_dirty: String,
        #[doc = "What `attach` has set of the kernel for that device, as `name`, `set` and `before`: what was there and what `detach` puts back, empty where there was nothing. Names that begin with `queue/` and `bdi/` are files below `/sys/block/loopN`, those with `fuse/` files of the FUSE connection. Empty if there is no such device."]
        Detail => knobs: Vec<Knob>,
        #[doc = "Process id of the daemon."]
        Detail => pid: u32,
        #[doc = "Seconds since the volume began to start."]
        Gauge("forebay_uptime_seconds") => uptime_seconds: f64,
        #[doc = "Reads answered."]
        Counter("forebay_reads_total") => reads: u64,
        #[doc = "Bytes that reads got from the cache."]
        Counter("forebay_read_hit_bytes_total") => read_bytes_hit: u64,
        #[doc = "Bytes that reads got from the backing."]
        Counter("forebay_read_missed_bytes_total") => read_bytes_missed: u64,
        #[doc = "Writes, discards and write-zeroes acknowledged."]
        Counter("forebay_writes_total") => writes: u64,
        #[doc = "Flushes acknowledged."]
        Counter("forebay_flushes_total") => flushes: u64,
        #[doc = "Bytes of writes acknowledged."]
        Counter("forebay_acknowledged_bytes_total") => bytes_acknowledged: u64,
        #[doc = "Bytes written to the cache device, headers and summaries included."]
        Counter("forebay_cache_written_bytes_total") => bytes_to_cache: u64,
        #[doc = "Bytes of writes given to the backing, those that failed included."]
        Counter("forebay_backing_written_bytes_total") => bytes_to_backing: u64,
        #[doc = "Bytes of writes given to the journal on the backing's side (write policy `journaled`)."]
        Counter("forebay_journal_written_bytes_total") => bytes_to_journal: u64,
        #[doc = "Groups committed to the journal."]
        Counter("forebay_groups_total") => groups: u64,
        #[doc = "Groups under way, or committed and not yet destaged."]
        Gauge("forebay_groups_waiting") => groups_waiting: u64,
        #[doc = "How far the backing may lag behind: a time, a number of bytes, or `none`."]
        Label => max_staleness: String,
        #[doc = "Times writers were throttled because the backing lacked nearly as much as `max_staleness` allows."]
        Counter("forebay_staleness_holds_total") => holds: u64,
        #[doc = "Times writers waited for the backing to take what it has to take first, under `ordered`. Either the cache fills with writes that depend on each other, or one that goes past it waits for its turn."]
        Counter("forebay_order_paces_total") => paces: u64,
        #[doc = "Seconds of the volume's life, about, in which `staleness_seconds` was at most so many seconds (the key; `+Inf` counts all)."]
        Histogram("forebay_staleness_distribution_seconds", "staleness_histogram_sum") => staleness_histogram: BTreeMap<String, u64>,
        #[doc = "Sum in seconds of what `staleness_seconds` was at these looks; divided by those of `+Inf` it is the average."]
        Detail => staleness_histogram_sum: f64,
        #[doc = "Groups that ended where no consistency point is although `group-ends` asks for one. A writer waited for room, the cache failed, or everything was to be destaged."]
        Counter("forebay_groups_cut_total") => groups_cut: u64,
        #[doc = "Consistency points committed: those that were declared, and with `group-ends=flushes` the flushes at which groups ended."]
        Counter("forebay_points_total") => points: u64,
        #[doc = "Number of the consistency point at which the backing alone is now, exactly; 0 if it is at none."]
        Gauge("forebay_backing_point") => backing_point: u64,
        #[doc = "The consistency group that the volume is a member of: its name, then those of its members; empty if it is in none."]
        Label => consistency_group: String,
        #[doc = "Number of the point of its consistency group at which the backing alone is now, exactly; 0 if it is at none."]
        Gauge("forebay_common_point") => common_point: u64,
        #[doc = "Number of the point of its consistency group that is prepared on the backing's side, until all members have it; 0 if there is none."]
        Gauge("forebay_common_prepared") => common_prepared: u64,
        #[doc = "Where groups may end under `journaled`: `anywhere`, at `flushes`, at declared `points`, or at points that are `common` to a consistency group."]
        Label => group_ends: String,
        #[doc = "Writes that entered the cache."]
        Counter("forebay_writes_admitted_total") => writes_admitted: u64,
        #[doc = "Writes that went to the backing without entering the cache."]
        Counter("forebay_writes_bypassed_total") => writes_bypassed: u64,
        #[doc = "Outstanding bypassed writes that moved into the cache because a critical task came to wait for them. They count as admitted."]
        Counter("forebay_writes_reissued_total") => writes_reissued: u64,
        #[doc = "Writes by why they entered the cache or went past it; a key for each reason, [listed here](../guide/admission.md#reasons)."]
        Counters("forebay_writes_by_reason_total", "reason") => writes_by_reason: BTreeMap<String, u64>,
        #[doc = "Sources of criticality that are missing though admission asks for them, and why; empty if all is there."]
        Detail => criticality_missing: Vec<String>,
        #[doc = "Times that a write had to wait because the cache was full."]
        Counter("forebay_stalls_total") => stalls: u64,
        #[doc = "Requests answered with an error."]
        Counter("forebay_errors_total") => errors: u64,
        #[doc = "Blocks that failed their checksum when read from the cache."]
        Counter("forebay_checksum_failures_total") => checksum_failures: u64,
        #[doc = "Failed operations of the cache device."]
        Counter("forebay_cache_errors_total") => cache_errors: u64,
        #[doc = "Failed operations of the backing, retried ones included."]
        Counter("forebay_backing_errors_total") => backing_errors: u64,
        #[doc = "Log records written."]
        Counter("forebay_records_total") => records: u64,
        #[doc = "Operations that the backing carries out now."]
        Gauge("forebay_backing_outstanding") => backing_outstanding: u64,
        #[doc = "Operations that wait for the backing and that a client waits for, as far as is known."]
        Gauge("forebay_backing_waiting_critical") => backing_waiting_critical: u64,
        #[doc = "Operations that wait for the backing and that nobody is known to wait for: destaging, uncritical bypasses."]
        Gauge("forebay_backing_waiting_noncritical") => backing_waiting_noncritical: u64,
        #[doc = "Non-critical operations of the backing that somebody came to wait for: those that had not started went before others."]
        Counter("forebay_backing_promoted_total") => backing_promoted: u64,
        #[doc = "Times that the backing started nothing for the sake of an operation that a client waits for, since many later ones had overtaken it. That lasts until it has ended, at most 0.1 s, or 25 ms in which nothing ends."]
        Counter("forebay_backing_holds_total") => backing_holds: u64,
        #[doc = "Requests to the object store that the backing is in, by what they do: `create`, `get`, `list`, `delete`; `retry` are those of them that were sent again. Empty for other backings."]
        Counters("forebay_store_requests_total", "request") => store_requests: BTreeMap<String, u64>,
        #[doc = "Bytes of objects that were `sent` to the store and `received`; of those sent, `moved` by collection, and `checkpoints`."]
        Counters("forebay_store_bytes_total", "what") => store_bytes: BTreeMap<String, u64>,
        #[doc = "Objects in the store that hold data of the volume; 0 for other backings."]
        Gauge("forebay_store_objects") => store_objects: u64,
        #[doc = "Bytes of these objects."]
        Gauge("forebay_store_stored_bytes") => store_stored_bytes: u64,
        #[doc = "Data in them that can still be read, in bytes: what is stored beyond that is space amplification."]
        Gauge("forebay_store_live_bytes") => store_live_bytes: u64,
        #[doc = "Requests under way."]
        Gauge("forebay_requests") => requests: u64,
        #[doc = "Resident memory of the daemon, in bytes; its volumes share it."]
        Gauge("forebay_memory_bytes") => memory_bytes: u64,
        #[doc = "Memory of the index of cached blocks, in bytes."]
        Gauge("forebay_index_bytes") => index_bytes: u64,
        #[doc = "Blocks of 4 KiB in the index."]
        Gauge("forebay_index_blocks") => index_blocks: u64,
        #[doc = "Memory of the index for each block in it, in bytes; 0 while it is empty."]
        Gauge("forebay_index_bytes_per_block") => index_bytes_per_block: f64,
    }
}

/// A setting of the kernel that `attach` changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knob {
    /// Its file: `queue/...` or `bdi/...` of the block device, `fuse/...` of the FUSE connection.
    pub name: String,
    /// What it was set to.
    pub set: String,
    /// What was there, and is put back; empty if there was nothing.
    pub before: String,
}

/// A volume of which there are no figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unserved {
    /// Its name, or that of its control socket.
    pub name: String,
    /// [`VolumeState::Refused`], [`VolumeState::Unreachable`] or [`VolumeState::Gone`].
    pub state: VolumeState,
    /// Why, and what to do.
    pub reason: String,
}

/// What is known of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VolumeReport {
    /// It is served.
    Figures(Box<VolumeStatus>),
    /// It is not, or whoever serves it does not say.
    Unserved(Unserved),
}

impl VolumeReport {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Figures(figures) => &figures.name,
            Self::Unserved(unserved) => &unserved.name,
        }
    }

    /// What it is doing.
    pub fn state(&self) -> VolumeState {
        match self {
            Self::Figures(figures) => figures.state,
            Self::Unserved(unserved) => unserved.state,
        }
    }
}

impl From<VolumeStatus> for VolumeReport {
    fn from(figures: VolumeStatus) -> Self {
        Self::Figures(Box::new(figures))
    }
}

#[cfg(test)]
impl VolumeStatus {
    /// A status in which every number differs.
    pub(crate) fn sample(name: &str) -> Self {
        let mut object = serde_json::Map::new();
        for (i, field) in Self::FIELDS.iter().enumerate() {
            let value = match field.measure {
                Label => serde_json::json!(format!("a {}", field.name)),
                State => serde_json::json!("healthy"),
                Histogram(..) => serde_json::json!({"0.5": 7, "10": 8, "+Inf": 9, "2": 7}),
                Counters(..) => serde_json::json!({"direct": 1000 + i, "not-critical": 2000 + i}),
                Gauge(_) | Counter(_) => serde_json::json!(1000 + i),
                Detail => match field.name {
                    "exports" => serde_json::json!(["unix:/tmp/s"]),
                    "pid" => serde_json::json!(77),
                    "backing_consistent" => serde_json::json!(true),
                    "staleness_histogram_sum" => serde_json::json!(12.5),
                    "read_only" => serde_json::json!(false),
                    "criticality_missing" | "knobs" => serde_json::json!([]),
                    "ranges" | "journals" => serde_json::json!("0-4096"),
                    "cache_durability" | "backing_durability" => serde_json::json!("much"),
                    _ => serde_json::Value::Null,
                },
            };
            object.insert(field.name.to_owned(), value);
        }
        object.insert("name".to_owned(), serde_json::json!(name));
        serde_json::from_value(serde_json::Value::Object(object)).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promised_keys_are_there() {
        let json = serde_json::to_value(VolumeStatus::sample("db")).unwrap();
        for key in "name state size_bytes cache_bytes cache_used_bytes dirty_bytes staleness_bytes staleness_seconds \
                    recovery_point backing_consistent write_policy order admission reads writes flushes bytes_acknowledged bytes_to_cache \
                    bytes_to_backing writes_admitted writes_bypassed writes_reissued stalls errors memory_bytes \
                    index_bytes_per_block"
            .split_whitespace()
        {
            assert!(json.get(key).is_some(), "{key} is missing");
        }
        assert_eq!(json["state"], "healthy");
    }

    #[test]
    fn states_are_spelled_alike_everywhere() {
        for state in VolumeState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }

    #[test]
    fn an_answer_of_a_newer_daemon_is_understood() {
        let mut json = serde_json::to_value(VolumeStatus::sample("db")).unwrap();
        json["a_key_of_the_future"] = serde_json::json!(1);
        assert_eq!(serde_json::from_value::<VolumeStatus>(json).unwrap(), VolumeStatus::sample("db"));
    }

    #[test]
    fn a_volume_without_figures_is_an_object_with_its_state() {
        let gone = Unserved { name: "db".into(), state: VolumeState::Gone, reason: "killed".into() };
        let reports = [VolumeReport::Unserved(gone), VolumeStatus::sample("log").into()];
        let text = serde_json::to_string(&reports).unwrap();
        assert!(
            text.starts_with(r#"[{"name":"db","state":"gone","reason":"killed"},{"name":"log","#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Vec<VolumeReport>>(&text).unwrap(), reports);
    }
}
