//! What an owner believes to be durable, against a store that loses all that it may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use forebay_block::{Buf, ErrorKind, IoError};
use proptest::prelude::*;
use proptest::sample::Index;

use super::state::{LOST, State};
use super::*;

const LINES: usize = 2;
const DEPTH_MAX: usize = 3;
const FAILED: IoError = IoError::new(ErrorKind::Io, "a test");

#[derive(Clone, Debug, PartialEq, Eq)]
struct Toy {
    id: u64,
    effect: Effect,
}

impl Request for Toy {
    fn flush() -> Self {
        Self { id: 0, effect: Effect::Flushes }
    }

    fn effect(&self) -> Effect {
        self.effect
    }
}

#[derive(Clone, Copy, Debug)]
enum How {
    Well,
    Failed,
    Unknown,
}

#[derive(Clone, Debug)]
enum Step {
    /// An operation of so many requests, and of a flush behind them.
    Submit {
        line: usize,
        effect: Effect,
        requests: usize,
        then_flush: bool,
    },
    Send(usize),
    /// The store has carried out one of those that are sent, if it is well, and answers.
    Answer(Index, How),
    /// An answer comes that belongs to a session that was lost.
    Late(Index),
    Lose,
    Begin,
    GiveUp,
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    let effect = prop_oneof![
        1 => Just(Effect::Reads),
        4 => Just(Effect::ChangesVolatile),
        1 => Just(Effect::ChangesDurably),
        3 => Just(Effect::Flushes),
    ];
    let submit =
        (0..LINES, effect, 1..3_usize, any::<bool>()).prop_map(|(line, effect, requests, then_flush)| {
            let requests = if effect == Effect::Flushes { 1 } else { requests };
            let then_flush = then_flush && effect == Effect::ChangesVolatile;
            Step::Submit { line, effect, requests, then_flush }
        });
    let how = prop_oneof![8 => Just(How::Well), 1 => Just(How::Failed), 1 => Just(How::Unknown)];
    prop_oneof![
        6 => submit,
        8 => (0..LINES).prop_map(Step::Send),
        8 => (any::<Index>(), how).prop_map(|(which, how)| Step::Answer(which, how)),
        1 => any::<Index>().prop_map(Step::Late),
        2 => Just(Step::Lose),
        3 => Just(Step::Begin),
        1 => Just(Step::GiveUp),
        3 => Just(Step::Poll),
    ]
}

/// An operation as its owner knows it.
struct Asked {
    effect: Effect,
    then_flush: bool,
    requests: BTreeSet<u64>,
    /// One of its requests has not ended well.
    fails: bool,
    /// Of a flush: what its owner had heard of as written when it began, and how many flushes had failed.
    covers: BTreeSet<u64>,
    losses: u64,
}

struct Sent {
    line: usize,
    cookie: u64,
    request: Toy,
    /// What the store's volatile cache held by then: a flush covers no more.
    volatile: BTreeSet<u64>,
}

struct World {
    state: State<Toy>,
    now: Instant,
    last: u64,
    asked: BTreeMap<u64, Asked>,
    sent: Vec<Sent>,
    stale: Vec<(usize, u64)>,
    /// The store: changes that it has in its volatile cache, and those that no crash takes.
    volatile: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    /// The owner: volatile changes that it has heard of, and that it would have to write anew if a flush failed.
    heard: BTreeSet<u64>,
    losses: u64,
    succeeded: u64,
}

impl World {
    fn new() -> Self {
        let mut state = State::new(LINES);
        state.begin();
        Self {
            state,
            now: Instant::now(),
            last: 0,
            asked: BTreeMap::new(),
            sent: Vec::new(),
            stale: Vec::new(),
            volatile: BTreeSet::new(),
            durable: BTreeSet::new(),
            heard: BTreeSet::new(),
            losses: 0,
            succeeded: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Submit { line, effect, requests, then_flush } => {
                self.submit(line, effect, requests, then_flush);
            }
            Step::Send(line) => self.send(line),
            Step::Answer(which, how) if !self.sent.is_empty() => {
                let which = which.index(self.sent.len());
                self.answer(which, how);
            }
            Step::Late(which) if !self.stale.is_empty() => {
                let (line, cookie) = self.stale[which.index(self.stale.len())];
                self.state.end(line, cookie, Ending::Well(None));
            }
            Step::Answer(..) | Step::Late(_) => {}
            Step::Lose if self.state.in_session => {
                self.stale.extend(self.sent.drain(..).map(|sent| (sent.line, sent.cookie)));
                self.volatile.clear();
                self.state.lose(self.now);
            }
            Step::Begin if !self.state.in_session => {
                self.state.settle();
                self.state.begin();
            }
            Step::Lose | Step::Begin => {}
            Step::GiveUp => {
                let away = !self.state.in_session;
                self.state.give_up(&FAILED, self.now + AWAY_MAX);
                self.state.give_up(&FAILED, self.now + AWAY_MAX + Duration::from_nanos(1));
                assert!(!away || self.state.waiting() == 0);
            }
            Step::Poll => self.poll(),
        }
    }

