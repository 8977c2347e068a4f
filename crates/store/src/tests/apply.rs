//! Committed entries become rows, and proposals get their outcomes.

use crate::{ApplyOutcome, ApplyReject, Error};
use bytes::Bytes;
use flotilla_region::{Index, RegionId, Ticket};
use flotilla_vfs::fault::FaultFs;

use super::*;

fn swapped(succeeded: bool, previous: Option<&str>) -> ApplyOutcome {
    ApplyOutcome::Swapped { succeeded, previous: previous.map(|text| Bytes::from(text.to_owned())) }
}

fn indexes(applied: &crate::Applied) -> Vec<(RegionId, Index)> {
    applied.replicas.iter().map(|replica| (replica.region, replica.index)).collect()
}

#[test]
fn entries_of_many_regions_become_visible_at_once() {
    let (store, _) = open(&FaultFs::new(0));
    let (two, three) = ([ops(1, &[put("a", "1"), put("b", "")])], [ops(1, &[put("k", "2")])]);
    append(&store, 2, &two, 1);
    append(&store, 3, &three, 1);
    let before = store.read();
    let applied = store.apply(&[task(2, &two), task(3, &three)]).unwrap();
    assert_eq!(indexes(&applied), [(RegionId(2), Index(1)), (RegionId(3), Index(1))]);
    assert_eq!(
        applied.outcomes,
        [(Ticket(10), ApplyOutcome::Done), (Ticket(10), ApplyOutcome::Done)]
    );
    assert_eq!(get(&store, 2, "a").unwrap(), "1");
    assert_eq!(get(&store, 2, "b").unwrap(), "", "an empty value is there");
    assert_eq!(get(&store, 3, "k").unwrap(), "2");
    assert_eq!(get(&store, 2, "c"), None);
    let old = before.region(RegionId(2), None).unwrap();
    assert_eq!(old.get(b"a").unwrap(), None, "a snapshot sees nothing later");
}

#[test]
fn spaces_do_not_meet() {
    let (store, _) = open(&FaultFs::new(0));
    run(&store, 1, &[ops(1, &[put("a", "system")])]);
    run(&store, 2, &[ops(1, &[put("a", "raw")])]);
    assert_eq!(get(&store, 1, "a").unwrap(), "system");
    assert_eq!(get(&store, 2, "a").unwrap(), "raw");
}

#[test]
fn an_entry_is_never_applied_twice() {
    let (store, _) = open(&FaultFs::new(0));
    let entries = [ops(1, &[put("a", "1")]), ops(2, &[swap("a", Some("1"), Some("2"))])];
    run(&store, 2, &entries);
    run(&store, 2, &[ops(3, &[put("a", "1")])]);
    let again = store.apply(&[task(2, &entries)]).unwrap();
    assert_eq!(indexes(&again), [(RegionId(2), Index(3))]);
    assert_eq!((again.entries, again.outcomes), (0, vec![]));
    assert_eq!(get(&store, 2, "a").unwrap(), "1");
}

#[test]
#[should_panic(expected = "region 2: entry 3 where 2 is due")]
fn an_entry_is_never_left_out() {
    let (store, _) = open(&FaultFs::new(0));
    run(&store, 2, &[ops(1, &[put("a", "1")])]);
    let _ = store.apply(&[task(2, &[ops(3, &[put("a", "3")])])]);
}

#[test]
fn an_empty_entry_advances_the_index() {
    let (store, _) = open(&FaultFs::new(0));
    let empty = entry(1, 1, Bytes::new());
    append(&store, 2, std::slice::from_ref(&empty), 1);
    let applied = store.apply(&[task(2, &[empty])]).unwrap();
    assert_eq!(indexes(&applied), [(RegionId(2), Index(1))]);
    assert_eq!(applied.outcomes, []);
}

#[test]
fn each_proposal_of_an_entry_has_its_own_outcome() {
    let (store, _) = open(&FaultFs::new(0));
    let mixed = data(&[
        (1, &[put("a", "1")]),
        (2, &[put("a", "of another version")]),
        (1, &[swap("a", Some("1"), Some("2")), put("b", "3")]),
        (1, &[]),
    ]);
    let outcomes = run(&store, 2, &[entry(1, 1, mixed)]);
    let current = vec![regions()[1].clone()];
    assert_eq!(outcomes[0], ApplyOutcome::Done);
    assert_eq!(outcomes[1], ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current }));
    assert_eq!(outcomes[2], swapped(true, Some("1")));
    assert_eq!(outcomes[3], ApplyOutcome::Done);
    assert_eq!(get(&store, 2, "a").unwrap(), "2");
    assert_eq!(get(&store, 2, "b").unwrap(), "3");
}

#[test]
fn a_swap_compares_and_tells_what_was_there() {
    let (store, _) = open(&FaultFs::new(0));
    let steps = [
        (swap("a", Some("1"), Some("2")), swapped(false, None), None),
        (swap("a", None, Some("")), swapped(true, None), Some("")),
        (swap("a", None, Some("2")), swapped(false, Some("")), Some("")),
        (swap("a", Some(""), Some("3")), swapped(true, Some("")), Some("3")),
        (swap("a", Some("2"), None), swapped(false, Some("3")), Some("3")),
        (swap("a", Some("3"), None), swapped(true, Some("3")), None),
        (swap("a", None, None), swapped(true, None), None),
    ];
    for (i, (op, outcome, value)) in (1..).zip(steps) {
        assert_eq!(run(&store, 2, &[ops(i, &[op])]), [outcome], "step {i}");
        assert_eq!(get(&store, 2, "a"), value.map(|v| Bytes::from(v.to_owned())), "step {i}");
    }
}

