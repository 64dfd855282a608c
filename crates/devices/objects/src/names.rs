//! The names of objects. Numbers are written so that names sort as they do.

use crate::face::Position;

/// The object that says which volume this is.
pub(crate) const VOLUME: &str = "volume";
/// Claims of owners.
pub(crate) const EPOCHS: &str = "epoch/";
/// The log.
pub(crate) const LOG: &str = "log/";
/// Heads of checkpoints.
pub(crate) const INDEX: &str = "index/";
/// Parts of checkpoints.
pub(crate) const PARTS: &str = "part/";
/// Named checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoint/";

/// Most bytes of a checkpoint's name.
pub(crate) const CHECKPOINT_BYTES_MAX: usize = 64;

pub(crate) fn claim(epoch: u64) -> String {
    format!("{EPOCHS}{epoch:016x}")
}

pub(crate) fn log(at: Position) -> String {
    format!("{LOG}{:016x}/{:016x}", at.epoch, at.seq)
}

pub(crate) fn index(at: Position) -> String {
    format!("{INDEX}{:016x}-{:016x}", at.epoch, at.seq)
}

pub(crate) fn part(at: Position, number: u32) -> String {
    format!("{PARTS}{:016x}-{:016x}/{number:08x}", at.epoch, at.seq)
}

/// What all objects that point to a checkpoint of this name begin with.
pub(crate) fn checkpoints(name: &str) -> String {
    format!("{CHECKPOINTS}{name}/")
}

/// A name is used again after it was given up, so that its object's name says which checkpoint is meant.
pub(crate) fn checkpoint(name: &str, at: Position) -> String {
    format!("{CHECKPOINTS}{name}/{:016x}-{:016x}", at.epoch, at.seq)
}

/// Whether a checkpoint may have this name.
pub(crate) fn is_checkpoint_name(name: &str) -> bool {
    let is_fine = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    (1..=CHECKPOINT_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fine)
}

/// The number in the name of a claim.
pub(crate) fn epoch_of(name: &str) -> Option<u64> {
    number(name.strip_prefix(EPOCHS)?)
}

/// The place of an object of the log, by its name.
pub(crate) fn log_of(name: &str) -> Option<Position> {
    position(name.strip_prefix(LOG)?, '/')
}

/// What a checkpoint is of, by the name of its head.
pub(crate) fn index_of(name: &str) -> Option<Position> {
    position(name.strip_prefix(INDEX)?, '-')
}

/// What a part of a checkpoint is of, by its name.
pub(crate) fn part_of(name: &str) -> Option<Position> {
    let (at, part) = name.strip_prefix(PARTS)?.split_once('/')?;
    u32::from_str_radix(part, 16).ok()?;
    position(at, '-')
}

/// Name and state of a named checkpoint, by its object's name.
pub(crate) fn checkpoint_of(name: &str) -> Option<(&str, Position)> {
    let (name, at) = name.strip_prefix(CHECKPOINTS)?.split_once('/')?;
    Some((name, position(at, '-')?))
}

fn position(text: &str, between: char) -> Option<Position> {
    let (epoch, seq) = text.split_once(between)?;
    Some(Position { epoch: number(epoch)?, seq: number(seq)? })
}

fn number(text: &str) -> Option<u64> {
    // Names that mean the same are the same.
    let is_written = text.len() == 16 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| is_written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_were_made_of_and_nothing_else_is_taken_for_one() {
        let at = Position { epoch: 0x2A, seq: u64::MAX };
        assert_eq!(log(at), "log/000000000000002a/ffffffffffffffff");
        assert_eq!(epoch_of(&claim(7)), Some(7));
        assert_eq!(log_of(&log(at)), Some(at));
        assert_eq!(index_of(&index(at)), Some(at));
        assert_eq!(part_of(&part(at, 9)), Some(at));
        assert_eq!(checkpoint_of(&checkpoint("a.b", at)), Some(("a.b", at)));
        for wrong in [
            "log/2a/0",
            "log/000000000000002A/ffffffffffffffff",
            "log/000000000000002a",
            "log/+00000000000002a/ffffffffffffffff",
        ] {
            assert_eq!(log_of(wrong), None, "{wrong}");
        }
        for name in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_checkpoint_name(name), "{name}");
        }
        assert!(is_checkpoint_name(&"x".repeat(64)) && is_checkpoint_name("2026-11-28_A.z"));
    }

    #[test]
    fn names_sort_as_positions_do() {
        let all = [(1, 2), (1, 16), (2, 0), (16, 0)].map(|(epoch, seq)| Position { epoch, seq });
        assert!(all.is_sorted() && all.map(log).is_sorted() && all.map(index).is_sorted());
    }
}
