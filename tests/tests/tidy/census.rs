//! The census of the house: a few figures for each crate, and those that may only get better.
//!
//! `cargo test -p tests --test tidy census -- --nocapture` prints the table.

use crate::tree;
use std::collections::BTreeMap;
use syn::visit::{self, Visit};

/// Names that several crates may have: each says the same in its own crate.
const COMMON_NAMES: [&str; 10] = [
    "Builder", "Config", "Error", "Guard", "Iter", "Options", "Range", "Result", "Snapshot",
    "Stats",
];

/// Most types, in parts of a hundred, that share their name with another one.
const SHARED_NAMES_PERCENT_MAX: usize = 10;

/// Least asserts for each 1,000 lines of code, in tenths.
const ASSERTS_TENTHS_MIN: [(&str, usize); 4] =
    [("pagestore", 100), ("raftlog", 105), ("region", 145), ("store", 125)];

/// The figures of one crate, or of all together. Tests are left out.
#[derive(Clone, Debug, Default)]
struct Census {
    /// Lines that are neither blank nor a comment.
    code_lines: usize,
    /// The same without those of asserts.
    plain_lines: usize,
    /// Lines of comments within the code; those for the documentation are none.
    comment_lines: usize,
    asserts: usize,
    unwraps: usize,
    longest_file: usize,
    types: Vec<String>,
}

impl Census {
    fn add(&mut self, other: &Census) {
        self.code_lines += other.code_lines;
        self.plain_lines += other.plain_lines;
        self.comment_lines += other.comment_lines;
        self.asserts += other.asserts;
        self.unwraps += other.unwraps;
        self.longest_file = self.longest_file.max(other.longest_file);
        self.types.extend(other.types.iter().cloned());
    }

    /// The count for each 1,000 lines of code, in tenths.
    fn tenths(&self, count: usize) -> usize {
        count * 10_000 / self.code_lines.max(1)
    }

    fn median_letters(&self) -> usize {
        let mut letters: Vec<_> = self.types.iter().map(String::len).collect();
        letters.sort_unstable();
        letters.get(letters.len() / 2).copied().unwrap_or_default()
    }

    fn row(&self, name: &str) -> String {
        let tenths = |count| {
            let tenths = self.tenths(count);
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            self.code_lines,
            self.plain_lines,
            self.longest_file,
            tenths(self.unwraps),
            tenths(self.asserts),
            tenths(self.comment_lines),
            self.median_letters(),
        )
    }
}

/// The figures of each crate.
fn census() -> BTreeMap<String, Census> {
    let census_of = |path: &std::path::PathBuf| {
        let name = path.file_name().expect("a crate's folder has a name").to_string_lossy();
        let mut sum = Census::default();
        for file in tree::files(&path.join("src"), "rs") {
            if !tree::is_test(&file) {
                sum.add(&census_of_file(&tree::text(&file)));
            }
        }
        (name.into_owned(), sum)
    };
    tree::crates().iter().map(census_of).collect()
}

fn census_of_file(text: &str) -> Census {
    let mut census = Census::default();
    let mut in_assert = false;
    for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
        census.longest_file += 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with("//") {
            let is_doc = line.starts_with("///") || line.starts_with("//!");
            census.comment_lines += usize::from(line.starts_with("//") && !is_doc);
            continue;
        }
        census.code_lines += 1;
        census.unwraps += line.matches(".unwrap()").count();
        let begins = ["assert!(", "assert_eq!(", "assert_ne!("].iter().any(|a| {
            line.starts_with(a)
                || line.strip_prefix("debug_").is_some_and(|rest| rest.starts_with(a))
        });
        census.asserts += usize::from(begins);
        in_assert |= begins;
        census.plain_lines += usize::from(!in_assert);
        in_assert &= !line.ends_with(");");
    }
    let own: String =
        text.lines().take_while(|line| *line != "#[cfg(test)]").map(|l| format!("{l}\n")).collect();
    if let Ok(file) = syn::parse_file(&own) {
        let mut types = Types(Vec::new());
        types.visit_file(&file);
        census.types = types.0;
    }
    census
}

struct Types(Vec<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.0.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }
}

/// Names that more than one type has, with how many.
fn shared_names(types: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for name in types.iter().filter(|name| !COMMON_NAMES.contains(&name.as_str())) {
        *counts.entry(name).or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    counts
}

/// Figures that have become worse than allowed.
pub(crate) fn findings() -> Vec<String> {
    let crates = census();
    let mut all = Census::default();
    println!(
        "| crate | lines of code | without asserts | longest file | unwraps / 1000 | asserts / 1000 | \
         comments / 1000 | letters of a type |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, census) in &crates {
        println!("{}", census.row(name));
        all.add(census);
    }
    println!("{}", all.row("all"));
    let shared = shared_names(&all.types);
    let percent = shared.values().sum::<usize>() * 100 / all.types.len();
    println!("{percent} % of {} types share their name: {shared:?}", all.types.len());

    let mut findings = Vec::new();
    if percent > SHARED_NAMES_PERCENT_MAX {
        findings.push(format!(
            "{percent} % of the types share their name with another, at most \
             {SHARED_NAMES_PERCENT_MAX} may: {shared:?}"
        ));
    }
    for (name, least) in ASSERTS_TENTHS_MIN {
        let census = &crates[name];
        let tenths = census.tenths(census.asserts);
        if tenths < least {
            findings.push(format!("{name}: {tenths} asserts in 10,000 lines, were {least}"));
        }
    }
    findings
}

#[test]
fn a_file_is_counted() {
    let text = "//! Head.\n\n// Why.\nstruct Shared;\nfn f() {\n    assert_eq!(\n        1,\n        \
                x.unwrap()\n    );\n}\n#[cfg(test)]\nmod tests { struct NotCounted; }\n";
    let census = census_of_file(text);
    assert_eq!((census.code_lines, census.plain_lines, census.comment_lines), (7, 3, 1));
    assert_eq!((census.asserts, census.unwraps, census.longest_file), (1, 1, 10));
    assert_eq!(census.types, ["Shared"]);
    let names = ["Shared", "Shared", "Own", "Config", "Config"].map(str::to_owned);
    assert_eq!(shared_names(&names).into_iter().collect::<Vec<_>>(), [("Shared", 2)]);
}
