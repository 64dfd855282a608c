//! Functions of one number that a user can give on the command line: what throughput is worth, what staleness costs.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The forms, as they are written.
pub const FORMS: &str = "linear:RATE, step:AT:AMOUNT, exponential:AMOUNT:SCALE and points:X=Y,X=Y,...";

/// A function that cannot be understood: one sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{given}' is not a function: {why}; the forms are {FORMS}")]
pub struct BadFunction {
    given: String,
    why: &'static str,
}

/// A function of a number that is not negative. Numbers take K, M, G, T (powers of 1024).
#[derive(Clone, Debug, PartialEq)]
pub enum Function {
    /// `linear:RATE`: x times the rate.
    Linear(f64),
    /// `step:AT:AMOUNT`: nothing below a number, the amount from there on.
    Step {
        /// Where the step is.
        at: f64,
        /// What it comes to there and above.
        amount: f64,
    },
    /// `exponential:AMOUNT:SCALE`: the amount times e^(x / scale) - 1, which is 0 at 0: the penalty of the paper's example (FAST'13,
    /// Figure 16).
    Exponential {
        /// Factor in front.
        amount: f64,
        /// How much more x makes it e times as much.
        scale: f64,
    },
    /// `points:X=Y,X=Y,...`: straight lines between points, level before the first and behind the last one.
    Points(Vec<(f64, f64)>),
}

/// Reads a number with an optional K, M, G or T.
pub fn number(text: &str) -> Option<f64> {
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    let plain = digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-'));
    let value: f64 = digits.parse().ok().filter(|v: &f64| plain && v.is_finite())?;
    Some(value * f64::from(factor).exp2())
}

impl Function {
    /// Its value.
    pub fn at(&self, x: f64) -> f64 {
        match self {
            Self::Linear(rate) => rate * x,
            Self::Step { at, amount } => {
                if x >= *at {
                    *amount
                } else {
                    0.0
                }
            }
            Self::Exponential { amount, scale } => amount * (x / scale).exp_m1(),
            Self::Points(points) => between(points, x),
        }
    }

    fn read(text: &str) -> Result<Self, &'static str> {
        let (form, rest) = text.split_once(':').ok_or("it has no ':'")?;
        let read = |text: &str| number(text).ok_or("one of its numbers is none");
        let numbers = || rest.split(':').map(read).collect::<Result<Vec<f64>, _>>();
        match form {
            "linear" => match numbers()?.as_slice() {
                [rate] => Ok(Self::Linear(*rate)),
                _ => Err("linear takes one number"),
            },
            "step" => match numbers()?.as_slice() {
                [at, amount] => Ok(Self::Step { at: *at, amount: *amount }),
                _ => Err("step takes two numbers"),
            },
            "exponential" => match numbers()?.as_slice() {
                [amount, scale] if *scale > 0.0 => Ok(Self::Exponential { amount: *amount, scale: *scale }),
                _ => Err("exponential takes two numbers, the second above 0"),
            },
            "points" => {
                let point = |text: &str| {
                    let (x, y) = text.split_once('=').ok_or("a point is X=Y")?;
                    Ok::<_, &'static str>((read(x)?, read(y)?))
                };
                let points = rest.split(',').map(point).collect::<Result<Vec<_>, _>>()?;
                match points.is_sorted_by(|a, b| a.0 < b.0) {
                    true => Ok(Self::Points(points)),
                    false => Err("its points do not go from left to right"),
                }
            }
            _ => Err("its form is not known"),
        }
    }
}

fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let right = points.partition_point(|p| p.0 <= x);
    match (right.checked_sub(1).and_then(|left| points.get(left)), points.get(right)) {
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0),
        (Some(only), None) | (None, Some(only)) => only.1,
        (None, None) => 0.0,
    }
}

impl FromStr for Function {
    type Err = BadFunction;

    fn from_str(given: &str) -> Result<Self, BadFunction> {
        Self::read(given).map_err(|why| BadFunction { given: given.to_owned(), why })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear(rate) => write!(f, "linear:{rate}"),
            Self::Step { at, amount } => write!(f, "step:{at}:{amount}"),
            Self::Exponential { amount, scale } => write!(f, "exponential:{amount}:{scale}"),
            Self::Points(points) => {
                let points: Vec<String> = points.iter().map(|(x, y)| format!("{x}={y}")).collect();
                write!(f, "points:{}", points.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, x: f64) -> f64 {
        text.parse::<Function>().unwrap().at(x)
    }

    #[test]
    fn each_form_says_what_it_is_said_to() {
        assert_eq!(at("linear:0.5", 10.0), 5.0);
        assert_eq!((at("step:4K:7", 4095.0), at("step:4K:7", 4096.0)), (0.0, 7.0));
        assert_eq!(at("exponential:2:1M", 0.0), 0.0);
        assert!((at("exponential:2:1M", 1048576.0) - 2.0 * (std::f64::consts::E - 1.0)).abs() < 1e-9);
        let points = "points:1=10,3=20,4=0";
        let values = [0.0, 1.0, 2.0, 3.5, 4.0, 9.0].map(|x| at(points, x));
        assert_eq!(values, [10.0, 10.0, 15.0, 10.0, 0.0, 0.0]);
    }

    #[test]
    fn a_function_is_displayed_as_it_is_read() {
        for text in ["linear:-1.5", "step:4096:7", "exponential:2:3", "points:0=1,2.5=0"] {
            assert_eq!(text.parse::<Function>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_refused_with_the_forms() {
        for text in [
            "",
            "linear",
            "linear:",
            "linear:1:2",
            "step:1",
            "exponential:1:0",
            "points:2=1,1=1",
            "points:1",
            "cubic:1",
            "linear:inf",
            "linear:1e3",
        ] {
            let told = text.parse::<Function>().unwrap_err().to_string();
            assert!(told.contains("the forms are linear:RATE"), "{text}: {told}");
        }
    }
}
