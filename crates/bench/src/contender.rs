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
    pub(crate) fn flags(&self) -> Vec<(&'static str, String)> {
        let settings = &self.settings;
        vec![("write-policy", settings.write_policy.to_string()), ("order", settings.order.to_string())]
    }
}

/// The one that the others are compared with.
pub(crate) const BASE: &str = "write_through";

/// Every write policy, in the order of the documentation, the base first; `ordered` in both orders.
pub(crate) fn contenders() -> Vec<Contender> {
    let mut contenders = Vec::new();
    for policy in WritePolicy::ALL {
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
        let names: Vec<String> = contenders().into_iter().map(|c| c.name).collect();
        assert_eq!(names[0], BASE);
        assert!(names.iter().any(|n| n == "ordered_barrier"));
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '_')), "{names:?}");
    }
}
