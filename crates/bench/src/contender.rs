//! What is compared: write policies with their parameters.

use forebay_policy::{Order, Settings, WritePolicy};

/// A way to set a volume up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Name in figures.
    pub(crate) name: String,
    pub(crate) settings: Settings,
}

impl Contender {
    /// Names and values of the flags of `forebay serve`.
    pub(crate) fn flags(&self) -> Vec<(String, String)> {
        let settings = &self.settings;
        let flags = [
            ("write-policy", settings.write_policy.to_string()),
            ("order", settings.order.to_string()),
            ("group-size", settings.group_bytes.to_string()),
        ];
        flags.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }
}

/// The one that the others are compared with.
pub(crate) const BASE: &str = "write_through";

/// The group in percent of the working set: 400 MB for 2 GB in the paper.
const GROUP_PERCENT: u64 = 20;

/// `journaled` with groups of so many percent of the working set, as far as there are such.
pub(crate) fn journaled(working_set: u64, percent: u64) -> Contender {
    let (least, most) = Settings::GROUP_BYTES;
    let group_bytes = (working_set * percent / 100).clamp(least, most);
    let settings = Settings { write_policy: WritePolicy::Journaled, group_bytes, ..Settings::default() };
    Contender { name: WritePolicy::Journaled.as_str().to_owned(), settings }
}

/// Every write policy, in the order of the documentation, the base first; `ordered` in both orders.
pub(crate) fn contenders(working_set: u64) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for policy in WritePolicy::ALL {
        if *policy == WritePolicy::Journaled {
            contenders.push(journaled(working_set, GROUP_PERCENT));
            continue;
        }
        let settings = Settings { write_policy: *policy, ..Settings::default() };
        let name = policy.as_str().replace('-', "_");
        contenders.push(Contender { name: name.clone(), settings });
        if *policy == WritePolicy::Ordered {
            let settings = Settings { order: Order::Barrier, ..settings };
            contenders.push(Contender { name: format!("{name}_barrier"), settings });
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
        assert!(names.iter().any(|n| n == "ordered_barrier"));
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '_')), "{names:?}");
    }
}
