//! How often a volume lagged behind by how much.

use std::collections::BTreeMap;

/// Upper bounds in seconds; one more class has what is beyond.
const SECONDS: [f64; 11] = [0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];

/// Looks at a volume, one in each second.
#[derive(Clone, Copy, Default)]
pub struct StalenessHistogram {
    looks: [u64; SECONDS.len() + 1],
    sum_seconds: f64,
}

impl StalenessHistogram {
    /// One more look.
    pub fn count(&mut self, seconds: f64) {
        let class = SECONDS.iter().position(|most| seconds <= *most).unwrap_or(SECONDS.len());
        self.looks[class] += 1;
        self.sum_seconds += seconds;
    }

    /// The sum of what the looks saw, in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_seconds
    }

    /// By upper bound, how many looks saw at most that, as Prometheus has it.
    pub fn cumulative(&self) -> BTreeMap<String, u64> {
        let names = SECONDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        let sums = self.looks.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        });
        names.zip(sums).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_added_up_to_their_bounds() {
        let mut histogram = StalenessHistogram::default();
        [0.0, 0.3, 0.5, 7.0, 1e9].into_iter().for_each(|s| histogram.count(s));
        let sums = histogram.cumulative();
        let at = |le: &str| sums[le];
        assert_eq!((at("0"), at("0.1"), at("0.5"), at("5"), at("10")), (1, 1, 3, 3, 4));
        assert_eq!((at("3600"), at("+Inf")), (4, 5));
        assert!((histogram.sum_seconds() - 1e9 - 7.8).abs() < 1e-6);
    }
}
