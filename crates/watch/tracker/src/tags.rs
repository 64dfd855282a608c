//! The tags of all volumes: what is known of each write as it arrives, and to which rate it is charged.

use std::sync::Arc;

use foldhash::HashMap;
use forebay_block::{Content, Criticality};

use crate::intake::{Cause, Intake, Known};
use crate::program::Ring;
use crate::rates::{Payers, Rate};
use crate::tasks::{Label, Name};
use crate::waits::Wait;
use crate::wire::{RawSlot, RawTag};

/// An outstanding write that a critical task has come to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The task that issued it.
    pub task: u32,
    /// The kind of wait.
    pub through: Wait,
    /// What the critical task is called, if it is known.
    pub waiter: Option<Name>,
}

/// What is known of a write that has arrived from the device.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The task that queued it.
    pub tid: u32,
    /// What that is called.
    pub name: Name,
    /// Linux I/O priority.
    pub ioprio: u16,
    /// What kind of data it carries.
    pub content: Content,
    /// Flagged synchronous.
    pub sync: bool,
    /// Its task is critical by its own word.
    pub hinted: bool,
    /// Who waits for it; [`Criticality::Capped`] if somebody does, and the rate is used up to which that counts.
    pub criticality: Criticality,
    /// Who waits for it, and how, if that is not the task itself.
    pub cause: Option<Cause>,
    /// Nobody is known to wait for it, or none who has anything left of a rate, so that it may be promoted until it is done.
    pub outstanding: bool,
}

impl Arrival {
    /// With what rules say of its task; `allows` counts what is awaited, for its task's rate or for those of who waits.
    fn of(known: &Known, label: Label, allows: impl FnOnce(Rate, Payers) -> bool) -> Self {
        let awaited = known.is_awaited();
        let payers = known.cause.map_or(0, |cause| cause.payers);
        let capped = awaited && !allows(label.rate, payers);
        Self {
            tid: known.tid,
            name: label.name(known.thread()),
            hinted: known.hinted,
            ioprio: known.ioprio,
            content: known.content(),
            sync: known.sync,
            criticality: if capped { Criticality::Capped } else { known.criticality },
            cause: known.cause.filter(|_| awaited),
            // Whoever has a rate has used it up, whoever else comes to wait.
            outstanding: !awaited || capped && label.rate == 0,
        }
    }
}

/// Told of what a critical task waits for.
pub type Promote = Box<dyn Fn(&Promotion) + Send + Sync>;

pub(crate) struct Volume {
    pub intake: Intake,
    pub promote: Arc<Promote>,
}

/// The rings of tags and of first slots, where they go, and whose they are.
pub(crate) struct Tags<T = Ring<RawTag>, S = Ring<RawSlot>> {
    pub ring: T,
    pub slots: S,
    pub volumes: HashMap<u32, Volume>,
    /// What rules say of tasks.
    pub labels: HashMap<u32, Label>,
}

impl<T: Iterator<Item = RawTag>, S: Iterator<Item = RawSlot>> Tags<T, S> {
    /// Puts away all that has come.
    pub fn drain(&mut self) {
        self.hear_of_slots();
        for tag in self.ring.by_ref() {
            if let Some(volume) = self.volumes.get_mut(&tag.device) {
                volume.intake.queue(&tag);
            }
        }
    }

    /// Puts away who has the first slots: first, for it may be the request whose tag is read next.
    fn hear_of_slots(&mut self) {
        for slot in self.slots.by_ref() {
            if let Some(volume) = self.volumes.get_mut(&slot.device) {
                volume.intake.has_first_slot(&slot);
            }
        }
    }

    /// What is known of a request that has arrived. Most often it is a write as it was queued, and the next in the ring: then it need not be put
    /// away, and what is behind it can wait for its own request, or for who wants to look at all of them. Of several tags of the same bytes the
    /// oldest is the request's; if that never came as a request (it was queued before anybody asked) the next ones are one late, until all is
    /// put away: hints (P8).
    fn arrive(&mut self, device: u32, offset: u64, len: u64) -> Option<Known> {
        self.hear_of_slots();
        let request = (offset, offset.saturating_add(len));
        for tag in self.ring.by_ref() {
            let Some(volume) = self.volumes.get_mut(&tag.device) else { continue };
            if tag.device == device && tag.range() == request {
                return Some(volume.intake.arrive_as(&tag));
            }
            volume.intake.queue(&tag);
        }
        self.volumes.get_mut(&device)?.intake.arrive(offset, len)
    }

