//! Pages, lines and sentences are short.

use super::pages::{Page, What, all};
use std::ops::Range;

use super::{COLUMNS_MAX, nothing};

/// Longest page, in lines.
const LINES_MAX: usize = 300;
/// Longest sentence, in words. A span of inline code is one.
const WORDS_MAX: usize = 25;

/// Pages that may be longer, and why.
const LONG: &[(&str, &str)] =
    &[("docs/reference/cli.md", "it is generated: every command and flag has its line")];
/// Pages whose sentences are not counted: history, and results as they were measured.
const NOT_COUNTED: &[&str] = &["CHANGELOG.md", "docs/results/"];
/// The sentences of a text. They end with `.`, `!`, `?`, `:` or `;` before a blank.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let mut all = vec![Vec::new()];
    for word in text.split_whitespace() {
        if let Some(sentence) = all.last_mut()
            && word.contains(char::is_alphanumeric)
        {
            sentence.push(word);
        }
        if word.trim_end_matches(['"', '\'', ')', ']', '*', '”']).ends_with(['.', '!', '?', ':', ';']) {
            all.push(Vec::new());
        }
    }
    all
}

fn long_sentences(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for prose in page.parts(What::Prose) {
        for sentence in sentences(&prose.text) {
            if sentence.len() > WORDS_MAX {
                let words = sentence.len();
                found.push(page.fault(prose.line, &format!("{words} words: {}", sentence.join(" "))));
            }
        }
    }
    found
}

/// Whether a line has words beside links.
fn has_words(line: &str) -> bool {
    let mut rest = line;
    while let Some((before, link)) = rest.split_once('[') {
        if before.contains(char::is_alphanumeric) {
            return true;
        }
        rest =
            link.split_once("](").and_then(|(_, target)| target.split_once(')')).map_or("", |(_, rest)| rest);
    }
    rest.contains(char::is_alphanumeric)
}

fn long_lines(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for (i, line) in page.text.lines().enumerate() {
        let columns = line.chars().count();
        let prose = !page.not_prose.iter().any(|range| range.contains(&i));
        if columns > COLUMNS_MAX && prose && has_words(line) {
            found.push(page.fault(i + 1, &format!("{columns} columns")));
        }
    }
    found
}

/// What a parser takes for a row of the table above it.
fn stuck_to_tables(page: &Page) -> Vec<String> {
    let lines: Vec<&str> = page.text.lines().collect();
    page.tables
        .iter()
        .flat_map(Range::clone)
        .filter(|i| {
            lines.get(*i).is_some_and(|line| !line.trim().is_empty() && !line.trim().starts_with('|'))
        })
        .map(|i| page.fault(i + 1, "no blank line parts it from the table above"))
        .collect()
}

fn too_long(page: &Page) -> Vec<String> {
    let lines = page.text.lines().count();
    let may = LONG.iter().any(|(path, _)| *path == page.path);
    if lines > LINES_MAX && !may {
        vec![page.fault(lines, "the page is too long: split it")]
    } else {
        Vec::new()
    }
}

fn faults(page: &Page) -> Vec<String> {
    let mut found = too_long(page);
    found.extend(long_lines(page));
    found.extend(stuck_to_tables(page));
    if !NOT_COUNTED.iter().any(|path| page.path.starts_with(path)) {
        found.extend(long_sentences(page));
    }
    found
}

#[test]
fn pages_lines_and_sentences_are_short() {
    nothing(&all().iter().flat_map(faults).collect::<Vec<_>>());
}

#[test]
fn what_is_too_long_is_found() {
    let words = |n: usize| vec!["word"; n].join(" ");
    let wide = format!("[{}](a.md)", "x".repeat(COLUMNS_MAX));
    let text = format!(
        "{}.\n{}; `one span of code` {}.\n\n- {wide}, {wide}\n- see {wide}\n\n| {} |\n|---|\n\n```\n{}\n```\n",
        words(13),
        words(12),
        words(24),
        words(26),
        words(99)
    );
    let page = Page::of("docs/a.md", &text);
    assert_eq!(long_sentences(&page), [format!("docs/a.md:7: 26 words: {}", words(26))]);
    assert_eq!(long_lines(&page), ["docs/a.md:2: 200 columns", "docs/a.md:5: 134 columns"]);
    let stuck = Page::of("a.md", "| a |\n|---|\n| b |\n c\n\n| d |\n|---|\n\ne\n");
    assert_eq!(stuck_to_tables(&stuck), ["a.md:4: no blank line parts it from the table above"]);
    let long = "line\n".repeat(LINES_MAX + 1);
    assert_eq!(too_long(&Page::of("docs/a.md", &long)), ["docs/a.md:301: the page is too long: split it"]);
    assert!(too_long(&Page::of(LONG[0].0, &long)).is_empty());
}
