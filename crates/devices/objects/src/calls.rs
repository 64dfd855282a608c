//! Requests under way: numbering, repetition after failures, and what became of a create whose answer says nothing certain.
//!
//! ```text
//!            ┌──────────── pause ◄─────────────┐ absent
//!            ▼                                 │
//!   ──► create ── Exists, Unknown ──► read back ── own ──► created
//!            │                          │    ▲ └── other ──► conflict
//!            └─ Created ──► created     └────┘ pause after a failure
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_block::{ErrorKind, Nanos};

use crate::codec::HEADER_BYTES;
use crate::face::{Ailment, Counters, Effect, Limits};
use crate::store::{Answer, Request, StoreError};

/// So much of an object is read at first where its length is not known.
pub(crate) const HEAD_GUESS_BYTES: u64 = 16 << 10;

/// So often an object may be missing that is to be there, before that is told as a failure of the store.
const CONTRADICTIONS_MAX: u32 = 3;

/// How a request ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The object exists with these bytes, by this or an earlier try of this call.
    Created,
    /// Another object has the name. These are its first bytes.
    Conflict {
        bytes: Vec<u8>,
        size: u64,
    },
    Object {
        bytes: Vec<u8>,
        size: u64,
    },
    Missing,
    Page {
        names: Vec<String>,
        more: bool,
    },
    Deleted,
    /// It was refused, and will be.
    Failed {
        name: String,
        error: StoreError,
    },
}

#[derive(Clone, Debug)]
struct Call<J> {
    request: Request,
    job: J,
    /// What a create was answered is not certain: it is read back.
    reads_back: bool,
    failures: u32,
}

impl<J> Call<J> {
    /// What is sent.
    fn wire(&self) -> Request {
        match &self.request {
            Request::Create { name, .. } if self.reads_back => {
                Request::Get { name: name.clone(), from: 0, len: HEAD_GUESS_BYTES }
            }
            other => other.clone(),
        }
    }
}

/// See the module's documentation. `J` says what a request is for.
#[derive(Clone, Debug)]
pub(crate) struct Calls<J> {
    next: u64,
    /// To be told by the next poll.
    ready: VecDeque<u64>,
    /// Gets that wait for others to end.
    gets: VecDeque<u64>,
    gets_out: BTreeSet<u64>,
    pausing: BTreeSet<(Nanos, u64)>,
    calls: BTreeMap<u64, Call<J>>,
    /// Whether what is refused for good is asked again all the same: it may be granted later.
    pub(crate) insists: bool,
    limits: Limits,
    /// What the store does not do, one of each kind of request: where it is full, it reads all the same.
    troubles: Vec<Ailment>,
    pub(crate) counters: Counters,
}

impl<J: Clone> Calls<J> {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            next: 1,
            ready: VecDeque::new(),
            gets: VecDeque::new(),
            gets_out: BTreeSet::new(),
            pausing: BTreeSet::new(),
            calls: BTreeMap::new(),
            insists: false,
            limits: limits.clone(),
            troubles: Vec::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn start(&mut self, job: J, request: Request) -> u64 {
        let id = self.next;
        self.next += 1;
        self.line_up(id, &request);
        self.calls.insert(id, Call { request, job, reads_back: false, failures: 0 });
        id
    }

    /// How many were started so far.
    pub(crate) const fn started(&self) -> u64 {
        self.next
    }

    fn line_up(&mut self, id: u64, request: &Request) {
        let is_get = matches!(request, Request::Get { .. });
        if is_get { &mut self.gets } else { &mut self.ready }.push_back(id);
    }

    /// Forgets calls: their answers count for nothing.
    pub(crate) fn drop_where(&mut self, is_dropped: impl Fn(&J) -> bool) {
        self.calls.retain(|_, call| !is_dropped(&call.job));
    }

    pub(crate) fn drop_all(&mut self) {
        self.calls.clear();
    }

