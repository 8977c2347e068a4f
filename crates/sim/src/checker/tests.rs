//! Histories that are known to be right or wrong.

use bytes::Bytes;

use super::*;

fn value(text: &str) -> RegisterValue {
    (!text.is_empty()).then(|| Bytes::copy_from_slice(text.as_bytes()))
}

fn put(called: u64, returned: u64, text: &str) -> RegisterOp {
    let action = RegisterAction::Put(value(text).unwrap());
    let returned = (returned > 0).then_some((returned, RegisterAnswer::Done));
    RegisterOp { client: 1, called, action, returned }
}

fn delete(called: u64, returned: u64) -> RegisterOp {
    let returned = (returned > 0).then_some((returned, RegisterAnswer::Done));
    RegisterOp { client: 1, called, action: RegisterAction::Delete, returned }
}

fn expire(called: u64, returned: u64, text: &str) -> RegisterOp {
    let returned = (returned > 0).then_some((returned, RegisterAnswer::Done));
    let action = RegisterAction::Expire(value(text).unwrap());
    RegisterOp { client: 1, called, action, returned }
}

fn get(called: u64, returned: u64, text: &str) -> RegisterOp {
    let returned = Some((returned, RegisterAnswer::Seen(value(text))));
    RegisterOp { client: 2, called, action: RegisterAction::Get, returned }
}

fn swap(called: u64, returned: u64, expected: &str, new: &str, previous: &str) -> RegisterOp {
    let action = RegisterAction::Swap { expected: value(expected), value: value(new) };
    let answer =
        RegisterAnswer::Swapped { succeeded: expected == previous, previous: value(previous) };
    RegisterOp { client: 3, called, action, returned: (returned > 0).then_some((returned, answer)) }
}

fn good(operations: &[RegisterOp]) {
    assert_eq!(check(operations), Ok(()));
}

fn bad(operations: &[RegisterOp]) {
    let found = check(operations);
    assert!(matches!(found, Err(Violation::Impossible { .. })), "accepted or undecided: {found:?}");
}

#[test]
fn an_empty_history_is_good() {
    good(&[]);
}

#[test]
fn one_after_the_other() {
    good(&[put(1, 2, "a"), get(3, 4, "a"), delete(5, 6), get(7, 8, "")]);
    bad(&[put(1, 2, "a"), get(3, 4, "")]);
    bad(&[put(1, 2, "a"), delete(3, 4), get(5, 6, "a")]);
    bad(&[get(1, 2, "a"), put(3, 4, "a")]);
}

#[test]
fn an_overlapping_put_may_be_seen_or_not() {
    good(&[put(1, 10, "a"), get(2, 3, "a")]);
    good(&[put(1, 10, "a"), get(2, 3, "")]);
    good(&[put(1, 10, "a"), get(2, 3, ""), get(4, 5, "a")]);
    bad(&[put(1, 10, "a"), get(2, 3, "a"), get(4, 5, "")]);
}

#[test]
fn equal_moments_overlap() {
    good(&[put(1, 5, "a"), get(5, 6, "")]);
    bad(&[put(1, 4, "a"), get(5, 6, "")]);
}

#[test]
fn a_stale_read_is_found() {
    bad(&[put(1, 2, "a"), put(3, 4, "b"), get(5, 6, "a")]);
    bad(&[put(1, 2, "a"), put(3, 9, "b"), get(4, 5, "b"), get(6, 7, "a")]);
}

#[test]
fn a_lost_write_is_found() {
    bad(&[put(1, 2, "a"), get(10, 11, ""), put(12, 13, "b")]);
}

#[test]
fn two_readers_agree_on_the_order_of_two_puts() {
    let puts = [put(1, 20, "a"), put(1, 20, "b")];
    good(&[&puts[..], &[get(2, 3, "a"), get(4, 5, "b")]].concat());
    bad(&[&puts[..], &[get(2, 3, "a"), get(4, 5, "b"), get(6, 7, "a")]].concat());
}

#[test]
fn an_unknown_put_may_come_late_or_never() {
    good(&[put(1, 2, "a"), put(3, 0, "b"), get(4, 5, "a"), get(100, 101, "a")]);
    good(&[put(1, 2, "a"), put(3, 0, "b"), get(4, 5, "a"), get(100, 101, "b")]);
    bad(&[put(1, 2, "a"), put(3, 0, "b"), get(4, 5, "b"), get(6, 7, "a")]);
    bad(&[get(1, 2, "b"), put(3, 0, "b")]);
}

#[test]
fn an_unknown_delete_may_come_late_but_once() {
    good(&[put(1, 2, "a"), delete(3, 0), get(4, 5, "a"), get(6, 7, "")]);
    bad(&[put(1, 2, "a"), delete(3, 0), get(4, 5, ""), put(6, 7, "b"), get(8, 9, "")]);
    let two = [put(1, 2, "a"), delete(3, 0), delete(3, 0)];
    good(&[&two[..], &[get(4, 5, ""), put(6, 7, "b"), get(8, 9, "")]].concat());
}

