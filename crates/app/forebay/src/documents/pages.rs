//! The pages of the repository, taken apart by a Markdown parser.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Directories with pages, beside those that lie in the repository's own.
const DIRECTORIES: &[&str] = &["crates", "docs", "findings", "fuzz", "packaging", "scripts", "tests"];
/// Directories in which nothing is a page.
const NOT_PAGES: &[&str] = &["corpus", "target"];

/// What a page consists of, as far as it is looked at.
#[derive(Debug, PartialEq, Eq)]
pub enum What {
    /// A heading's text, inline code as it stands.
    Heading,
    /// The text of a paragraph, list item, table cell or heading, in one line. A span of inline code is the word `code`.
    Prose,
    /// A span of inline code.
    Code,
    /// A block of code with this mark.
    Block(String),
    /// Where a link leads.
    Link,
}

/// A part of a page.
#[derive(Debug)]
pub struct Part {
    /// What it is.
    pub what: What,
    /// Its text.
    pub text: String,
    /// The line where it begins, from 1.
    pub line: usize,
}

/// A page.
pub struct Page {
    /// Its place in the repository.
    pub path: String,
    /// All of it.
    pub text: String,
    /// Its parts in their order.
    pub parts: Vec<Part>,
    /// Its lines within tables, from 0.
    pub tables: Vec<Range<usize>>,
    /// Its lines within tables and blocks of code, from 0.
    pub not_prose: Vec<Range<usize>>,
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Every file of the repository whose name ends so.
pub fn files(suffix: &str) -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    collect(&root, suffix, false, &mut found);
    for directory in DIRECTORIES {
        collect(&root.join(directory), suffix, true, &mut found);
    }
    found.sort();
    found
}

/// Every page of the repository.
pub fn all() -> Vec<Page> {
    let root = root();
    let pages: Vec<Page> = files(".md")
        .iter()
        .map(|file| {
            let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
            Page::of(path, &std::fs::read_to_string(file).unwrap())
        })
        .collect();
    for path in ["README.md", "docs/reference/cli.md", "crates/core/format/SPEC.md", "fuzz/README.md"] {
        assert!(pages.iter().any(|page| page.path == path), "{path} is not among the pages");
    }
    pages
}

fn collect(directory: &Path, suffix: &str, below: bool, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            if below && !NOT_PAGES.contains(&name.as_str()) {
                collect(&entry.path(), suffix, below, found);
            }
        } else if name.ends_with(suffix) {
            found.push(entry.path());
        }
    }
}

impl Page {
    /// The page with this text.
    pub fn of(path: &str, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            parts: Vec::new(),
            tables: Vec::new(),
            not_prose: Vec::new(),
        };
        page.take_apart();
        page
    }

    /// The parts that are `what`.
    pub fn parts(&self, what: What) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.what == what)
    }

    /// Blocks of code with their marks.
    pub fn blocks(&self) -> impl Iterator<Item = (&str, &Part)> {
        self.parts.iter().filter_map(|part| match &part.what {
            What::Block(mark) => Some((mark.as_str(), part)),
            _ => None,
        })
    }

    /// A fault at a line.
    pub fn fault(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    fn take_apart(&mut self) {
        let text = self.text.clone();
        let ends: Vec<usize> = text.match_indices('\n').map(|(offset, _)| offset).collect();
        let line_of = |offset: usize| 1 + ends.partition_point(|end| *end < offset);
        // The same text: as prose, and as a heading has it.
        let (mut prose, mut heading, mut begun) = (String::new(), String::new(), 1);
        let mut block = None;
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = line_of(range.start);
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    self.not_prose.push(line - 1..line_of(range.end));
                    let mark = match kind {
                        CodeBlockKind::Fenced(mark) => mark.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    block = Some((mark, String::new(), line));
                }
                Event::End(TagEnd::CodeBlock) => {
                    if let Some((mark, text, line)) = block.take() {
                        self.push(What::Block(mark), text, line);
                    }
                }
                Event::Start(Tag::Table(_)) => {
                    // The range ends where the next line begins.
                    let lines = line - 1..line_of(range.end) - 1;
                    self.tables.push(lines.clone());
                    self.not_prose.push(lines);
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    self.push(What::Link, dest_url.into_string(), line);
                }
                Event::Start(
                    Tag::Paragraph | Tag::Item | Tag::List(_) | Tag::TableCell | Tag::Heading { .. },
                ) => {
                    self.end_prose(&mut prose, begun);
                    heading.clear();
                    begun = line;
                }
                Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell) => {
                    self.end_prose(&mut prose, begun);
                }
                Event::End(TagEnd::Heading(_)) => {
                    self.push(What::Heading, std::mem::take(&mut heading), begun);
                    self.end_prose(&mut prose, begun);
                }
                Event::Text(text) => match &mut block {
                    Some((_, code, _)) => code.push_str(&text),
                    None => {
                        prose.push_str(&text);
                        heading.push_str(&text);
                    }
                },
                Event::Code(code) => {
                    prose.push_str("code");
                    heading.push_str(&code);
                    self.push(What::Code, code.into_string(), line);
                }
                Event::SoftBreak | Event::HardBreak => prose.push(' '),
                _ => {}
            }
        }
    }

    fn push(&mut self, what: What, text: String, line: usize) {
        self.parts.push(Part { what, text, line });
    }

    fn end_prose(&mut self, prose: &mut String, line: usize) {
        let text = std::mem::take(prose);
        if !text.trim().is_empty() {
            self.push(What::Prose, text, line);
        }
    }
}

#[test]
fn a_page_is_taken_apart() {
    let page = Page::of(
        "a.md",
        "# One `two`\n\nA [link](b.md#c)\nto `code`.\n\n- item\n  - inner\n\n| `a` | b |\n|---|---|\n| c | d |\n\n```sh\nx\n```\n",
    );
    let of = |what| page.parts(what).map(|p| (p.text.as_str(), p.line)).collect::<Vec<_>>();
    assert_eq!(of(What::Link), [("b.md#c", 3)]);
    assert_eq!(of(What::Code), [("two", 1), ("code", 4), ("a", 9)]);
    let prose = [("One code", 1), ("A link to code.", 3), ("item", 6), ("inner", 7)];
    assert_eq!(of(What::Prose)[..4], prose);
    assert_eq!(of(What::Prose)[4..], [("code", 9), ("b", 9), ("c", 11), ("d", 11)]);
    assert_eq!(
        page.blocks().map(|(mark, part)| (mark, part.text.as_str())).collect::<Vec<_>>(),
        [("sh", "x\n")]
    );
    assert_eq!(page.tables.first(), Some(&(8..11)));
    assert_eq!(page.not_prose, [8..11, 12..15]);
}
