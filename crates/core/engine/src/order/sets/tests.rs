//! Against the graph of the paper.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The paper's graph (FAST'13, section 3.1), built as its text says: a link from each completed write to each write that
/// is issued later.
#[derive(Default)]
struct Graph {
    completed: Vec<usize>,
    predecessors: Vec<Vec<usize>>,
}

impl Graph {
    fn issue(&mut self) {
        self.predecessors.push(self.completed.clone());
    }

    fn complete(&mut self, write: usize) {
        self.completed.push(write);
    }

    /// Writes of which no predecessor is left.
    fn ready(&self, left: &BTreeSet<usize>) -> BTreeSet<usize> {
        let free = |w: &&usize| self.predecessors[**w].iter().all(|p| !left.contains(p));
        left.iter().filter(free).copied().collect()
    }

    fn bytes(&self) -> usize {
        self.predecessors.iter().map(|p| size_of::<usize>() * p.len() + size_of::<Vec<usize>>()).sum()
    }
}

/// What the engine keeps: of each record, in the order of the log, one number.
#[derive(Default)]
struct Distances {
    acknowledged: u64,
    distances: Vec<u16>,
}

impl Distances {
    fn issue(&mut self) {
        let seq = Seq(self.distances.len() as u64 + 1);
        self.distances.push(crate::log::Log::distance(seq, Seq(self.acknowledged)));
    }

    /// The set that begins with record `first`, as a number of records.
    fn set(&self, first: usize) -> usize {
        self.set_of(first..self.distances.len()).count()
    }

    /// The first of these records of which none depends on another.
    fn set_of(&self, left: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
        let mut set = Independent::default();
        left.take_while(move |n| {
            let seq = Seq(*n as u64 + 1);
            let admitted = set.admits(seq, self.distances[*n]);
            set.oldest.get_or_insert(seq);
            admitted
        })
    }
}

/// Writes that enter the log in the order of their issue, each with a record of its own, and are acknowledged in that
/// order: true is an issue, false an acknowledgement.
fn history(issues: Vec<bool>) -> (Graph, Distances) {
    let (mut graph, mut ours) = (Graph::default(), Distances::default());
    for issue in issues {
        if issue {
            graph.issue();
            ours.issue();
        } else if (ours.acknowledged as usize) < ours.distances.len() {
            graph.complete(ours.acknowledged as usize);
            ours.acknowledged += 1;
        }
    }
    (graph, ours)
}

proptest! {
    /// The sets are the maximal ones of the paper's graph, one after the other.
    #[test]
    fn sets_are_those_of_the_graph(issues in proptest::collection::vec(any::<bool>(), 1..200)) {
        let (graph, ours) = history(issues);
        let mut left: BTreeSet<usize> = (0..ours.distances.len()).collect();
        let mut first = 0;
        while !left.is_empty() {
            let count = ours.set(first);
            prop_assert!(count > 0);
            let set: BTreeSet<usize> = (first..first + count).collect();
            prop_assert_eq!(&set, &graph.ready(&left));
            left.retain(|w| !set.contains(w));
            first += count;
        }
    }
}

proptest! {
    /// Whichever of a set's writes ends next: it slides over what the graph allows then, and over nothing else.
    #[test]
    fn a_set_slides_as_the_graph_allows(
        issues in proptest::collection::vec(any::<bool>(), 1..200),
        ends in proptest::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let (graph, ours) = history(issues);
        let mut left: BTreeSet<usize> = (0..ours.distances.len()).collect();
        for end in ends.iter().take(left.len()) {
            let set: Vec<usize> = ours.set_of(left.iter().copied()).collect();
            prop_assert_eq!(&set, &graph.ready(&left).into_iter().collect::<Vec<_>>());
            left.remove(&set[end.index(set.len())]);
        }
        prop_assert!(left.is_empty());
    }
}

/// Memory and work against the graph, at a depth of 16 and with 2,000 writes that have not been destaged.
#[test]
fn costs_less_than_the_graph() {
    const WRITES: usize = 2000;
    const DEPTH: usize = 16;
    let (mut graph, mut ours) = (Graph::default(), Distances::default());
    for n in 0..WRITES {
        graph.issue();
        ours.issue();
        if n >= DEPTH {
            graph.complete(n - DEPTH);
        }
        ours.acknowledged = (n + 1).saturating_sub(DEPTH) as u64;
    }
    let links: usize = graph.predecessors.iter().map(Vec::len).sum();
    let (mut first, mut comparisons) = (0, 0);
    while first < WRITES {
        let set = ours.set(first);
        comparisons += set + 1;
        first += set;
    }
    let bytes = (graph.bytes() / WRITES, size_of::<u16>());
    println!(
        "a write: {} bytes and {} links in the graph; {} bytes and {:.1} comparisons here",
        bytes.0,
        links / WRITES,
        bytes.1,
        comparisons as f64 / WRITES as f64
    );
    assert!(comparisons < 2 * WRITES && links > 100 * WRITES);
    assert!(bytes.0 > 100 * bytes.1);
}
