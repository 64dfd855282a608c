//! What a volume's backing knows of holes, asked on a thread of its own: a file system may take its time, and reads and writes must not.
//!
//! ```text
//!   frontends ─► queue ─► Turns ─► engine: what is cached ─► this thread: holes of the backing between that ─► frontends
//!                         one answer a turn, and fewer while
//!                         reads and writes are under way
//! ```
//!
//! The cache is asked first and the backing afterwards, never the other way round: `forebay_engine`'s `allocation` module has the argument.
//! What is under way here is bounded by the volume's queue of requests, in which each question keeps its place until it is answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_block::{Allocation, Completion, Nanos, Reply, StatusExtent};
use forebay_device::Survey;

use crate::handle::Shared;
use crate::queue::{Ended, Incoming};

/// For so long after a read or write the volume counts as busy: questions about allocation are spread then.
const BUSY: Duration = Duration::from_millis(10);
/// While the volume is busy, from one question to the next at least.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// And this many times what the volume's thread spent on the last one: it keeps nineteen twentieths of its time for others.
const PAUSE_SHARE: u64 = 19;

/// Questions about allocation that wait for their turn, and when it comes.
#[derive(Default)]
pub(crate) struct Turns {
    waiting: VecDeque<Incoming>,
    /// When something else than a question was last taken in.
    others_at: Option<Nanos>,
    next_at: Nanos,
}

impl Turns {
    /// A question has come, for which a moment will be found.
    pub(crate) fn wait(&mut self, question: Incoming) {
        self.waiting.push_back(question);
    }

    /// Something has come that somebody waits for.
    pub(crate) fn give_way(&mut self, now: Nanos) {
        self.others_at = Some(now);
    }

    /// When the next question's turn comes; `None` without one.
    pub(crate) fn next_at(&self, now: Nanos) -> Option<Nanos> {
        let busy = self.others_at.is_some_and(|at| now.since(at) < BUSY.as_nanos() as u64);
        self.waiting.front().map(|_| if busy { self.next_at } else { now })
    }

    /// The question whose turn it is.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Incoming> {
        match self.next_at(now) {
            Some(at) if at <= now => self.waiting.pop_front(),
            _ => None,
        }
    }

    /// The one that was taken has cost the thread so much time, until now.
    pub(crate) fn spent(&mut self, began: Nanos, now: Nanos) {
        let pause = (now.since(began) * PAUSE_SHARE).max(PAUSE_MIN.as_nanos() as u64);
        self.next_at = Nanos(now.0 + pause);
    }

    /// All that wait, whose turn will not come any more.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Incoming> + '_ {
        self.waiting.drain(..)
    }
}

/// What the cache has answered to a question.
pub(crate) struct Cached {
    pub(crate) offset: u64,
    pub(crate) extents_max: usize,
    /// Data is cached; of a hole the backing knows more.
    pub(crate) extents: Vec<StatusExtent>,
    pub(crate) done: Completion,
    /// The room that it has in the queue until it is answered.
    pub(crate) place: Ended,
}

/// The thread. Dropping it waits until all has been answered that it has been handed.
pub(crate) struct Surveyor {
    questions: Option<Sender<Cached>>,
    thread: Option<JoinHandle<()>>,
}

impl Surveyor {
    pub(crate) fn start(survey: Survey, shared: &Arc<Shared>) -> std::io::Result<Self> {
        let (questions, receiver) = mpsc::channel::<Cached>();
        let thread = thread::Builder::new().name(format!("survey {}", shared.info.name));
        let shared = Arc::clone(shared);
        let thread = thread.spawn(move || {
            shared.queue.consume_from_here();
            for Cached { offset, extents_max, extents, done, place } in receiver {
                done(Ok(Reply::Status(overlay(offset, &extents, extents_max, &|at, end| {
                    survey.at(at, end)
                }))));
                shared.queue.release(&[place]);
            }
        })?;
        Ok(Self { questions: Some(questions), thread: Some(thread) })
    }

    /// Hands a question on; gives it back if the thread has ended.
    pub(crate) fn ask(&self, cached: Cached) -> Result<(), Completion> {
        match &self.questions {
            Some(questions) => questions.send(cached).map_err(|back| back.0.done),
            None => Err(cached.done),
        }
    }
}

