//! Links lead to files and headings that exist.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::nothing;
use super::pages::{Page, What, all, root};

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &Page) -> Vec<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    page.parts(What::Heading)
        .map(|heading| {
            let slug: String = heading
                .text
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect();
            let before = times.entry(slug.clone()).or_default();
            *before += 1;
            if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
        })
        .collect()
}

/// `path`, seen from the directory of `page`, without `..`.
fn resolved(page: &Page, path: &str) -> PathBuf {
    let directory = Path::new(&page.path).parent().unwrap_or(Path::new(""));
    let mut place = PathBuf::new();
    for part in directory.join(path).components() {
        match part {
            Component::ParentDir => {
                place.pop();
            }
            part => place.push(part),
        }
    }
    place
}

fn faults(page: &Page, pages: &[Page]) -> Vec<String> {
    let mut found = Vec::new();
    for link in page.parts(What::Link) {
        if link.text.contains("://") {
            continue;
        }
        let (path, anchor) = link.text.split_once('#').unwrap_or((&link.text, ""));
        let place = if path.is_empty() { PathBuf::from(&page.path) } else { resolved(page, path) };
        let target = pages.iter().find(|page| Path::new(&page.path) == place);
        if target.is_none() && !root().join(&place).exists() {
            found.push(page.fault(link.line, &format!("{} is not there", link.text)));
        } else if !anchor.is_empty() && !target.is_some_and(|page| anchors(page).iter().any(|a| a == anchor))
        {
            found.push(page.fault(link.line, &format!("{} has no such heading", link.text)));
        }
    }
    found
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let pages = all();
    nothing(&pages.iter().flat_map(|page| faults(page, &pages)).collect::<Vec<_>>());
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let pages = [
        Page::of("docs/a.md", "[b](b.md#one-two) [c](c.md) [d](b.md#three) [e](#here) [f](../README.md)"),
        Page::of("docs/b.md", "# One, `two`!\n"),
    ];
    let found = faults(&pages[0], &pages);
    assert_eq!(
        found,
        [
            "docs/a.md:1: c.md is not there",
            "docs/a.md:1: b.md#three has no such heading",
            "docs/a.md:1: #here has no such heading"
        ]
    );
}

#[test]
fn anchors_are_those_of_github() {
    let page = Page::of("a.md", "# What `state` says\n## Go\n## Go\n## 2. A cache\n");
    assert_eq!(anchors(&page), ["what-state-says", "go", "go-1", "2-a-cache"]);
}