    /// The same with what rules say of its task; whether so many bytes are within a rate, and charged to it, `allows` says.
    pub fn arrive_charged(
        &mut self,
        device: u32,
        offset: u64,
        len: u64,
        allows: impl FnOnce(Rate, Payers) -> bool,
    ) -> Option<Arrival> {
        let known = self.arrive(device, offset, len)?;
        let label = self.labels.get(&known.tid).copied().unwrap_or_default();
        let arrival = Arrival::of(&known, label, allows);
        if arrival.outstanding && known.is_awaited() {
            self.volumes.get_mut(&device)?.intake.keep_capped(offset, len, known);
        }
        Some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use foldhash::HashMapExt;
    use proptest::prelude::*;

    use super::*;
    use crate::intake::Wanted;
    use crate::rates::Rates;

    fn tag(device: u32, sector: u64, tid: u32) -> RawTag {
        RawTag { device, sector, bytes: 4096, tid, ..RawTag::default() }
    }

    /// Volumes of these devices, and what the programs have told.
    fn tags(
        devices: &[u32],
        ring: Vec<RawTag>,
        slots: Vec<RawSlot>,
    ) -> Tags<std::vec::IntoIter<RawTag>, std::vec::IntoIter<RawSlot>> {
        let volume = || Volume { intake: Intake::default(), promote: Arc::new(Box::new(|_: &Promotion| ())) };
        let volumes = devices.iter().map(|device| (*device, volume())).collect();
        Tags { ring: ring.into_iter(), slots: slots.into_iter(), volumes, labels: HashMap::new() }
    }

    #[test]
    fn a_request_takes_its_own_volumes_tag_and_leaves_what_is_behind_it() {
        let told = vec![tag(2, 0, 20), tag(3, 0, 30), tag(1, 0, 10), tag(1, 8, 11), tag(1, 16, 12)];
        let mut tags = tags(&[1, 2], told, Vec::new());
        assert_eq!(tags.arrive(1, 0, 4096).unwrap().tid, 10);
        assert_eq!(tags.ring.len(), 2);
        assert_eq!(tags.arrive(2, 0, 4096).unwrap().tid, 20, "one that was put away meanwhile");
        assert_eq!(tags.ring.len(), 0);
        assert_eq!(tags.arrive(1, 4096, 8192).unwrap().tid, 11, "two that were merged");
        assert!(tags.arrive(3, 0, 4096).is_none() && tags.arrive(1, 0, 4096).is_none());
        // What was taken on the way is remembered as its own volume's.
        let mut outstanding =
            |device| tags.volumes.get_mut(&device).unwrap().intake.has_outstanding(Wanted::All);
        assert!(outstanding(1) && outstanding(2));
    }

    #[test]
    fn who_has_the_first_slot_is_known_before_its_tag_is_read() {
        let slot = |device, sector| RawSlot { device, sector, awaited: 1, ..RawSlot::default() };
        let told = || (vec![tag(1, 0, 10), tag(1, 8, 11)], vec![slot(2, 0), slot(1, 8)]);
        for drained in [false, true] {
            let (ring, slots) = told();
            let mut tags = tags(&[1], ring, slots);
            if drained {
                tags.drain();
                assert_eq!((tags.ring.len(), tags.slots.len()), (0, 0));
            }
            let how = [0, 4096].map(|offset| tags.arrive(1, offset, 4096).unwrap().criticality);
            assert_eq!(how, [Criticality::None, Criticality::Awaited], "{drained}");
        }
    }

    #[test]
    fn only_what_is_awaited_counts_for_a_rate() {
        let known = |critical| {
            let mut comm = [0; 16];
            comm[..7].copy_from_slice(b"jbd2/x1");
            let mut intake = Intake::default();
            intake.queue(&RawTag { bytes: 4096, critical, flags: 1 << 11, comm, ..RawTag::default() });
            intake.arrive(0, 4096).unwrap()
        };
        let thread = Name::of_thread(b"jbd2");
        let Name::Thread(comm) = thread else { panic!("{thread:?}") };
        for (label, name) in [
            (Label::default(), thread),
            (Label { rule: Some(2), named: false, rate: 1 }, Name::Ruled(2, comm)),
            (Label { rule: Some(3), named: true, rate: 0 }, Name::Rule(3)),
        ] {
            let unawaited = Arrival::of(&known(0), label, |_, _| panic!("nobody waits for it"));
            assert_eq!((unawaited.name, unawaited.outstanding), (name, true));
            assert_eq!(unawaited.criticality, Criticality::None);
            for (within, criticality) in [(true, Criticality::Direct), (false, Criticality::Capped)] {
                let allows = |own, payers| {
                    assert_eq!((own, payers), (label.rate, 0));
                    within
                };
                let awaited = Arrival::of(&known(1), label, allows);
                assert_eq!((awaited.name, awaited.outstanding), (name, !within && label.rate == 0));
                assert_eq!((awaited.criticality, awaited.hinted), (criticality, false));
            }
        }
        assert!(Arrival::of(&known(5), Label::default(), |_, _| true).hinted);
    }

    /// What happens: a write comes of a task with this rate, or none, and is inherited of those with these, or of nobody; somebody comes to wait for
    /// all that is on its way; that is done; time goes by.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Write { own: Rate, payers: Option<Payers>, sync: bool, blocks: u32 },
        Wait(Payers),
        Done,
        Pass(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let write = (0u8..4, proptest::option::of(1u32..8), any::<bool>(), 1u32..40);
        prop_oneof![
            8 => write.prop_map(|(own, payers, sync, blocks)| Event::Write { own, payers, sync, blocks }),
            3 => (1u32..8).prop_map(Event::Wait),
            1 => Just(Event::Done),
            4 => (0..250_000_000u64).prop_map(Event::Pass),
        ]
    }

    proptest! {
        /// Where all who wait have rates, be it through a lock, the journal, a slot or a page, and whenever they come to wait, each byte that is
        /// admitted is charged to one of the rules: of each what its own tasks write, and of all together what is written for them, is no more
        /// than the rate, a second's worth ahead, and the last write.
        #[test]
        fn no_way_leads_past_a_rate(events in proptest::collection::vec(event(), 1..200)) {
            const RATES: [u64; 3] = [4096, 16_384, 65_536];
            let mut tags = tags(&[1], Vec::new(), Vec::new());
            for own in 1..=RATES.len() {
                tags.labels.insert(own as u32, Label { rule: Some(own), named: false, rate: own as Rate });
            }
            let rates = std::cell::RefCell::new(Rates::new(RATES.into_iter()));
            let (mut now, mut sector, mut longest) = (0, 0, 0);
            let mut admitted = [0u64; RATES.len() + 1];
            let mut outstanding: Vec<(u64, u64)> = Vec::new();
            for event in events {
                match event {
                    Event::Write { own, payers, sync, blocks } => {
                        let raw = RawTag {
                            sector, bytes: blocks * 4096, tid: u32::from(own), critical: if payers.is_some() { 2 } else { 0 },
                            via: u8::from(payers.is_some()), payers: payers.unwrap_or(0), flags: u32::from(sync) << 11, ..tag(1, 0, 0)
                        };
                        sector += u64::from(blocks) * 8;
                        let (offset, len) = (raw.sector * 512, u64::from(raw.bytes));
                        longest = longest.max(len);
                        tags.ring = vec![raw].into_iter();
                        let allows = |own, payers| rates.borrow_mut().charge(own, payers, len, now);
                        let arrival = tags.arrive_charged(1, offset, len, allows).unwrap();
                        if arrival.criticality.is_awaited(arrival.sync) {
                            prop_assert!(sync && !arrival.outstanding);
                            admitted[usize::from(own)] += len;
                        } else if arrival.outstanding {
                            outstanding.push((offset, len));
                        }
                    }
                    Event::Wait(payers) => {
                        let cause = Cause { via: Wait::Condition, waiter: 9, payers };
                        let allows = |tid: u32, payers, bytes| rates.borrow_mut().charge(tid as Rate, payers, bytes, now);
                        let intake = &mut tags.volumes.get_mut(&1).unwrap().intake;
                        for promoted in intake.promote(Wanted::All, cause, &allows) {
                            // It counts once, however often somebody comes to wait.
                            let range = (promoted.offset, promoted.len);
                            if let Some(at) = outstanding.iter().position(|o| *o == range) {
                                outstanding.remove(at);
                                admitted[promoted.task as usize] += promoted.len;
                            }
                        }
                    }
                    Event::Done => {
                        let intake = &mut tags.volumes.get_mut(&1).unwrap().intake;
                        for (offset, len) in outstanding.drain(..) {
                            intake.done(offset, len);
                        }
                    }
                    Event::Pass(ns) => now += ns,
                }
                let most = |rate: u64| rate + (u128::from(now) * u128::from(rate) / 1_000_000_000) as u64 + longest;
                for (own, rate) in (1..).zip(RATES) {
                    prop_assert!(admitted[own] <= most(rate), "{own}: {admitted:?}");
                }
                prop_assert!(admitted.iter().sum::<u64>() <= RATES.map(most).iter().sum::<u64>(), "{admitted:?}");
            }
        }
    }

    #[test]
    fn what_is_capped_for_some_is_promoted_for_others() {
        let journal = |payers| RawTag { critical: 2, via: 4, payers, flags: 1 << 11, ..tag(1, 0, 9) };
        let rates = std::cell::RefCell::new(Rates::new([4096].into_iter()));
        let mut tags = tags(&[1], Vec::new(), Vec::new());
        let mut arrive = |raw| {
            tags.ring = vec![raw].into_iter();
            let arrival = tags
                .arrive_charged(1, 0, 4096, |own, payers| rates.borrow_mut().charge(own, payers, 4096, 0));
            let arrival = arrival.unwrap();
            (arrival.criticality, arrival.outstanding)
        };
        assert_eq!(arrive(journal(1)), (Criticality::Inherited, false), "within the rate");
        assert_eq!(arrive(journal(0)), (Criticality::Inherited, false), "one who waits has none");
        assert_eq!(arrive(journal(1)), (Criticality::Capped, true));
        let intake = &mut tags.volumes.get_mut(&1).unwrap().intake;
        let mut wait = |payers| {
            let cause = Cause { via: Wait::Journal, waiter: 7, payers };
            let allows = |_, payers, bytes| rates.borrow_mut().charge(0, payers, bytes, 0);
            intake.promote(Wanted::All, cause, &allows).len()
        };
        assert_eq!([wait(1), wait(0)], [0, 1]);
    }
}
