//! The tables of the page about settings are made of the table of keys.
//!
//! `FLOTILLA_WRITE_DOCS=1 cargo test -p flotilla-node --lib page` writes them.

use std::fs;
use std::path::Path;

use super::super::*;

/// The rows of a section, below their heading.
fn rows(section: &SettingSection) -> String {
    let values = default_values();
    let mut rows =
        "| key | default | range | scope | meaning |\n|---|---|---|---|---|\n".to_owned();
    for key in section.keys {
        let value = key.value_words(setting_value(&values, key));
        let default = match key.default_words() {
            Some(words) => words.to_owned(),
            None if value.is_empty() => "none".to_owned(),
            None => value,
        };
        let effect = match key.effect() {
            SettingEffect::Bootstrap => "bootstrap",
            SettingEffect::Start => "start",
            SettingEffect::Reload => "start, SIGHUP",
            SettingEffect::Online => "bootstrap, online",
        };
        rows.push_str(&format!(
            "| `{}` | {default} | {} | {}: {effect} | {} |\n",
            key.name(),
            key.range_words(),
            key.scope().name(),
            key.meaning()
        ));
    }
    rows
}

#[test]
fn the_page_about_settings_has_the_rows_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let mut made = page.clone();
    for section in SECTIONS {
        let name = if section.name.is_empty() { "identity" } else { section.name };
        let (begin, end) =
            (format!("<!-- keys of {name} -->\n"), "<!-- end of keys -->".to_owned());
        let from = made.find(&begin).unwrap_or_else(|| panic!("{begin}")) + begin.len();
        let to = from + made[from..].find(&end).unwrap();
        made.replace_range(from..to, &rows(section));
    }
    if std::env::var_os("FLOTILLA_WRITE_DOCS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(written == made, "docs/configuration.md is old: FLOTILLA_WRITE_DOCS=1 writes it anew");
}
