//! Random choices of the loads, repeatable from a seed.

/// A generator (xorshift64*), good enough to spread requests.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Seeds next to each other must not begin alike, and zero would stay zero.
        Self((seed.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `n`, or 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Puts things into an order of chance.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        (1..things.len()).for_each(|n| things.swap(n, self.below(n as u64 + 1) as usize));
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// YCSB's distribution: few records are asked for often (zipfian, constant 0.99), and they lie scattered over all.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    items: u64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    pub(crate) fn new(items: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let (zeta, zeta_of_2) = (zeta(items), zeta(2));
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta_of_2 / zeta);
        Self { items, zeta, eta }
    }

    /// A record, as Gray et al. draw it (SIGMOD'94), which is what YCSB does.
    pub(crate) fn draw(&self, dice: &mut Dice) -> u64 {
        let u = dice.unit();
        let rank = match u * self.zeta {
            below if below < 1.0 => 0,
            below if below < 1.0 + 0.5f64.powf(THETA) => 1,
            _ => (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64,
        };
        // The odd factor scatters the ranks; two of them may meet, as in YCSB.
        rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_reach_all_of_it_evenly() {
        let mut dice = Dice::new(0);
        let mut seen = [0u32; 10];
        (0..10_000).for_each(|_| seen[dice.below(10) as usize] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!(dice.below(0), 0);
    }

    #[test]
    fn a_few_records_get_most_of_the_requests() {
        let (zipf, mut dice) = (Zipf::new(1000), Dice::new(7));
        let mut seen = vec![0u32; 1000];
        (0..100_000).for_each(|_| seen[zipf.draw(&mut dice) as usize] += 1);
        seen.sort_unstable();
        let hot: u32 = seen.iter().rev().take(100).sum();
        assert!((50_000..85_000).contains(&hot), "a tenth of the records got {hot} of 100,000");
    }
}
