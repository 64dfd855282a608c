//! How much of memory an attached volume's dirty pages may have before their write-back begins.

use std::fmt;
use std::str::FromStr;

/// Millionths in a hundredth.
const PERCENT: u32 = 10_000;

/// A share of memory, in millionths; 0: what the system allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundDirty(pub u32);

impl Default for BackgroundDirty {
    /// What background tasks have in FAST'17, section 4.
    fn default() -> Self {
        Self(PERCENT)
    }
}

impl FromStr for BackgroundDirty {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "0" | "system") {
            return Ok(Self(0));
        }
        let share = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        share
            .filter(|percent| (0.01..=50.0).contains(percent))
            .map(|percent| Self((percent * f64::from(PERCENT)).round() as u32))
            .ok_or_else(|| {
                format!("'{text}' is no share of memory: give 0.01% to 50%, such as 1%, or `system` for the system's own limit")
            })
    }
}

impl fmt::Display for BackgroundDirty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("system"),
            share => write!(f, "{}%", f64::from(share) / f64::from(PERCENT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_hundredths_of_memory() {
        for (text, share, shown) in [
            ("1%", 10_000, "1%"),
            ("0.5%", 5_000, "0.5%"),
            ("50 %", 500_000, "50%"),
            ("0", 0, "system"),
            ("system", 0, "system"),
        ] {
            let parsed: BackgroundDirty = text.parse().unwrap();
            assert_eq!((parsed.0, parsed.to_string().as_str()), (share, shown), "{text}");
        }
        assert_eq!(BackgroundDirty::default().to_string(), "1%");
    }

    #[test]
    fn what_is_no_share_is_refused_with_an_example() {
        for text in ["1", "", "%", "-1%", "0%", "51%", "nan%", "0.001%", "1M"] {
            let told = text.parse::<BackgroundDirty>().unwrap_err();
            assert!(told.contains("such as 1%"), "{text}: {told}");
        }
    }
}
