//! Tests of the reference model.

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::{
    AdminCommand, Committed, EntryKind, Epoch, LogEntry, Peer, SPLIT_INDEX, SplitChild,
    SplitCommand,
};

use super::*;

const REGION: RegionId = RegionId(2);

fn region(id: RegionId, space: Space) -> Descriptor {
    let epoch = Epoch { conf_version: 1, version: 1 };
    let peers = vec![Peer { id: PeerId(id.0 * 100 + 1), store: StoreId(1) }.into()];
    Descriptor {
        removed: flotilla_region::RemovedPeers::default(),
        id,
        space,
        start: Bytes::new(),
        end: Bytes::new(),
        epoch,
        peers,
    }
}

fn model() -> ReferenceModel {
    ReferenceModel::new(&[region(RegionId(1), Space::System), region(REGION, Space::Raw)])
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// The key of a row of the default column family.
fn row(text: &'static str) -> RowKey {
    (ColumnFamily::Default, Bytes::from_static(text.as_bytes()))
}

/// An entry as the core makes it: a format byte, then version, length and operations.
fn entry(index: u64, term: u64, ops: &[&[RawOp]]) -> LogEntry {
    entry_of(index, term, ops.iter().map(|ops| raw::encode(ops)))
}

fn entry_of(index: u64, term: u64, commands: impl IntoIterator<Item = Bytes>) -> LogEntry {
    let mut data = vec![1];
    for command in commands {
        data.extend([1, u8::try_from(command.len()).unwrap()]);
        data.extend(command);
    }
    let data = if data.len() == 1 { Bytes::new() } else { data.into() };
    LogEntry { index: Index(index), term: Term(term), kind: EntryKind::Normal, data }
}

fn agree(
    reference_model: &mut ReferenceModel,
    entry: LogEntry,
    tickets: &[u64],
) -> Result<(), CheckFailure> {
    let tickets = tickets.iter().copied().map(Ticket).collect();
    let task = ApplyTask { region: REGION, entries: vec![Committed { entry, tickets }] };
    // Ticket n asked for a put of key n.
    reference_model.agree(StoreId(1), &task, |ticket| Some(raw::encode(&[put(ticket.0)])))
}

fn put(number: u64) -> RawOp {
    RawOp::put(number.to_string().into(), text("v"))
}

#[test]
fn replicas_that_agree_are_good_and_others_are_not() {
    let mut reference_model = model();
    assert_eq!(agree(&mut reference_model, entry(1, 1, &[]), &[]), Ok(()));
    assert_eq!(agree(&mut reference_model, entry(2, 1, &[&[put(1)]]), &[]), Ok(()));
    assert_eq!(agree(&mut reference_model, entry(1, 1, &[]), &[]), Ok(()));
    assert!(agree(&mut reference_model, entry(1, 2, &[]), &[]).is_err(), "other term");
    assert!(agree(&mut reference_model, entry(2, 1, &[&[put(2)]]), &[]).is_err(), "other data");
    assert!(agree(&mut reference_model, entry(4, 1, &[]), &[]).is_err(), "a gap");
    assert!(agree(&mut reference_model, entry(0, 1, &[]), &[]).is_err());
}

#[test]
fn tickets_belong_to_their_proposals() {
    let mut reference_model = model();
    let two: &[&[RawOp]] = &[&[put(7)], &[put(8)]];
    assert_eq!(agree(&mut reference_model, entry(1, 1, two), &[7, 8]), Ok(()));
    assert_eq!(
        reference_model.result(Ticket(8)),
        Some(&ProposalResult::Done(vec![OpResult::Done]))
    );
    assert_eq!(reference_model.result(Ticket(9)), None);
    assert!(agree(&mut reference_model, entry(1, 1, two), &[8, 7]).is_err());
    assert!(agree(&mut reference_model, entry(1, 1, two), &[7]).is_err());
}

#[test]
fn the_state_is_known_at_every_index() {
    let mut reference_model = model();
    let swap = |expected, value| {
        let (expected, value) = (Some(text(expected)), Some(text(value)));
        RawOp::CompareAndSwap { key: text("1"), expected, value, ttl_s: 0 }
    };
    let all = RawOp::DeleteRange { start: text("1"), end: Some(text("2")) };
    agree(&mut reference_model, entry(1, 1, &[&[put(1), put(2)]]), &[]).unwrap();
    agree(&mut reference_model, entry(2, 1, &[&[swap("v", "w")], &[swap("v", "x")]]), &[]).unwrap();
    agree(&mut reference_model, entry(3, 1, &[&[all]]), &[]).unwrap();
    let rows = |index| reference_model.rows(REGION, Index(index)).collect::<Vec<_>>();
    let (one, two, v, w) = (&row("1"), &row("2"), &text("v"), &text("w"));
    assert_eq!(rows(0), []);
    assert_eq!(rows(1), [(one, v), (two, v)]);
    assert_eq!(rows(2), [(one, w), (two, v)]);
    assert_eq!(rows(3), [(two, v)]);
    let swapped = |succeeded, previous: &Bytes| {
        let previous = Some(previous.clone());
        ProposalResult::Done(vec![OpResult::Swapped { succeeded, previous }])
    };
    let results = reference_model.regions[&REGION].results(Index(2));
    assert_eq!(*results, [swapped(true, v), swapped(false, w)]);
}

#[test]
fn a_key_has_a_value_in_each_column_family() {
    let mut reference_model = model();
    let put = |value| RawOp::put(text("1"), text(value));
    let all = RawOp::DeleteRange { start: text(""), end: None };
    for (index, family, op) in [
        (1, ColumnFamily::Default, put("d")),
        (2, ColumnFamily::Write, put("w")),
        (3, ColumnFamily::Default, all),
    ] {
        let command = raw::encode_in(family, 0, &[op]);
        agree(&mut reference_model, entry_of(index, 1, [command]), &[]).unwrap();
    }
    let rows = |index| reference_model.rows(REGION, Index(index)).collect::<Vec<_>>();
    let (one, other) = (&row("1"), &(ColumnFamily::Write, text("1")));
    assert_eq!(rows(2), [(one, &text("d")), (other, &text("w"))]);
    assert_eq!(rows(3), [(other, &text("w"))]);
}

#[test]
fn a_term_has_one_leader() {
    let mut reference_model = model();
    let mut lead = |term, id| {
        reference_model.lead(REGION, Term(term), Peer { id: PeerId(id), store: StoreId(1) })
    };
    assert_eq!(lead(1, 1), Ok(()));
    assert_eq!(lead(1, 1), Ok(()));
    assert_eq!(lead(2, 2), Ok(()));
    // Of the same store as well: a later replica of the region.
    assert!(lead(1, 2).is_err());
}

#[test]
fn a_replica_that_a_root_has_ended_is_not_there_and_notices_are_true() {
    let mut reference_model = model();
    let store = StoreId(1);
    let notice = |kind, peer| Notice {
        region: REGION,
        from: store,
        to: StoreId(2),
        kind,
        peer: PeerId(peer),
        epoch: Epoch::default(),
    };
    let says = |model: &ReferenceModel, kind, peer| model.check_notice(&notice(kind, peer)).is_ok();
    assert!(!says(&reference_model, NoticeKind::Ended, 1), "no root has it");
    reference_model.note_ended(store, REGION, PeerId(2));
    assert!(says(&reference_model, NoticeKind::Ended, 1));
    assert!(says(&reference_model, NoticeKind::Ended, 2));
    assert!(reference_model.check_alive(store, REGION, PeerId(2)).is_err());
    assert_eq!(reference_model.check_alive(store, REGION, PeerId(3)), Ok(()));
    assert_eq!(reference_model.check_alive(StoreId(2), REGION, PeerId(2)), Ok(()));
    for kind in [NoticeKind::Gone, NoticeKind::End] {
        let floor = reference_model.descriptor(REGION).unwrap().floor().0;
        assert!(!says(&reference_model, kind, floor), "it is listed");
        assert!(!says(&reference_model, kind, floor + 1), "it may come yet");
    }
    assert!(says(&reference_model, NoticeKind::WhoIs, 99));
}

fn split(index: u64, version: u64, child: u64, end: &'static str) -> LogEntry {
    let peers = vec![PeerId(child * 100 + 1)];
    let children = vec![SplitChild { id: RegionId(child), end: text(end), peers }];
    let epoch = Epoch { conf_version: 1, version };
    let data = AdminCommand::Split(SplitCommand { epoch, children }).encode();
    LogEntry { index: Index(index), term: Term(1), kind: EntryKind::Normal, data }
}

#[test]
fn a_child_is_born_with_the_rows_of_its_parent() {
    let mut reference_model = model();
    agree(&mut reference_model, entry(1, 1, &[&[put(1), put(2)]]), &[]).unwrap();
    assert_eq!(agree(&mut reference_model, split(2, 1, 7, "2"), &[]), Ok(()));
    let rows = |region, index| reference_model.rows(region, Index(index)).collect::<Vec<_>>();
    let (one, two, value) = (&row("1"), &row("2"), &text("v"));
    assert_eq!(rows(REGION, 1), [(one, value), (two, value)]);
    assert_eq!(rows(REGION, 2), [(two, value)]);
    assert_eq!(rows(RegionId(7), SPLIT_INDEX.0), [(one, value)]);
    assert_eq!(reference_model.region_of(b"1").id, RegionId(7));
    assert_eq!(reference_model.descriptor_at(REGION, Index(1)).unwrap().epoch.version, 1);
    // Proposals of the former version come too late.
    let one = entry(3, 1, &[&[put(1)]]);
    agree(&mut reference_model, one, &[1]).unwrap();
    assert_eq!(reference_model.result(Ticket(1)), Some(&ProposalResult::Rejected));
}

#[test]
fn ids_are_used_once() {
    let mut reference_model = model();
    agree(&mut reference_model, split(1, 1, 7, "5"), &[]).unwrap();
    assert_eq!(agree(&mut reference_model, split(2, 1, 7, "6"), &[]), Ok(()), "it is void");
    let again = agree(&mut reference_model, split(3, 2, 7, "6"), &[]);
    assert!(again.unwrap_err().contains("is not new"));
}