    /// Tells what is to be sent now.
    pub(crate) fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        while let Some((at, id)) = self.pausing.first().copied()
            && at <= now
        {
            self.pausing.remove(&(at, id));
            if let Some(call) = self.calls.get(&id) {
                let is_get = matches!(call.request, Request::Get { .. });
                if is_get { &mut self.gets } else { &mut self.ready }.push_back(id);
            }
        }
        while self.gets_out.len() < self.limits.gets_max
            && let Some(id) = self.gets.pop_front()
        {
            if self.calls.contains_key(&id) {
                self.gets_out.insert(id);
                self.ready.push_back(id);
            }
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(call) = self.calls.get(&id) else { continue };
            let request = call.wire();
            match &request {
                Request::Create { bytes, .. } => {
                    self.counters.creates += 1;
                    self.counters.bytes_up += bytes.len() as u64;
                }
                Request::Get { .. } => self.counters.gets += 1,
                Request::List { .. } => self.counters.lists += 1,
                Request::Delete { .. } => self.counters.deletes += 1,
            }
            effects.push(Effect::Request { id, request });
        }
    }

    /// Takes an answer. Gives what a call has come to, if it has ended.
    pub(crate) fn answered(
        &mut self,
        now: Nanos,
        id: u64,
        result: Result<Answer, StoreError>,
    ) -> Option<(J, Outcome)> {
        self.gets_out.remove(&id);
        if let Ok(Answer::Object { bytes, .. }) = &result {
            self.counters.bytes_down += bytes.len() as u64;
        }
        let call = self.calls.get_mut(&id)?;
        let is_create = matches!(call.request, Request::Create { .. });
        let error = match outcome(call, result) {
            Ok(outcome) => {
                let call = self.calls.remove(&id)?;
                self.is_well(call.request.kind());
                return Some((call.job, outcome));
            }
            Err(error) => error,
        };
        match error {
            StoreError::Exists if is_create => {
                call.reads_back = true;
                self.ready.push_back(id);
                return None;
            }
            // What was not there may have come meanwhile: the create finds out.
            StoreError::Missing if is_create => call.reads_back = false,
            StoreError::Unknown(_) if is_create => call.reads_back = true,
            _ => {}
        }
        let is_refused = !error.is_transient() && error != StoreError::Missing;
        if is_refused && !self.insists {
            let call = self.calls.remove(&id)?;
            return Some((call.job, Outcome::Failed { name: call.request.name().to_owned(), error }));
        }
        // A store that goes on to say that something is there, and that it is not, is not well.
        if error != StoreError::Missing || call.failures >= CONTRADICTIONS_MAX {
            let request = call.request.kind();
            let kind = if matches!(error, StoreError::Full(_)) { ErrorKind::NoSpace } else { ErrorKind::Io };
            let what = format!("{request} of {}: {error}", call.request.name());
            let known = self.troubles.iter().position(|trouble| trouble.request == request);
            let since = known.map_or(now, |known| self.troubles.swap_remove(known).since);
            self.troubles.push(Ailment { since, request, kind, is_refusal: is_refused, what });
        }
        let pause =
            self.limits.pause_min.saturating_mul(1 << call.failures.min(16)).min(self.limits.pause_max);
        call.failures += 1;
        self.counters.retries += 1;
        self.pausing.insert((Nanos(now.0.saturating_add(pause.as_nanos() as u64)), id));
        None
    }

    /// A request of this kind has been carried out. What has failed, and is not asked for any more, ails nobody either.
    fn is_well(&mut self, request: &'static str) {
        let calls = &self.calls;
        let is_asked = |kind| calls.values().any(|call| call.failures > 0 && call.request.kind() == kind);
        self.troubles.retain(|trouble| trouble.request != request && is_asked(trouble.request));
    }

    /// What the store does not do: of several kinds of requests, the one for which that has been so for longest.
    pub(crate) fn trouble(&self) -> Option<&Ailment> {
        self.troubles.iter().min_by_key(|trouble| trouble.since)
    }

    /// When [`Self::poll`] has something to tell; a time that has passed means at once.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        if !self.ready.is_empty() || (!self.gets.is_empty() && self.gets_out.len() < self.limits.gets_max) {
            return Some(Nanos(0));
        }
        self.pausing.first().map(|(at, _)| *at)
    }
}

