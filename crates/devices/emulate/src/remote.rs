//! A store behind a network: a latency that varies, a window of requests that are answered at the same time, a rate of
//! requests, and a link each way.
//!
//! ```text
//!  submit ─► window (full: wait in order) ─► pace ─► link there ─► service (latency drawn) ─► link back ─► end
//! ```

use std::collections::VecDeque;

use forebay_block::Nanos;

use crate::agenda::Agenda;
use crate::machine::{Access, Ends, Machine, Operation};
use crate::memory::transfer_ns;
use crate::parameter::Parameter;
use crate::random::Random;
use crate::spread::Spread;

/// Parameters of a remote store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSettings {
    /// Median time from a request's arrival at the store to its answer, in nanoseconds.
    pub latency_ns: u64,
    /// The 99th percentile of that time.
    pub latency_ns_p99: u64,
    /// Requests that the store works on at a time; more wait.
    pub window: u64,
    /// Requests a second that the store takes in.
    pub iops: u64,
    /// Bytes a second of the link, each way.
    pub rate_bytes: u64,
    /// Start of the random numbers.
    pub seed: u64,
}

impl RemoteSettings {
    /// Rates are the documented baseline of an Amazon EBS gp3 volume: 3,000 requests a second and 125 MiB/s, with
    /// "single-digit millisecond" latency. Median, tail and window are typical of such stores and from no data sheet.
    pub(crate) const GP3: Self = Self {
        latency_ns: 1_000_000,
        latency_ns_p99: 4_000_000,
        window: 64,
        iops: 3_000,
        rate_bytes: 125 << 20,
        seed: 1,
    };

    pub(crate) fn slots(&mut self) -> Vec<(Parameter, &mut u64)> {
        vec![
            (Parameter::time("latency", "median time of a request at the store"), &mut self.latency_ns),
            (Parameter::time("latency-p99", "99th percentile of that time"), &mut self.latency_ns_p99),
            (Parameter::count("window", 1, 65_536, "requests in service at a time"), &mut self.window),
            (Parameter::count("iops", 1, 100_000_000, "requests a second"), &mut self.iops),
            (Parameter::rate("rate", "bandwidth of the link, each way"), &mut self.rate_bytes),
            (Parameter::count("seed", 0, u64::MAX, "start of the random numbers"), &mut self.seed),
        ]
    }
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The request has reached the store.
    Arrived,
    /// The store has done its work.
    Served,
    /// The answer is here.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    tag: u64,
    there_bytes: u64,
    back_bytes: u64,
    stage: Stage,
}

/// See the module's documentation.
pub(crate) struct Remote {
    settings: RemoteSettings,
    latency: Spread,
    random: Random,
    agenda: Agenda<Request>,
    in_window: u64,
    waiting: VecDeque<Request>,
    pace_free: Nanos,
    there_free: Nanos,
    back_free: Nanos,
}

impl Remote {
    pub(crate) fn new(settings: &RemoteSettings) -> Self {
        Self {
            latency: Spread::new(settings.latency_ns, settings.latency_ns_p99),
            random: Random::new(settings.seed),
            settings: settings.clone(),
            agenda: Agenda::new(),
            in_window: 0,
            waiting: VecDeque::new(),
            pace_free: Nanos(0),
            there_free: Nanos(0),
            back_free: Nanos(0),
        }
    }

    fn enter(&mut self, request: Request, now: Nanos) {
        self.in_window += 1;
        let paced = self.pace_free.max(now);
        self.pace_free = Nanos(paced.0 + 1_000_000_000 / self.settings.iops);
        let sent = self.there_free.max(paced).0 + transfer_ns(request.there_bytes, self.settings.rate_bytes);
        self.there_free = Nanos(sent);
        self.agenda.plan(Nanos(sent), Request { stage: Stage::Arrived, ..request });
    }

    fn step(&mut self, at: Nanos, request: Request, ends: &mut Ends) {
        match request.stage {
            Stage::Arrived => {
                let served = at.0 + self.latency.draw_ns(&mut self.random);
                self.agenda.plan(Nanos(served), Request { stage: Stage::Served, ..request });
            }
            Stage::Served => {
                let back =
                    self.back_free.max(at).0 + transfer_ns(request.back_bytes, self.settings.rate_bytes);
                self.back_free = Nanos(back);
                self.agenda.plan(Nanos(back), Request { stage: Stage::Answered, ..request });
            }
            Stage::Answered => {
                ends.push((request.tag, at));
                self.in_window -= 1;
                if let Some(next) = self.waiting.pop_front() {
                    self.enter(next, at);
                }
            }
        }
    }
}

impl Machine for Remote {
    fn submit(&mut self, tag: u64, op: Operation, now: Nanos) {
        let (there_bytes, back_bytes) = match op.access {
            Access::Read => (0, op.len),
            Access::Write { .. } => (op.len, 0),
            Access::Flush | Access::Zero { .. } => (0, 0),
        };
        let request = Request { tag, there_bytes, back_bytes, stage: Stage::Arrived };
        if self.in_window < self.settings.window {
            self.enter(request, now);
        } else {
            self.waiting.push_back(request);
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn advance(&mut self, now: Nanos, ends: &mut Ends) {
        while self.agenda.first().is_some_and(|at| at <= now) {
            if let Some((at, request)) = self.agenda.pop() {
                self.step(at, request, ends);
            }
        }
    }

    /// The earliest that any request could be answered if nothing stood in its way from here on.
    fn next_event(&self) -> Option<Nanos> {
        let back = |r: &Request| transfer_ns(r.back_bytes, self.settings.rate_bytes);
        let earliest = self.agenda.iter().map(|(at, r)| match r.stage {
            Stage::Arrived => at.0 + self.latency.least_ns() + back(r),
            Stage::Served => at.0 + back(r),
            Stage::Answered => at.0,
        });
        earliest.min().map(Nanos)
    }
}
