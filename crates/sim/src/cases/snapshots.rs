//! A store that was away comes back to logs that others have let go.

use flotilla_region::{Index, RegionId};

use super::{DATA, Scenario};
use crate::executor::InstallArrow;
use crate::network::PassedSnapshots;
use crate::request::RequestState;

/// C29b: while a store is away, the others keep no more of their logs than they may, and it comes
/// back by a snapshot.
#[test]
fn c29b_a_store_is_away_and_kept_logs_are_bounded() {
    let mut case = Scenario::with_short_logs(30);
    let [away, _] = case.followers;
    case.world.cut_off(away);
    let mut longest = 0;
    for _ in 0..40 {
        case.puts(DATA, 5);
        case.run(50_000);
        let status = case.status(case.leader, DATA).unwrap();
        longest = longest.max(status.last.0 + 1 - status.first.0);
    }
    // 200 entries of about 100 bytes, and 4 KiB may be kept for others; a tail is kept anyway.
    assert!(longest < 150, "{longest} entries are kept");
    case.world.mend();
    case.all_are_level(DATA);
    assert!(case.snapshots().installed > 0);
    case.finish();
}

/// C24: the power goes at each arrow of an installation, and another replica asks for a vote
/// meanwhile. The store comes back, with its old rows or the new ones, and is brought up.
#[test]
fn c24_the_power_goes_inside_an_installation() {
    for (nth, arrow) in InstallArrow::ALL.into_iter().enumerate() {
        let mut case = Scenario::with_short_logs(31 + nth as u64);
        let [away, other] = case.followers;
        case.fall_behind(away);
        case.world.cut_at_arrow(away, arrow);
        case.world.mend();
        case.until("the power loss", |world| !world.nodes()[away].is_running());
        assert_eq!(case.snapshots().cuts_at_arrows, 1, "{arrow:?}");
        case.world.campaign(other, DATA).expect("nothing is done yet");
        case.until("the start", |world| world.nodes()[away].is_running());
        case.world.campaign(other, DATA).expect("nothing is done yet");
        case.all_are_level(DATA);
        assert!(case.snapshots().installed > 0, "{arrow:?}");
        case.finish();
    }
}

/// C24, C25: a vote request and an election timeout come while a snapshot is installed, which takes
/// longer than they do. The replica is silent until it has the snapshot in its log.
#[test]
fn c25_an_election_comes_while_a_snapshot_is_installed() {
    let mut case = Scenario::with_short_logs(40);
    let [away, other] = case.followers;
    case.fall_behind(away);
    case.world.slow_syncs(away, 3_000_000);
    case.world.mend();
    case.until("the installation", |world| world.nodes()[away].coverage().snapshots.installed > 0);
    case.world.campaign(other, DATA).expect("nothing is done yet");
    case.world.campaign(away, DATA).expect("nothing is done yet");
    case.run(1_000_000);
    case.world.lose_power_for(case.leader, 100_000);
    case.run(1_000_000);
    case.finish();
}

/// C25: a late word of the leader to campaign comes while the replica installs a snapshot of the
/// same term: it is silent.
#[test]
fn c25_a_word_to_campaign_comes_while_a_snapshot_is_installed() {
    let mut case = Scenario::with_short_logs(41);
    let (leader, [away, _]) = (case.leader, case.followers);
    let term = case.status(leader, DATA).unwrap().term;
    case.fall_behind(away);
    case.world.slow_syncs(away, 3_000_000);
    case.world.mend();
    case.until("the installation", |world| world.nodes()[away].coverage().snapshots.installed > 0);
    for _ in 0..20 {
        case.world.call_to_campaign(DATA, leader, away);
        case.run(1_000);
    }
    case.all_are_level(DATA);
    assert_eq!(case.status(leader, DATA).unwrap().term, term);
    case.finish();
}

/// C1: children reach a store that was away through several splits only by snapshots, for the log
/// of the parent is gone.
#[test]
fn c1_children_reach_a_store_by_snapshots_alone() {
    for seed in 50..54 {
        let mut case = Scenario::with_short_logs(seed);
        let [away, _] = case.followers;
        let children = split_while_away(&mut case, away, 3);
        case.world.mend();
        for child in &children {
            case.until("each child", |world| world.nodes()[away].status(*child).is_some());
        }
        let seen = case.snapshots();
        assert!(seen.uninitialised >= 3 && seen.installed >= 4, "{seen:?}");
        case.finish();
    }
}

