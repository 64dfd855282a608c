//! Latencies that vary: a log-normal distribution, given by its median and its 99th percentile.

use crate::random::Random;

/// Share of the draws that lie below `median * (p99 / median)^k`, for the powers that square roots alone can reach.
/// The quantile function is straight between these points, so that a draw needs no logarithm, whose last bits differ
/// from one C library to the next.
const POINTS: [(f64, f64); 13] = [
    (0.0, -1.5),
    (0.01, -1.0),
    (0.0405, -0.75),
    (0.1224, -0.5),
    (0.2804, -0.25),
    (0.5, 0.0),
    (0.7196, 0.25),
    (0.8776, 0.5),
    (0.9595, 0.75),
    (0.99, 1.0),
    (0.998_18, 1.25),
    (0.999_76, 1.5),
    (1.0, 1.75),
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Spread([(f64, f64); POINTS.len()]);

impl Spread {
    /// A 99th percentile below the median counts as the median: every draw is the same.
    pub(crate) fn new(median_ns: u64, p99_ns: u64) -> Self {
        let median = median_ns as f64;
        let ratio = if p99_ns > median_ns && median_ns > 0 { p99_ns as f64 / median } else { 1.0 };
        let quarter = ratio.sqrt().sqrt();
        Self(POINTS.map(|(share, power)| {
            let quarters = (power * 4.0_f64) as i32;
            let factor = (0..quarters.abs()).fold(1.0, |f, _| f * quarter);
            (share, if quarters < 0 { median / factor } else { median * factor })
        }))
    }

    /// The least latency that is ever drawn.
    pub(crate) fn least_ns(&self) -> u64 {
        self.0[0].1 as u64
    }

    pub(crate) fn draw_ns(&self, random: &mut Random) -> u64 {
        let share = random.share();
        let above = self.0.partition_point(|(s, _)| *s <= share).clamp(1, self.0.len() - 1);
        let ((s0, v0), (s1, v1)) = (self.0[above - 1], self.0[above]);
        (v0 + (v1 - v0) * (share - s0) / (s1 - s0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_quantiles_they_were_given() {
        let spread = Spread::new(100_000, 400_000);
        let mut random = Random::new(7);
        let mut draws: Vec<u64> = (0..100_000).map(|_| spread.draw_ns(&mut random)).collect();
        draws.sort_unstable();
        let near = |at: usize, wanted: f64| (draws[at] as f64 / wanted - 1.0).abs() < 0.05;
        assert!(near(50_000, 100_000.0), "{}", draws[50_000]);
        assert!(near(99_000, 400_000.0), "{}", draws[99_000]);
        // A log-normal's 90th percentile: the 99th's power 1.2816 / 2.3263.
        assert!(near(90_000, 100_000.0 * 4f64.powf(0.551)), "{}", draws[90_000]);
        assert!(draws[0] >= spread.least_ns());
    }

    #[test]
    fn without_a_tail_every_draw_is_the_median() {
        let spread = Spread::new(5_000, 0);
        let mut random = Random::new(1);
        assert!((0..100).all(|_| spread.draw_ns(&mut random) == 5_000));
    }
}