    fn submit(&mut self, line: usize, effect: Effect, requests: usize, then_flush: bool) {
        let mut all = Vec::new();
        for _ in 0..requests {
            self.last += 1;
            all.push(Toy { id: self.last, effect });
        }
        let covers = if effect == Effect::Flushes { self.heard.clone() } else { BTreeSet::new() };
        let (requests, losses) = (all.iter().map(|request| request.id).collect(), self.losses);
        let asked = Asked { effect, then_flush, requests, fails: false, covers, losses };
        self.asked.insert(self.last, asked);
        let reads = effect == Effect::Reads;
        self.state.submit(self.last, line, Parts { reads, requests: all, then_flush });
    }

    fn send(&mut self, line: usize) {
        if !self.state.in_session {
            return;
        }
        if let Some((cookie, request)) = self.state.next(line, DEPTH_MAX, self.now) {
            assert_eq!(self.state.sent(line, cookie), Some(&request));
            self.sent.push(Sent { line, cookie, request, volatile: self.volatile.clone() });
        }
    }

    fn answer(&mut self, which: usize, how: How) {
        let Sent { line, cookie, request, volatile } = self.sent.remove(which);
        if !matches!(how, How::Well)
            && let Some(asked) = self.asked.values_mut().find(|asked| asked.requests.contains(&request.id))
        {
            asked.fails = true;
        }
        let ending = match how {
            How::Well => {
                match request.effect {
                    Effect::Reads => {}
                    Effect::ChangesVolatile => drop(self.volatile.insert(request.id)),
                    Effect::ChangesDurably => drop(self.durable.insert(request.id)),
                    Effect::Flushes => self.durable.extend(volatile),
                }
                Ending::Well((request.effect == Effect::Reads).then(|| Buf::copy_of(&[request.id as u8])))
            }
            How::Failed => Ending::Failed(FAILED),
            How::Unknown => Ending::Unknown(FAILED),
        };
        self.state.end(line, cookie, ending);
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.state.poll(&mut done);
        assert!(!self.state.has_done());
        for (tag, result) in done {
            let asked = self.asked.remove(&tag).expect("each operation ends once");
            match (&result, asked.effect) {
                (Ok(read), Effect::Reads) => {
                    let all: Vec<u8> = asked.requests.iter().map(|id| *id as u8).collect();
                    assert_eq!(read.as_deref(), Some(&all[..]), "parts are put together in their order");
                }
                (Ok(_), Effect::Flushes) if asked.losses == self.losses => {
                    assert!(asked.covers.is_subset(&self.durable), "a flush has succeeded over what is lost");
                    self.heard = self.heard.difference(&asked.covers).copied().collect();
                    self.succeeded += 1;
                }
                (Err(_), Effect::Flushes) => {
                    self.losses += 1;
                    // All of that is written anew.
                    self.heard.clear();
                }
                (Ok(_), Effect::ChangesVolatile) if !asked.then_flush => self.heard.extend(&asked.requests),
                (Ok(_), Effect::ChangesVolatile | Effect::ChangesDurably) => {
                    assert!(asked.requests.is_subset(&self.durable), "a durable write is lost");
                }
                _ => {}
            }
            assert!(result.is_err() || !asked.fails, "a request has not ended well");
        }
    }

