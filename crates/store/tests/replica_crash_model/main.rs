//! A model of one store with its two engines: the log, of which a crash leaves a prefix, and the
//! pages, of which it leaves the last root. Random histories of entries, splits, ends, replicas
//! without data, votes, snapshots, checkpoints and purges are cut by crashes.
//!
//! After each start, and now and then between: the rows of each replica are those of its applied
//! index, no key has two owners or none, no vote and no acknowledged entry is forgotten, and no
//! replica is back that was said to be gone. A start refuses nothing. In the end no child is
//! unborn.
//!
//! Each broken rule is found: see `docs/many-regions.md` for the rules. `CRASH_HISTORIES` says how
//! many histories.

mod actions;
mod install;
mod log;
mod rules;
mod start;
mod store;
mod truth;

use std::collections::BTreeMap;
use std::ops::Range;

use rules::BrokenRule;
use start::Checked;
use store::ModelStore;

/// Steps of a history.
const STEPS: usize = 250;

fn histories_given() -> Option<u64> {
    let given = std::env::var("CRASH_HISTORIES").ok()?;
    Some(given.parse().expect("CRASH_HISTORIES is a number of histories"))
}

impl ModelStore {
    fn run(&mut self, steps: usize) -> Checked {
        for step in 0..steps {
            self.step();
            if step % 8 == 0 {
                self.check()?;
            }
            if self.rng.u8(..100) < 4 {
                self.crash()?;
                if self.rng.u8(..10) < 2 {
                    self.crash()?;
                }
            }
        }
        self.crash()?;
        self.apply_committed()
    }

    fn step(&mut self) {
        match self.rng.u8(..100) {
            0..=22 => self.append(),
            23..=25 => self.decide_elsewhere(),
            26..=47 => self.apply_one(),
            48..=53 => self.hear_split(),
            54..=61 => self.vote(),
            62..=64 => self.hear_gone(),
            65..=68 => self.add_again(),
            69..=74 => self.receive_one(),
            75..=80 => self.take_snapshot(),
            81..=90 => self.install(),
            91 => self.forget_held(),
            92..=93 => self.checkpoint(),
            94..=95 if self.breaks(BrokenRule::LogGoneByMemory) => self.purge(),
            _ => {}
        }
    }
}

fn run(broken: Option<BrokenRule>, seed: u64) -> (BTreeMap<&'static str, usize>, Checked) {
    let mut store = ModelStore::new(broken, seed, false);
    let found = store.run(STEPS);
    (store.counts, found)
}

fn trace(broken: Option<BrokenRule>, seed: u64) -> String {
    let mut store = ModelStore::new(broken, seed, true);
    let found = store.run(STEPS);
    let trace = store.trace.expect("it was asked for");
    format!("{}\n{found:?}", trace.join("\n"))
}

/// Everything that must happen in the histories: a model proves nothing about the rest.
const WANTED: [&str; 17] = [
    "born at last",
    "children made",
    "children not made",
    "children taken over",
    "crashes",
    "ended without a life",
    "ends",
    "held",
    "held votes given",
    "installed",
    "logs reset at a start",
    "ranges held",
    "snapshots",
    "snapshots that waited",
    "unborn",
    "votes",
    "without data",
];

#[test]
fn crashes_lose_nothing() {
    let mut sum: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..histories_given().unwrap_or(500) {
        let (counts, found) = run(None, seed);
        if let Err(rule) = found {
            panic!("seed {seed}: {rule}\n{}", trace(None, seed));
        }
        for (what, count) in counts {
            *sum.entry(what).or_default() += count;
        }
    }
    println!("{sum:?}");
    for what in WANTED {
        assert!(sum.contains_key(what), "{what}: never");
    }
}

/// Runs histories with a broken rule until one finds it, by a message that has `finding`. A rare
/// one has a first seed near a history that finds it.
fn find(broken: BrokenRule, seeds: Range<u64>, finding: &str) {
    let found = seeds.clone().find_map(|seed| {
        let rule = run(Some(broken), seed).1.err()?;
        rule.contains(finding).then_some((seed, rule))
    });
    let Some((seed, rule)) = found else { panic!("{broken:?}: no history of {seeds:?} finds it") };
    println!("{broken:?}: seed {seed}: {rule}");
    if std::env::var("CRASH_TRACE").is_ok() {
        println!("{}", trace(Some(broken), seed));
    }
}

#[test]
fn a_root_before_the_log_is_found() {
    find(BrokenRule::RootBeforeLog, 0..100, "ends below the checkpoint");
}

#[test]
fn a_log_shortened_by_memory_is_found() {
    find(BrokenRule::LogGoneByMemory, 0..100, "a hole in the log");
}

#[test]
fn a_child_before_its_parents_commit_is_found() {
    find(BrokenRule::ParentCommitLate, 0..200, "may never apply the split");
}

#[test]
fn an_ended_parent_that_says_nothing_is_found() {
    find(BrokenRule::EndedParentSaysNothing, 0..600, "may never apply the split");
}

#[test]
fn an_unborn_child_that_takes_messages_is_found() {
    find(BrokenRule::UnbornTakesMessages, 0..100, "lost entry");
}

#[test]
fn a_birth_hidden_by_a_row_without_data_is_found() {
    find(BrokenRule::BirthHiddenByRow, 1500..2000, "lost entry");
}

#[test]
fn a_parent_that_ends_before_a_birth_is_found() {
    find(BrokenRule::ParentEndsBeforeBirth, 0..200, "has no parent here");
}

#[test]
fn a_parent_that_installs_before_a_birth_is_found() {
    find(BrokenRule::ParentInstallsBeforeBirth, 0..400, "has no parent here");
}

#[test]
fn a_held_vote_that_is_not_written_is_found() {
    find(BrokenRule::HeldVoteUnwritten, 0..400, "vot");
}

#[test]
fn an_end_that_empties_the_log_is_found() {
    find(BrokenRule::EndEmptiesLog, 0..100, "committed more than its log has");
}

#[test]
fn a_successor_before_the_root_is_found() {
    find(BrokenRule::SuccessorBeforeRoot, 0..100, "has another replica");
}

#[test]
fn gone_before_the_root_is_found() {
    find(BrokenRule::GoneBeforeRoot, 0..100, "was said to be gone");
}

#[test]
fn a_vote_before_the_birth_is_found() {
    find(BrokenRule::VoteBeforeBirth, 0..100, "has voted, and is not there");
}

#[test]
fn a_snapshot_before_a_split_is_heard_is_found() {
    find(BrokenRule::SnapshotBeforeSplitHeard, 700..1000, "committed more than its log has");
}

#[test]
fn a_vote_while_installing_is_found() {
    find(BrokenRule::VoteWhileInstalling, 0..100, "committed more than its log has");
}

#[test]
fn a_reset_before_the_root_is_found() {
    find(BrokenRule::ResetBeforeRoot, 0..100, "lost entry");
}

#[test]
fn an_acknowledgement_before_the_root_is_found() {
    find(BrokenRule::AcknowledgedBeforeRoot, 0..100, "lost entry");
}

#[test]
fn a_vote_lost_at_the_reset_is_found() {
    find(BrokenRule::VoteLostAtReset, 0..100, "forgot its vote");
}

#[test]
fn an_overlap_that_is_installed_is_found() {
    find(BrokenRule::OverlapInstalled, 500..900, "key ");
}

#[test]
fn a_dead_child_that_is_made_is_found() {
    find(BrokenRule::DeadChildMade, 0..400, "was said to be gone");
}