#[test]
fn a_value_is_gone_at_one_moment_of_its_time() {
    let (overwrite, put) = (put(3, 4, "b"), put(1, 2, "a"));
    good(&[put.clone(), expire(10, 20, "a"), get(5, 6, "a"), get(12, 13, "a"), get(14, 15, "")]);
    bad(&[put.clone(), expire(10, 20, "a"), get(5, 6, "")]);
    bad(&[put.clone(), expire(10, 20, "a"), get(21, 22, "a")]);
    bad(&[put.clone(), expire(10, 20, "a"), get(12, 13, ""), get(14, 15, "a")]);
    // One that was overwritten leaves the next alone.
    good(&[put.clone(), overwrite.clone(), expire(10, 20, "a"), get(21, 22, "b")]);
    bad(&[put.clone(), overwrite, expire(10, 20, "a"), get(21, 22, "")]);
    // Without an answer to the put it may be gone late or never.
    good(&[put.clone(), expire(10, 0, "a"), get(50, 51, "a"), get(52, 53, "")]);
    good(&[put, expire(10, 0, "a"), get(50, 51, "a")]);
}

#[test]
fn swaps_hold_or_miss() {
    good(&[put(1, 2, "a"), swap(3, 4, "a", "b", "a"), get(5, 6, "b")]);
    good(&[put(1, 2, "a"), swap(3, 4, "x", "b", "a"), get(5, 6, "a")]);
    good(&[swap(1, 2, "", "b", ""), swap(3, 4, "b", "", "b"), get(5, 6, "")]);
    bad(&[put(1, 2, "a"), swap(3, 4, "a", "b", "a"), get(5, 6, "a")]);
    // Of two swaps from the same value only one can win.
    bad(&[put(1, 2, "a"), swap(3, 9, "a", "b", "a"), swap(3, 9, "a", "c", "a")]);
    good(&[put(1, 2, "a"), swap(3, 9, "a", "b", "a"), swap(3, 9, "a", "c", "b")]);
}

#[test]
fn an_unknown_swap_needs_what_it_expects() {
    good(&[put(1, 2, "a"), swap(3, 0, "a", "b", ""), get(4, 5, "b")]);
    bad(&[put(1, 2, "a"), swap(3, 0, "x", "b", ""), get(4, 5, "b")]);
    // An unknown put may be what an unknown swap needed.
    good(&[put(1, 2, "a"), put(3, 0, "x"), swap(3, 0, "x", "b", ""), get(4, 5, "b")]);
}

#[test]
fn an_answer_of_another_kind_is_refused() {
    let mut wrong = get(1, 2, "a");
    wrong.returned = Some((2, RegisterAnswer::Done));
    assert_eq!(check(&[wrong.clone()]), Err(Violation::Mismatch(Box::new(wrong))));
    let mut wrong = swap(1, 2, "a", "b", "a");
    wrong.returned = Some((2, RegisterAnswer::Swapped { succeeded: true, previous: None }));
    assert!(matches!(check(&[wrong]), Err(Violation::Mismatch(_))));
}

/// Without a look ahead the search overwrites one value after the other that has to be seen yet.
#[test]
fn many_overlapping_writes_that_are_all_seen_are_no_trouble() {
    let name = |number: u64| format!("v{number}");
    let writes = (0..60).map(|number| put(1, 1000, &name(number)));
    let seen = (0..60).map(|place| (place * 37 + 11) % 60);
    let reads =
        (0..).zip(seen).map(|(place, number)| get(2 + 2 * place, 3 + 2 * place, &name(number)));
    let mut history: Vec<_> = writes.chain(reads).collect();
    good(&history);
    history.push(get(500, 501, &name(11)));
    bad(&history);
}

#[test]
fn the_report_names_the_stuck_operation() {
    let history = [put(1, 2, "a"), put(3, 4, "b"), get(5, 6, "a"), get(7, 8, "b")];
    let Err(Violation::Impossible { stuck, placed, held, around }) = check(&history) else {
        panic!("accepted");
    };
    assert_eq!((*stuck, placed, held), (history[2].clone(), 2, value("b")));
    assert_eq!(around, history[..3]);
}

