//! Every interleaving of an owner and two hosts that take over at once, each request of each, with one fault at any place.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};

use forebay_block::{DeviceOp, Nanos};
use forebay_objects::model::{Fate, Model};
use forebay_objects::{Access, Limits, OpenError, Request, Takeover};

use crate::world::{Host, small_limits, volume, write};

const SIZE: u64 = 64 << 10;

#[derive(Clone)]
struct State {
    model: Model,
    hosts: Vec<Host>,
    now: Nanos,
    faults: u32,
}

/// Hashes what is printed.
struct Hashing(DefaultHasher);

impl Write for Hashing {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.hash(&mut self.0);
        Ok(())
    }
}

impl State {
    fn key(&self) -> u64 {
        let mut hashing = Hashing(DefaultHasher::new());
        self.model.objects().hash(&mut hashing.0);
        write!(hashing, "{:?} {:?} {}", self.model, self.hosts, self.faults).unwrap();
        hashing.0.finish()
    }

    /// All states that may come next; none where nothing is left to do.
    fn next(&self) -> Vec<Self> {
        // What an object that exists is found to be is the same whenever that is looked at, as nothing is deleted here: no other order of
        // these steps leads elsewhere.
        for index in 0..self.hosts.len() {
            if let Some((_, Request::Get { name, .. })) = self.hosts[index].requests.first()
                && self.model.objects().contains_key(name)
            {
                let mut next = self.clone();
                let State { model, hosts, now, .. } = &mut next;
                hosts[index].answer(*now, model, 0, Fate::Done);
                return vec![next];
            }
        }
        let mut all = Vec::new();
        for index in 0..self.hosts.len() {
            let Some((_, request)) = self.hosts[index].requests.first() else {
                if let Some(at) = self.hosts[index].vault.deadline() {
                    let mut next = self.clone();
                    next.now = next.now.max(at);
                    let now = next.now;
                    next.hosts[index].poll(now);
                    all.push(next);
                }
                continue;
            };
            assert!(request.kind() != "delete", "nothing is deleted");
            let is_create = request.kind() == "create";
            let fates = [Fate::Done, Fate::AnswerLost, Fate::Lost, Fate::Late];
            let count = if is_create && self.faults > 0 { fates.len() } else { 1 };
            for fate in &fates[..count] {
                let mut next = self.clone();
                next.faults -= u32::from(*fate != Fate::Done);
                let State { model, hosts, now, .. } = &mut next;
                hosts[index].answer(*now, model, 0, *fate);
                all.push(next);
            }
        }
        if self.model.late() > 0 {
            let mut next = self.clone();
            next.model.land(0);
            all.push(next);
        }
        all
    }
}

/// Goes through all states that can be reached, and judges those where nothing is left to do. Gives how many of both there were.
fn explore(start: State, judge: &mut dyn FnMut(State)) -> (usize, usize) {
    let (mut seen, mut open, mut ends) = (HashSet::new(), vec![start], 0);
    while let Some(state) = open.pop() {
        if !seen.insert(state.key()) {
            continue;
        }
        let next = state.next();
        if next.is_empty() {
            ends += 1;
            judge(state);
        } else {
            open.extend(next);
        }
    }
    (seen.len(), ends)
}

/// An owner with writes that are under way, the first of them behind a gap.
fn start(takers: usize, faults: u32) -> State {
    let (mut model, mut now) = (volume(SIZE), Nanos(0));
    // Neither checkpoints nor collection: with them, objects are deleted.
    let limits = || Limits { object_bytes: 8192, ..Limits::default() };
    let mut owner = Host::open("owner", Access::Own(Takeover::Never), limits(), now);
    owner.settle(&mut now, &mut model);
    owner.run(&mut now, &mut model, 0, write(0, &[1; 512], true)).unwrap();
    for tag in 1..=2_u8 {
        owner.vault.submit(now, tag.into(), write(u64::from(tag) * 512, &[tag + 1; 512], true));
        owner.poll(now);
    }
    assert_eq!(owner.requests.len(), 2);
    // The later object may exist before the earlier one.
    owner.requests.reverse();
    let mut hosts = vec![owner];
    for taker in 0..takers {
        let mut host = Host::open(&format!("taker {taker}"), Access::Own(Takeover::Always), limits(), now);
        host.poll(now);
        hosts.push(host);
    }
    State { model, hosts, now, faults }
}

fn judge(state: State) {
    let State { mut model, mut hosts, mut now, .. } = state;
    for taker in &hosts[1..] {
        assert!(taker.opened.is_some() != taker.refused.is_some());
        let is_lost = |error: &OpenError| matches!(error, OpenError::Lost(_));
        assert!(taker.refused.as_ref().is_none_or(is_lost), "{:?}", taker.refused);
    }
    let acknowledged: Vec<u64> =
        (1..=2).filter(|tag| hosts[0].done.get(tag).is_some_and(Result::is_ok)).collect();
    let epochs: Vec<u64> = hosts.iter().filter_map(|host| Some(host.opened.as_ref()?.epoch)).collect();
    let last = *epochs.iter().max().unwrap();
    assert!(last > 1, "somebody has taken the volume");
    assert_eq!(epochs.iter().collect::<HashSet<_>>().len(), epochs.len(), "no number is given twice");
    // Whoever is not the last one learns of it with its next write; the last one goes on.
    for host in &mut hosts {
        let Some(epoch) = host.opened.as_ref().map(|opened| opened.epoch) else { continue };
        let result = host.run(&mut now, &mut model, 100, write(8192, &[9; 512], true));
        assert_eq!(result.is_ok(), epoch == last, "{result:?}");
        assert_eq!(host.fenced.is_some(), epoch != last);
    }
    let winner =
        hosts.iter_mut().find(|host| host.opened.as_ref().is_some_and(|opened| opened.epoch == last));
    let whole = winner.unwrap().read_all(&mut now, &mut model);
    assert_eq!(whole[0], 1);
    for tag in acknowledged {
        assert_eq!(whole[tag as usize * 512], tag as u8 + 1, "what was acknowledged is there");
    }
    // What was not acknowledged is there only with all before it.
    assert!(whole[1024] == 0 || whole[512] == 2);
    let mut reader = Host::open("later", Access::Latest, small_limits(), now);
    reader.settle(&mut now, &mut model);
    assert!(reader.read_all(&mut now, &mut model) == whole);
    assert_eq!(reader.run(&mut now, &mut model, 101, DeviceOp::Flush), Ok(None));
}

#[test]
fn of_two_that_take_over_at_once_one_has_the_volume_and_nothing_is_lost() {
    let (states, ends) = explore(start(2, 0), &mut judge);
    assert!(states > 1000 && ends > 10, "{states} states, {ends} ends");
}

#[test]
fn one_that_takes_over_loses_nothing_whichever_answer_is_lost() {
    let (states, ends) = explore(start(1, 1), &mut judge);
    assert!(states > 1000 && ends > 10, "{states} states, {ends} ends");
}

#[test]
#[ignore = "it takes minutes"]
fn both_with_more_faults() {
    let ends = [(1, 2), (2, 1)].map(|(takers, faults)| explore(start(takers, faults), &mut judge).1);
    assert!(ends.iter().all(|ends| *ends > 10), "{ends:?}");
}