/// Splits the data region while a store is away, until the others have let go of the splits.
pub(super) fn split_while_away(case: &mut Scenario, away: usize, splits: usize) -> Vec<RegionId> {
    let before = case.status(away, DATA).unwrap().last;
    case.world.cut_off(away);
    let mut children = Vec::new();
    for nth in 1..=splits {
        let (region, end) = (case.region(DATA), case.key(nth));
        let (split, child) = case.split_at(case.leader, &region, &end);
        case.served(split);
        case.until("a leader of the child", |world| world.leading(child).is_some());
        children.push(child);
    }
    // The last key is still the parent's.
    case.let_go(DATA, Index(before.0 + splits as u64));
    for child in &children {
        case.puts(*child, 3);
    }
    children
}

/// C4: snapshots of parent and child cross, for the store has the parent as it was before the
/// split: the child's is not taken before the parent's.
#[test]
fn c4_snapshots_of_parent_and_child_cross() {
    let mut refused = 0;
    for seed in 60..68 {
        let mut case = Scenario::with_short_logs(seed);
        let [away, _] = case.followers;
        let children = split_while_away(&mut case, away, 1);
        case.world.mend();
        case.until("the child", |world| world.nodes()[away].status(children[0]).is_some());
        let seen = case.snapshots();
        refused += seen.refused + seen.not_admitted;
        case.finish();
    }
    assert!(refused > 0, "the child never came first");
}

/// C7: a store is behind by as many splits as there are keys: a snapshot of each region suffices,
/// and few more are sent.
#[test]
fn c7_many_splits_with_one_store_behind_cost_few_snapshots() {
    let mut case = Scenario::with_short_logs(70);
    let [away, _] = case.followers;
    let before = case.status(away, DATA).unwrap().last;
    case.world.cut_off(away);
    let mut children = Vec::new();
    for nth in 1..=10u8 {
        let region = case.region(DATA);
        // Borders below the last key, which stays the parent's.
        let end = [&case.key(0)[..], &[nth]].concat();
        let (split, child) = case.split_at(case.leader, &region, &end);
        case.served(split);
        case.until("a leader of the child", |world| world.leading(child).is_some());
        children.push(child);
    }
    case.let_go(DATA, Index(before.0 + 10));
    case.world.mend();
    for child in &children {
        case.until("each child", |world| world.nodes()[away].status(*child).is_some());
    }
    case.all_are_level(DATA);
    let seen = case.snapshots();
    assert!((11..=22).contains(&seen.sent), "{seen:?}");
    case.finish();
}

/// C24b: writes and a split are handed out and not applied when a snapshot that is beyond them is
/// there. It waits for them.
#[test]
fn c24b_writes_and_a_split_are_under_way_when_a_snapshot_comes() {
    for seed in 90..94 {
        let mut case = Scenario::with_short_logs(seed);
        let [slow, _] = case.followers;
        case.world.slow_applying(slow, 400_000);
        case.puts(DATA, 6);
        let (split, child) = case.split(case.leader);
        case.served(split);
        case.run(20_000);
        let behind = case.status(slow, DATA).unwrap();
        assert!(behind.applied < behind.last, "{behind:?}");
        case.world.cut_off(slow);
        case.let_go(DATA, behind.last);
        case.world.mend();
        case.until("the child", |world| world.nodes()[slow].status(child).is_some());
        case.all_are_level(DATA);
        assert!(case.snapshots().installed > 0);
        case.finish();
    }
}

/// C24c: a leader is cut off with a write that is in its log alone. The entries that others have
/// committed meanwhile reach it by a snapshot: it does not learn the fate of the write, and does
/// not refuse it.
#[test]
fn c24c_a_deposed_leader_with_an_open_ticket_gets_a_snapshot() {
    let mut case = Scenario::with_short_logs(95);
    let deposed = case.leader;
    case.world.cut_off(deposed);
    let (region, key) = (case.region(DATA), case.key(0));
    let open = case.put(deposed, &region, &key);
    case.run(100_000);
    assert_eq!(case.state(open), RequestState::Waiting);
    let followers = case.followers;
    case.until("another leader", |world| followers.iter().any(|store| world.leads(*store, DATA)));
    case.leader = followers.into_iter().find(|store| case.world.leads(*store, DATA)).unwrap();
    let last = case.status(deposed, DATA).unwrap().last;
    case.let_go(DATA, last);
    case.world.mend();
    case.until("the snapshot", |world| world.nodes()[deposed].coverage().snapshots.installed > 0);
    assert_eq!(case.answered(open), RequestState::Lost, "its fate is open");
    assert_eq!(case.snapshots().undecided, 1);
    case.finish();
}

