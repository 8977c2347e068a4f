//! The files of the page, which are part of the program.

use axum::Router;
use axum::extract::Path;
use axum::routing::get;

use super::state::PageState;
use crate::net::answer::{self, Answer};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page itself.
const INDEX: &str = include_str!("web/index.html");

/// Its other files: name, type, text.
const FILES: [(&str, &str, &str); 9] = [
    ("icon.svg", SVG, include_str!("web/icon.svg")),
    ("page.css", CSS, include_str!("web/page.css")),
    ("page.js", SCRIPT, include_str!("web/page.js")),
    ("format.js", SCRIPT, include_str!("web/format.js")),
    ("stores.js", SCRIPT, include_str!("web/stores.js")),
    ("regions.js", SCRIPT, include_str!("web/regions.js")),
    ("strip.js", SCRIPT, include_str!("web/strip.js")),
    ("load.js", SCRIPT, include_str!("web/load.js")),
    ("space.js", SCRIPT, include_str!("web/space.js")),
];

pub(super) fn routes() -> Router<PageState> {
    Router::new()
        .route("/", get(async || answer::text_as(HTML, INDEX.to_owned())))
        .route("/status/page/{name}", get(file))
}

async fn file(Path(name): Path<String>) -> Answer {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, content_type, text)) => answer::text_as(content_type, (*text).to_owned()),
        None => answer::not_found(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_that_the_page_names_is_served_and_none_is_from_elsewhere() {
        let names = |text: &'static str| {
            let ends = |c: char| c == '"' || c == '\'';
            let words = text.split(ends).filter(|word| !word.contains(char::is_whitespace));
            let files =
                words.filter(|word| [".js", ".css", ".svg"].iter().any(|end| word.ends_with(end)));
            files.map(|path| path.rsplit('/').next().unwrap_or(path)).collect::<Vec<_>>()
        };
        let mut named: Vec<_> = names(INDEX);
        named.extend(FILES.iter().flat_map(|(_, _, text)| names(text)));
        named.sort_unstable();
        named.dedup();
        let mut served: Vec<_> = FILES.iter().map(|(name, ..)| *name).collect();
        served.sort_unstable();
        assert_eq!(named, served);
    }

    #[test]
    fn no_text_becomes_markup_and_nothing_is_inline() {
        for (name, _, text) in FILES {
            for risky in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
                assert!(!text.contains(risky), "{name}: {risky}");
            }
        }
        for inline in ["<style", "style=", "onclick", "onload", "<script>", "http:", "https:"] {
            assert!(!INDEX.contains(inline), "{inline}");
        }
    }
}
