//! Who has a place in a server: handshakes, clients, and who waits for a place among the handshakes.
//!
//! ```text
//!  accepted ──► waiting ──► handshake ──► client ──► left
//!                 │            ├──► displaced: it does not get on, its source has the most, and somebody waits
//!                 └──► refused └──► expired: it does not get on, or takes too long
//! ```
//!
//! Whoever connects costs the server little until it is a client, and takes nothing from clients that are there. Among those who
//! want in, sources take turns: however many connections one of them opens, another one's first goes next. Within a source
//! it is the order of arrival, and nobody is displaced before it had some time to get on. So who does get on comes in also beside
//! any number of connections of its own source that only hold their places, as long as they find room to wait.
//!
//! No clock and no sockets are here: `T` is whatever the server keeps of a connection that waits.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use crate::limits::Limits;

/// Where a connection comes from, as far as shares go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A user, through a unix socket.
    User(u32),
    /// A machine with an IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address: who has one has all behind them.
    V6(u64),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

struct Handshake {
    source: Source,
    began: Instant,
    /// When it last got on.
    got_on: Instant,
}

struct Waiting<T> {
    source: Source,
    since: Instant,
    what: T,
}

/// Why somebody who has ended its negotiation does not become a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are as many clients as there may be.
    All,
    /// Its source has its share of them.
    Source,
    /// It took too long, or was displaced, at this very moment.
    Late,
}

/// A connection that may begin its handshake.
pub(crate) struct Begun<T> {
    pub(crate) id: u64,
    pub(crate) what: T,
    /// The handshake that gave its place for it.
    pub(crate) displaced: Option<u64>,
}

/// See the module's documentation.
pub(crate) struct Places<T> {
    limits: Limits,
    /// In the order of their beginning.
    handshakes: BTreeMap<u64, Handshake>,
    clients: BTreeMap<u64, Source>,
    waiting: VecDeque<Waiting<T>>,
    last_id: u64,
}

