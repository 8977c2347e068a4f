//! How large a file, a function and a struct may grow.

use crate::tree;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of a file, its tests left out.
const FILE_LINES_MAX: usize = 600;
/// Lines of code in a function; blank lines and comments do not count.
const FUNCTION_LINES_MAX: usize = 70;
/// Fields of a struct.
const STRUCT_FIELDS_MAX: usize = 16;

/// Everything that is too large.
pub(crate) fn excess() -> Vec<String> {
    let mut findings = Vec::new();
    for path in tree::rust_files() {
        let (shown, text) = (tree::shown(&path), tree::text(&path));
        findings.extend(excess_of(&shown, &text, tree::is_test(&path)));
    }
    findings
}

fn excess_of(shown: &str, text: &str, is_test: bool) -> Vec<String> {
    let own_lines = text.lines().take_while(|l| *l != "#[cfg(test)]").count();
    let mut findings = Vec::new();
    if own_lines > FILE_LINES_MAX {
        findings.push(format!("{shown}: {own_lines} lines before its tests"));
    }
    if !is_test {
        let lines: Vec<&str> = text.lines().collect();
        let mut measure = Measure { shown, lines: &lines, findings };
        measure.visit_file(&syn::parse_file(text).unwrap_or_else(|e| panic!("{shown}: {e}")));
        findings = measure.findings;
    }
    findings
}

struct Measure<'a> {
    shown: &'a str,
    lines: &'a [&'a str],
    findings: Vec<String>,
}

impl Measure<'_> {
    fn measure(&mut self, name: &syn::Ident, body: &syn::Block) {
        // From the line below the opening brace to the one above the closing brace.
        let (first, end) = (body.span().start().line, body.span().end().line.saturating_sub(1));
        let count = self.lines[first.min(end)..end]
            .iter()
            .map(|l| l.trim())
            .filter(|l| !l.is_empty() && !l.starts_with("//"))
            .count();
        if count > FUNCTION_LINES_MAX {
            self.findings.push(format!("{}: fn {name} has {count} lines", self.shown));
        }
    }
}

impl<'ast> Visit<'ast> for Measure<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let count = item.fields.len();
        // The tables of a file of settings have a field for each key, their root one for each table
        // as well.
        let max = match item.ident.to_string().as_str() {
            "NodeConfig" => 24,
            "StorageConfig" => 18,
            _ => STRUCT_FIELDS_MAX,
        };
        if count > max {
            self.findings.push(format!("{}: struct {} has {count} fields", self.shown, item.ident));
        }
    }
}

#[test]
fn excess_is_found() {
    let body = "let _ = 1;\n// why\n\n".repeat(FUNCTION_LINES_MAX + 1);
    let fields: String = (0..=STRUCT_FIELDS_MAX).map(|i| format!("f{i}: u8,\n")).collect();
    let text = format!(
        "fn long() {{\n{body}}}\nstruct Wide {{\n{fields}}}\n{}",
        "\n".repeat(FILE_LINES_MAX)
    );
    let findings = excess_of("x.rs", &text, false);
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert_eq!(excess_of("x.rs", "fn f() {}\nstruct S { a: u8 }\n", false), Vec::<String>::new());
}
