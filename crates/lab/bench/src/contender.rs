//! What is compared: write policies with their parameters.

use forebay_policy::{Admission, Order, Settings, WritePolicy};

/// A way to set a volume up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Name in figures.
    pub(crate) name: String,
    pub(crate) settings: Settings,
    /// The emulated device that has the journal on the backing's side, if it is not like the backing.
    pub(crate) journal: Option<&'static str>,
}

impl Contender {
    /// With a journal on an export of its own of a store that is like the backing.
    pub(crate) fn new(name: impl Into<String>, settings: Settings) -> Self {
        Self { name: name.into(), settings, journal: None }
    }

    /// No write goes past the cache by choice, as in the paper.
    pub(crate) fn caches_every_write(&self) -> bool {
        self.settings.admission == Admission::All
    }

    /// Names and values of the flags of `forebay serve`.
    pub(crate) fn flags(&self) -> Vec<(String, String)> {
        let settings = &self.settings;
        let flags = [
            ("write-policy", settings.write_policy.to_string()),
            ("order", settings.order.to_string()),
            ("admission", settings.admission.to_string()),
            ("group-size", settings.group_bytes.to_string()),
        ];
        flags.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }
}

/// The one that the others are compared with.
pub(crate) const BASE: &str = "write_through";

/// `journaled` with the paper's journal, in the store's NVRAM: the blocks of a group are written to it in no time.
const NVRAM: (&str, &str) = ("journaled_nvram", "nvdram");

/// The group in percent of the working set: 400 MB for 2 GB in the paper.
pub(crate) const GROUP_PERCENT: u64 = 20;

/// `journaled` with groups of so many percent of the working set, as far as there are such.
pub(crate) fn journaled(working_set: u64, percent: u64) -> Contender {
    let (least, most) = Settings::GROUP_BYTES;
    let group_bytes = (working_set * percent / 100).clamp(least, most);
    let settings = Settings { write_policy: WritePolicy::Journaled, group_bytes, ..Settings::default() };
    Contender::new(WritePolicy::Journaled.as_str(), settings)
}

/// Every write policy, in the order of the documentation, the base first; `ordered` in both orders, `journaled` with both journals. Where
/// the backing stays consistent, and the journal is like the backing, also with only synchronous writes in the cache.
pub(crate) fn contenders(working_set: u64) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for contender in with_every_write(working_set) {
        let settings = Settings { admission: Admission::Sync, ..contender.settings };
        let consistent = matches!(settings.write_policy, WritePolicy::Ordered | WritePolicy::Journaled);
        let selective = (consistent && contender.journal.is_none())
            .then(|| Contender::new(format!("{}_sync", contender.name), settings));
        contenders.push(contender);
        contenders.extend(selective);
    }
    contenders
}

fn with_every_write(working_set: u64) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for policy in WritePolicy::ALL {
        if *policy == WritePolicy::Journaled {
            let contender = journaled(working_set, GROUP_PERCENT);
            contenders.push(contender.clone());
            contenders.push(Contender { name: NVRAM.0.to_owned(), journal: Some(NVRAM.1), ..contender });
            continue;
        }
        let settings = Settings { write_policy: *policy, ..Settings::default() };
        let name = policy.as_str().replace('-', "_");
        contenders.push(Contender::new(name.clone(), settings));
        if *policy == WritePolicy::Ordered {
            let settings = Settings { order: Order::Barrier, ..settings };
            contenders.push(Contender::new(format!("{name}_barrier"), settings));
        }
    }
    contenders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_comes_first_and_names_are_fit_for_figures() {
        let names: Vec<String> = contenders(1 << 30).into_iter().map(|c| c.name).collect();
        assert_eq!(names[0], BASE);
        assert!(
            ["ordered_barrier", "journaled_nvram", "ordered_sync"]
                .iter()
                .all(|n| names.iter().any(|name| name == n))
        );
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '_')), "{names:?}");
    }
}
