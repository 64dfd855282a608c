//! The rates of rules: what is admitted because somebody critical waits is charged to one of them.

use forebay_policy::Allowance;

/// A rate among those of all rules, from 1 on; 0: none.
pub(crate) type Rate = u8;

/// Rates of those who wait for a write, rate N at bit N - 1; 0 if one of them has none.
pub(crate) type Payers = u32;

/// What is left of each.
pub(crate) struct Rates(Vec<Allowance>);

impl Rates {
    /// Bytes a second of each, of which nothing has been used.
    pub fn new(bytes_a_second: impl Iterator<Item = u64>) -> Self {
        Self(bytes_a_second.map(|bytes| Allowance::new(bytes, 0)).collect())
    }

    /// Whether so many bytes of an awaited write are within a rate, to which they are charged then: that of the task that wrote them, if it has
    /// one, be it waited for by whomever; else that of one of those who wait for it, the first with so much left, unless one of them has no rate.
    pub fn charge(&mut self, own: Rate, payers: Payers, bytes: u64, now_ns: u64) -> bool {
        if own != 0 {
            return self.0.get_mut(usize::from(own) - 1).is_some_and(|rate| rate.take(bytes, now_ns));
        }
        let pays = |(place, rate): (u32, &mut Allowance)| {
            payers.checked_shr(place).is_some_and(|p| p & 1 != 0) && rate.take(bytes, now_ns)
        };
        payers == 0 || (0..).zip(&mut self.0).any(pays)
    }
}

/// Who pays for what two wait for, or more: nobody, if one of them has no rate.
pub(crate) fn together(payers: Payers, others: Payers) -> Payers {
    if payers == 0 || others == 0 { 0 } else { payers | others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_pays_and_else_one_of_those_who_wait() {
        let mut rates = Rates::new([1000, 2000].into_iter());
        assert!(rates.charge(0, 0, u64::MAX, 0), "somebody without a rate waits");
        assert!(rates.charge(1, 0b10, 600, 0) && rates.charge(1, 0, 400, 0));
        assert!(!rates.charge(1, 0, 1, 0), "it has a rate, whoever waits");
        assert!(!rates.charge(0, 0b01, 1, 0));
        assert!(rates.charge(0, 0b11, 1500, 0), "the other has so much left");
        assert!(!rates.charge(0, 0b11, 600, 0) && rates.charge(0, 0b11, 500, 0));
        assert!(!rates.charge(0, 0b100, 1, 0) && !rates.charge(200, 0, 1, 0), "there is no such rate");
        assert_eq!([together(1, 2), together(0, 2), together(1, 0)], [3, 0, 0]);
    }
}
