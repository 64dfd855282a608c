//! Files that an earlier release, or a user, has made for more users than the backing is for.

use std::fs;
use std::path::Path;

use forebay_device::DeviceSpec;
use forebay_guard::{FileRights, Privacy};

use crate::journal::{JOURNAL_SUFFIX, JournalChoice};
use crate::label::{LABEL_SUFFIX, beside};

/// Takes from the files of a volume what others may do with them and not with its backing, unless one only looks. Returns what there is
/// to tell of each. Devices are left alone: who may use those is the system's business.
pub fn keep_private(
    cache: Option<&DeviceSpec>,
    backing: &DeviceSpec,
    journal: &JournalChoice,
    look_only: bool,
) -> Vec<String> {
    let rights = FileRights::of_backing(backing.path());
    let journal = match journal {
        JournalChoice::At(journal) => Some(journal),
        JournalChoice::Auto | JournalChoice::None => None,
    };
    let named = cache.into_iter().chain(journal).filter_map(DeviceSpec::local);
    let mut found: Vec<_> = named.map(|path| (path.to_owned(), rights.keep(path, look_only))).collect();
    if let Some(Ok(real)) = backing.local().map(fs::canonicalize) {
        let files = [LABEL_SUFFIX, JOURNAL_SUFFIX].map(|suffix| beside(&real, suffix));
        found.extend(files.map(|file| (file.path().to_owned(), file.keep(look_only))));
    }
    found.iter().filter_map(|(path, found)| sentence(path, *found)).collect()
}

fn sentence(path: &Path, found: Privacy) -> Option<String> {
    let path = path.display();
    match found {
        Privacy::Kept => None,
        Privacy::Narrowed { was, mode } => Some(format!(
            "{path} had mode {was:03o}, by which more users could get at the volume's data than by the backing; it has {mode:03o} now"
        )),
        Privacy::Wide { was, mode } => Some(format!(
            "{path} has mode {was:03o}, by which more users can get at the volume's data than by the backing; `chmod {mode:03o} {path}` \
             mends that"
        )),
    }
}
