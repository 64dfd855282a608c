//! Deleting what nobody needs: what a checkpoint does without, and, once after an opening, what earlier owners have left.
//!
//! Names are never used twice. So a delete that is carried out late hurts nothing.

use std::collections::VecDeque;

use crate::calls::{Calls, Outcome};
use crate::face::Position;
use crate::jobs::Job;
use crate::map::Map;
use crate::names;
use crate::state::State;
use crate::store::{PAGE_NAMES_MAX, Request};

/// Deletes that are under way at a time.
const DELETES_MAX: usize = 16;

/// What is listed, one after the other.
const PREFIXES: [&str; 4] = [names::LOG, names::INDEX, names::PARTS, names::CHECKPOINTS];

/// A search for what earlier owners have left.
#[derive(Clone, Debug)]
struct Sweep {
    /// Which prefix.
    prefix: usize,
    /// The last name of the page before.
    after: String,
    is_asked: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trash {
    waiting: VecDeque<(String, Option<u32>)>,
    under_way: usize,
    sweep: Option<Sweep>,
}

impl Trash {
    /// Objects of the log that are dead.
    pub(crate) fn add_dead(&mut self, map: &mut Map, dead: &[u32]) {
        for slot in dead {
            map.change(*slot, |object| object.is_doomed = true);
            if let Some(object) = map.get(*slot) {
                self.waiting.push_back((names::log(object.at), Some(*slot)));
            }
        }
    }

    /// A checkpoint that no name keeps. Its head goes first: without it nobody looks for the parts.
    pub(crate) fn add_checkpoint(&mut self, at: Position, parts: u32) {
        self.waiting.push_back((names::index(at), None));
        for number in 0..parts {
            self.waiting.push_back((names::part(at, number), None));
        }
    }

    /// Begins to look for what earlier owners have left. This owner must have made a checkpoint: one that an earlier owner has made late
    /// may need less than the one before, which is gone then.
    pub(crate) fn sweep(&mut self) {
        self.sweep = Some(Sweep { prefix: 0, after: String::new(), is_asked: false });
    }

    pub(crate) fn go_on(&mut self, map: &mut Map, calls: &mut Calls<Job>) {
        for _ in 0..self.waiting.len() {
            if self.under_way >= DELETES_MAX {
                break;
            }
            let Some((name, slot)) = self.waiting.pop_front() else { break };
            if slot.and_then(|slot| map.get(slot)).is_some_and(|object| object.pins > 0) {
                // Somebody reads it.
                self.waiting.push_back((name, slot));
                continue;
            }
            calls.start(Job::Delete(slot), Request::Delete { name });
            self.under_way += 1;
        }
        if let Some(sweep) = &mut self.sweep
            && !sweep.is_asked
            && self.waiting.len() < PAGE_NAMES_MAX
        {
            let prefix = PREFIXES[sweep.prefix].to_owned();
            calls.start(Job::Sweep, Request::List { prefix, after: sweep.after.clone() });
            sweep.is_asked = true;
        }
    }

    pub(crate) fn deleted(&mut self, map: &mut Map, slot: Option<u32>) {
        self.under_way -= 1;
        if let Some(slot) = slot {
            map.remove(slot);
        }
    }

    /// Takes a page of names.
    pub(crate) fn page(&mut self, state: &State, own: u64, newest: Option<Position>, outcome: Outcome) {
        let (Some(sweep), Outcome::Page { names, more }) = (&mut self.sweep, outcome) else { return };
        for name in &names {
            if is_left_over(state, own, newest, name) {
                self.waiting.push_back((name.clone(), None));
            }
        }
        sweep.is_asked = false;
        match names.into_iter().next_back() {
            Some(last) if more => sweep.after = last,
            _ => {
                sweep.after.clear();
                sweep.prefix += 1;
            }
        }
        if sweep.prefix == PREFIXES.len() {
            self.sweep = None;
        }
    }
}

/// Whether an earlier owner has left this object, and nobody needs it.
fn is_left_over(state: &State, own: u64, newest: Option<Position>, name: &str) -> bool {
    if let Some(at) = names::log_of(name) {
        // A fence stays for good: without it its owner could go on.
        let ended = state.ended.iter().find(|ended| ended.epoch == at.epoch);
        return state.map.slot_of(at).is_none() && ended.is_some_and(|ended| ended.fence != at.seq);
    }
    if let Some(at) = names::index_of(name).or_else(|| names::part_of(name)) {
        return newest.is_some_and(|newest| at < newest) && at.epoch < own && !state.is_named(at);
    }
    let is_kept = |(name, at)| state.named.iter().any(|named| named.name == name && named.at == at);
    names::checkpoint_of(name).is_some_and(|found| found.1.epoch < own && !is_kept(found))
}
