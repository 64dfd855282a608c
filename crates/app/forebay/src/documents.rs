//! Holds the documents of the repository to the code and to the rules of writing in CONTRIBUTING.md: links, commands, paths and
//! figures, and the length of pages, lines and sentences. `cargo test -p forebay --bin forebay documents` runs these tests.

mod commands;
mod figures;
mod links;
mod names;
mod pages;
mod style;

/// Longest line of a document's prose, in columns.
pub const COLUMNS_MAX: usize = 120;

/// Fails with all that was found.
fn nothing(found: &[String]) {
    assert!(found.is_empty(), "{} faults in documents:\n{}", found.len(), found.join("\n"));
}
