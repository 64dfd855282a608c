//! The checker for P4: whether a backing, as it is at some instant, is one that the promise allows.
//!
//! It is told what was written, and which write each sector holds now (the stamps say so), and nothing of how the
//! volume works. The ordered and journaled policies are judged by it.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use forebay_policy::Order;

use crate::stamp::{self, Content, WriteNo};

/// A write, as far as its place in the order of all writes goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Sectors that it wrote.
    pub sectors: Range<u64>,
    /// It wrote zeroes.
    pub zero: bool,
    /// When it was issued.
    pub issued: u64,
    /// When it was acknowledged: under the order `completion` every write comes after it that is issued from then on.
    /// [`NEVER`] if it was not.
    pub completed: u64,
    /// When the first flush was acknowledged that covers it, or it itself if it was forced: the same under the order
    /// `barrier`.
    pub covered: u64,
}

/// The time of what does not happen.
pub const NEVER: u64 = u64::MAX;

impl Ordered {
    fn before(&self, by: Order) -> u64 {
        match by {
            Order::Completion => self.completed,
            Order::Barrier => self.covered,
        }
    }

    /// Comes before nothing any more.
    pub fn release(&mut self) {
        (self.completed, self.covered) = (NEVER, NEVER);
    }
}

/// What a sector of the backing holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// What was there before all writes.
    Nothing,
    /// What this write wrote.
    Write(usize),
    /// Zeroes, of whichever write, or from before all of them.
    Zero,
}

impl Held {
    /// What the bytes of a sector say.
    pub fn of(sector: &[u8]) -> Self {
        match stamp::read(sector) {
            Content::Stamp { write: WriteNo(no @ 1..), .. } => Self::Write(no as usize - 1),
            Content::Zero => Self::Zero,
            Content::Stamp { .. } | Content::Foreign => Self::Nothing,
        }
    }
}

/// Two writes of which the later is on the backing and the earlier is not, although it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder {
    /// Number of the write that is missing.
    pub missing: usize,
    /// A sector of it that holds something older.
    pub sector: u64,
    /// Number of a write that came after it and is there.
    pub present: usize,
}

/// Every write to a volume, in the order of their issue.
#[derive(Clone, Debug, Default)]
pub struct History {
    writes: Vec<Ordered>,
    /// Of each sector, the writes to it.
    of: Vec<Vec<u32>>,
}

impl History {
    /// Forgets everything, reusing memory.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.of.iter_mut().for_each(Vec::clear);
    }

    /// The next write.
    pub fn push(&mut self, write: Ordered) {
        let end = write.sectors.end as usize;
        if self.of.len() < end {
            self.of.resize_with(end, Vec::new);
        }
        let number = self.writes.len() as u32;
        self.of[write.sectors.start as usize..end].iter_mut().for_each(|of| of.push(number));
        self.writes.push(write);
    }

    /// All of them.
    pub fn writes(&self) -> &[Ordered] {
        &self.writes
    }

    /// All of them, to learn when they were acknowledged.
    pub fn writes_mut(&mut self) -> &mut [Ordered] {
        &mut self.writes
    }
}

/// Checks the order `by`: of every pair in which A came before B was issued, B is present only if A is. `image` has what
/// each sector holds, from sector 0 on; `zero_before` says that zeroes may be from before all writes.
///
/// Whatever is issued before the newest visible write was issued is decided by that one alone: what came before its
/// issue must be there wholly, or be overwritten by what did not come before it. All else may be there, in part too.
/// So of each sector only the newest write that came before that counts: what may stand in its place may stand in that of
/// older ones. Zeroes are taken for those of the write that fits best: for being present, of the earliest.
///
/// # Errors
/// The first pair found.
pub fn check_order(history: &History, image: &[Held], by: Order, zero_before: bool) -> Result<(), Disorder> {
    let writes = history.writes();
    let newest = |a: usize, b: usize| if writes[a].issued < writes[b].issued { b } else { a };
    let seen = image.iter().filter_map(|h| if let Held::Write(w) = h { Some(*w) } else { None });
    let seen = seen.reduce(newest);
    let zeroes = if zero_before { None } else { newest_zero(writes, image) };
    let Some(present) = seen.into_iter().chain(zeroes).reduce(newest) else { return Ok(()) };
    match missing(history, image, by, writes[present].issued) {
        Some((missing, sector)) => Err(Disorder { missing, sector, present }),
        None => Ok(()),
    }
}

