//! How long a command waits for what comes by itself.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use forebay_policy::time;

/// As long as nobody says otherwise.
const DEFAULT_MS: u64 = 60_000;
/// For whoever hears nothing meanwhile, and takes a daemon that is silent for longer for dead.
const UNTOLD_MAX_MS: u64 = 20_000;
/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A limit, from now on.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    since: Option<Instant>,
    limit_ms: u64,
}

impl Patience {
    /// It is over.
    pub const NONE: Self = Self { since: None, limit_ms: 0 };

    /// `wait_ms`, or the default; less for whoever is not told how far it is.
    pub fn of(wait_ms: Option<u64>, tells: bool) -> Self {
        let longest = if tells { u64::MAX } else { UNTOLD_MAX_MS };
        Self { since: Some(Instant::now()), limit_ms: wait_ms.unwrap_or(DEFAULT_MS).min(longest) }
    }

    /// What `look` finds, once it finds something; it looks at least once. `None` if the limit is reached before.
    pub fn wait_for<T>(self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            let over = self.is_over();
            match look() {
                None if !over => thread::sleep(LOOK_EVERY),
                found => return found,
            }
        }
    }

    /// The limit has been reached.
    pub fn is_over(self) -> bool {
        self.since.is_none_or(|since| since.elapsed() >= Duration::from_millis(self.limit_ms))
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the limit of {}", time::show_ms(self.limit_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_once_and_then_until_it_is_over() {
        let mut looks = 0;
        let never = Patience::of(Some(0), true).wait_for(|| {
            looks += 1;
            None::<()>
        });
        assert_eq!((never, looks), (None, 1));
        let mut looks = 0;
        let third = Patience::of(None, true).wait_for(|| {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third, Some(3));
    }

    #[test]
    fn who_hears_nothing_is_answered_in_time() {
        assert_eq!(Patience::of(None, true).to_string(), "the limit of 1m");
        assert_eq!(Patience::of(Some(3_600_000), false).to_string(), "the limit of 20s");
        assert_eq!(Patience::of(Some(5000), false).to_string(), "the limit of 5s");
    }
}
