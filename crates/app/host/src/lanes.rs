//! Turns among the clients of a volume.
//!
//! Each connection has a lane of its own. What the volume has in work of one lane is bounded while there are others, so that a request
//! of a client that asks for little stands behind at most a share of each other one's, however much those have queued:
//!
//! ```text
//!  lane 1: ■■■■■■■■■■■■ ─┐ its share
//!  lane 2: ■■■■■■■■■    ─┼──────────► in work: the engine and the devices, first come first served
//!  lane 3: ■            ─┘
//! ```
//!
//! All shares together are [`WORK_REQUESTS_MAX`] requests and [`WORK_BYTES_MAX`] bytes, and one of them is free for who comes next. A request that is
//! larger than a share goes when its lane has nothing else in work. A lane that is alone has no bound but the queue's: there is
//! nobody to be fair to, and devices do best with all that there is.
//!
//! A lane has a queue for each kind: reads and long zeroes wait for the backing, and nothing that the log takes stands behind them. Flushes
//! are never held up. Nothing is reordered within a queue. Elsewhere it may be: only what was answered before another request came is before it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_block::Nanos;

/// Requests of one kind, of all lanes, that are in work at a time where there are several lanes.
pub const WORK_REQUESTS_MAX: usize = 256;
/// Bytes of these requests.
pub const WORK_BYTES_MAX: u64 = 8 << 20;
/// A lane counts for so long after its last request was answered.
const RECENT: Duration = Duration::from_secs(1);
/// Lanes without requests that are remembered.
const IDLE_LANES_MAX: usize = 64;

/// Kinds of requests that do not stand behind each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What is never held up: it counts for nothing.
    Free,
    Write,
    Read,
    Zero,
}

const KINDS: usize = 4;

/// What a request counts for while it is in work: its kind, and its bytes.
pub(crate) type Cost = (Kind, u64);

/// The requests of one kind of a lane.
struct Queue<T> {
    /// With the bytes that each counts for.
    waiting: VecDeque<(T, u64)>,
    /// Requests in work, and what they count for.
    working: usize,
    working_bytes: u64,
}

struct Lane<T> {
    queues: [Queue<T>; KINDS],
    /// Requests and their bytes of memory, waiting or in work.
    admitted: usize,
    admitted_bytes: u64,
    last: Nanos,
}

/// What may be in work of one kind and lane.
#[derive(Clone, Copy)]
struct Share {
    requests: usize,
    bytes: u64,
}

/// See the module's documentation.
pub(crate) struct Lanes<T> {
    lanes: BTreeMap<u64, Lane<T>>,
    /// The lane that had the last turn.
    turn: u64,
    /// Memory for the order of a turn.
    order: Vec<u64>,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), turn: 0, order: Vec::new() }
    }
}

impl<T> Lanes<T> {
    /// Whether several want, or wanted a moment ago, something of the volume.
    pub(crate) fn are_several(&self, now: Nanos) -> bool {
        self.lanes.values().filter(|lane| lane.counts(now)).count() > 1
    }

    /// Requests and bytes that `lane` has, if there are others to leave room for.
    pub(crate) fn beside_others(&self, lane: u64) -> Option<(usize, u64)> {
        let others = self.lanes.keys().any(|number| *number != lane);
        others.then(|| self.lanes.get(&lane).map_or((0, 0), |l| (l.admitted, l.admitted_bytes)))
    }

