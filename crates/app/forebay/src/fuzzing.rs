//! Entry points that take any bytes for what a person writes: the fuzz targets of `fuzz/`, which includes this file and the
//! modules that it uses. Each must return: no panic, no overflow.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use forebay_device::DeviceSpec;
use forebay_device::decorate::Decoration;
use forebay_emulate::Settings;
use forebay_nbd::Address;
use forebay_policy::{Admission, Durability, OnFull, Ranges, SchedulerKind, WritePolicy};

use crate::background_dirty::BackgroundDirty;
use crate::config::Config;
use crate::{resident, volume_name};
use forebay_policy::size;

/// Words of the command line: names of devices, decorations, addresses, sizes, settings.
pub fn texts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    reads_as_it_shows::<DeviceSpec>(text);
    reads_as_it_shows::<Settings>(text);
    reads_as_it_shows::<Address>(text);
    reads_as_it_shows::<WritePolicy>(text);
    reads_as_it_shows::<Admission>(text);
    reads_as_it_shows::<Ranges>(text);
    reads_as_it_shows::<OnFull>(text);
    reads_as_it_shows::<Durability>(text);
    reads_as_it_shows::<SchedulerKind>(text);
    reads_as_it_shows::<BackgroundDirty>(text);
    let _ = text.parse::<Decoration>();
    let _ = volume_name::parse(text);
    if let Ok(bytes) = size::parse(text) {
        let _ = size::show(bytes);
    }
}

/// What is understood is shown in a way that is understood as the same.
fn reads_as_it_shows<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        assert_eq!(shown.parse::<T>().ok().as_ref(), Some(&value), "{text} is shown as {shown}");
    }
}

/// A configuration file. What is wrong with it is said in one line.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(e) = Config::parse(text) {
        assert_eq!(e.lines().count(), 1, "{e}");
    }
}

/// A file of `/proc`.
pub fn proc_files(data: &[u8]) {
    let _ = resident::bytes_in(&String::from_utf8_lossy(data));
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
        let files = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty());
        files.iter().map(|f| std::fs::read(f).unwrap()).collect()
    }

    /// The seeds, and such with changed bytes and with pieces of others put into them.
    fn run(target: &str, entry: fn(&[u8])) {
        let corpus = corpus(target);
        corpus.iter().for_each(|seed| entry(seed));
        let change = (any::<Index>(), any::<u8>());
        let piece = (any::<Index>(), any::<Index>(), any::<Index>(), any::<Index>());
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
        proptest!(config, |(seed in any::<Index>(), changes in vec(change, 0..4), pieces in vec(piece, 0..3))| {
            let mut bytes = seed.get(&corpus).clone();
            for (from, first, end, to) in pieces {
                let from = from.get(&corpus);
                let (a, b) = (first.index(from.len()), end.index(from.len()));
                let to = to.index(bytes.len());
                bytes.splice(to..to, from[a.min(b)..=a.max(b)].iter().copied());
            }
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value % 128;
            }
            entry(&bytes);
        });
    }

    #[test]
    fn words_that_anybody_could_write_are_borne() {
        run("texts", super::texts);
    }

    #[test]
    fn whatever_the_kernel_says_is_borne() {
        assert_eq!(crate::resident::bytes_in("Name:\ta\nVmRSS:\t   12344 kB\n"), 12344 << 10);
        assert_eq!(crate::resident::bytes_in("VmRSS:\t18446744073709551615 kB\n"), u64::MAX);
        run("proc_files", super::proc_files);
    }

    #[test]
    fn configurations_that_anybody_could_write_are_borne() {
        run("config", super::config);
    }
}
