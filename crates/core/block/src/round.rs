//! Answers that are given together: a volume answers several requests in one turn of its thread, and who has to send the answers sends
//! those for one client at once.

use std::cell::RefCell;
use std::sync::Arc;

/// Who gathers during a round.
pub trait Gathers: Send + Sync {
    /// The round is over: what was gathered is sent now. It must not block.
    fn round_ends(&self);
}

thread_local! {
    /// Who has gathered in the round of this thread; `None` outside of one.
    static GATHERED: RefCell<Option<Vec<Arc<dyn Gathers>>>> = const { RefCell::new(None) };
}

/// A round of the calling thread, which lasts until it is dropped. Within another one it is a part of that.
#[derive(Debug)]
pub struct Round {
    outer: bool,
}

impl Round {
    /// Begins a round.
    pub fn begin() -> Self {
        let outer = GATHERED.with_borrow_mut(|gathered| match gathered {
            Some(_) => false,
            None => {
                *gathered = Some(Vec::new());
                true
            }
        });
        Self { outer }
    }

    /// Has `who` told at the end of the calling thread's round; false if there is none, and then it is not told. Who gathers asks
    /// once in a round.
    pub fn gathers(who: impl FnOnce() -> Arc<dyn Gathers>) -> bool {
        GATHERED.with_borrow_mut(|gathered| match gathered {
            Some(gathered) => {
                gathered.push(who());
                true
            }
            None => false,
        })
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.outer {
            // Taken out first: what is sent now is no part of it.
            let gathered = GATHERED.take();
            gathered.into_iter().flatten().for_each(|who| who.round_ends());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[derive(Default)]
    struct Sender(AtomicUsize);

    impl Gathers for Sender {
        fn round_ends(&self) {
            assert!(!Round::gathers(|| unreachable!("the round is over")));
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn who_gathers_is_told_once_at_the_end_of_the_outermost_round() {
        let sender = Arc::new(Sender::default());
        let gathers = || Round::gathers(|| Arc::clone(&sender) as Arc<dyn Gathers>);
        assert!(!gathers(), "there is no round");
        let outer = Round::begin();
        assert!(gathers());
        drop(Round::begin());
        assert_eq!(sender.0.load(SeqCst), 0);
        assert!(gathers(), "the outer round goes on");
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!Round::gathers(|| unreachable!("another thread's"))));
        });
        drop(outer);
        assert_eq!(sender.0.load(SeqCst), 2);
        assert!(!gathers());
    }
}