/// What an answer means for a call.
fn outcome<J>(call: &Call<J>, result: Result<Answer, StoreError>) -> Result<Outcome, StoreError> {
    match (&call.request, result) {
        (Request::Create { .. }, Ok(Answer::Created)) if !call.reads_back => Ok(Outcome::Created),
        (Request::Create { bytes: own, .. }, Ok(Answer::Object { bytes, size })) if call.reads_back => {
            // The header has the checksum of all that is in the object, and the nonce.
            let is_own = bytes.get(..HEADER_BYTES) == own.get(..HEADER_BYTES) && size == own.len() as u64;
            Ok(if is_own { Outcome::Created } else { Outcome::Conflict { bytes, size } })
        }
        (Request::Get { .. }, Ok(Answer::Object { bytes, size })) => Ok(Outcome::Object { bytes, size }),
        (Request::Get { .. }, Err(StoreError::Missing)) => Ok(Outcome::Missing),
        (Request::List { .. }, Ok(Answer::Page { names, more })) => Ok(Outcome::Page { names, more }),
        (Request::Delete { .. }, Ok(Answer::Deleted) | Err(StoreError::Missing)) => Ok(Outcome::Deleted),
        (_, Ok(_)) => Err(StoreError::Unknown("the store's answer is not one to this request".to_owned())),
        (_, Err(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const BUSY: fn() -> StoreError = || StoreError::Busy("slow down".to_owned());
    const UNKNOWN: fn() -> StoreError = || StoreError::Unknown("reset".to_owned());

    struct Run {
        calls: Calls<u8>,
        now: Nanos,
    }

    impl Run {
        fn create() -> Self {
            let mut calls = Calls::new(&Limits::default());
            let bytes = Arc::new([vec![7; HEADER_BYTES], vec![1; 100]].concat());
            calls.start(1, Request::Create { name: "x".to_owned(), bytes });
            Self { calls, now: Nanos(0) }
        }

        /// The one request that is sent next, and how many milliseconds later.
        fn sent(&mut self) -> (u64, Request, u64) {
            let begun = self.now;
            self.now = self.now.max(self.calls.deadline().expect("it goes on"));
            let mut effects = Vec::new();
            self.calls.poll(self.now, &mut effects);
            let Ok([Effect::Request { id, request }]) = <[Effect; 1]>::try_from(effects) else {
                panic!("one request")
            };
            (id, request, self.now.since(begun) / 1_000_000)
        }

        fn answer(&mut self, id: u64, result: Result<Answer, StoreError>) -> Option<(u8, Outcome)> {
            self.calls.answered(self.now, id, result)
        }

        fn own(&self) -> Result<Answer, StoreError> {
            Ok(Answer::Object {
                bytes: [vec![7; HEADER_BYTES], vec![1; 50]].concat(),
                size: HEADER_BYTES as u64 + 100,
            })
        }
    }

    #[test]
    fn a_create_with_a_lost_answer_is_read_back_and_ones_own_object_is_no_conflict() {
        let mut run = Run::create();
        let (id, request, _) = run.sent();
        assert_eq!(request.kind(), "create");
        assert!(run.answer(id, Err(UNKNOWN())).is_none());
        let (id, request, pause) = run.sent();
        assert_eq!((request.kind(), pause), ("get", 50));
        assert!(run.answer(id, Err(BUSY())).is_none());
        let (id, request, pause) = run.sent();
        assert_eq!((request.kind(), pause), ("get", 100), "pauses grow");
        // It is not there: it is made again, and has come meanwhile.
        assert!(run.answer(id, Err(StoreError::Missing)).is_none());
        let (id, request, _) = run.sent();
        assert_eq!(request.kind(), "create");
        assert!(run.answer(id, Err(StoreError::Exists)).is_none());
        let (id, request, pause) = run.sent();
        assert_eq!((request.kind(), pause), ("get", 0));
        let own = run.own();
        assert!(matches!(run.answer(id, own), Some((1, Outcome::Created))));
    }

    #[test]
    fn another_object_of_the_name_is_a_conflict() {
        for (byte, size) in [(8, HEADER_BYTES as u64 + 100), (7, HEADER_BYTES as u64)] {
            let mut run = Run::create();
            let (id, ..) = run.sent();
            assert!(run.answer(id, Err(StoreError::Exists)).is_none());
            let (id, ..) = run.sent();
            let other = Ok(Answer::Object { bytes: vec![byte; HEADER_BYTES], size });
            assert!(matches!(run.answer(id, other), Some((1, Outcome::Conflict { .. }))));
        }
    }

    #[test]
    fn a_store_that_contradicts_itself_is_not_well() {
        let mut run = Run::create();
        for _ in 0..CONTRADICTIONS_MAX + 1 {
            assert!(run.calls.trouble().is_none());
            let (id, ..) = run.sent();
            assert!(run.answer(id, Err(StoreError::Exists)).is_none());
            let (id, ..) = run.sent();
            assert!(run.answer(id, Err(StoreError::Missing)).is_none());
        }
        assert!(run.calls.trouble().is_some());
        let (id, ..) = run.sent();
        assert!(run.answer(id, Ok(Answer::Created)).is_some() && run.calls.trouble().is_none());
    }

    #[test]
    fn what_is_refused_for_good_fails_unless_it_is_insisted_on() {
        let mut run = Run::create();
        let (id, ..) = run.sent();
        let refused = || Err(StoreError::Denied("no".to_owned()));
        assert!(matches!(run.answer(id, refused()), Some((1, Outcome::Failed { .. }))));
        let mut run = Run::create();
        run.calls.insists = true;
        for _ in 0..20 {
            let (id, request, pause) = run.sent();
            assert!(request.kind() == "create" && pause <= 5000);
            assert!(run.answer(id, refused()).is_none());
        }
        assert_eq!(run.calls.trouble().unwrap().since, Nanos(0));
        let (id, ..) = run.sent();
        assert!(run.answer(id, Ok(Answer::Created)).is_some());
        assert!(run.calls.trouble().is_none() && run.calls.deadline().is_none());
    }

    /// One that is full answers what is read.
    #[test]
    fn what_fails_is_told_until_something_of_its_kind_goes_right_or_nobody_asks_for_it() {
        let mut calls: Calls<u8> = Calls::new(&Limits::default());
        calls.insists = true;
        let create = |calls: &mut Calls<u8>, job, name: &str| {
            calls.start(job, Request::Create { name: name.to_owned(), bytes: Arc::new(vec![0; 200]) })
        };
        let read = |calls: &mut Calls<u8>| {
            let id = calls.start(9, Request::Get { name: "r".to_owned(), from: 0, len: 1 });
            let object = Answer::Object { bytes: vec![1], size: 1 };
            assert!(calls.answered(Nanos(7), id, Ok(object)).is_some());
        };
        let full = |calls: &mut Calls<u8>, id, at| {
            assert!(calls.answered(Nanos(at), id, Err(StoreError::Full("507".to_owned()))).is_none());
        };
        let (one, two) = (create(&mut calls, 1, "one"), create(&mut calls, 2, "two"));
        full(&mut calls, one, 3);
        full(&mut calls, two, 4);
        read(&mut calls);
        let told = calls.trouble().expect("it is full").clone();
        assert_eq!((told.since, told.request, told.kind), (Nanos(3), "create", ErrorKind::NoSpace));
        assert!(told.is_refusal && told.what == "create of two: no room: 507", "{told:?}");
        // What else fails begins later.
        let get = calls.start(5, Request::Get { name: "g".to_owned(), from: 0, len: 1 });
        assert!(calls.answered(Nanos(8), get, Err(BUSY())).is_none());
        assert_eq!(calls.trouble(), Some(&told));
        assert!(calls.answered(Nanos(9), one, Ok(Answer::Created)).is_some());
        assert!(!calls.trouble().expect("that goes on").is_refusal);
        calls.drop_where(|job| *job == 5);
        read(&mut calls);
        assert_eq!(calls.trouble(), None);
        // The same of what was full, if nobody wants to write any more.
        full(&mut calls, two, 10);
        calls.drop_where(|job| *job == 2);
        let list = calls.start(6, Request::List { prefix: String::new(), after: String::new() });
        assert!(calls.answered(Nanos(11), list, Ok(Answer::Page { names: vec![], more: false })).is_some());
        assert_eq!(calls.trouble(), None);
    }

    #[test]
    fn no_more_gets_are_sent_than_the_limits_say() {
        let limits = Limits { gets_max: 2, ..Limits::default() };
        let mut calls: Calls<u8> = Calls::new(&limits);
        for job in 0..3 {
            calls.start(job, Request::Get { name: "x".to_owned(), from: 0, len: 1 });
        }
        let mut effects = Vec::new();
        calls.poll(Nanos(0), &mut effects);
        assert_eq!((effects.len(), calls.deadline()), (2, None));
        // One that is forgotten has its place until it is answered.
        calls.drop_where(|job| *job == 0);
        calls.poll(Nanos(0), &mut effects);
        assert_eq!(effects.len(), 2);
        assert!(calls.answered(Nanos(0), 1, Err(UNKNOWN())).is_none());
        calls.poll(Nanos(0), &mut effects);
        assert_eq!(effects.len(), 3);
    }
}
