//! The program `flotilla-sim`: what it prints, and how it ends.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flotilla-sim")).args(args).output().unwrap()
}

#[test]
fn sound_seeds_end_well_and_are_counted() {
    let run = sim(&["--seed", "7", "--seeds", "2", "--events", "2000"]);
    let printed = String::from_utf8(run.stdout.clone()).unwrap();
    assert!(run.status.success(), "{run:?}");
    assert!(printed.contains("2 seeds") && printed.contains("0 failed"), "{printed}");
}

#[test]
fn wrong_arguments_are_refused() {
    for args in [&["--stores", "2"][..], &["--seed", "x"], &["--loud"]] {
        let run = sim(args);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {run:?}");
        assert!(run.stdout.is_empty());
    }
}
