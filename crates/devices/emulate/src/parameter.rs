//! Parameters of a model by name, for those who give them as text.

use forebay_block::{size, time};
use thiserror::Error;

/// A parameter that cannot be understood, or contradicts another one: one sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BadSetting(String);

impl BadSetting {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// How a parameter is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, as people write them.
    Bytes,
    /// Bytes a second, as people write them.
    BytesPerSecond,
    /// A time; takes ns, us, ms, s.
    Time,
    /// A whole number.
    Count,
    /// `yes` or `no`.
    Switch,
}

/// A parameter of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in text.
    pub key: &'static str,
    /// How its value is written.
    pub unit: Unit,
    /// Least value that makes sense, in the base unit (bytes, bytes a second, nanoseconds).
    pub least: u64,
    /// Greatest value.
    pub most: u64,
    /// What it is, in a phrase.
    pub about: &'static str,
}

/// A day: no time of a model is longer.
const TIME_NS_MAX: u64 = 86_400 * 1_000_000_000;
/// No device is larger: 4 PiB, the largest volume.
const BYTES_MAX: u64 = 1 << 52;
/// No device is faster: 1 TiB a second.
const RATE_MAX: u64 = 1 << 40;

impl Parameter {
    pub(crate) const fn bytes(key: &'static str, least: u64, about: &'static str) -> Self {
        Self { key, unit: Unit::Bytes, least, most: BYTES_MAX, about }
    }

    /// At least 1 KiB a second, so that nothing takes for ever.
    pub(crate) const fn rate(key: &'static str, about: &'static str) -> Self {
        Self { key, unit: Unit::BytesPerSecond, least: 1024, most: RATE_MAX, about }
    }

    pub(crate) const fn time(key: &'static str, about: &'static str) -> Self {
        Self { key, unit: Unit::Time, least: 0, most: TIME_NS_MAX, about }
    }

    pub(crate) const fn count(key: &'static str, least: u64, most: u64, about: &'static str) -> Self {
        Self { key, unit: Unit::Count, least, most, about }
    }

    pub(crate) const fn switch(key: &'static str, about: &'static str) -> Self {
        Self { key, unit: Unit::Switch, least: 0, most: 1, about }
    }

    /// Reads a value; `Err` says in words what is expected.
    pub(crate) fn read(&self, text: &str) -> Result<u64, String> {
        let value = match self.unit {
            Unit::Bytes | Unit::BytesPerSecond => size::parse(text).ok(),
            Unit::Time => time::parse_ns(text).ok(),
            Unit::Count => text.parse().ok(),
            Unit::Switch => [("no", 0), ("yes", 1)].iter().find(|(word, _)| *word == text).map(|(_, v)| *v),
        };
        match value {
            Some(value) if (self.least..=self.most).contains(&value) => Ok(value),
            Some(_) => Err(format!("lies between {} and {}", self.show(self.least), self.show(self.most))),
            None => Err(match self.unit {
                Unit::Bytes => "is a size such as 64M",
                Unit::BytesPerSecond => "is bytes a second such as 150M",
                Unit::Time => "is a time such as 500us or 4ms",
                Unit::Count => "is a whole number",
                Unit::Switch => "is yes or no",
            }
            .to_owned()),
        }
    }

    /// Writes a value as [`crate::Settings::set`] takes it.
    pub fn show(&self, value: u64) -> String {
        let units: &[(&str, u64)] = match self.unit {
            Unit::Bytes | Unit::BytesPerSecond => {
                &[("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)]
            }
            Unit::Time => &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)],
            Unit::Count => &[],
            Unit::Switch => return if value == 0 { "no" } else { "yes" }.to_owned(),
        };
        match units.iter().find(|(_, scale)| value > 0 && value.is_multiple_of(*scale)) {
            Some((unit, scale)) => format!("{}{unit}", value / scale),
            None if self.unit == Unit::Time => "0s".to_owned(),
            None => value.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        let cases = [
            (Parameter::bytes("a", 0, ""), "64M", 64 << 20),
            (Parameter::bytes("a", 0, ""), "1000", 1000),
            (Parameter::rate("a", ""), "1536K", 1536 << 10),
            (Parameter::time("a", ""), "3800us", 3_800_000),
            (Parameter::time("a", ""), "0s", 0),
            (Parameter::count("a", 1, 100, ""), "32", 32),
            (Parameter::switch("a", ""), "yes", 1),
        ];
        for (parameter, text, value) in cases {
            assert_eq!(parameter.read(text), Ok(value), "{text}");
            assert_eq!(parameter.show(value), text);
        }
        for (parameter, text) in [
            (Parameter::bytes("a", 0, ""), "64Q"),
            (Parameter::bytes("a", 0, ""), "99999999T"),
            (Parameter::time("a", ""), "5"),
            (Parameter::time("a", ""), "5000000000s"),
            (Parameter::count("a", 1, 100, ""), "0"),
            (Parameter::count("a", 1, 100, ""), "-1"),
            (Parameter::switch("a", ""), "maybe"),
            (Parameter::rate("a", ""), "0"),
        ] {
            assert!(parameter.read(text).is_err(), "{text}");
        }
    }
}
