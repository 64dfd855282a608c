//! The simulator's own random numbers: xoshiro256++ seeded by SplitMix64 (Blackman and Vigna). They are part of the
//! plan format: a third-party generator that changed its stream would silently make every recorded seed worthless.

/// A stream of random numbers; equal seeds give equal streams for ever.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// One step of SplitMix64: also used to derive independent seeds from one.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut s = seed;
        Self { state: std::array::from_fn(|_| split_mix(&mut s)) }
    }

    /// An independent stream for the purpose `label`, so that one consumer's draws do not shift another's.
    pub fn derived(seed: u64, label: u64) -> Self {
        let mut s = seed ^ label.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self::new(split_mix(&mut s))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number in `0 .. bound`; 0 if `bound` is 0. (Multiply-shift: its bias is far below anything a test can see.)
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low ..= high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Puts `items` into a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation of SplitMix64 with seed 1234567, and of xoshiro256++ from state 1,2,3,4.
    #[test]
    fn streams_are_those_of_the_reference() {
        let mut s = 1_234_567;
        assert_eq!(split_mix(&mut s), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut s), 3_203_168_211_198_807_973);
        let mut r = Random { state: [1, 2, 3, 4] };
        assert_eq!([r.bits(), r.bits(), r.bits()], [41_943_041, 58_720_359, 3_588_806_011_781_223]);
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut r = Random::new(1);
        let mut seen = [false; 7];
        (0..1000).for_each(|_| seen[r.below(7) as usize] = true);
        assert!(seen.iter().all(|s| *s));
        assert_eq!(r.below(0), 0);
    }
}
