//! The arrows between the modules of one crate, and the circles among them.
//!
//! An arrow is a path in code that leads into another module's file: `crate::a::X`, `super::X`, or
//! `child::X`. What a file re-exports with `pub use` is no arrow of its own, else every `lib.rs`
//! would be in a circle with all that names the crate's types by their short path. Test modules are
//! left out: a test may look at its owner from below.

use crate::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::visit::{self, Visit};

type Module = Vec<String>;

/// Every circle, as the list of modules in it.
pub(crate) fn cycles() -> Vec<String> {
    tree::crates().iter().flat_map(|path| cycles_of(path)).collect()
}

fn cycles_of(path: &Path) -> Vec<String> {
    let name =
        path.file_name().expect("a crate's folder has a name").to_string_lossy().into_owned();
    let src = path.join("src");
    let mut sources = BTreeMap::new();
    for file in tree::files(&src, "rs").into_iter().filter(|f| !tree::is_test(f)) {
        let below = file.strip_prefix(&src).expect("found below src");
        let mut module: Module =
            below.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        // A binary beside a library is a crate of its own; its root is not the library's.
        if below != Path::new("main.rs") {
            sources.insert(module, tree::text(&file));
        }
    }
    circles(&arrows(&sources)).into_iter().map(|circle| format!("{name}: {circle}")).collect()
}

fn arrows(sources: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut arrows = BTreeMap::new();
    for (module, text) in sources {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", module.join("::")));
        let mut finder = Finder { at: module, known: sources, found: BTreeSet::new() };
        finder.visit_file(&file);
        finder.found.remove(module);
        arrows.insert(module.clone(), finder.found);
    }
    arrows
}

struct Finder<'a> {
    at: &'a Module,
    known: &'a BTreeMap<Module, String>,
    found: BTreeSet<Module>,
}

impl Finder<'_> {
    /// Resolves a path's first words to the file that they lead into.
    fn follow(&mut self, words: &[String]) {
        let mut at: Module = self.at.clone();
        let mut rest = words;
        match words.first().map(String::as_str) {
            Some("crate") => (at, rest) = (Module::new(), &words[1..]),
            Some("self") => rest = &words[1..],
            Some("super") => {
                while rest.first().is_some_and(|w| w == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            Some(first) if words.len() > 1 => {
                let mut child = at.clone();
                child.push(first.to_owned());
                if !self.known.contains_key(&child) {
                    return;
                }
            }
            _ => return,
        }
        for word in rest {
            at.push(word.clone());
            if !self.known.contains_key(&at) {
                at.pop();
                break;
            }
        }
        if self.known.contains_key(&at) {
            self.found.insert(at);
        }
    }

    fn follow_use(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.follow_use(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.follow_use(before, tree);
                }
            }
            syn::UseTree::Name(name) => self.follow_name(before, name.ident.to_string()),
            syn::UseTree::Rename(name) => self.follow_name(before, name.ident.to_string()),
            syn::UseTree::Glob(_) => self.follow(before),
        }
    }

    fn follow_name(&mut self, before: &mut Vec<String>, name: String) {
        // Naming a module to use its items by a longer path leads into that module.
        before.push(name);
        self.follow(before);
        before.pop();
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let exported = !matches!(item.vis, syn::Visibility::Inherited);
        if !exported && !is_for_tests(&item.attrs) {
            self.follow_use(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` says who may look in; it is no look out.
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.follow(&words);
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().starts_with("test")
        }
        syn::Meta::NameValue(_) => false,
    })
}

/// Every set of modules that reach each other, by what each reaches.
fn circles(arrows: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = arrows
        .keys()
        .map(|from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(at) = open.pop() {
                open.extend(arrows[at].iter().filter(|to| seen.insert(*to)));
            }
            (from, seen)
        })
        .collect();
    let mut circles = BTreeSet::new();
    for (from, reached) in &reach {
        let circle: Vec<String> = reached
            .iter()
            .filter(|to| reach[*to].contains(*from))
            .map(|m| if m.is_empty() { "crate".to_owned() } else { m.join("::") })
            .collect();
        if !circle.is_empty() {
            circles.insert(circle.join(" <-> "));
        }
    }
    circles.into_iter().collect()
}

#[test]
fn a_circle_is_found_and_a_tree_is_not() {
    let source = |name: &str, text: &str| (vec![name.to_owned()], text.to_owned());
    let root = (Vec::new(), "mod a; mod b; pub use a::A;".to_owned());
    let bad = BTreeMap::from([
        root.clone(),
        source("a", "use crate::{b::B, c::C}; pub struct A(B);"),
        source("b", "pub struct B; fn f() { crate::a::g() }"),
    ]);
    assert_eq!(circles(&arrows(&bad)), ["a <-> b"]);
    let good = BTreeMap::from([
        root,
        source("a", "use crate::b::B; pub struct A(B);"),
        source("b", "pub(crate) struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
    ]);
    assert_eq!(circles(&arrows(&good)), Vec::<String>::new());
}
