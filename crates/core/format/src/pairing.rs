//! Whether a cache and a backing may start together (P6): one pure decision, exhaustively tested.
//!
//! | label phase | label generation against the superblock's | meaning |
//! |---|---|---|
//! | committed | equal | the usual case |
//! | committed | greater | the cache is an older copy: the backing has since run with a newer one |
//! | committed | smaller | the backing is an older copy |
//! | intent | equal | crash between superblock and confirmation |
//! | intent | greater by one | crash between intent and superblock; nothing was written in that run |
//! | intent | greater by more | the cache is an older copy |
//! | intent | smaller | the backing is an older copy |

use thiserror::Error;

use crate::label::{Label, LabelState, Phase};
use crate::superblock::{CacheState, Superblock};

/// Why a cache and a backing may not start together; each sentence says what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The cache was removed for good.
    #[error("this cache was removed from its volume for good; make a new one with `forebay format`")]
    CacheReleased,
    /// The cache failed and was retired.
    #[error(
        "this cache failed a write and was retired after everything in it reached the backing; replace the device \
         and make a new cache with `forebay format`, or serve the backing with --no-cache"
    )]
    CacheRetired,
    /// The backing carries no label although the cache knows that it had one.
    #[error(
        "the backing has no label although this cache was paired with a labelled one: it is another backing, or its label (the \
         file IMAGE.forebay beside it, or the end of its device) was lost; give the right --backing, put that file back, or pair \
         the two again with `forebay pair`"
    )]
    LabelMissing,
    /// The backing is paired with another cache.
    #[error("the backing is paired with another cache ({cache_name}, id {cache_id}); give that --cache")]
    ForeignCache {
        /// Where that cache was, when it last ran.
        cache_name: String,
        /// Its id in hexadecimal.
        cache_id: String,
    },
    /// The cache is paired with another backing.
    #[error("the cache is paired with another backing ({backing_name}); give that --backing")]
    ForeignBacking {
        /// Where that backing was, when they were paired.
        backing_name: String,
    },
    /// The cache is an older copy.
    #[error(
        "the cache is an older copy (its run {cache}, the backing has seen run {backing}): using it would lose what \
         was written since; give the cache that ran last"
    )]
    StaleCache {
        /// Run of the cache.
        cache: u64,
        /// Run of the backing.
        backing: u64,
    },
    /// The backing is an older copy.
    #[error(
        "the backing is an older copy (its run {backing}, the cache has seen run {cache}): what was destaged since is \
         missing in it; give the backing that ran last"
    )]
    StaleBacking {
        /// Run of the cache.
        cache: u64,
        /// Run of the backing.
        backing: u64,
    },
    /// The backing went on without the cache.
    #[error(
        "the backing has gone on without this cache ({0}); make a new cache with `forebay format --force`"
    )]
    BackingMovedOn(&'static str),
    /// Another host runs, or ran and did not stop cleanly.
    #[error(
        "the volume was last run on host '{host_name}', which has not stopped it cleanly and may still be writing; \
         stop it there, or if that host is surely dead, start with --takeover"
    )]
    OtherHost {
        /// That host's name.
        host_name: String,
    },
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

