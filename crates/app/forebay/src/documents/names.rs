//! Targets of the Makefile, crates, tests and paths that documents name exist.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::MetadataCommand;

use super::commands::{of_blocks, simple_commands};
use super::nothing;
use super::pages::{Page, What, all, files, root};

/// Directories of the repository; what begins with one of them is a path in it.
const ROOTS: &[&str] = &["crates/", "docs/", "findings/", "fuzz/", "packaging/", "scripts/", "tests/"];

/// What there is.
struct Known {
    make: BTreeSet<String>,
    crates: BTreeSet<String>,
    /// Integration tests, examples and binaries of the crates, and the targets of the fuzzer.
    targets: BTreeSet<String>,
}

impl Known {
    fn read() -> Self {
        let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
        let make = makefile
            .lines()
            .filter(|line| !line.starts_with(['\t', '#']))
            .filter_map(|line| line.split_once(": "))
            .map(|(target, _)| target.to_owned())
            .collect();
        let metadata =
            MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().unwrap();
        let crates = metadata.packages.iter().map(|package| package.name.to_string()).collect();
        let mut targets: BTreeSet<String> = metadata
            .packages
            .iter()
            .flat_map(|package| &package.targets)
            .map(|target| target.name.clone())
            .collect();
        for file in std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            targets.extend(name.strip_suffix(".rs").map(str::to_owned));
        }
        Self { make, crates, targets }
    }

    /// What is wrong with a command that builds or tests.
    fn fault_of_command(&self, words: &[String]) -> Option<String> {
        let begin = words.iter().position(|word| !word.contains('='))?;
        let words: Vec<&str> = words[begin..].iter().map(String::as_str).take_while(|w| *w != "--").collect();
        let value_of =
            |flag: &str| words.iter().position(|w| *w == flag).and_then(|i| words.get(i + 1)).copied();
        match *words.first()? {
            "make" => words[1..]
                .iter()
                .find(|w| w.chars().all(|c| c.is_ascii_lowercase()) && !self.make.contains(**w))
                .map(|target| format!("the Makefile has no target {target}")),
            "cargo" => {
                let name = value_of("-p").filter(|name| !self.crates.contains(*name));
                let target = ["--test", "--bin", "--example"].into_iter().find_map(value_of);
                let target = target.filter(|target| !self.targets.contains(*target));
                name.map(|name| format!("there is no crate {name}"))
                    .or_else(|| target.map(|target| format!("there is no target {target}")))
            }
            _ => None,
        }
    }

    fn faults(&self, page: &Page) -> Vec<String> {
        let mut found = Vec::new();
        for (line, words) in of_blocks(page) {
            found.extend(self.fault_of_command(&words).map(|why| page.fault(line, &why)));
        }
        for code in page.parts(What::Code) {
            for words in simple_commands(&code.text) {
                let whys = self.fault_of_command(&words).into_iter();
                let missing = words.iter().filter_map(|word| missing_path(word));
                found.extend(whys.chain(missing).map(|why| page.fault(code.line, &why)));
            }
        }
        for prose in page.parts(What::Prose) {
            let missing = prose.text.split_whitespace().filter_map(missing_path);
            found.extend(missing.map(|why| page.fault(prose.line, &why)));
        }
        found
    }
}

/// Says that a path in the repository is not there. A word with a pattern, or a placeholder such as `NAME`, is none.
fn missing_path(word: &str) -> Option<String> {
    let path =
        word.trim_start_matches(['(', '"', '\'']).trim_end_matches(['.', ',', ';', ':', ')', '"', '\'']);
    let placeholder =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || c == '-');
    if !ROOTS.iter().any(|root| path.starts_with(root))
        || path.contains(['*', '{', '<', '[', '$', '…'])
        || path
            .split('/')
            .any(|part| placeholder(part.split('.').next().unwrap_or_default()) && !path.ends_with(".md"))
    {
        return None;
    }
    let there = root().join(path).exists() || path.ends_with(".rs") && is_in_a_crate(path);
    (!there).then(|| format!("{path} is not there"))
}

/// Whether a crate has this file. Pages on one crate name its tests without it.
fn is_in_a_crate(path: &str) -> bool {
    let directories =
        |of: &Path| std::fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path());
    directories(&root().join("crates"))
        .flat_map(|group| directories(&group))
        .any(|krate| krate.join(path).exists())
}

#[test]
fn targets_crates_and_paths_exist() {
    let known = Known::read();
    nothing(&all().iter().flat_map(|page| known.faults(page)).collect::<Vec<_>>());
}

/// Pages that a source names and that are not there.
fn missing_pages(source: &str) -> Vec<String> {
    source
        .split(|c: char| c.is_whitespace() || matches!(c, '`' | '(' | ')' | '"' | '\'' | ',' | '#'))
        .filter(|word| word.starts_with("docs/") && word.contains(".md"))
        .filter_map(missing_path)
        .collect()
}

#[test]
fn sources_name_pages_that_exist() {
    let mut found = Vec::new();
    for file in [".rs", ".sh", ".c", ".h"].into_iter().flat_map(files) {
        // The tests of this module name what does not exist.
        if !file.to_string_lossy().contains("/documents/") {
            let missing = missing_pages(&std::fs::read_to_string(&file).unwrap());
            found.extend(missing.iter().map(|why| format!("{}: {why}", file.display())));
        }
    }
    nothing(&found);
    assert_eq!(
        missing_pages("/// See `docs/design/nothing.md` and (docs/guide/media.md)."),
        ["docs/design/nothing.md is not there"]
    );
}

/// CONTRIBUTING.md has a map of the crates: each with its group.
#[test]
fn the_map_has_every_crate() {
    let contributing = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mut group = "";
    let mut mapped = BTreeSet::new();
    for row in contributing.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let (first, second) = (cells.next().unwrap(), cells.next().unwrap());
        group = if first.is_empty() { group } else { first.trim_matches('`') };
        mapped.extend(second.split(", ").map(|name| format!("{group}/{}", name.trim_matches('`'))));
    }
    let crates = root().join("crates");
    let below =
        |of: &Path| std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let missing: Vec<String> = below(&crates)
        .iter()
        .flat_map(|group| below(group))
        .map(|krate| krate.strip_prefix(&crates).unwrap().display().to_string())
        .filter(|krate| !mapped.contains(krate))
        .collect();
    nothing(&missing);
}

#[test]
fn what_does_not_exist_is_found() {
    let page = Page::of(
        "a.md",
        "`make nothing` `make test` `tests/nothing.sh` (docs/nothing.md). `crates/GROUP/NAME` `tests/*.sh`\n\n\
         ```\nRUST_LOG=x cargo test -p forebay-nothing\ncargo test -p forebay --test nothing\n\
         cargo test -p forebay --test forebay\n```\n",
    );
    let mut found = Known::read().faults(&page);
    found.sort();
    assert_eq!(
        found,
        [
            "a.md:1: docs/nothing.md is not there",
            "a.md:1: tests/nothing.sh is not there",
            "a.md:1: the Makefile has no target nothing",
            "a.md:4: there is no crate forebay-nothing",
            "a.md:5: there is no target nothing",
        ]
    );
}