/// A write that came before `horizon` and is not wholly there, nor overwritten by what did not come before it, and a sector of it.
fn missing(history: &History, image: &[Held], by: Order, horizon: u64) -> Option<(usize, u64)> {
    let writes = history.writes();
    for (sector, (held, of)) in image.iter().zip(&history.of).enumerate() {
        let theirs = || of.iter().rev().map(|n| *n as usize);
        let Some(missing) = theirs().find(|n| writes[*n].before(by) < horizon) else { continue };
        // What comes before it is older; everything else may stand in its place.
        let stands = |held: usize| held == missing || writes[held].before(by) >= writes[missing].issued;
        let older = match *held {
            Held::Write(held) => !stands(held),
            Held::Nothing => true,
            Held::Zero => !theirs().any(|n| writes[n].zero && stands(n)),
        };
        if older {
            return Some((missing, sector as u64));
        }
    }
    None
}

/// What keeps an image from being at a consistency point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// A write is missing that was acknowledged before.
    Missing {
        /// Its number.
        write: usize,
        /// A sector of it that holds something older.
        sector: u64,
    },
    /// A write is there that was issued later.
    Later {
        /// Its number.
        write: usize,
        /// A sector that holds it.
        sector: u64,
    },
}

impl Misplaced {
    /// A sector where it can be seen.
    pub fn sector(self) -> u64 {
        match self {
            Self::Missing { sector, .. } | Self::Later { sector, .. } => sector,
        }
    }
}

/// Checks that the image is exactly at the point that was declared at some time: it has what was acknowledged before the first of
/// these times, and nothing that was issued after the last. What was under way may be there or not.
///
/// # Errors
/// The first write found that is not where it belongs.
pub fn check_point(history: &History, image: &[Held], at: RangeInclusive<u64>) -> Result<(), Misplaced> {
    let writes = history.writes();
    for (sector, held) in (0..).zip(image) {
        if let Held::Write(write) = held
            && writes[*write].issued > *at.end()
        {
            return Err(Misplaced::Later { write: *write, sector });
        }
    }
    match missing(history, image, Order::Completion, *at.start()) {
        Some((write, sector)) => Err(Misplaced::Missing { write, sector }),
        None => Ok(()),
    }
}

/// Of the zeroes in the image those that were written last, each taken for the earliest zeroes of its sector.
fn newest_zero(writes: &[Ordered], image: &[Held]) -> Option<usize> {
    let mut unknown = image.iter().filter(|held| **held == Held::Zero).count();
    let (mut newest, mut seen) = (None, Vec::new());
    for (n, w) in writes.iter().enumerate().filter(|(_, w)| w.zero) {
        if unknown == 0 {
            break;
        }
        if seen.is_empty() {
            seen.resize(image.len(), false);
        }
        for sector in w.sectors.clone().map(|s| s as usize) {
            if image[sector] == Held::Zero && !std::mem::replace(&mut seen[sector], true) {
                (newest, unknown) = (Some(n), unknown - 1);
            }
        }
    }
    newest
}