/// Decides whether `superblock` and `label` belong together and are both the latest, and returns the number of the
/// new run. `label` is `None` if the backing carries none; `takeover` overrides only [`Refusal::OtherHost`].
///
/// # Errors
/// The [`Refusal`].
pub fn decide(
    superblock: &Superblock,
    label: Option<&Label>,
    host_id: &[u8; 16],
    takeover: bool,
) -> Result<u64, Refusal> {
    match superblock.state {
        CacheState::Released => return Err(Refusal::CacheReleased),
        CacheState::Retired => return Err(Refusal::CacheRetired),
        CacheState::Paired => {}
    }
    let cache = superblock.layout.generation;
    let Some(label) = label else {
        return if superblock.has_label { Err(Refusal::LabelMissing) } else { Ok(cache + 1) };
    };
    if label.cache_id != superblock.layout.cache_id {
        return Err(Refusal::ForeignCache {
            cache_name: label.cache_name.clone(),
            cache_id: hex(&label.cache_id),
        });
    }
    if label.backing_id != superblock.backing_id {
        return Err(Refusal::ForeignBacking { backing_name: superblock.backing_name.clone() });
    }
    match label.state {
        LabelState::Released => return Err(Refusal::BackingMovedOn("the cache was removed for good")),
        LabelState::Retired => return Err(Refusal::CacheRetired),
        LabelState::Paired => {}
    }
    let backing = label.generation;
    let newest_cache = match label.phase {
        Phase::Committed => backing,
        Phase::Intent => backing.saturating_sub(1),
    };
    if cache < newest_cache {
        return Err(Refusal::StaleCache { cache, backing });
    }
    if cache > backing {
        return Err(Refusal::StaleBacking { cache, backing });
    }
    if label.in_use && label.host_id != *host_id && !takeover {
        return Err(Refusal::OtherHost { host_name: label.host_name.clone() });
    }
    Ok(backing.max(cache) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::tests::sample as label;
    use crate::superblock::tests::sample as superblock;

    const HOST: [u8; 16] = [0xA0; 16];

    /// Runs the three-phase start over and over, crashes at every point, and mixes copies of cache and backing from
    /// all those instants: exactly the pairs that one crash can leave may start.
    #[test]
    fn only_pairs_that_a_crash_can_leave_start() {
        let mut instants = Vec::new();
        let (mut sb, mut lb) = (superblock(), label());
        for _ in 0..4 {
            let next = decide(&sb, Some(&lb), &HOST, false).unwrap();
            lb = Label { generation: next, phase: Phase::Intent, in_use: true, ..lb };
            instants.push((sb.clone(), lb.clone()));
            sb.layout.generation = next;
            instants.push((sb.clone(), lb.clone()));
            lb.phase = Phase::Committed;
            instants.push((sb.clone(), lb.clone()));
        }
        for (i, (sb, _)) in instants.iter().enumerate() {
            for (k, (_, lb)) in instants.iter().enumerate() {
                let together = instants.iter().any(|(s, l)| s == sb && l == lb);
                assert_eq!(
                    decide(sb, Some(lb), &HOST, false).is_ok(),
                    together,
                    "cache of {i}, backing of {k}"
                );
            }
        }
    }

    #[test]
    fn each_mismatch_has_its_refusal() {
        let (sb, lb) = (superblock(), label());
        let say = |s: &Superblock, l: Option<&Label>| decide(s, l, &HOST, false);
        assert_eq!(say(&sb, Some(&lb)), Ok(5));
        assert_eq!(say(&sb, None), Err(Refusal::LabelMissing));
        assert_eq!(say(&Superblock { has_label: false, ..sb.clone() }, None), Ok(5));
        let released = Superblock { state: CacheState::Released, ..sb.clone() };
        assert_eq!(say(&released, Some(&lb)), Err(Refusal::CacheReleased));
        let retired = Superblock { state: CacheState::Retired, ..sb.clone() };
        assert_eq!(say(&retired, Some(&lb)), Err(Refusal::CacheRetired));
        let l = Label { cache_id: [1; 16], ..lb.clone() };
        assert!(matches!(say(&sb, Some(&l)), Err(Refusal::ForeignCache { .. })));
        let l = Label { backing_id: [1; 16], ..lb.clone() };
        assert!(matches!(say(&sb, Some(&l)), Err(Refusal::ForeignBacking { .. })));
        let l = Label { generation: 5, ..lb.clone() };
        assert_eq!(say(&sb, Some(&l)), Err(Refusal::StaleCache { cache: 4, backing: 5 }));
        let l = Label { generation: 3, ..lb.clone() };
        assert_eq!(say(&sb, Some(&l)), Err(Refusal::StaleBacking { cache: 4, backing: 3 }));
        let l = Label { state: LabelState::Released, ..lb.clone() };
        assert!(matches!(say(&sb, Some(&l)), Err(Refusal::BackingMovedOn(_))));
        let l = Label { state: LabelState::Retired, ..lb.clone() };
        assert_eq!(say(&sb, Some(&l)), Err(Refusal::CacheRetired));
        let l = Label { in_use: true, host_id: [1; 16], ..lb.clone() };
        assert!(matches!(say(&sb, Some(&l)), Err(Refusal::OtherHost { .. })));
        assert_eq!(decide(&sb, Some(&l), &HOST, true), Ok(5));
        let l = Label { in_use: true, ..lb };
        assert_eq!(say(&sb, Some(&l)), Ok(5));
    }
}
