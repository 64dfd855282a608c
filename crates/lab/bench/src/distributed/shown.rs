//! What was measured, and what was not.

use std::collections::BTreeMap;

use super::contender::{Contender, Store};
use super::stand::Cost;
use crate::BenchError;
use crate::postgresql::Transactions;
use crate::recording::{Recording, Slice};
use crate::report::median;

/// PostgreSQL on one volume: of all rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits {
    per_second: Vec<f64>,
    /// Sorted.
    pub(crate) latencies_us: Vec<u64>,
}

impl Commits {
    pub(crate) fn per_second(&self) -> f64 {
        median(self.per_second.iter().copied())
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Results {
    writes: BTreeMap<(Contender, usize), Recording>,
    commits: BTreeMap<Contender, Commits>,
    costs: BTreeMap<Contender, Cost>,
    /// The smallest of each cache that is to be full.
    dirty_shares: BTreeMap<Contender, f64>,
    pub(crate) left_out: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl Results {
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.commits.is_empty()
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    /// A load, or one contender under it, that could not be measured.
    pub(crate) fn leave_out(&mut self, load: &str, contender: Option<Contender>, why: &BenchError) {
        let by = contender.map_or_else(String::new, |c| format!(" by {}", c.name()));
        let why = why.to_string();
        let told = format!("{load}{by} ({})", why.lines().next_back().unwrap_or_default().trim());
        eprintln!("not measured: {told}");
        if !self.left_out.contains(&told) {
            self.left_out.push(told);
        }
    }

    pub(crate) fn add_writes(
        &mut self,
        contender: Contender,
        depth: usize,
        slice: Slice,
    ) -> Result<(), BenchError> {
        let mut known = match self.writes.remove(&(contender, depth)) {
            Some(known) => known,
            None => Recording::new()?,
        };
        known.add(slice);
        self.writes.insert((contender, depth), known);
        Ok(())
    }

    pub(crate) fn add_transactions(&mut self, contender: Contender, transactions: Transactions) {
        let commits = self.commits.entry(contender).or_default();
        commits.per_second.push(transactions.per_second);
        commits.latencies_us.extend(transactions.latencies_us);
        commits.latencies_us.sort_unstable();
    }

    pub(crate) fn add_cost(&mut self, contender: Contender, cost: &Cost) {
        let all = self.costs.entry(contender).or_default();
        all.acknowledged_bytes += cost.acknowledged_bytes;
        all.sent_bytes += cost.sent_bytes;
        all.requests += cost.requests;
    }

    pub(crate) fn add_dirty_share(&mut self, contender: Contender, share: f64) {
        let least = self.dirty_shares.entry(contender).or_insert(share);
        *least = least.min(share);
    }

    /// Writes of a contender at a depth.
    pub(crate) fn writes(&self, contender: Contender, depth: usize) -> Option<&Recording> {
        self.writes.get(&(contender, depth))
    }

    pub(crate) fn commits(&self, contender: Contender) -> Option<&Commits> {
        self.commits.get(&contender)
    }

    pub(crate) fn cost(&self, contender: Contender) -> Option<&Cost> {
        self.costs.get(&contender)
    }

    pub(crate) fn dirty_share(&self, contender: Contender) -> Option<f64> {
        self.dirty_shares.get(&contender).copied()
    }

    /// Who was measured by writes at some depth, in the order of the documentation.
    pub(crate) fn of_writes(&self, store: Store) -> Vec<Contender> {
        let measured = |c: &Contender| self.writes.keys().any(|(of, _)| of == c);
        Contender::of_writes(store).into_iter().filter(measured).collect()
    }

    /// The same, of PostgreSQL.
    pub(crate) fn of_databases(&self, store: Store) -> Vec<Contender> {
        Contender::of_databases(store).into_iter().filter(|c| self.commits.contains_key(c)).collect()
    }
}