/// Checks that the image is exactly the state at one of `boundaries`, each the number of writes that it covers, in the
/// order of the log (`writes` are in that order): the end of a group, or a consistency point. Returns which.
///
/// # Errors
/// The range of states of which every sector of the image could be one; empty if there is none at all.
pub fn check_boundary(
    writes: &[Ordered],
    image: &BTreeMap<u64, usize>,
    boundaries: &[usize],
) -> Result<usize, Range<usize>> {
    let mut states = 0..writes.len() + 1;
    let mut history: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (n, w) in writes.iter().enumerate() {
        w.sectors.clone().for_each(|s| history.entry(s).or_default().push(n));
    }
    for (sector, written) in &history {
        let held = image.get(sector).copied();
        // The states in which the sector holds this: from its write on to before the next one.
        let next = written.iter().find(|n| held.is_none_or(|held| **n > held));
        states.start = states.start.max(held.map_or(0, |held| held + 1));
        states.end = states.end.min(next.map_or(writes.len() + 1, |n| n + 1));
    }
    let fits = |b: &&usize| states.contains(b);
    boundaries.iter().rev().find(fits).copied().ok_or(states.start..states.end.max(states.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Up to five writes over three sectors, some at the same time.
    fn history(random: &mut Random) -> Vec<Ordered> {
        let count = random.between(1, 5);
        let mut writes: Vec<Ordered> = (0..count)
            .map(|_| {
                let first = random.below(3);
                let issued = random.below(12);
                let before = if random.percent(20) { u64::MAX } else { issued + random.between(1, 5) };
                Ordered {
                    sectors: first..random.between(first + 1, 3),
                    zero: random.percent(20),
                    issued,
                    completed: before,
                    covered: before,
                }
            })
            .collect();
        writes.sort_by_key(|w| w.issued);
        writes
    }

    fn image(random: &mut Random, writes: &[Ordered]) -> BTreeMap<u64, usize> {
        let of = |s: u64| (0..writes.len()).filter(|n| writes[*n].sectors.contains(&s)).collect::<Vec<_>>();
        let mut image = BTreeMap::new();
        for sector in 0..3 {
            let candidates = of(sector);
            if !candidates.is_empty() && random.percent(70) {
                image.insert(sector, *random.pick(&candidates));
            }
        }
        image
    }

    /// What can be seen of an image.
    fn held(writes: &[Ordered], image: &BTreeMap<u64, usize>) -> Vec<Held> {
        let of = |s| match image.get(&s) {
            Some(w) if writes[*w].zero => Held::Zero,
            Some(w) => Held::Write(*w),
            None => Held::Nothing,
        };
        (0..3).map(of).collect()
    }

    /// The promise, word by word: is there a set of writes that are wholly present, and one of writes that are present in
    /// part, with everything that came before any of them among the whole ones, that gives this image?
    fn allowed(writes: &[Ordered], image: &BTreeMap<u64, usize>) -> bool {
        let n = writes.len();
        (0..3usize.pow(n as u32)).any(|code| {
            let state = |w: usize| code / 3usize.pow(w as u32) % 3;
            let (whole, there) = (|w: usize| state(w) == 2, |w: usize| state(w) > 0);
            let closed = (0..n)
                .filter(|b| there(*b))
                .all(|b| (0..n).filter(|a| writes[*a].completed < writes[b].issued).all(whole));
            let gives = (0..3u64).all(|sector| match image.get(&sector) {
                Some(held) => {
                    let wiped = |a: usize| {
                        whole(a)
                            && writes[a].sectors.contains(&sector)
                            && writes[*held].completed < writes[a].issued
                    };
                    there(*held) && !(0..n).any(wiped)
                }
                None => !(0..n).any(|a| whole(a) && writes[a].sectors.contains(&sector)),
            });
            closed && gives
        })
    }

    #[test]
    fn the_order_is_that_of_the_promise() {
        let mut random = Random::new(4);
        let (mut seen, mut by_zeroes) = ([0, 0], 0);
        for _ in 0..20_000 {
            let writes = history(&mut random);
            let image = image(&mut random, &writes);
            let expected = allowed(&writes, &image);
            let zeroes = image.values().any(|w| writes[*w].zero);
            let held = held(&writes, &image);
            let mut known = History::default();
            writes.iter().cloned().for_each(|w| known.push(w));
            let by = if random.percent(50) { Order::Completion } else { Order::Barrier };
            let found = check_order(&known, &held, by, false).is_ok();
            // Zeroes do not say whose they are: what is allowed is never refused, and what is found is not allowed.
            assert!(found == expected || zeroes && found, "{writes:?} {image:?}");
            let lenient = check_order(&known, &held, by, true).is_ok();
            assert!(lenient || !found, "{writes:?} {image:?}");
            by_zeroes += u64::from(lenient && !found);
            seen[usize::from(expected)] += 1;
        }
        assert!(by_zeroes > 100, "disorder of which zeroes tell: {by_zeroes}");
        assert!(seen.iter().all(|n| *n > 2000), "allowed and not: {seen:?}");
    }

    #[test]
    fn a_missing_earlier_write_is_named() {
        let write = |sector, issued, before| {
            let (completed, covered) = (before, before);
            Ordered { sectors: sector..sector + 1, zero: false, issued, completed, covered }
        };
        let by = Order::Completion;
        let history = |writes: [Ordered; 2]| {
            let mut history = History::default();
            writes.into_iter().for_each(|w| history.push(w));
            history
        };
        let writes = history([write(0, 1, 2), write(1, 3, 4)]);
        let only_later = [Held::Nothing, Held::Write(1)];
        let disorder = Disorder { missing: 0, sector: 0, present: 1 };
        assert_eq!(check_order(&writes, &only_later, by, false), Err(disorder));
        assert_eq!(check_order(&writes, &[Held::Write(0), Held::Nothing], by, false), Ok(()));
        // At the same time, or without a barrier between them, either may be there alone.
        assert_eq!(check_order(&history([write(0, 1, 9), write(1, 3, 4)]), &only_later, by, false), Ok(()));
    }

    #[test]
    fn a_point_has_what_came_before_it_and_nothing_later() {
        let write = |sector, issued, completed| {
            let covered = NEVER;
            Ordered { sectors: sector..sector + 1, zero: false, issued, completed, covered }
        };
        // The second is under way when the point is declared.
        let mut history = History::default();
        [write(0, 1, 2), write(1, 3, 9), write(0, 6, 7)].into_iter().for_each(|w| history.push(w));
        let image = |a, b| [Held::Write(a), b];
        assert_eq!(check_point(&history, &image(0, Held::Nothing), 5..=5), Ok(()));
        assert_eq!(check_point(&history, &image(0, Held::Write(1)), 5..=5), Ok(()));
        let missing = Misplaced::Missing { write: 0, sector: 0 };
        assert_eq!(check_point(&history, &[Held::Nothing, Held::Write(1)], 5..=5), Err(missing));
        let later = Misplaced::Later { write: 2, sector: 0 };
        assert_eq!(check_point(&history, &image(2, Held::Write(1)), 5..=5), Err(later));
        assert_eq!(check_point(&history, &image(2, Held::Nothing), 8..=8), Ok(()));
        assert_eq!(
            check_point(&history, &image(0, Held::Nothing), 8..=8),
            Err(Misplaced::Missing { write: 2, sector: 0 })
        );
    }

    #[test]
    fn an_image_is_a_boundary_or_it_is_not() {
        let mut random = Random::new(5);
        for _ in 0..5000 {
            let writes = history(&mut random);
            let state = |upto: usize| {
                let mut image = BTreeMap::new();
                for (n, w) in writes[..upto].iter().enumerate() {
                    w.sectors.clone().for_each(|s| _ = image.insert(s, n));
                }
                image
            };
            let boundaries: Vec<usize> = (0..=writes.len()).filter(|_| random.percent(50)).collect();
            let image = if random.percent(50) {
                image(&mut random, &writes)
            } else {
                state(random.below(writes.len() as u64 + 1) as usize)
            };
            let expected = boundaries.iter().any(|b| state(*b) == image);
            let found = check_boundary(&writes, &image, &boundaries);
            assert_eq!(found.is_ok(), expected, "{writes:?} {image:?} {boundaries:?} {found:?}");
            if let Ok(b) = found {
                assert_eq!(state(b), image);
            }
        }
    }
}
