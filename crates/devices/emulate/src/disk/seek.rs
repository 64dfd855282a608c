//! How long the arm takes to go how far.

/// `single + a * sqrt(d) + b * d` nanoseconds over the share `d` of the full stroke: the root is the arm speeding up and
/// slowing down over short ways, the linear part its cruise over long ones (Ruemmler and Wilkes, "An introduction to
/// disk drive modeling", IEEE Computer 27(3), 1994; they switch from one to the other, here they are added, which three
/// published times determine).
///
/// Over two random cylinders `d` has the density `2 (1 - d)`, so that the mean of `sqrt(d)` is 8/15 and that of `d` 1/3.
#[derive(Clone, Debug)]
pub(crate) struct SeekCurve {
    single_ns: f64,
    root_ns: f64,
    linear_ns: f64,
}

impl SeekCurve {
    /// The curve through a disk's three times, of one cylinder, on average and of all; `None` if there is none that never falls.
    pub(crate) fn new(single_ns: u64, average_ns: u64, full_ns: u64) -> Option<Self> {
        let single_ns = single_ns as f64;
        let full = full_ns as f64 - single_ns;
        let average = average_ns as f64 - single_ns;
        let root_ns = 5.0 * (average - full / 3.0);
        let linear_ns = full - root_ns;
        // The slope, root / (2 sqrt(d)) + linear, is least at one end of the way.
        let rises = full >= 0.0 && root_ns >= 0.0 && root_ns / 2.0 + linear_ns >= 0.0;
        rises.then_some(Self { single_ns, root_ns, linear_ns })
    }

    /// Nanoseconds over a share of the full stroke greater than 0.
    pub(crate) fn ns(&self, share: f64) -> u64 {
        (self.single_ns + self.root_ns * share.sqrt() + self.linear_ns * share) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::DiskSettings;
    use crate::random::Random;

    #[test]
    fn the_curve_passes_through_the_published_times() {
        for settings in [DiskSettings::SAVVIO_10K4, DiskSettings::CONSTELLATION_ES3] {
            let curve = settings.curve().unwrap();
            assert_eq!(curve.ns(1.0), settings.seek_full_ns);
            assert!(curve.ns(1e-9) - settings.seek_single_ns < 1000);
            let mut random = Random::new(1);
            let draws = 200_000;
            let sum: u64 = (0..draws).map(|_| curve.ns((random.share() - random.share()).abs())).sum();
            let mean = sum as f64 / f64::from(draws);
            assert!((mean / settings.seek_average_ns as f64 - 1.0).abs() < 0.005, "{mean}");
            let steps: Vec<u64> = (0..=1000).map(|i| curve.ns(f64::from(i) / 1000.0)).collect();
            assert!(steps.is_sorted());
        }
    }

    #[test]
    fn times_that_no_arm_has_are_refused() {
        let base = DiskSettings::SAVVIO_10K4;
        for (single, average, full) in
            [(300, 200, 7000), (300, 7500, 7810), (5000, 3800, 4000), (300, 1000, 7810)]
        {
            let times = [single, average, full].map(|us| us * 1000);
            let settings = DiskSettings {
                seek_single_ns: times[0],
                seek_average_ns: times[1],
                seek_full_ns: times[2],
                ..base.clone()
            };
            assert!(settings.curve().is_err(), "{single} {average} {full}");
            assert!(settings.check().is_err());
        }
    }
}
