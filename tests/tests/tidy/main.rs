//! The rules of the house that a tool can check: arrows, cycles, sizes, first lines, words, links.
//!
//! Each rule returns what breaks it, one line a finding; a test fails with the whole list. The
//! rules themselves are tried on small bad examples beside them, so that a rule that sees nothing
//! is seen.

mod arrows;
mod census;
mod modules;
mod prose;
mod sizes;
mod tree;
mod words;

/// Fails with every finding at once.
fn expect_none(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}:\n  {}\n", findings.join("\n  "));
}

#[test]
fn crates_depend_only_along_the_arrows() {
    expect_none("a crate uses what it may not", &arrows::forbidden());
}

#[test]
fn modules_of_a_crate_form_no_cycle() {
    expect_none("modules use each other in a circle", &modules::cycles());
}

#[test]
fn folders_of_a_crate_form_no_cycle() {
    expect_none("neighbours in a folder use each other in a circle", &modules::folder_cycles());
}

#[test]
fn files_functions_and_structs_stay_small() {
    expect_none("too large", &sizes::excess());
}

#[test]
fn every_file_says_what_it_is_for() {
    expect_none("the file does not open with `//!`", &words::without_first_line());
}

#[test]
fn no_banned_word_is_in_the_tree() {
    expect_none("a banned word", &words::banned());
}

#[test]
fn comments_are_plain_technical_english() {
    expect_none("a comment in private language", &prose::private_language());
}

#[test]
fn comments_are_not_wide() {
    expect_none("a comment wider than the page", &prose::wide_comments());
}

#[test]
fn each_decision_is_cited_by_the_code_that_it_rules() {
    expect_none("a decision that no code cites", &prose::uncited_decisions());
}

#[test]
fn paths_in_the_docs_exist() {
    expect_none("a path that does not exist", &prose::dead_paths());
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    expect_none("a dead link", &words::dead_links());
}

#[test]
fn the_census_gets_no_worse() {
    expect_none("the census has become worse", &census::findings());
}