#[test]
fn operations_of_a_proposal_follow_one_another() {
    let (store, _) = open(&FaultFs::new(0));
    let all = [put("a", "1"), swap("a", Some("1"), Some("2")), put("b", "x"), delete("b")];
    assert_eq!(run(&store, 2, &[ops(1, &all)]), [swapped(true, Some("1"))]);
    assert_eq!(rows(&store, 2), [("a".into(), "2".into())]);
}

#[test]
fn deleting_a_range_ends_at_the_region() {
    let (store, _) = open(&FaultFs::new(0));
    run(&store, 2, &[ops(1, &[put("", "0"), put("a", "1"), put("c", "2"), put("g", "3")])]);
    run(&store, 3, &[ops(1, &[put("h", "4"), put("i", "5")])]);
    run(&store, 4, &[ops(1, &[put("p", "6"), put("z", "7")])]);
    run(&store, 2, &[ops(2, &[delete_range("b", Some("d"))])]);
    assert_eq!(rows(&store, 2).len(), 3);
    run(&store, 2, &[ops(3, &[delete_range("d", Some("b"))])]);
    assert_eq!(rows(&store, 2).len(), 3, "an inverted range is empty");
    run(&store, 2, &[ops(4, &[delete_range("b", Some("zzz"))])]);
    assert_eq!(rows(&store, 2), [("".into(), "0".into()), ("a".into(), "1".into())]);
    run(&store, 3, &[ops(2, &[delete_range("", None)])]);
    assert_eq!(rows(&store, 3), []);
    assert_eq!((rows(&store, 2).len(), rows(&store, 4).len()), (2, 2), "neighbours keep theirs");
    run(&store, 4, &[ops(2, &[delete_range("q", None)])]);
    assert_eq!(rows(&store, 4), [("p".into(), "6".into())]);
}

#[test]
fn a_proposal_with_a_key_outside_or_too_large_has_no_effect() {
    let (store, _) = open(&FaultFs::new(0));
    let outside = run(&store, 2, &[ops(1, &[put("a", "1"), put("x", "1")])]);
    assert_eq!(outside, [ApplyOutcome::Rejected(ApplyReject::KeyNotInRegion { key: "x".into() })]);
    let long = "b".repeat(9 << 10);
    for op in [put(&long, ""), delete(&long), swap(&long, None, None)] {
        let i = store.region_digest(RegionId(2)).unwrap().0.0 + 1;
        let outcomes = run(&store, 2, &[ops(i, &[put("a", "1"), op])]);
        assert!(
            matches!(
                outcomes[..],
                [ApplyOutcome::Rejected(ApplyReject::TooLarge { what: "a key", .. })]
            ),
            "{outcomes:?}"
        );
    }
    assert_eq!(rows(&store, 2), []);
}

#[test]
fn an_entry_that_cannot_be_read_stops_everything() {
    let (store, _) = open(&FaultFs::new(0));
    let good = [ops(1, &[put("k", "1")])];
    append(&store, 3, &good, 1);
    for bad in [Bytes::from_static(b"\x07"), Bytes::from_static(b"\x01\x01\x01\x63")] {
        let bad = [ops(1, &[put("a", "1")]), entry(2, 1, bad)];
        append(&store, 2, &bad, 2);
        let mut tasks = [task(3, &good), task(2, &bad)];
        tasks[1].entries[1].tickets.clear();
        let error = store.apply(&tasks).unwrap_err();
        assert!(
            matches!(error, Error::MalformedEntry { region: RegionId(2), index: Index(2), .. }),
            "{error}"
        );
        assert_eq!(get(&store, 3, "k"), None, "nothing of the transaction is seen");
        assert_eq!(store.region_digest(RegionId(2)).unwrap().0, Index(0));
    }
}

#[test]
fn an_unknown_region_is_an_error() {
    let (store, _) = open(&FaultFs::new(0));
    let error = store.apply(&[task(9, &[ops(1, &[])])]).unwrap_err();
    assert!(matches!(error, Error::NoRegion(RegionId(9))), "{error}");
    let error = store.region_digest(RegionId(9)).unwrap_err();
    assert!(matches!(error, Error::NoRegion(RegionId(9))), "{error}");
}

#[test]
fn digests_tell_replicas_apart() {
    let (one, _) = open(&FaultFs::new(0));
    let (other, _) = open(&FaultFs::new(1));
    let digest = |store: &crate::Store| store.region_digest(RegionId(2)).unwrap();
    assert_eq!(digest(&one), digest(&other));
    run(&one, 2, &[ops(1, &[put("a", "bc"), put("d", "")])]);
    run(&other, 2, &[ops(1, &[put("d", ""), put("a", "bc")])]);
    run(&other, 3, &[ops(1, &[put("k", "")])]);
    assert_eq!(digest(&one), digest(&other));
    run(&one, 2, &[ops(2, &[delete("d"), put("ab", "c")])]);
    run(&other, 2, &[ops(2, &[delete("d"), put("a", "bc"), put("ab", "c")])]);
    assert_eq!(digest(&one), digest(&other));
    run(&one, 2, &[ops(3, &[put("ab", "")])]);
    run(&other, 2, &[ops(3, &[delete("ab"), put("ac", "")])]);
    assert_ne!(digest(&one), digest(&other));
}