impl Drop for Surveyor {
    fn drop(&mut self) {
        self.questions = None;
        if let Some(thread) = self.thread.take() {
            // A completion that panicked has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

/// Asks the backing about the parts of a range that are not cached. `backing(at, end)` says what lies at a byte, and how far.
fn overlay(
    offset: u64,
    cached: &[StatusExtent],
    extents_max: usize,
    backing: &dyn Fn(u64, u64) -> StatusExtent,
) -> Vec<StatusExtent> {
    let end = offset + cached.iter().map(|e| e.len).sum::<u64>();
    let mut list: Vec<StatusExtent> = Vec::new();
    let mut at = offset;
    // What the backing said last, and up to where: it often reaches over what is cached.
    let (mut known, mut known_end) = (Allocation::Data, offset);
    for extent in cached {
        let extent_end = at + extent.len;
        while at < extent_end {
            let (allocation, to) = match extent.allocation {
                Allocation::Data => (Allocation::Data, extent_end),
                Allocation::Hole => {
                    if known_end <= at {
                        let part = backing(at, end);
                        (known, known_end) = (part.allocation, at + part.len);
                    }
                    (known, known_end.min(extent_end))
                }
            };
            let full = list.len() == extents_max;
            match list.last_mut() {
                Some(last) if last.allocation == allocation => last.len += to - at,
                // Short: the asker goes on here.
                _ if full => return list,
                _ => list.push(StatusExtent { len: to - at, allocation }),
            }
            at = to;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use forebay_block::{IoError, SECTOR_BYTES};
    use proptest::prelude::*;

    use super::*;

    fn extents_of(sectors: &[bool]) -> Vec<StatusExtent> {
        let runs = sectors.chunk_by(|a, b| a == b);
        let extent = |run: &[bool]| StatusExtent {
            len: run.len() as u64 * SECTOR_BYTES,
            allocation: if run[0] { Allocation::Data } else { Allocation::Hole },
        };
        runs.map(extent).collect()
    }

    proptest! {
        /// Data is where either has data; a short answer is the whole one's beginning.
        #[test]
        fn is_data_where_either_has_data(
            sectors in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..200),
            offset in (0u64..50).prop_map(|n| n * SECTOR_BYTES),
            extents_max in 1usize..20,
        ) {
            let cached: Vec<bool> = sectors.iter().map(|s| s.0).collect();
            let backed: Vec<bool> = sectors.iter().map(|s| s.1).collect();
            let end = offset + sectors.len() as u64 * SECTOR_BYTES;
            let backing = |at: u64, to: u64| {
                assert!((offset..end).contains(&at) && to == end);
                let rest = &backed[((at - offset) / SECTOR_BYTES) as usize..];
                extents_of(rest)[0]
            };
            let whole = extents_of(&sectors.iter().map(|s| s.0 || s.1).collect::<Vec<_>>());
            let told = overlay(offset, &extents_of(&cached), extents_max, &backing);
            prop_assert_eq!(told.len(), whole.len().min(extents_max));
            prop_assert_eq!(&told[..], &whole[..told.len()]);
        }
    }

    #[test]
    fn questions_have_their_turn_at_once_when_nothing_else_is_to_be_done_and_seldom_else() {
        let question = || Incoming {
            op: forebay_block::Op::Status { offset: 0, len: 512, extents_max: 1 },
            origin: forebay_block::Origin::default(),
            done: Box::new(|_: Result<Reply, IoError>| {}),
            identified: true,
            inside: None,
        };
        let ms = |n: u64| Nanos(n * 1_000_000);
        let mut turns = Turns::default();
        assert_eq!(turns.next_at(ms(1)), None);
        for _ in 0..4 {
            turns.wait(question());
        }
        assert!(turns.take(ms(1)).is_some());
        turns.spent(ms(1), ms(2));
        assert!(turns.take(ms(2)).is_some(), "nobody else wants anything");
        turns.spent(ms(2), ms(3));
        turns.give_way(ms(4));
        assert_eq!(turns.next_at(ms(4)), Some(ms(3 + PAUSE_SHARE)));
        assert!(turns.take(ms(4)).is_none());
        turns.give_way(ms(20));
        assert!(turns.take(ms(3 + PAUSE_SHARE)).is_some(), "also beside others");
        assert!(turns.take(ms(40)).is_some(), "the last of the others has come long ago");
        assert_eq!(turns.next_at(ms(40)), None);
    }
}