impl<T> Places<T> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            handshakes: BTreeMap::new(),
            clients: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_id: 0,
        }
    }

    fn handshakes_of(&self, source: Source) -> usize {
        self.handshakes.values().filter(|h| h.source == source).count()
    }

    /// Handshakes begun since the start.
    pub(crate) fn begun(&self) -> u64 {
        self.last_id
    }

    /// Clients that are there.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn somebody_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A connection has come. It waits; returned is who must go if too many do: the last of the source of which most wait.
    pub(crate) fn arrive(&mut self, source: Source, what: T, now: Instant) -> Option<T> {
        self.waiting.push_back(Waiting { source, since: now, what });
        if self.waiting.len() <= self.limits.waiting_max() {
            return None;
        }
        let count = |source| self.waiting.iter().filter(|w| w.source == source).count();
        let greediest = self.waiting.iter().map(|w| (count(w.source), w.source)).max()?.1;
        let last = self.waiting.iter().rposition(|w| w.source == greediest)?;
        self.waiting.remove(last).map(|w| w.what)
    }

    /// The sources that wait, each with its handshakes and where its first stands. The one with the fewest handshakes has its turn,
    /// and of several that which came first.
    fn turns(&self) -> Vec<(usize, usize, Source)> {
        let mut turns: Vec<(usize, usize, Source)> = Vec::new();
        for (at, waiting) in self.waiting.iter().enumerate() {
            if turns.iter().all(|(_, _, source)| *source != waiting.source) {
                turns.push((self.handshakes_of(waiting.source), at, waiting.source));
            }
        }
        turns.sort_unstable();
        turns
    }

    /// The next of those who wait that may begin, if there is one now.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Begun<T>> {
        let mut turns = self.turns().into_iter();
        let (at, displaced) =
            turns.find_map(|(own, at, source)| Some((at, self.room_for(source, own, now)?)))?;
        let Waiting { source, what, .. } = self.waiting.remove(at)?;
        if let Some(displaced) = displaced {
            self.handshakes.remove(&displaced);
        }
        self.last_id += 1;
        self.handshakes.insert(self.last_id, Handshake { source, began: now, got_on: now });
        Some(Begun { id: self.last_id, what, displaced })
    }

    /// Whether there is a place for one more handshake of `source`, which has `own`: `Some(None)` if one is free, or at whose expense.
    fn room_for(&self, source: Source, own: usize, now: Instant) -> Option<Option<u64>> {
        let Some((id, got_on)) = self.victim_for(source, own) else {
            return Some(None);
        };
        (now.duration_since(got_on) >= self.limits.displaced_after()).then_some(Some(id))
    }

    /// Whose place a handshake of `source`, which has `own`, has to wait for, and when that one last got on; `None` if a place is free.
    fn victim_for(&self, source: Source, own: usize) -> Option<(u64, Instant)> {
        let share_is_full = own >= self.limits.handshakes_per_source_max();
        if !share_is_full && self.handshakes.len() < self.limits.handshakes_max() {
            return None;
        }
        let most = self.handshakes.values().map(|h| self.handshakes_of(h.source)).max()?;
        let victims = self.handshakes.iter().filter(|(_, h)| match share_is_full {
            true => h.source == source,
            false => self.handshakes_of(h.source) == most,
        });
        victims.map(|(id, h)| (*id, h.got_on)).min_by_key(|(_, got_on)| *got_on)
    }

    /// A handshake has got on by a step of the protocol.
    pub(crate) fn got_on(&mut self, id: u64, now: Instant) {
        if let Some(handshake) = self.handshakes.get_mut(&id) {
            handshake.got_on = now;
        }
    }

    /// Takes the handshakes out that took too long, and those who waited for so long without a place.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<u64>, Vec<T>) {
        let (silence, whole) = (self.limits.silence_max(), self.limits.handshake_timeout);
        let late =
            |h: &Handshake| now.duration_since(h.got_on) >= silence || now.duration_since(h.began) >= whole;
        let expired: Vec<u64> = self.handshakes.iter().filter(|(_, h)| late(h)).map(|(id, _)| *id).collect();
        for id in &expired {
            self.handshakes.remove(id);
        }
        let mut given_up = Vec::new();
        // They stand in the order in which they came.
        while let Some(waiting) = self.waiting.pop_front_if(|w| now.duration_since(w.since) >= whole) {
            given_up.push(waiting.what);
        }
        (expired, given_up)
    }

    /// When [`Places::expire`] or [`Places::next`] will next have something to do, if nothing else happens.
    pub(crate) fn next_change(&self) -> Option<Instant> {
        let limits = &self.limits;
        let silent = self.handshakes.values().map(|h| h.got_on + limits.silence_max());
        let whole = self.handshakes.values().map(|h| h.began + limits.handshake_timeout);
        let waiting = self.waiting.iter().map(|w| w.since + limits.handshake_timeout);
        let turns = self.turns().into_iter();
        let displaced = turns
            .filter_map(|(own, _, source)| Some(self.victim_for(source, own)?.1 + limits.displaced_after()));
        silent.chain(whole).chain(waiting).chain(displaced).min()
    }

    /// The handshake has ended well.
    ///
    /// # Errors
    /// There is no place for it; it keeps the one that it has until [`Places::leave`].
    pub(crate) fn become_client(&mut self, id: u64) -> Result<(), Full> {
        let Some(handshake) = self.handshakes.get(&id) else {
            return Err(Full::Late);
        };
        let source = handshake.source;
        if self.clients.len() >= self.limits.connections_max {
            return Err(Full::All);
        }
        let own = self.clients.values().filter(|s| **s == source).count();
        if own >= self.limits.connections_per_source_max {
            return Err(Full::Source);
        }
        self.handshakes.remove(&id);
        self.clients.insert(id, source);
        Ok(())
    }

    /// The connection has ended.
    pub(crate) fn leave(&mut self, id: u64) {
        self.handshakes.remove(&id);
        self.clients.remove(&id);
    }

    /// Nobody begins any more.
    pub(crate) fn turn_away_all(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests;
