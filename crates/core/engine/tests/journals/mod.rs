//! Journals that are found by their shape, and what becomes of them.

use forebay_block::Op;
use forebay_engine::Command;
use forebay_policy::{Admission, AdmissionReason, JournalCaching, Settings};

use super::world::{World, settings};

const FIRST: u64 = 100;
const BLOCKS: u64 = 320;
const COMMIT_BLOCKS: u64 = 4;

/// Commits in a circle, each when the one before has been answered, from the `at`-th on.
fn commits(w: &mut World, at: u64, count: u64) {
    for n in at..at + count {
        let block = FIRST + n * COMMIT_BLOCKS % BLOCKS;
        let id = w.write(block * 4096, COMMIT_BLOCKS as usize * 4096);
        w.run_until_answered(id).unwrap();
    }
}

fn world(settings: Settings) -> World {
    World::new(1, settings, 600, 24)
}

#[test]
fn only_what_was_found_is_admitted() {
    let mut w = world(Settings { admission: Admission::Journal, ..settings() });
    commits(&mut w, 0, 80);
    assert_eq!((w.status().journals, w.status().writes_admitted), (Vec::new(), 0));
    commits(&mut w, 80, 80);
    let status = w.status();
    assert_eq!(status.journals, [(FIRST * 4096, (FIRST + BLOCKS) * 4096)]);
    let found = status.reasons.get(AdmissionReason::InJournal);
    assert!((50..80).contains(&found), "{found} of 80 commits are known to be in the journal");
    let other = w.write(0, 4096);
    w.run_until_answered(other).unwrap();
    let reasons = w.status().reasons;
    assert_eq!(reasons.get(AdmissionReason::NotInJournal), 160 - found + 1);
    w.read_everything();
}

#[test]
fn what_was_found_may_go_past_the_log() {
    let mut w = world(Settings { journal_caching: JournalCaching::Bypass, ..settings() });
    commits(&mut w, 0, 160);
    let past = w.status().reasons.get(AdmissionReason::PastJournal);
    assert!((50..80).contains(&past), "{past} commits went past the log");
    // Where a journal is all that is admitted, that counts.
    let both =
        Settings { admission: Admission::Journal, journal_caching: JournalCaching::Bypass, ..settings() };
    w.command(Command::Set(both)).unwrap();
    commits(&mut w, 160, 10);
    let reasons = w.status().reasons;
    assert_eq!(reasons.get(AdmissionReason::PastJournal), past);
    assert_eq!(reasons.get(AdmissionReason::InJournal), 10);
    w.read_everything();
}

/// Bytes of the journal that are read from the cache after much else has been written.
fn hits_of_the_journal(journal_caching: JournalCaching) -> u64 {
    let mut w = world(Settings { journal_caching, ..settings() });
    commits(&mut w, 0, 160);
    w.command(Command::Destage).unwrap();
    for round in 0..6 {
        let journal = w.submit(Op::Read { offset: FIRST * 4096, len: (BLOCKS * 4096) as usize });
        w.run_until_answered(journal).unwrap();
        for n in 0..70 {
            // At scattered places, over and over.
            let id = w.write((430 + (n * 37 + round) % 160) * 4096, 4096);
            w.run_until_answered(id).unwrap();
        }
        w.command(Command::Destage).unwrap();
    }
    let before = w.status().read_bytes_hit;
    let journal = w.submit(Op::Read { offset: FIRST * 4096, len: (BLOCKS * 4096) as usize });
    w.run_until_answered(journal).unwrap();
    w.status().read_bytes_hit - before
}

#[test]
fn clean_copies_of_a_journal_are_not_kept_if_it_is_skipped() {
    let (kept, skipped) =
        (hits_of_the_journal(JournalCaching::Keep), hits_of_the_journal(JournalCaching::Skip));
    assert!(kept > 20 * 4096, "{kept} bytes are kept of what is read again and again");
    assert!(skipped < kept / 2, "{skipped} bytes are kept of what is to be skipped, {kept} else");
}
