//! Decorators as text; the grammar stands in the documentation of [`crate::decorate`].

use std::str::FromStr;
use std::time::Duration;

use forebay_block::ErrorKind;
use thiserror::Error;

use super::{
    Delay, Delayed, ErrorInjected, InjectHandle, Kinds, OpKind, Rate, RecordFile, Recorded, Recorders, Role,
    Rule, Throttled,
};
use crate::device::Device;

/// A decorator that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{given}': {why}")]
pub struct BadDecoration {
    given: String,
    why: &'static str,
}

/// A decorator, as given.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoration {
    /// See [`Delayed`].
    Delay(Delay),
    /// See [`Throttled`].
    Throttle(Rate),
    /// See [`ErrorInjected`].
    Inject(Rule),
    /// See [`Recorded`].
    Record(RecordFile),
}

impl Decoration {
    /// Puts the decorator around a device, which is the volume's `role`. Records are those that have been started; one
    /// that has not is not written. A journal is only recorded: what slows the backing or makes it fail means the volume itself.
    pub fn around(self, inner: Box<dyn Device>, role: Role, recorders: &Recorders) -> Box<dyn Device> {
        match self {
            Self::Delay(_) | Self::Throttle(_) | Self::Inject(_) if role == Role::Journal => inner,
            Self::Delay(delay) => Box::new(Delayed::new(inner, delay)),
            Self::Throttle(rate) => Box::new(Throttled::new(inner, rate)),
            Self::Inject(rule) => Box::new(ErrorInjected::new(inner, InjectHandle::new([rule]))),
            Self::Record(file) => match recorders.get(&file) {
                Some(recorder) => Box::new(Recorded::new(inner, recorder.clone(), role)),
                None => inner,
            },
        }
    }
}

impl FromStr for Decoration {
    type Err = BadDecoration;

    fn from_str(given: &str) -> Result<Self, BadDecoration> {
        let mut words = given.split(':');
        let parsed = match words.next() {
            Some("delay") => delay(words).map(Self::Delay),
            Some("throttle") => throttle(words).map(Self::Throttle),
            Some("inject") => rule(words).map(Self::Inject),
            Some("record") => record(words).map(Self::Record),
            _ => Err("known are delay, throttle, inject and record"),
        };
        parsed.map_err(|why| BadDecoration { given: given.to_owned(), why })
    }
}

impl FromStr for Rule {
    type Err = BadDecoration;

    /// As after `inject:`, for example `write:eio:every=100`.
    fn from_str(given: &str) -> Result<Self, BadDecoration> {
        rule(given.split(':')).map_err(|why| BadDecoration { given: given.to_owned(), why })
    }
}

type Parsed<T> = Result<T, &'static str>;

fn delay<'a>(mut words: impl Iterator<Item = &'a str>) -> Parsed<Delay> {
    let kinds = kinds(words.next())?;
    let mut delay = Delay { kinds, fixed: Duration::ZERO, per_mib: Duration::ZERO };
    for word in words {
        match word.split_once('=') {
            Some(("fixed", time)) => delay.fixed = duration(time)?,
            Some(("per-mib", time)) => delay.per_mib = duration(time)?,
            _ => return Err("delay takes fixed=TIME and per-mib=TIME"),
        }
    }
    Ok(delay)
}

fn throttle<'a>(words: impl Iterator<Item = &'a str>) -> Parsed<Rate> {
    let mut rate = Rate::default();
    for word in words {
        match word.split_once('=') {
            Some(("bytes", n)) => rate.bytes = size(n)?,
            Some(("iops", n)) => rate.operations = number(n)?,
            _ => return Err("throttle takes bytes=SIZE and iops=N"),
        }
    }
    Ok(rate)
}

