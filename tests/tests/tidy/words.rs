//! First lines of files, banned words, and links.

use crate::tree;
use std::path::Path;

/// Words that no Rust file may hold, put together here so that this file does not hold them.
fn banned_words() -> Vec<String> {
    [
        ("FIX", "ME"),
        ("XX", "X:"),
        ("dbg", "!("),
        ("todo", "!("),
        ("unimplemented", "!("),
        ("#[ign", "ore"),
    ]
    .into_iter()
    .chain([
        ("allow(dead", "_code)"),
        ("allow(unu", "sed"),
        ("Date: 20", "2"),
        ("master/sl", "ave"),
    ])
    .map(|(a, b)| format!("{a}{b}"))
    .collect()
}

/// Calls that wait for time to pass; a test waits for a condition instead.
fn waits() -> Vec<String> {
    [("thread::sl", "eep"), ("time::sl", "eep("), ("sl", "eep(Duration")]
        .map(|(a, b)| format!("{a}{b}"))
        .to_vec()
}

/// Rust files whose first line does not say what the file is for.
pub(crate) fn without_first_line() -> Vec<String> {
    tree::rust_files()
        .iter()
        .filter(|path| !tree::text(path).starts_with("//! "))
        .map(|path| tree::shown(path))
        .collect()
}

/// Banned words in Rust files, and waits in tests.
pub(crate) fn banned() -> Vec<String> {
    let mut findings = Vec::new();
    for path in tree::rust_files() {
        let text = tree::text(&path);
        let mut words = banned_words();
        if tree::is_test(&path) {
            words.extend(waits());
        }
        findings.extend(words_in(&tree::shown(&path), &text, &words));
    }
    findings
}

fn words_in(shown: &str, text: &str, words: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in words.iter().filter(|w| line.contains(w.as_str())) {
            findings.push(format!("{shown}:{}: {word}", number + 1));
        }
    }
    findings
}

/// Relative links in the docs and in the documents beside the README that name no file.
pub(crate) fn dead_links() -> Vec<String> {
    let mut pages = tree::files(&tree::top().join("docs"), "md");
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    pages.extend(top.map(|page| tree::top().join(page)));
    pages.iter().flat_map(|page| dead_links_of(page, &tree::text(page))).collect()
}

fn dead_links_of(page: &Path, text: &str) -> Vec<String> {
    let folder = page.parent().expect("a page lies in a folder");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .filter(|target| !folder.join(target.split('#').next().unwrap_or(target)).exists())
        .map(|target| format!("{}: {target}", tree::shown(page)))
        .collect()
}

#[test]
fn a_banned_word_and_a_dead_link_are_found() {
    let words = banned_words();
    let text = words.join("\n");
    assert_eq!(words_in("x.rs", &text, &words).len(), words.len());
    let page = tree::top().join("README.md");
    assert_eq!(dead_links_of(&page, "[a](no/such.md) [b](README.md) [c](https://x)").len(), 1);
}
