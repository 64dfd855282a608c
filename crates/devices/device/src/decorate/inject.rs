//! A device that fails on purpose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_block::{Class, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos};

use super::{Kinds, OpKind, pass_through, range_of};
use crate::checkpoints::{CheckpointChange, CheckpointDone};
use crate::device::{Away, Device};

/// Which operations fail, and how. All conditions must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which kinds of operations.
    pub kinds: Kinds,
    /// First byte of the device that the rule is about; a flush matches any range.
    pub from: u64,
    /// End (exclusive) of the range.
    pub to: u64,
    /// Matching operations that are spared at first.
    pub after: u64,
    /// Then each n-th fails; 1 is every one.
    pub every: u64,
    /// And of these, this share, between 0 and 1.
    pub probability: f64,
    /// Operations that fail in all; `u64::MAX` is for good.
    pub times: u64,
    /// What they fail with.
    pub error: ErrorKind,
    /// The operation is carried out, and then reported as failed.
    pub done: bool,
    /// Start of the pseudo-random sequence behind `probability`.
    pub seed: u64,
}

impl Default for Rule {
    /// Every operation fails with EIO, for good.
    fn default() -> Self {
        Self {
            kinds: Kinds::ANY,
            from: 0,
            to: u64::MAX,
            after: 0,
            every: 1,
            probability: 1.0,
            times: u64::MAX,
            error: ErrorKind::Io,
            done: false,
            seed: 1,
        }
    }
}

#[derive(Debug)]
struct ActiveRule {
    rule: Rule,
    matched: u64,
    fired: u64,
    random: u64,
}

impl ActiveRule {
    fn new(rule: Rule) -> Self {
        Self { random: rule.seed, rule, matched: 0, fired: 0 }
    }

    fn fires(&mut self, op: &DeviceOp) -> bool {
        let rule = &self.rule;
        let (offset, bytes) = range_of(op);
        let touches = matches!(op, DeviceOp::Flush) || (offset < rule.to && offset + bytes > rule.from);
        if !rule.kinds.has(OpKind::of(op)) || !touches || self.fired >= rule.times {
            return false;
        }
        self.matched += 1;
        if self.matched <= rule.after || !(self.matched - rule.after).is_multiple_of(rule.every.max(1)) {
            return false;
        }
        let (certain, probability) = (rule.probability >= 1.0, rule.probability);
        let fires = certain || next_share(&mut self.random) < probability;
        self.fired += u64::from(fires);
        fires
    }
}

/// The next number in [0, 1) of SplitMix64.
fn next_share(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Switches the rules of an [`ErrorInjected`] device while it runs, from any thread.
#[derive(Clone, Debug, Default)]
pub struct InjectHandle(Arc<Mutex<Vec<ActiveRule>>>);

impl InjectHandle {
    /// A handle with these rules.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let handle = Self::default();
        handle.set(rules);
        handle
    }

    /// Replaces all rules; none means that the device is well again.
    pub fn set(&self, rules: impl IntoIterator<Item = Rule>) {
        *self.lock() = rules.into_iter().map(ActiveRule::new).collect();
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) {
        self.lock().push(ActiveRule::new(rule));
    }

    /// Operations that the present rules have failed.
    pub fn fired(&self) -> u64 {
        self.lock().iter().map(|r| r.fired).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ActiveRule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first rule that fails this operation.
    fn verdict(&self, op: &DeviceOp) -> Option<(IoError, bool)> {
        let mut rules = self.lock();
        let rule = rules.iter_mut().find_map(|r| r.fires(op).then_some(&r.rule))?;
        Some((IoError::new(rule.error, "error injected for a test"), rule.done))
    }
}

/// See the module's documentation.
pub struct ErrorInjected {
    inner: Box<dyn Device>,
    handle: InjectHandle,
    /// Operations that are carried out within but will be reported as failed.
    doomed: HashMap<u64, IoError>,
    failed: Vec<(u64, DeviceResult)>,
    scratch: Vec<(u64, DeviceResult)>,
}

impl ErrorInjected {
    /// Fails the operations of a device by the rules of a handle.
    pub fn new(inner: Box<dyn Device>, handle: InjectHandle) -> Self {
        Self { inner, handle, doomed: HashMap::new(), failed: Vec::new(), scratch: Vec::new() }
    }
}

impl Device for ErrorInjected {
    pass_through!();

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        match self.handle.verdict(&op) {
            Some((error, false)) => self.failed.push((tag, Err(error))),
            Some((error, true)) => {
                self.doomed.insert(tag, error);
                self.inner.submit(tag, op, class, now);
            }
            None => self.inner.submit(tag, op, class, now),
        }
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        done.append(&mut self.failed);
        self.inner.poll(now, &mut self.scratch);
        for (tag, result) in self.scratch.drain(..) {
            let result = self.doomed.remove(&tag).map_or(result, Err);
            done.push((tag, result));
        }
    }

    fn away(&self) -> Option<Away> {
        self.inner.away()
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.inner.checkpoint(change, done, now);
    }

    fn deadline(&self) -> Option<Nanos> {
        if self.failed.is_empty() { self.inner.deadline() } else { Some(Nanos(0)) }
    }
}