fn rule<'a>(mut words: impl Iterator<Item = &'a str>) -> Parsed<Rule> {
    let kinds = kinds(words.next())?;
    let error = match words.next() {
        Some("eio") => ErrorKind::Io,
        Some("enospc") => ErrorKind::NoSpace,
        Some("einval") => ErrorKind::Invalid,
        Some("eopnotsupp") => ErrorKind::Unsupported,
        Some("erofs") => ErrorKind::ReadOnly,
        Some("fenced") => ErrorKind::Fenced,
        _ => return Err("errors are eio, enospc, einval, eopnotsupp, erofs and fenced"),
    };
    let mut rule = Rule { kinds, error, ..Rule::default() };
    for word in words {
        match word.split_once('=') {
            Some(("every", n)) => rule.every = number(n)?,
            Some(("probability", p)) => rule.probability = p.parse().map_err(|_| "a share is 0 to 1")?,
            Some(("seed", n)) => rule.seed = number(n)?,
            Some(("after", n)) => rule.after = number(n)?,
            Some(("times", n)) => rule.times = number(n)?,
            Some(("from", n)) => rule.from = size(n)?,
            Some(("to", n)) => rule.to = size(n)?,
            None if word == "once" => rule.times = 1,
            None if word == "done" => rule.done = true,
            _ => {
                return Err(
                    "inject takes every=, probability=, seed=, after=, times=, from=, to=, once, done",
                );
            }
        }
    }
    if rule.every == 0 || !(0.0..=1.0).contains(&rule.probability) {
        return Err("every= is at least 1 and probability= between 0 and 1");
    }
    Ok(rule)
}

fn record<'a>(words: impl Iterator<Item = &'a str>) -> Parsed<RecordFile> {
    let (mut path, mut bytes_max) = ("", u64::MAX);
    for word in words {
        match word.split_once('=') {
            Some(("file", file)) => path = file,
            Some(("max", n)) => bytes_max = size(n)?,
            _ => return Err("record takes file=PATH and max=SIZE"),
        }
    }
    if path.is_empty() {
        return Err("record takes file=PATH");
    }
    Ok(RecordFile { path: path.into(), bytes_max })
}

fn kinds(word: Option<&str>) -> Parsed<Kinds> {
    Ok(match word {
        Some("read") => Kinds::only(OpKind::Read),
        Some("write") => Kinds::WRITES,
        Some("durable") => Kinds::only(OpKind::DurableWrite),
        Some("flush") => Kinds::only(OpKind::Flush),
        Some("zero") => Kinds::only(OpKind::Zero),
        Some("any") => Kinds::ANY,
        _ => return Err("operations are read, write, durable, flush, zero and any"),
    })
}

fn number(text: &str) -> Parsed<u64> {
    text.parse().map_err(|_| "a whole number is missing")
}

fn size(text: &str) -> Parsed<u64> {
    forebay_block::size::parse(text).map_err(|_| "a size such as 64M is missing, or too large")
}

/// Reads a number with ns, us, ms or s.
pub(crate) fn duration(text: &str) -> Parsed<Duration> {
    let ns = forebay_block::time::parse_ns(text);
    ns.map(Duration::from_nanos)
        .map_err(|_| "a time such as 4ms is missing (its unit is ns, us, ms or s), or too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decorators_are_read_from_text() {
        let parse = |s: &str| s.parse::<Decoration>();
        let rule = Rule { kinds: Kinds::WRITES, every: 100, ..Rule::default() };
        assert_eq!(parse("inject:write:eio:every=100"), Ok(Decoration::Inject(rule.clone())));
        assert_eq!("write:eio:every=100".parse::<Rule>(), Ok(rule));
        let rule = Rule {
            kinds: Kinds::only(OpKind::Flush),
            error: ErrorKind::NoSpace,
            probability: 0.5,
            seed: 7,
            after: 3,
            times: 1,
            from: 4096,
            to: 1 << 20,
            done: true,
            ..Rule::default()
        };
        let text = "inject:flush:enospc:probability=0.5:seed=7:after=3:once:from=4K:to=1M:done";
        assert_eq!(parse(text), Ok(Decoration::Inject(rule)));
        let rate = Rate { bytes: 100 << 20, operations: 5000 };
        assert_eq!(parse("throttle:bytes=100M:iops=5000"), Ok(Decoration::Throttle(rate)));
        let delay = Delay {
            kinds: Kinds::only(OpKind::Read),
            fixed: Duration::from_micros(200),
            per_mib: Duration::from_millis(1),
        };
        assert_eq!(parse("delay:read:fixed=200us:per-mib=1ms"), Ok(Decoration::Delay(delay)));
        let file = RecordFile { path: "/tmp/r".into(), bytes_max: 1 << 30 };
        assert_eq!(parse("record:file=/tmp/r:max=1G"), Ok(Decoration::Record(file)));
        let bad = [
            "record",
            "record:file=",
            "record:file=r:max=much",
            "",
            "jam:read",
            "inject:jump:eio",
            "inject:read:egad",
            "inject:read:eio:every=0",
            "delay:read:fixed=2",
            "inject:read:eio:probability=2",
            "throttle:bytes=1X",
            "throttle:bytes=99999999T",
        ];
        for bad in bad {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
