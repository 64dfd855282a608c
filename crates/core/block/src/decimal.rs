//! Numbers as people write them, with a point and some digits behind it.

/// Most digits behind the point.
const PLACES_MAX: usize = 9;

/// Why a text is no number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoNumber {
    /// It is something else.
    Form,
    /// It is more than 64 bits can count.
    TooLarge,
}

/// So many units of `factor`, such as 1.5 of 1024; a part of one that is left over is dropped.
pub(crate) fn scaled(text: &str, factor: u64) -> Result<u64, NoNumber> {
    let (whole, places) = text.split_once('.').map_or((text, None), |(whole, places)| (whole, Some(places)));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let well_formed = places.is_none_or(|p| digits(p) && p.len() <= PLACES_MAX && factor > 1);
    if !digits(whole) || !well_formed {
        return Err(NoNumber::Form);
    }
    let count = whole.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or(NoNumber::TooLarge)?;
    let part = places.map_or(0, |places| {
        let part = places.parse::<u128>().unwrap_or_default() * u128::from(factor);
        (part / 10u128.pow(places.len() as u32)) as u64
    });
    count.checked_add(part).ok_or(NoNumber::TooLarge)
}

/// The number and the unit behind it, between which there may be a space.
pub(crate) fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.strip_prefix(' ').filter(|unit| !unit.is_empty()).unwrap_or(unit))
}