    /// A request has come.
    pub(crate) fn push(&mut self, lane: u64, what: T, bytes: u64, cost: Cost) {
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane {
            queues: [(); KINDS].map(|()| Queue { waiting: VecDeque::new(), working: 0, working_bytes: 0 }),
            admitted: 0,
            admitted_bytes: 0,
            last: Nanos(0),
        });
        lane.admitted += 1;
        lane.admitted_bytes += bytes;
        lane.queue(cost.0).waiting.push_back((what, cost.1));
    }

    /// What each lane may have in work; `None`: anything.
    fn share(&self, now: Nanos) -> Option<Share> {
        if !self.are_several(now) {
            return None;
        }
        let busy = self.lanes.values().filter(|lane| lane.admitted > 0).count();
        let parties = (busy + 1).max(2);
        Some(Share { requests: (WORK_REQUESTS_MAX / parties).max(1), bytes: WORK_BYTES_MAX / parties as u64 })
    }

    /// Takes what may be in work now, lane by lane in turns; with `all` whatever waits.
    pub(crate) fn take(&mut self, now: Nanos, all: bool, taken: &mut VecDeque<T>) {
        self.forget_idle(now);
        let share = self.share(now).filter(|_| !all);
        let mut order = std::mem::take(&mut self.order);
        order.extend(self.lanes.range(self.turn.saturating_add(1)..).map(|(n, _)| *n));
        order.extend(self.lanes.range(..=self.turn).map(|(n, _)| *n));
        loop {
            let before = taken.len();
            for number in &order {
                let Some(lane) = self.lanes.get_mut(number) else { continue };
                for kind in Kind::ALL {
                    if let Some(what) = lane.queue(kind).take(share.filter(|_| kind != Kind::Free)) {
                        lane.last = now;
                        self.turn = *number;
                        taken.push_back(what);
                    }
                }
            }
            if taken.len() == before {
                break;
            }
        }
        order.clear();
        self.order = order;
    }

    /// Whether [`Lanes::take`] would find something.
    pub(crate) fn has_next(&self, now: Nanos, all: bool) -> bool {
        let share = self.share(now).filter(|_| !all);
        let may_go = |(kind, queue): (Kind, &Queue<T>)| queue.may_go(share.filter(|_| kind != Kind::Free));
        self.lanes.values().any(|lane| Kind::ALL.into_iter().zip(&lane.queues).any(may_go))
    }

    /// When a lane that counts for others will not any more, so that these may go that wait now.
    pub(crate) fn next_change(&self, now: Nanos) -> Option<Nanos> {
        let wait = |lane: &Lane<T>| lane.queues.iter().any(|queue| !queue.waiting.is_empty());
        let idle = self.lanes.values().filter(|lane| lane.admitted == 0 && lane.counts(now));
        idle.map(Lane::expires).min().filter(|_| self.lanes.values().any(wait))
    }

    /// A request of `lane` is not in work any more: it has been answered, or waits again.
    pub(crate) fn leaves_work(&mut self, lane: u64, cost: Cost, now: Nanos) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            let (kind, bytes) = cost;
            let queue = lane.queue(kind);
            queue.working -= 1;
            queue.working_bytes -= bytes;
            lane.last = now;
        }
    }

    /// The rest of a request of `lane` that has been in work waits again, behind what came in the meantime.
    pub(crate) fn push_rest(&mut self, lane: u64, what: T, cost: Cost) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.queue(cost.0).waiting.push_back((what, cost.1));
        }
    }

    /// A request of `lane` has been answered.
    pub(crate) fn ended(&mut self, lane: u64, bytes: u64) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.admitted -= 1;
            lane.admitted_bytes -= bytes;
        }
    }

    /// All that wait.
    pub(crate) fn clear(&mut self) -> VecDeque<T> {
        let lanes = std::mem::take(&mut self.lanes).into_values();
        let queues = lanes.flat_map(|lane| lane.queues);
        queues.flat_map(|queue| queue.waiting).map(|(what, _)| what).collect()
    }

    fn forget_idle(&mut self, now: Nanos) {
        self.lanes.retain(|_, lane| lane.counts(now));
        let idle = |lanes: &BTreeMap<u64, Lane<T>>| lanes.values().filter(|lane| lane.admitted == 0).count();
        while idle(&self.lanes) > IDLE_LANES_MAX {
            let all_idle = self.lanes.iter().filter(|(_, lane)| lane.admitted == 0);
            let Some(oldest) = all_idle.min_by_key(|(_, lane)| lane.last).map(|(n, _)| *n) else { return };
            self.lanes.remove(&oldest);
        }
    }
}

impl Kind {
    /// In the order of a lane's queues.
    const ALL: [Self; KINDS] = [Self::Free, Self::Write, Self::Read, Self::Zero];
}