/// Every order of a few operations, tried by brute force.
fn explained(operations: &[RegisterOp], held: &RegisterValue, placed: &mut Vec<bool>) -> bool {
    let open = |place: &usize| !placed[*place];
    let left: Vec<_> = (0..operations.len()).filter(open).collect();
    if left.iter().all(|place| operations[*place].returned.is_none()) {
        return true;
    }
    let first_return = left
        .iter()
        .filter_map(|place| operations[*place].returned.as_ref().map(|(at, _)| *at))
        .min()
        .unwrap();
    left.iter().filter(|place| operations[**place].called <= first_return).any(|place| {
        let operation = &operations[*place];
        let answer = operation.returned.as_ref().map(|(_, answer)| answer);
        let (next, expected) = match &operation.action {
            RegisterAction::Get => (held.clone(), RegisterAnswer::Seen(held.clone())),
            RegisterAction::Put(value) => (Some(value.clone()), RegisterAnswer::Done),
            RegisterAction::Delete => (None, RegisterAnswer::Done),
            RegisterAction::Swap { expected, value } => {
                let succeeded = expected == held;
                let next = if succeeded { value.clone() } else { held.clone() };
                (next, RegisterAnswer::Swapped { succeeded, previous: held.clone() })
            }
            RegisterAction::Expire(value) => {
                let is_held = held.as_ref() == Some(value);
                (if is_held { None } else { held.clone() }, RegisterAnswer::Done)
            }
        };
        if answer.is_some_and(|answer| *answer != expected) {
            return false;
        }
        placed[*place] = true;
        let found = explained(operations, &next, placed);
        placed[*place] = false;
        found
    })
}

#[test]
fn random_small_histories_agree_with_brute_force() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..40_000 {
        let mut history = Vec::new();
        for number in 0..rng.u64(2..7) {
            let called = rng.u64(1..20);
            let returned = if rng.u8(0..4) == 0 { 0 } else { called + rng.u64(1..8) };
            let texts = ["", "a", "b", "c"];
            let new = ["a", "b", "c", "d", "e"][rng.usize(0..5)];
            let seen = texts[rng.usize(0..4)];
            history.push(match rng.u8(0..7) {
                0 => delete(called, returned),
                6 => expire(called, returned, new),
                1 | 2 => put(called, returned, new),
                3 => swap(called, returned, texts[rng.usize(0..4)], new, seen),
                _ => get(called, called + 1 + number, seen),
            });
        }
        let expected = explained(&history, &None, &mut vec![false; history.len()]);
        assert_eq!(check(&history).is_ok(), expected, "{history:#?}");
        *(if expected { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn many_writes_at_once_are_quick() {
    // A hundred puts are held up together, some are seen afterwards, one after the other.
    let mut history: Vec<_> =
        (0..100).map(|number| put(1 + number, 1_000, &number.to_string())).collect();
    let mut moment = 200;
    for seen in [7, 70, 33, 50] {
        for _ in 0..30 {
            let returned = Some((moment + 40, RegisterAnswer::Seen(value(&seen.to_string()))));
            history.push(RegisterOp {
                client: 2,
                called: moment,
                action: RegisterAction::Get,
                returned,
            });
            moment += 1;
        }
        moment += 100;
    }
    good(&history);
    history.push(get(moment, moment + 1, "7"));
    bad(&history);
}

#[test]
fn many_registers_are_checked_by_themselves() {
    let mut history = History::default();
    let put_a = history.call("a", 1, 1, RegisterAction::Put(value("1").unwrap()));
    let put_b = history.call("b", 1, 2, RegisterAction::Put(value("2").unwrap()));
    history.answer(put_a, 3, RegisterAnswer::Done);
    history.answer(put_b, 4, RegisterAnswer::Done);
    let lost = history.call("a", 1, 5, RegisterAction::Delete);
    history.forget(lost);
    history.call("b", 1, 5, RegisterAction::Delete);
    let read = history.call("a", 2, 6, RegisterAction::Get);
    history.answer(read, 7, RegisterAnswer::Seen(value("1")));
    assert_eq!(history.check(), Ok(CheckedCounts { keys: 2, operations: 4, unknown: 1 }));
    let read = history.call("b", 2, 8, RegisterAction::Get);
    history.answer(read, 9, RegisterAnswer::Seen(value("1")));
    assert!(matches!(history.check(), Err(("b", Violation::Impossible { .. }))));
}

#[test]
fn a_long_history_is_quick() {
    // 2,000 operations, up to eight at a time, with an unknown write every tenth.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut held: RegisterValue = None;
    let mut history = Vec::new();
    for number in 1..2_000_u64 {
        let at = number * 10;
        let (called, returned) = (at - rng.u64(0..40).min(at - 1), at + rng.u64(1..40));
        let text = number.to_string();
        history.push(match rng.u8(0..10) {
            0 => put(called, 0, &text),
            1 => {
                held = None;
                delete(called, returned)
            }
            2..=4 => {
                held = value(&text);
                put(called, returned, &text)
            }
            _ => {
                let returned = Some((returned, RegisterAnswer::Seen(held.clone())));
                RegisterOp { client: 1, called, action: RegisterAction::Get, returned }
            }
        });
    }
    good(&history);
}
