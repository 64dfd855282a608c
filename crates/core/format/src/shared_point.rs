//! What a journal knows of a *consistency group*: several volumes that share their consistency points, so that an application
//! with data on all of them finds one state across all of them.
//!
//! A point that all members share has a number. Each member's group that ends there is *prepared* first, and *decided* only when
//! all members have prepared it. So a member that has decided a point knows that every other has it, decided or prepared; the
//! newest point that every member has is never behind any that one of them has decided.

use crate::FormatError;

/// Room for the names of a consistency group and its members, in bytes: the head's first sector holds them.
pub const COMMON_NAMES_BYTES: usize = 168;
/// Most members of a consistency group.
pub const MEMBERS_MAX: usize = 8;

/// See the module's documentation. All zero if the volume was never a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// The common point at which the last committed group ends, 0 if it is none or has been passed.
    pub decided: u64,
    /// The common point at which the prepared group ends, 0 if none is prepared.
    pub prepared: u64,
    /// Which backings share these points ([`set_of`]); another set has other points.
    pub set: [u8; 16],
    /// Which of the members this is, from 0.
    pub member: u32,
    /// Names of the consistency group and its members, in ascending order, with a space between.
    pub names: String,
}

impl Common {
    /// Name of the consistency group.
    pub fn name(&self) -> &str {
        self.names.split(' ').next().unwrap_or_default()
    }

    /// Names of the members.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.names.split(' ').skip(1)
    }

    /// The common points to which the backing can be brought, newest first.
    pub fn points(&self) -> impl Iterator<Item = u64> + use<> {
        [self.prepared, self.decided].into_iter().filter(|point| *point > 0)
    }

    /// Is a member of the consistency group with these names from here on. What it shared under others is no point any more.
    pub fn join(&mut self, names: &str, member: u32) {
        if (self.names.as_str(), self.member) != (names, member) {
            *self = Self { names: names.to_owned(), member, ..Self::default() };
        }
    }

    /// The same members of the same consistency group.
    pub fn shares_with(&self, other: &Self) -> bool {
        (self.set, &self.names) == (other.set, &other.names)
    }
}

/// The text of [`Common::names`].
///
/// # Errors
/// If it has too many members, or does not fit.
pub fn names_of(name: &str, members: &[&str]) -> Result<String, FormatError> {
    let names = std::iter::once(name).chain(members.iter().copied()).collect::<Vec<_>>().join(" ");
    let sorted = members.is_sorted_by(|a, b| a < b) && members.len() >= 2;
    match sorted && members.len() <= MEMBERS_MAX && names.len() <= COMMON_NAMES_BYTES {
        true => Ok(names),
        false => Err(FormatError::Field("names")),
    }
}

/// What tells these backings, in the order of the members' names, from any others: identities are random.
pub fn set_of(backings: &[[u8; 16]]) -> [u8; 16] {
    let turned = (1..).zip(backings).map(|(n, id)| u128::from_le_bytes(*id).rotate_left(8 * n));
    turned.fold(0u128, u128::wrapping_add).to_le_bytes()
}

/// The newest point that every member has, to which each of them can be brought; `None` if there is none.
pub fn newest_common<'a>(mut members: impl Iterator<Item = &'a Common> + Clone) -> Option<u64> {
    let first = members.next()?;
    first.points().find(|point| members.clone().all(|member| member.points().any(|p| p == *point)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_point_that_all_have() {
        let member = |decided, prepared| Common { decided, prepared, ..Common::default() };
        let rows = [
            ([(3, 5), (3, 4)], Some(3)),
            ([(4, 5), (3, 4)], Some(4)),
            ([(4, 5), (4, 5)], Some(5)),
            ([(5, 0), (4, 5)], Some(5)),
            ([(0, 5), (4, 0)], None),
            ([(0, 0), (0, 0)], None),
        ];
        for (members, newest) in rows {
            let members = members.map(|(decided, prepared)| member(decided, prepared));
            assert_eq!(newest_common(members.iter()), newest, "{members:?}");
            assert_eq!(newest_common(members.iter().rev()), newest, "{members:?}");
        }
    }

    #[test]
    fn names_and_sets() {
        let names = names_of("shop", &["data", "log"]).unwrap();
        let common = Common { names, ..Common::default() };
        assert_eq!((common.name(), common.members().collect::<Vec<_>>()), ("shop", vec!["data", "log"]));
        let long = "x".repeat(COMMON_NAMES_BYTES);
        assert!(names_of("shop", &["log", "data"]).is_err() && names_of("shop", &["data"]).is_err());
        assert!(names_of("shop", &["data", &long]).is_err());
        let id = |n: u8| std::array::from_fn(|i| n.wrapping_mul(37) ^ (i as u8).wrapping_mul(101));
        let (a, b) = (id(1), id(2));
        assert!(set_of(&[a, b]) != set_of(&[b, a]) && set_of(&[a, b]) != set_of(&[a, id(3)]));
    }

    #[test]
    fn a_group_has_at_most_eight_members_whose_names_fit() {
        let members = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        assert_eq!(names_of("shop", &members[..8]).as_deref(), Ok("shop a b c d e f g h"));
        assert_eq!(names_of("shop", &members), Err(FormatError::Field("names")));
        let longest = "x".repeat(COMMON_NAMES_BYTES - "shop a ".len());
        assert!(names_of("shop", &["a", &longest]).is_ok_and(|names| names.len() == COMMON_NAMES_BYTES));
        assert!(
            names_of("shop", &["a", &format!("{longest}x")]).is_err()
                && names_of("shop", &["a", "a"]).is_err()
        );
    }

    /// It is kept on the backings of all members: another release has to find the same.
    #[test]
    fn a_set_is_what_it_was() {
        assert_eq!(set_of(&[]), [0; 16]);
        let (mut one, mut other) = ([0; 16], [0; 16]);
        (one[0], one[15], other[0]) = (7, 9, 5);
        let mut set = [0; 16];
        // The first is turned by a byte, the second by two; then they are added.
        (set[1], set[0], set[2]) = (7, 9, 5);
        assert_eq!(set_of(&[one, other]), set);
        assert_eq!(
            set_of(&[[0xFF; 16], {
                let mut one = [0; 16];
                one[14] = 1;
                one
            }]),
            [0; 16],
            "it wraps around"
        );
    }

    #[test]
    fn who_joins_another_group_or_another_place_shares_no_point() {
        let joined = Common { decided: 3, prepared: 4, set: [7; 16], member: 1, names: "shop a b".into() };
        let mut common = joined.clone();
        common.join("shop a b", 1);
        assert_eq!(common, joined);
        for (names, member) in [("shop a b", 0), ("shop a c", 1)] {
            let mut common = joined.clone();
            common.join(names, member);
            assert_eq!(common, Common { names: names.into(), member, ..Common::default() });
        }
        assert!(joined.shares_with(&Common { decided: 0, prepared: 0, member: 0, ..joined.clone() }));
        assert!(!joined.shares_with(&Common { set: [8; 16], ..joined.clone() }));
        assert!(!joined.shares_with(&Common { names: "shop a c".into(), ..joined.clone() }));
    }
}
