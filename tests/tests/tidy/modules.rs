//! The arrows between the modules of one crate, and the circles among them.
//!
//! An arrow is a path in code that leads into another module's file: `crate::a::X`, `super::X`, or
//! `child::X`. A re-export is followed to the file that defines the name and is no arrow of its
//! own, else every `lib.rs` would be in a circle with all that names the crate's types by their
//! short path. Test modules are left out: a test may look at its owner from below.
//!
//! Folders are looked at by themselves: of two neighbours in one folder, files or folders with all
//! that is in them, only one may use the other.

use crate::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

type Module = Vec<String>;

/// Which files each file uses.
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// Every circle of files, as the list of modules in it.
pub(crate) fn cycles() -> Vec<String> {
    circles_of_crates(|arrows| circles(&arrows))
}

/// Every circle of neighbours within a folder.
pub(crate) fn folder_cycles() -> Vec<String> {
    circles_of_crates(|arrows| circles(&between_neighbours(&arrows)))
}

fn circles_of_crates(circles: impl Fn(Arrows) -> Vec<String>) -> Vec<String> {
    let of_crate = |path: &PathBuf| -> Vec<String> {
        let name = path.file_name().expect("a crate's folder has a name").to_string_lossy();
        let found = circles(arrows(&sources(path)));
        found.into_iter().map(|circle| format!("{name}: {circle}")).collect()
    };
    tree::crates().iter().flat_map(of_crate).collect()
}

/// The files of a crate by module path, tests left out.
fn sources(path: &Path) -> BTreeMap<Module, String> {
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
    sources
}

/// A re-export of a file by `pub use`: a name, or `*`, and the path that it stands for.
type Exports = BTreeMap<Module, Vec<(String, Vec<String>)>>;

fn arrows(sources: &BTreeMap<Module, String>) -> Arrows {
    let files: BTreeMap<&Module, syn::File> = sources
        .iter()
        .map(|(module, text)| {
            let file = syn::parse_file(text);
            (module, file.unwrap_or_else(|e| panic!("{}: {e}", module.join("::"))))
        })
        .collect();
    let exports: Exports =
        files.iter().map(|(module, file)| ((*module).clone(), exports_of(file))).collect();
    let mut arrows = Arrows::new();
    for (module, file) in &files {
        let mut finder = Finder { at: module, exports: &exports, found: BTreeSet::new() };
        finder.visit_file(file);
        finder.found.remove(*module);
        arrows.insert((*module).clone(), finder.found);
    }
    arrows
}

fn exports_of(file: &syn::File) -> Vec<(String, Vec<String>)> {
    let mut exports = Vec::new();
    for item in &file.items {
        if let syn::Item::Use(item) = item
            && !matches!(item.vis, syn::Visibility::Inherited)
        {
            collect_exports(&mut Vec::new(), &item.tree, &mut exports);
        }
    }
    exports
}

fn collect_exports(
    before: &mut Vec<String>,
    tree: &syn::UseTree,
    exports: &mut Vec<(String, Vec<String>)>,
) {
    let mut add = |name: String, last: Option<String>| {
        exports.push((name, before.iter().cloned().chain(last).collect()));
    };
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            collect_exports(before, &path.tree, exports);
            before.pop();
        }
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| collect_exports(before, tree, exports));
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            add(before.last().cloned().unwrap_or_default(), None);
        }
        syn::UseTree::Name(name) => add(name.ident.to_string(), Some(name.ident.to_string())),
        syn::UseTree::Rename(name) => add(name.rename.to_string(), Some(name.ident.to_string())),
        syn::UseTree::Glob(_) => add("*".to_owned(), None),
    }
}

/// The arrows between neighbours of a folder: each arrow counts where its two paths part.
fn between_neighbours(arrows: &Arrows) -> Arrows {
    let mut between = Arrows::new();
    for (from, targets) in arrows {
        for to in targets {
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            // A file and what lies below it: the file is the folder's own.
            if common == from.len().min(to.len()) {
                continue;
            }
            let (from, to) = (from[..=common].to_vec(), to[..=common].to_vec());
            between.entry(to.clone()).or_default();
            between.entry(from).or_default().insert(to);
        }
    }
    between
}

struct Finder<'a> {
    at: &'a Module,
    exports: &'a Exports,
    found: BTreeSet<Module>,
}

impl Finder<'_> {
    /// Resolves a path's first words to the file that defines the word after them.
    fn follow(&mut self, words: &[String]) {
        if let Some(found) = resolve(self.exports, self.at, words, 0) {
            self.found.insert(found);
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

/// The file that a path leads into, seen from the module `from`; none if it leads out of the crate.
fn resolve(exports: &Exports, from: &Module, words: &[String], depth: usize) -> Option<Module> {
    let mut at: Module = from.clone();
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
            if !exports.contains_key(&child) {
                return None;
            }
        }
        _ => return None,
    }
    while let Some((word, after)) = rest.split_first() {
        at.push(word.clone());
        if exports.contains_key(&at) {
            rest = after;
            continue;
        }
        at.pop();
        // Re-exports of re-exports end; a circle of them would not compile either.
        if depth < 8 {
            for (name, target) in exports.get(&at)? {
                let path = match name.as_str() {
                    "*" => target.iter().chain([word]).cloned().collect::<Vec<_>>(),
                    _ if name == word => target.iter().chain(after).cloned().collect(),
                    _ => continue,
                };
                if let Some(found) = resolve(exports, &at, &path, depth + 1) {
                    return Some(found);
                }
            }
        }
        break;
    }
    exports.contains_key(&at).then_some(at)
}

/// Every set of modules that reach each other, by what each reaches.
fn circles(arrows: &Arrows) -> Vec<String> {
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

#[test]
fn a_circle_of_folders_behind_re_exports_is_found() {
    let source = |path: &str, text: &str| {
        (path.split("::").map(str::to_owned).collect::<Module>(), text.to_owned())
    };
    let mut sources = BTreeMap::from([
        (Module::new(), "mod a; mod b; pub use a::Deep;".to_owned()),
        source("a", "mod deep; mod user; pub use deep::Deep;"),
        source("a::deep", "pub struct Deep;"),
        source("a::user", "use crate::b::B;"),
        source("b", "use crate::Deep; pub struct B(Deep);"),
    ]);
    let found = arrows(&sources);
    assert_eq!(circles(&found), Vec::<String>::new());
    assert_eq!(circles(&between_neighbours(&found)), ["a <-> b"]);
    sources.extend([source("a::user", "")]);
    assert_eq!(circles(&between_neighbours(&arrows(&sources))), Vec::<String>::new());
}
