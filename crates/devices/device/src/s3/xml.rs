//! Answers in XML, of which one word is wanted.

/// What stands in the first element of this name: printable, and at most so many characters of it.
pub(super) fn element(text: &str, name: &str, chars_max: usize) -> String {
    let found = text.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once("</"));
    let found = found.map_or("", |(found, _)| found);
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    found.chars().take(chars_max).map(printable).collect::<String>().trim().to_owned()
}