    /// Everything goes well from here on.
    fn drain(&mut self) {
        self.take(&Step::Begin);
        while !self.asked.is_empty() {
            (0..LINES).for_each(|line| self.send(line));
            while !self.sent.is_empty() {
                self.answer(0, How::Well);
            }
            let left = self.asked.len() + self.state.waiting();
            self.poll();
            assert!(left > self.asked.len() || self.state.waiting() > 0, "an operation does not end");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_flush_that_succeeds_covers_all_that_was_answered_before_it(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.take(step));
        world.drain();
        // Of what is lost the owner hears once, and then all is well again.
        let before = world.succeeded;
        for _ in 0..2 {
            world.submit(0, Effect::Flushes, 1, false);
            world.drain();
        }
        prop_assert!(world.succeeded > before, "flushes fail for ever");
        prop_assert!(world.heard.is_empty());
    }
}

/// Runs these on one line, with everything answered well that is sent.
fn run(steps: &[Step]) -> World {
    let mut world = World::new();
    steps.iter().for_each(|step| world.take(step));
    world
}

/// What has ended with an error; nothing has ended well.
fn errors(world: &mut World) -> Vec<(u64, IoError)> {
    let mut done = Vec::new();
    world.state.poll(&mut done);
    done.into_iter().map(|(tag, result)| (tag, result.unwrap_err())).collect()
}

const WRITE: Step = Step::Submit { line: 0, effect: Effect::ChangesVolatile, requests: 1, then_flush: false };
const FLUSH: Step = Step::Submit { line: 0, effect: Effect::Flushes, requests: 1, then_flush: false };

#[test]
fn a_second_loss_is_told_even_if_the_failure_of_the_first_was_not_heard_yet() {
    let mut world = run(&[WRITE, Step::Send(0)]);
    world.answer(0, How::Well);
    // The flush fails for what the first session took; meanwhile the second one is lost, with another write.
    [Step::Lose, FLUSH, Step::Begin, WRITE, Step::Send(0)].iter().for_each(|step| world.take(step));
    world.answer(0, How::Well);
    [Step::Lose, Step::Begin, Step::Poll].iter().for_each(|step| world.take(step));
    assert_eq!((world.losses, world.heard.len()), (1, 1));
    world.take(&FLUSH);
    world.drain();
    assert_eq!(world.losses, 2);
}

#[test]
fn what_waits_for_a_store_that_is_away_fails_once_that_is_for_long() {
    let mut world = run(&[WRITE, Step::Send(0), Step::Lose, WRITE]);
    world.state.give_up(&FAILED, world.now + AWAY_MAX);
    assert_eq!((world.state.waiting(), world.state.has_done()), (2, false));
    world.state.give_up(&FAILED, world.now + AWAY_MAX + Duration::from_nanos(1));
    assert_eq!(errors(&mut world), [(1, FAILED), (2, FAILED)]);
}

#[test]
fn what_nothing_was_lost_of_is_sent_anew_in_its_order_before_what_waits() {
    let mut world = run(&[WRITE, WRITE, Step::Send(0), Step::Send(0), FLUSH, Step::Lose, Step::Begin]);
    let sent: Vec<u64> = std::iter::from_fn(|| world.state.next(0, DEPTH_MAX, world.now))
        .map(|(_, request)| request.id)
        .collect();
    assert_eq!(sent, [1, 2, 3]);
    // So many, and no more.
    world.take(&WRITE);
    assert_eq!((world.state.next(0, DEPTH_MAX, world.now), world.state.waiting()), (None, 1));
    assert_eq!(world.state.owed_since(0), Some(world.now));
}

/// Whoever hears of a failed flush does not know of an operation that has not ended.
#[test]
fn what_is_lost_in_part_fails_with_its_session_and_what_is_not_is_sent_anew() {
    for (requests, then_flush) in [(1, true), (2, false), (2, true)] {
        for answered in 0..=requests {
            let effect = Effect::ChangesVolatile;
            let mut world = run(&[Step::Submit { line: 1, effect, requests, then_flush }]);
            for _ in 0..answered {
                world.send(1);
                world.answer(0, How::Well);
            }
            // Of a durable write the flush is on its way.
            world.send(1);
            [Step::Lose, Step::Begin].iter().for_each(|step| world.take(step));
            (0..3).for_each(|_| world.send(1));
            while !world.sent.is_empty() {
                world.answer(0, How::Well);
                world.send(1);
            }
            let mut done = Vec::new();
            world.state.poll(&mut done);
            let lost_in_part = answered > 0 && (answered < requests || then_flush);
            let wanted = lost_in_part.then_some(LOST);
            let ended = done.into_iter().map(|(_, result)| result.err()).collect::<Vec<_>>();
            assert_eq!(ended, [wanted], "{requests} {then_flush} {answered}");
        }
    }
}

/// What was sent and may still come must be shut out first; what was only read, or has ended, need not.
#[test]
fn a_session_begins_once_nothing_comes_from_the_one_before() {
    let begins = |effect, how: Option<How>| {
        let mut world = World::new();
        world.submit(0, effect, 1, false);
        world.send(0);
        if let Some(how) = how {
            world.answer(0, how);
        }
        world.take(&Step::Lose);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.state.begin())).is_ok()
    };
    for effect in [Effect::ChangesVolatile, Effect::ChangesDurably] {
        assert!(!begins(effect, None) && !begins(effect, Some(How::Unknown)), "{effect:?}");
        assert!(begins(effect, Some(How::Well)) && begins(effect, Some(How::Failed)), "{effect:?}");
    }
    for effect in [Effect::Reads, Effect::Flushes] {
        assert!(begins(effect, None) && begins(effect, Some(How::Unknown)), "{effect:?}");
    }
}
