//! Changes of members: the row changes with the applied index, and a change that cannot be made has
//! no effect.

use flotilla_region::{
    AdminCommand, MembershipChange, MembershipCommand, MembershipError, PeerRole, RegionChange,
};

use super::*;
use crate::{Applied, ApplyReject};

/// An entry as raft writes it: a change whose context is the command.
pub(super) fn change_entry(index: u64, conf_version: u64, change: MembershipChange) -> LogEntry {
    let epoch = Epoch { conf_version, version: 1 };
    let command = AdminCommand::Membership(MembershipCommand { epoch, change }).encode();
    let data = [&[3 << 3 | 2, command.len() as u8][..], &command].concat();
    LogEntry { kind: EntryKind::ConfChangeV2, ..entry(index, 1, data.into()) }
}

pub(super) fn forget_entry(index: u64, peer: u64) -> LogEntry {
    entry(index, 1, AdminCommand::Forget(PeerId(peer)).encode())
}

pub(super) fn demote(peer: u64) -> MembershipChange {
    MembershipChange::Vote { promoted: vec![], demoted: vec![PeerId(peer)] }
}

pub(super) fn remove(peer: u64) -> MembershipChange {
    MembershipChange::Remove(PeerId(peer))
}

pub(super) fn add(peer: u64, store: u64) -> MembershipChange {
    MembershipChange::Add(Peer { id: PeerId(peer), store: StoreId(store) })
}

/// Logs and applies entries of region 2, each with a ticket.
pub(super) fn run_admin(store: &Store, entries: &[LogEntry]) -> Applied {
    append(store, 2, entries, entries.last().unwrap().index.0);
    let with_ticket =
        |entry: &LogEntry| Committed { entry: entry.clone(), tickets: vec![Ticket(entry.index.0)] };
    let entries = entries.iter().map(with_ticket).collect();
    store.apply(&[ApplyTask { region: RegionId(2), entries }]).unwrap()
}

fn rejects(applied: &Applied) -> Vec<ApplyReject> {
    let rejects = applied.outcomes.iter().map(|(_, outcome)| match outcome {
        ApplyOutcome::Rejected(reject) => reject.clone(),
        other => panic!("{other:?} is no rejection"),
    });
    rejects.collect()
}

fn region_2(store: &Store) -> Descriptor {
    view(store, 2).descriptor().clone()
}

#[test]
fn each_change_is_in_the_row_with_its_entry() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let entries = [
        change_entry(1, 1, add(203, 3)),
        change_entry(
            2,
            2,
            MembershipChange::Vote { promoted: vec![PeerId(203)], demoted: vec![PeerId(202)] },
        ),
        change_entry(3, 4, MembershipChange::LeaveJoint),
        change_entry(4, 6, remove(202)),
        forget_entry(5, 202),
        // It was confirmed: nothing is left to do, and nothing is told.
        forget_entry(6, 202),
    ];
    let applied = run_admin(&store, &entries);
    assert!(applied.outcomes.iter().all(|(_, outcome)| *outcome == ApplyOutcome::Done));
    let [replica] = &applied.replicas[..] else { panic!("{applied:?}") };
    let told: Vec<_> = replica
        .changes
        .iter()
        .map(|change| match change {
            RegionChange::Membership { index, descriptor, .. }
            | RegionChange::Forgotten { index, descriptor, .. } => (index.0, descriptor.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let roles = |at: usize| told[at].1.peers.iter().map(|peer| peer.role).collect::<Vec<_>>();
    assert_eq!(roles(1), [PeerRole::Voter, PeerRole::Outgoing, PeerRole::Incoming]);
    assert_eq!(roles(2), [PeerRole::Voter, PeerRole::Learner, PeerRole::Voter]);
    assert_eq!(told[3].1.removed.unconfirmed.len(), 1);
    assert_eq!(told[4].1.removed.unconfirmed, []);
    assert_eq!(region_2(&store), told[4].1);
    store.check().unwrap();
    // One index, one row: after any crash the two fit together.
    store.checkpoint().unwrap();
    drop(store);
    fs.power_loss(1);
    let (_, found) = open(&fs);
    let found = found.into_iter().find(|found| found.descriptor.id.0 == 2).unwrap();
    assert_eq!((found.descriptor, found.applied.0), (told[4].1.clone(), Index(6)));
}

#[test]
fn a_change_that_cannot_be_made_has_no_effect() {
    let (store, _) = open(&FaultFs::new(0));
    let applied = run_admin(
        &store,
        &[
            // R13: at the floor, which is that of replica 202.
            change_entry(1, 1, add(202, 3)),
            change_entry(2, 7, add(204, 3)),
            change_entry(3, 1, MembershipChange::LeaveJoint),
            change_entry(4, 1, remove(202)),
        ],
    );
    assert_eq!(applied.replicas[0].changes, []);
    let current = vec![region(2, Space::Raw, "", "h")];
    assert_eq!(
        rejects(&applied),
        [
            ApplyReject::InvalidMembership(MembershipError::Floor(PeerId(202))),
            ApplyReject::EpochNotMatch { current: current.clone() },
            ApplyReject::InvalidMembership(MembershipError::NotJoint),
            ApplyReject::InvalidMembership(MembershipError::NotLearner(PeerId(202))),
        ]
    );
    assert_eq!(region_2(&store), current[0]);
    assert_eq!(store.read().applied(RegionId(2)).unwrap(), Index(4), "the entries count");
}

#[test]
fn an_id_that_was_removed_is_not_added_again() {
    let (store, _) = open(&FaultFs::new(0));
    let applied = run_admin(
        &store,
        &[
            change_entry(1, 1, add(203, 3)),
            change_entry(2, 2, remove(203)),
            forget_entry(3, 203),
            change_entry(4, 3, add(203, 3)),
        ],
    );
    let (_, last) = applied.outcomes.last().unwrap();
    let floor = MembershipError::Floor(PeerId(203));
    assert_eq!(*last, ApplyOutcome::Rejected(ApplyReject::InvalidMembership(floor)));
}

#[test]
fn a_replica_that_applies_its_own_removal_is_found_by_the_next_start() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let entries = [change_entry(1, 1, demote(201)), change_entry(2, 2, remove(201))];
    let applied = run_admin(&store, &entries);
    let [replica] = &applied.replicas[..] else { panic!("{applied:?}") };
    assert_eq!((replica.peer, replica.changes.len()), (PeerId(201), 2));
    // Entries behind it are applied as well, until it ends.
    let rest = run(&store, 2, &[ops(3, &[put("a", "1")])]);
    assert_eq!(rest, [ApplyOutcome::Done]);
    store.check().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    fs.power_loss(1);
    let (store, found) = open(&fs);
    let found = found.into_iter().find(|found| found.descriptor.id.0 == 2).unwrap();
    assert_eq!((found.peer, found.descriptor.peer_on(HERE)), (PeerId(201), None));
    store.check().unwrap();
}
