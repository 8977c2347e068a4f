//! A model of one group on four stores while its members change: random walks, whose steps are
//! elections, replication, changes in joint configurations, splits, ends, crashes and roots.
//!
//! In every state: no term has two leaders, no committed entry is lost, no member is refused for
//! ever, and no replica is back after its end. At the end of a walk nothing fails any more, but one
//! store may be dead: the others elect a leader, leave the joint configuration and agree.
//!
//! Each broken rule is found: see `docs/many-regions.md` for the rules. `MEMBERSHIP_WALKS` says how
//! many walks.

mod configuration;
mod group;
mod lifecycle;
mod rules;
mod scenarios;
mod store;
mod walk;

use std::ops::Range;

use group::WalkCounts;
use rules::BrokenRule;

/// Steps of a walk before the calm.
const STEPS: usize = 250;

fn walks_given() -> Option<u64> {
    let given = std::env::var("MEMBERSHIP_WALKS").ok()?;
    Some(given.parse().expect("MEMBERSHIP_WALKS is a number of walks"))
}

#[test]
fn members_change_and_nothing_is_lost() {
    let mut sum = WalkCounts::default();
    for seed in 0..walks_given().unwrap_or(1000) {
        let (counts, found) = walk::walk(None, seed, STEPS);
        if let Err(rule) = found {
            panic!(
                "seed {seed}: {rule}\n{}",
                walk::trace(Some(BrokenRule::VotesWithoutCommit), seed, STEPS)
            );
        }
        sum.add(&counts);
    }
    println!("{sum:?}");
    sum.assert_all_happened();
}

/// Walks with a broken rule until one finds it, by a message that begins like `finding`. Rare ones
/// have a first seed near a walk that finds them.
fn find(broken: BrokenRule, seeds: Range<u64>, finding: &str) {
    let mut walks = seeds.clone();
    let found = walks.find_map(|seed| {
        let rule = walk::walk(Some(broken), seed, STEPS).1.err()?;
        rule.contains(finding).then_some((seed, rule))
    });
    let Some((seed, rule)) = found else { panic!("{broken:?}: no walk of {seeds:?} finds it") };
    println!("{broken:?}: seed {seed}: {rule}");
    if std::env::var("MEMBERSHIP_TRACE").is_ok() {
        println!("{}", walk::trace(Some(broken), seed, STEPS));
    }
}

#[test]
fn a_start_that_forgets_the_commit_index_is_found() {
    find(BrokenRule::CommitForgotten, 0..2000, "");
}

#[test]
fn a_log_that_goes_before_the_root_is_found() {
    find(BrokenRule::LogGoneBeforeRoot, 6000..8000, "committed entry lost");
}

#[test]
fn an_end_confirmed_before_the_root_is_found() {
    find(BrokenRule::EndConfirmedBeforeRoot, 0..200, "is back on store");
}

#[test]
fn a_forgotten_end_of_a_replica_without_data_is_found() {
    find(BrokenRule::UninitialisedEndForgotten, 0..4000, "is back on store");
}

#[test]
fn ids_that_shrink_are_found() {
    find(BrokenRule::IdsMayShrink, 0..200, "is refused for ever");
}

#[test]
fn a_vote_before_the_birth_is_found() {
    find(BrokenRule::VoteBeforeBirth, 0..2000, "two leaders of a term");
}

#[test]
fn a_birth_that_is_not_read_is_found() {
    find(BrokenRule::BirthNotRead, 0..2000, "two leaders of a term");
}

#[test]
fn an_unborn_child_that_takes_messages_is_found() {
    find(BrokenRule::UnbornTakesMessages, 0..2000, "committed entry lost");
}

#[test]
fn a_dead_child_that_is_made_is_found() {
    find(BrokenRule::DeadChildMade, 0..2000, "is back on store");
}

#[test]
fn a_campaign_over_an_unapplied_change_is_found() {
    find(BrokenRule::CampaignBeforeApplied, 0..2000, "");
}

#[test]
fn an_old_half_that_is_not_asked_is_found() {
    find(BrokenRule::OldHalfNotAsked, 0..2000, "");
}

#[test]
fn a_new_half_that_is_not_asked_is_found() {
    find(BrokenRule::NewHalfNotAsked, 0..2000, "committed entry lost");
}

#[test]
fn a_swap_without_a_joint_configuration_is_found() {
    find(BrokenRule::SwapWithoutJoint, 0..2000, "committed entry lost");
}

#[test]
fn a_voter_removed_in_one_step_is_found() {
    find(BrokenRule::VoterRemovedInOneStep, 0..1000, "no leader any more");
}

#[test]
fn a_group_of_two_voters_is_found() {
    find(BrokenRule::TwoVoters, 0..500, "wait for a snapshot");
}

#[test]
fn a_promotion_without_data_is_found() {
    find(BrokenRule::PromotedWithoutData, 0..500, "wait for a snapshot");
}

#[test]
fn a_leader_that_gives_up_its_vote_is_found() {
    find(BrokenRule::LeaderGivesUpItsVote, 0..500, "applies its own removal");
}

#[test]
fn a_second_member_on_a_store_is_found() {
    find(BrokenRule::SecondMemberOnStore, 0..500, "is refused for ever");
}