impl<T> Lane<T> {
    fn queue(&mut self, kind: Kind) -> &mut Queue<T> {
        &mut self.queues[kind as usize]
    }

    fn expires(&self) -> Nanos {
        Nanos(self.last.0.saturating_add(RECENT.as_nanos() as u64))
    }

    /// Whether others share with it.
    fn counts(&self, now: Nanos) -> bool {
        self.admitted > 0 || now < self.expires()
    }
}

impl<T> Queue<T> {
    fn may_go(&self, share: Option<Share>) -> bool {
        let Some((_, bytes)) = self.waiting.front() else {
            return false;
        };
        share.is_none_or(|share| {
            self.working == 0 || self.working < share.requests && self.working_bytes + bytes <= share.bytes
        })
    }

    fn take(&mut self, share: Option<Share>) -> Option<T> {
        if !self.may_go(share) {
            return None;
        }
        let (what, bytes) = self.waiting.pop_front()?;
        self.working += 1;
        self.working_bytes += bytes;
        Some(what)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A volume that works off what it is given, first come first served: lane and bytes.
    #[derive(Default)]
    struct Volume {
        lanes: Lanes<(u64, u64)>,
        work: VecDeque<(u64, u64)>,
        now: u64,
    }

    impl Volume {
        fn push(&mut self, lane: u64, bytes: u64) {
            self.lanes.push(lane, (lane, bytes), bytes, (Kind::Write, bytes));
        }

        /// Answers one request.
        fn step(&mut self) -> Option<(u64, u64)> {
            self.now += 1;
            self.lanes.take(Nanos(self.now), false, &mut self.work);
            let (lane, bytes) = self.work.pop_front()?;
            self.lanes.leaves_work(lane, (Kind::Write, bytes), Nanos(self.now));
            self.lanes.ended(lane, bytes);
            Some((lane, bytes))
        }
    }

    proptest! {
        /// However much others have queued, a request of a lane with nothing in work is answered after at most a share of each of them,
        /// and the one request of each that may be larger than that.
        #[test]
        fn a_polite_client_waits_for_a_share_of_each_other_one(
            flooders in 1u64..20,
            sizes in proptest::collection::vec(1u64..1025, 1..20),
            warm_up in 0usize..300,
        ) {
            const KIB: u64 = 1 << 10;
            let mut sizes = sizes.into_iter().map(|n| n * KIB).cycle();
            let mut volume = Volume::default();
            // It was there a moment ago.
            volume.push(0, 4 * KIB);
            prop_assert!(volume.step().is_some());
            for _ in 0..200 {
                (1..=flooders).for_each(|lane| volume.push(lane, sizes.next().unwrap()));
            }
            // They go on flooding.
            for _ in 0..warm_up {
                let (lane, _) = volume.step().unwrap();
                volume.push(lane, sizes.next().unwrap());
            }
            volume.push(0, 4 * KIB);
            let (mut requests, mut bytes) = (0, 0);
            loop {
                let (lane, size) = volume.step().unwrap();
                if lane == 0 {
                    break;
                }
                (requests, bytes) = (requests + 1, bytes + size);
                volume.push(lane, sizes.next().unwrap());
            }
            prop_assert!(requests <= WORK_REQUESTS_MAX as u64, "{requests} requests");
            prop_assert!(bytes <= WORK_BYTES_MAX + flooders * 1024 * KIB, "{bytes} bytes");
        }

        /// Nothing is lost or reordered within a lane, whatever comes and goes.
        #[test]
        fn each_lane_keeps_its_order(steps in proptest::collection::vec((0u64..4, 1u64..3_000_000, any::<bool>()), 1..300)) {
            let mut lanes = Lanes::default();
            let (mut work, mut seen) = (VecDeque::new(), BTreeMap::<u64, u64>::new());
            let mut next = BTreeMap::<u64, u64>::new();
            let mut end = |lanes: &mut Lanes<(u64, u64, u64)>, (lane, number, bytes): (u64, u64, u64)| {
                let expected = seen.entry(lane).or_default();
                assert_eq!(number, *expected);
                *expected += 1;
                lanes.leaves_work(lane, (Kind::Write, bytes), Nanos(0));
                lanes.ended(lane, bytes);
            };
            for (lane, bytes, push) in steps {
                if push {
                    let number = next.entry(lane).or_default();
                    lanes.push(lane, (lane, *number, bytes), bytes, (Kind::Write, bytes));
                    *number += 1;
                } else {
                    prop_assert!(work.is_empty() || !lanes.has_next(Nanos(0), false));
                    lanes.take(Nanos(0), false, &mut work);
                    if let Some(done) = work.pop_front() {
                        end(&mut lanes, done);
                    }
                }
                lanes.take(Nanos(0), false, &mut work);
                prop_assert!(!lanes.has_next(Nanos(0), false));
            }
            while let Some(done) = work.pop_front() {
                end(&mut lanes, done);
                lanes.take(Nanos(0), false, &mut work);
            }
            prop_assert_eq!(seen, next);
        }
    }

    #[test]
    fn who_is_alone_has_no_bound_and_again_when_the_others_have_gone() {
        let (mut lanes, mut work) = (Lanes::default(), VecDeque::new());
        let push = |lanes: &mut Lanes<u64>, lane| {
            (0..1000).for_each(|_| lanes.push(lane, lane, 1 << 20, (Kind::Write, 1 << 20)));
        };
        push(&mut lanes, 7);
        lanes.take(Nanos(0), false, &mut work);
        assert_eq!(work.len(), 1000);
        work.clear();
        push(&mut lanes, 8);
        lanes.take(Nanos(0), false, &mut work);
        assert!(work.len() < 10, "{}", work.len());
        assert!(lanes.has_next(Nanos(0), true));
        for _ in 0..1000 {
            lanes.leaves_work(7, (Kind::Write, 1 << 20), Nanos(0));
            lanes.ended(7, 1 << 20);
        }
        lanes.take(Nanos(RECENT.as_nanos() as u64 - 1), false, &mut work);
        let late = Nanos(RECENT.as_nanos() as u64 - 1);
        assert!(lanes.are_several(late) && work.len() < 10);
        assert_eq!(lanes.next_change(late), Some(Nanos(RECENT.as_nanos() as u64)));
        assert!(
            !lanes.has_next(late, false) && lanes.has_next(Nanos(late.0 + 1), false),
            "it is seen without a turn"
        );
        lanes.take(Nanos(RECENT.as_nanos() as u64), false, &mut work);
        assert_eq!(work.len(), 1000);
    }

    #[test]
    fn lanes_of_the_past_are_forgotten() {
        let (mut lanes, mut work) = (Lanes::default(), VecDeque::new());
        for lane in 0..1000 {
            lanes.push(lane, (), 0, (Kind::Write, 0));
            lanes.take(Nanos(lane), true, &mut work);
            lanes.leaves_work(lane, (Kind::Write, 0), Nanos(lane));
            lanes.ended(lane, 0);
        }
        lanes.take(Nanos(1000), false, &mut work);
        assert_eq!(lanes.lanes.len(), IDLE_LANES_MAX);
        assert!(lanes.lanes.contains_key(&999) && !lanes.lanes.contains_key(&0));
    }
    /// A read that waits for a backing which hangs keeps no write of its connection from the log, and no flush.
    #[test]
    fn kinds_do_not_stand_behind_each_other() {
        let (mut lanes, mut work) = (Lanes::default(), VecDeque::new());
        lanes.push(2, "other", 0, (Kind::Write, 0));
        for (what, cost) in [
            ("read", (Kind::Read, WORK_BYTES_MAX)),
            ("second read", (Kind::Read, WORK_BYTES_MAX)),
            ("zero", (Kind::Zero, 32 << 20)),
            ("second zero", (Kind::Zero, 32 << 20)),
            ("write", (Kind::Write, 4096)),
            ("flush", (Kind::Free, 0)),
        ] {
            lanes.push(1, what, 0, cost);
        }
        lanes.take(Nanos(0), false, &mut work);
        work.make_contiguous().sort_unstable();
        assert_eq!(work, ["flush", "other", "read", "write", "zero"]);
    }
}
