//! What the independent verifier makes of the cache that a crash has left, against what recovery makes of it.

use forebay_engine::RecoveryReport;
use forebay_verify::{Report, Severity, check};

use crate::violation::{Interrupt, broken};
use crate::world::{Retirement, World};

/// The verifier's report on the cache as it is now, before the next start; `None` where there is nothing to compare:
/// before the first run, and where damage was done on purpose.
pub(crate) fn of(world: &World) -> Option<Report> {
    let superblock = world.superblock().ok()?;
    if world.decays || world.retirement != Retirement::None || superblock.layout.generation == 0 {
        return None;
    }
    let media = &world.cache.media;
    let image = media.read(0, media.end() as usize);
    check(&image).ok()
}

/// Compares the two.
///
/// # Errors
/// If they see different logs.
pub(crate) fn compare(verifier: &Report, recovery: &RecoveryReport) -> Result<(), Interrupt> {
    // What errors of the device have left half written may be found and be of no consequence.
    if verifier.verdict == Severity::Corruption {
        let finding = verifier.findings.iter().find(|f| f.severity == Severity::Corruption);
        let what = finding.map_or_else(String::new, |f| f.message.clone());
        return Err(broken("check", format!("the verifier finds damage where recovery finds none: {what}")));
    }
    let dirty = verifier.blocks.dirty + verifier.blocks.zero + verifier.blocks.poison;
    let pairs = [
        ("the last record is", verifier.log.last_seq, recovery.last_seq.0),
        ("dirty blocks:", dirty, recovery.blocks_dirty),
        ("clean blocks:", verifier.blocks.clean, recovery.blocks_clean),
    ];
    match pairs.iter().find(|(_, a, b)| a != b) {
        Some((what, a, b)) => {
            Err(broken("check", format!("{what} {a} for the verifier and {b} for recovery")))
        }
        None => Ok(()),
    }
}
