//! Wall-clock time as text.

/// Nanoseconds since 1970 as RFC 3339 in UTC with milliseconds, such as `2026-11-21T21:23:05.042Z`.
pub fn rfc3339(ns_since_1970: u64) -> String {
    let ms = ns_since_1970 / 1_000_000;
    let seconds = ms / 1000;
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
        ms % 1000
    )
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01. Years are counted from March, so that the
/// leap day is the last of its year.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let from_year_0 = days + 719_468;
    let era = from_year_0 / 146_097;
    let day_of_era = from_year_0 % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (4_102_444_799, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(seconds * 1_000_000_000), text);
        }
        assert_eq!(rfc3339(1_042_999_999), "1970-01-01T00:00:01.042Z");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = (1970, 1, 0);
        for day in 0..100_000 {
            let now = civil_from_days(day);
            let next_day = now == (last.0, last.1, last.2 + 1);
            let next_month = now == (last.0, last.1 + 1, 1) && last.2 >= 28;
            let next_year = now == (last.0 + 1, 1, 1) && last.1 == 12 && last.2 == 31;
            assert!(next_day || next_month || next_year, "{last:?} then {now:?}");
            last = now;
        }
    }
}