/// C28: the leader dies while its snapshot is under way. The next one sends another.
#[test]
fn c28_the_sender_dies() {
    let mut case = Scenario::with_short_logs(100);
    let [away, _] = case.followers;
    case.fall_behind(away);
    case.world.mend();
    case.until("a stream", |world| world.nodes()[away].streams() > 0);
    case.world.lose_power_for(case.leader, 500_000);
    case.all_are_level(DATA);
    assert!(case.snapshots().installed > 0);
    case.finish();
}

/// C28: the stream is so slow that the log which is kept behind it is let go before the follower
/// has the rows. Another snapshot follows.
#[test]
fn c28_the_log_behind_a_slow_snapshot_is_let_go() {
    let mut case = Scenario::with_short_logs(105);
    let (leader, [away, _]) = (case.leader, case.followers);
    case.fall_behind(away);
    case.world.mend();
    case.world.slow_link(leader, away, 400_000);
    case.until("a snapshot", |world| world.core_stats(leader).snapshots_sent > 0);
    case.puts(DATA, 300);
    case.world.mend();
    case.until_in(40_000_000, "another one", |world| world.core_stats(leader).snapshots_sent > 1);
    case.all_are_level(DATA);
    case.finish();
}

/// C28b: the snapshot is staged, and the sender does not hear of it: neither the end of the stream
/// nor raft's acknowledgement. It goes on all the same.
#[test]
fn c28b_the_acknowledgement_of_a_snapshot_is_lost() {
    let mut case = Scenario::with_short_logs(101);
    let [away, _] = case.followers;
    case.fall_behind(away);
    case.world.mend();
    case.until("the stage", |world| world.nodes()[away].coverage().snapshots.staged > 0);
    case.world.cut_link(away, case.leader);
    case.until("the installation", |world| world.nodes()[away].coverage().snapshots.installed > 0);
    case.run(300_000);
    case.world.mend();
    case.puts(DATA, 3);
    case.all_are_level(DATA);
    case.finish();
}

/// C29: each store restarts in turn, under a light load. No snapshot is needed.
#[test]
fn c29_a_rolling_restart_needs_no_snapshot() {
    let mut case = Scenario::with_roots(102);
    for store in 0..3 {
        case.world.end_process(store, 2_000_000);
        case.until("the end", |world| !world.nodes()[store].is_running());
        for _ in 0..5 {
            case.until("a leader", |world| world.leading(DATA).is_some());
            case.leader = case.world.leading(DATA).unwrap();
            case.try_puts(DATA, 4);
        }
        case.until("the start", |world| world.nodes()[store].is_running());
        case.all_are_level(DATA);
    }
    let seen = case.snapshots();
    assert_eq!((seen.sent, seen.unsent, seen.installed), (0, 0, 0), "{seen:?}");
    case.finish();
}

/// C24d: the power goes at each arrow of the first installation of a replica that had no data. The
/// entries that it acknowledges after the start outlive the next one.
#[test]
fn c24d_the_power_goes_inside_a_first_installation() {
    for (nth, arrow) in InstallArrow::ALL.into_iter().enumerate() {
        let mut case = Scenario::with_short_logs(110 + nth as u64);
        let [away, _] = case.followers;
        let child = split_while_away(&mut case, away, 1)[0];
        case.world.pass_snapshots(PassedSnapshots::Of(DATA));
        case.world.mend();
        case.until("a replica without data", |world| {
            world.nodes()[away].coverage().snapshots.uninitialised > 0
        });
        // The parent has been installed: the arrow is one of the child's.
        case.world.cut_at_arrow(away, arrow);
        case.world.pass_snapshots(PassedSnapshots::All);
        case.until("the power loss", |world| !world.nodes()[away].is_running());
        case.until("the child", |world| world.nodes()[away].status(child).is_some());
        case.puts(child, 3);
        case.all_are_level(child);
        let before = case.status(away, child).unwrap();
        case.world.lose_power_for(away, 10_000);
        case.until("the end", |world| !world.nodes()[away].is_running());
        case.until("the child", |world| world.nodes()[away].status(child).is_some());
        let after = case.status(away, child).unwrap();
        assert!(after.last >= before.last, "{arrow:?}: {before:?}, {after:?}");
        case.finish();
    }
}
