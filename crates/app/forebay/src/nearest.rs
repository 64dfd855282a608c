//! What somebody may have meant who mistyped a name.

/// The one of these names that a mistyped one is closest to, if it is close to any.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.replace('_', "-");
    names
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given, name), name))
        .filter(|(distance, name)| *distance <= 2.min(name.len() / 2))
        .min()
        .map(|(_, name)| name)
}
