//! The language of comments and docs: line widths, openings, private words, cited decisions, paths.

use crate::tree;
use std::path::Path;

/// Columns of a line that holds a comment.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Openings of a sentence whose subject is no noun.
const OPENINGS: [&str; 5] = ["What ", "Who ", "Whoever ", "Whatever ", "Somebody "];

/// Words that only this project would use, each with the term that an outsider would look for.
fn private_words() -> [(String, &'static str); 12] {
    [
        (("processor", " time"), "CPU time"),
        (("large", " pages"), "huge pages"),
        (("turn", " about"), "interleaved"),
        (("vou", "cher"), "sync marker"),
        (("is ", "dear"), "is expensive"),
        (("gives the", " processor"), "yields"),
        (("so ", "many of"), "the count of"),
        (("no", "body"), "no thread, no client"),
        (("some", "body"), "a thread, a client"),
        (("by and", " by"), "incrementally"),
        (("tog", "gle"), "bitmap delta"),
        (("keeps com", "pany"), "shares the sync"),
    ]
    .map(|((a, b), term)| (format!("{a}{b}"), term))
}

/// Lines of comments that are too wide.
pub(crate) fn wide_comments() -> Vec<String> {
    tree::rust_files().iter().flat_map(|p| wide_of(&tree::shown(p), &tree::text(p))).collect()
}

fn wide_of(shown: &str, text: &str) -> Vec<String> {
    let wide = |line: &str| line.chars().count() > COMMENT_COLUMNS_MAX;
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.trim_start().starts_with("//") && wide(line))
        .map(|(number, _)| format!("{shown}:{}", number + 1))
        .collect()
}

/// Comments of the product's code that open with a word of [`OPENINGS`], or hold a private word.
pub(crate) fn private_language() -> Vec<String> {
    let product = tree::rust_files();
    let product = product.iter().filter(|path| tree::shown(path).starts_with("crates/"));
    product.flat_map(|path| private_language_of(&tree::shown(path), &tree::text(path))).collect()
}

fn private_language_of(shown: &str, text: &str) -> Vec<String> {
    let words = private_words();
    let mut findings = Vec::new();
    let mut before = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let Some(comment) = line.strip_prefix("//") else {
            before.clear();
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let begins = before.is_empty() || before.ends_with(['.', ':', '?']);
        let place = format!("{shown}:{}", number + 1);
        let sentences = comment.split_inclusive(". ").enumerate();
        for (at, sentence) in sentences.filter(|(at, _)| *at > 0 || begins) {
            let sentence = if at == 0 { sentence.trim_start_matches("* ") } else { sentence };
            let opening = OPENINGS.iter().find(|o| sentence.starts_with(*o));
            if let Some(opening) = opening.filter(|_| !sentence.trim_end().ends_with('?')) {
                findings.push(format!("{place}: opens with `{}`", opening.trim_end()));
            }
        }
        let lower = comment.to_lowercase();
        for (word, term) in words.iter().filter(|(word, _)| lower.contains(word.as_str())) {
            findings.push(format!("{place}: `{word}`, say: {term}"));
        }
        before = comment.to_owned();
    }
    findings
}

/// Decisions that no file of code cites.
pub(crate) fn uncited_decisions() -> Vec<String> {
    let code: Vec<String> = tree::rust_files().iter().map(|path| tree::text(path)).collect();
    let numbers = tree::files(&tree::top().join("docs/decisions"), "md");
    let number = |path: &Path| path.file_name().map(|n| n.to_string_lossy()[..4].to_owned());
    let cited = |number: &String| {
        let [path, bare] = [format!("decisions/{number}"), format!("decision {number}")];
        code.iter().any(|text| text.contains(&path) || text.contains(&bare))
    };
    numbers.iter().filter_map(|path| number(path)).filter(|number| !cited(number)).collect()
}

/// Paths of code that the documents name and that do not exist.
pub(crate) fn dead_paths() -> Vec<String> {
    let mut pages = tree::files(&tree::top().join("docs"), "md");
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md"];
    pages.extend(top.map(|page| tree::top().join(page)));
    pages.iter().flat_map(|page| dead_paths_of(&tree::shown(page), &tree::text(page))).collect()
}

/// A path is text in backticks that ends in `.rs` or begins with the folder of a crate. One that
/// begins with a crate's name is looked for below `crates` too.
fn dead_paths_of(shown: &str, text: &str) -> Vec<String> {
    let exists = |path: &str| {
        ["", "crates/", "tests/"].iter().any(|dir| tree::top().join(dir).join(path).exists())
    };
    let is_path = |word: &&str| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
        plain && (word.starts_with("crates/") || (word.ends_with(".rs") && word.contains('/')))
    };
    let words = text.split('`').skip(1).step_by(2);
    words
        .filter(is_path)
        .filter(|path| !exists(path))
        .map(|path| format!("{shown}: {path}"))
        .collect()
}

#[test]
fn private_language_is_found() {
    let text = "//! What waits.\n\n// The lock. Who takes it waits.\n// The log is dear.\nfn f() {}\n\
                // A question: what waits?\n// The thread knows\n// Who is next.\n";
    let found = private_language_of("x.rs", text);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(wide_of("x.rs", &format!("    // {}\n// short", "x".repeat(100))), ["x.rs:1"]);
    let text = "`crates/no/such.rs` `region/src/lib.rs` `lib.rs` `crates/region`";
    assert_eq!(dead_paths_of("x.md", text), ["x.md: crates/no/such.rs"]);
}
