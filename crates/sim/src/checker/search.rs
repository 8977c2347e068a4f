//! The search for an order: Wing and Gong's, with a memory of what was tried as Lowe proposed.
//!
//! Calls and returns stand in one list by moment. An operation may come next if its call stands
//! before the first return left in the list. Placing it takes both of its marks out; if the search
//! gets stuck, the last placed one is put back. A set of (operations placed, value held) keeps it
//! from walking the same way twice.
//!
//! Four things keep it nearly linear on histories of a register:
//! - An operation that changes nothing is placed as soon as it can be, and never tried elsewhere.
//! - A value that has still to be observed is overwritten only if it can be written once more.
//! - Writes that no read observed are all the same, and come right before another write.
//! - Operations without an answer have a call and no return. They need not be placed; those that
//!   could explain nothing are left out, and of equal ones only the earliest is tried.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasherDefault;

use super::bit_set::{BitSet, WordHasher};
use super::history_list::{HistoryEvent, HistoryList};
use super::register::{RegisterAction, RegisterAnswer, RegisterOp, RegisterValue, Violation};
use super::search_op::{RegisterStep, SearchOp, UNOBSERVED, ValueNumber, ValueUses};

/// Steps after which the search gives up: some seconds.
const STEPS_MAX: u64 = 20_000_000;
/// Of the walk for a report.
const REPORT_STEPS_MAX: u64 = 500_000;
/// Operations before the stuck one that a report shows.
const SHOWN_BEFORE: usize = 12;

pub(super) fn search(operations: &[RegisterOp]) -> Result<(), Violation> {
    let mut numbering = ValueNumbers::default();
    let mut items = Vec::with_capacity(operations.len());
    for (source, operation) in operations.iter().enumerate() {
        items.extend(numbering.item(source, operation)?);
    }
    drop_unobserved_writes(&mut items);
    // Operations with an answer come first: then a placed prefix of them is a prefix of the bits.
    items.sort_by_key(|item| (item.returned.is_none(), item.called, item.source));
    let mut latest = BTreeMap::new();
    for (place, item) in items.iter_mut().enumerate() {
        if item.returned.is_none() {
            item.twin = latest.insert(item.step, place);
        }
    }
    let required = items.iter().filter(|item| item.returned.is_some()).count();
    let mut search = Search {
        uses: ValueUses::new(numbering.values.len() + 1, &items),
        list: HistoryList::new(items.iter().map(|item| (item.called, item.returned))),
        placed: BitSet::new(items.len()),
        visited: HashSet::default(),
        path: Vec::new(),
        deepest: DeepestPath::default(),
        looks_ahead: true,
        items,
    };
    search.run(required, STEPS_MAX).map_err(|end| match end {
        SearchEnd::GaveUp(steps) => Violation::Undecided { steps },
        SearchEnd::NoOrder => {
            search.walk_far(required);
            search.report(operations, &numbering)
        }
    })
}

/// Values by number.
#[derive(Default)]
struct ValueNumbers<'a> {
    numbers: BTreeMap<&'a [u8], ValueNumber>,
    values: Vec<&'a bytes::Bytes>,
}

impl<'a> ValueNumbers<'a> {
    fn number(&mut self, value: &'a RegisterValue) -> ValueNumber {
        let Some(value) = value else { return 0 };
        self.number_of(value)
    }

    fn number_of(&mut self, value: &'a bytes::Bytes) -> ValueNumber {
        *self.numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            ValueNumber::try_from(self.values.len())
                .expect("fewer than 2^32 operations fit into memory")
        })
    }

    fn value(&self, held: ValueNumber) -> RegisterValue {
        if held == UNOBSERVED {
            return Some(bytes::Bytes::from_static(b"(a value that nobody saw)"));
        }
        let place = (held as usize).checked_sub(1)?;
        Some(self.values[place].clone())
    }

    /// The operation as the search sees it; `None` for a get without an answer, which says nothing.
    fn item(
        &mut self,
        source: usize,
        operation: &'a RegisterOp,
    ) -> Result<Option<SearchOp>, Violation> {
        let answer = operation.returned.as_ref().map(|(_, answer)| answer);
        let step = match (&operation.action, answer) {
            (RegisterAction::Get, None) => return Ok(None),
            (RegisterAction::Get, Some(RegisterAnswer::Seen(seen))) => {
                RegisterStep::Read(self.number(seen))
            }
            (RegisterAction::Put(value), None | Some(RegisterAnswer::Done)) => {
                RegisterStep::Write(self.number_of(value))
            }
            (RegisterAction::Delete, None | Some(RegisterAnswer::Done)) => RegisterStep::Write(0),
            (RegisterAction::Expire(value), None | Some(RegisterAnswer::Done)) => {
                RegisterStep::Expire(self.number_of(value))
            }
            (RegisterAction::Swap { expected, value }, None) => {
                RegisterStep::Swap { expected: self.number(expected), value: self.number(value) }
            }
            (
                RegisterAction::Swap { expected, value },
                Some(RegisterAnswer::Swapped { succeeded: true, previous }),
            ) if previous == expected => {
                RegisterStep::Swap { expected: self.number(expected), value: self.number(value) }
            }
            (
                RegisterAction::Swap { expected, .. },
                Some(RegisterAnswer::Swapped { succeeded: false, previous }),
            ) if previous != expected => RegisterStep::Miss {
                expected: self.number(expected),
                previous: self.number(previous),
            },
            // Among them a swap whose answer contradicts itself, which no order could show.
            _ => return Err(Violation::Mismatch(Box::new(operation.clone()))),
        };
        let returned = operation.returned.as_ref().map(|(at, _)| *at);
        Ok(Some(SearchOp { source, called: operation.called, returned, step, twin: None }))
    }
}

/// Marks the writes whose value no operation observed. Those of unknown fate are left out: an order
/// with such a write stays valid without it, because no operation between it and the next write
/// observed the register. Of the others it does not matter which value they wrote.
fn drop_unobserved_writes(items: &mut Vec<SearchOp>) {
    let mut needed = BTreeSet::new();
    loop {
        let before = needed.len();
        for item in items.iter() {
            match item.step {
                RegisterStep::Read(held) | RegisterStep::Miss { previous: held, .. } => {
                    needed.insert(held)
                }
                RegisterStep::Swap { expected, value } => {
                    (item.returned.is_some() || needed.contains(&value)) && needed.insert(expected)
                }
                // Its end may be seen, if it itself is not.
                RegisterStep::Expire(value) => needed.insert(value),
                RegisterStep::Write(_) => false,
            };
        }
        if needed.len() == before {
            break;
        }
    }
    items.retain_mut(|item| match &mut item.step {
        RegisterStep::Write(value) if !needed.contains(value) => {
            *value = UNOBSERVED;
            item.returned.is_some()
        }
        RegisterStep::Swap { value, .. } => item.returned.is_some() || needed.contains(value),
        RegisterStep::Write(_)
        | RegisterStep::Read(_)
        | RegisterStep::Miss { .. }
        | RegisterStep::Expire(_) => true,
    });
}

enum SearchEnd {
    NoOrder,
    GaveUp(u64),
}

/// How far the best try came.
#[derive(Default)]
struct DeepestPath {
    placed: usize,
    held: ValueNumber,
    stuck: Option<usize>,
}

struct Search {
    items: Vec<SearchOp>,
    uses: ValueUses,
    list: HistoryList,
    placed: BitSet,
    visited: HashSet<(Box<[u64]>, ValueNumber), BuildHasherDefault<WordHasher>>,
    /// Operations placed so far, each with the value held before it.
    path: Vec<(usize, ValueNumber)>,
    deepest: DeepestPath,
    /// Whether values that are still to be observed stay.
    looks_ahead: bool,
}

impl Search {
    /// Finds for the report how far an order comes that does not look ahead: the operation at which
    /// it is stuck says more than one that must not come yet.
    fn walk_far(&mut self, required: usize) {
        let deepest = std::mem::take(&mut self.deepest);
        self.visited.clear();
        self.looks_ahead = false;
        match self.run(required, REPORT_STEPS_MAX) {
            Ok(()) => unreachable!("there was no order"),
            Err(SearchEnd::NoOrder) => {}
            Err(SearchEnd::GaveUp(_)) => self.deepest = deepest,
        }
    }

    fn run(&mut self, required: usize, steps_max: u64) -> Result<(), SearchEnd> {
        let (mut held, mut left, mut steps) = (0, required, 0);
        let mut event = self.place_neutral(&mut held, &mut left);
        let mut unobserved = self.unobserved(held);
        while left > 0 {
            steps += 1;
            if steps > steps_max {
                return Err(SearchEnd::GaveUp(steps));
            }
            match self.list.kind(event) {
                HistoryEvent::Call(place) => {
                    if let Some(next) = self.place(place, held, unobserved) {
                        self.enter(place, &mut held, next, &mut left);
                        event = self.place_neutral(&mut held, &mut left);
                        unobserved = self.unobserved(held);
                    } else {
                        event = self.list.after(event);
                    }
                }
                HistoryEvent::Return(place) => {
                    if self.deepest.stuck.is_none() || self.path.len() > self.deepest.placed {
                        self.deepest =
                            DeepestPath { placed: self.path.len(), held, stuck: Some(place) };
                    }
                    event = self.backtrack(&mut held, &mut left).ok_or(SearchEnd::NoOrder)?;
                    unobserved = self.unobserved(held);
                }
            }
        }
        Ok(())
    }

    /// Places everything that changes nothing and may come next: if there is a good order with such
    /// an operation later, there is one with it now. Returns where to go on.
    fn place_neutral(&mut self, held: &mut ValueNumber, left: &mut usize) -> usize {
        let mut event = self.list.first();
        while *left > 0 {
            let HistoryEvent::Call(place) = self.list.kind(event) else { break };
            event = self.list.after(event);
            if self.items[place].step.is_neutral(*held, &self.uses) {
                self.placed.set(place);
                self.enter(place, held, *held, left);
                // One return less may let more operations come next, and earlier ones are theirs.
                event = self.list.first();
            }
        }
        self.list.first()
    }

    /// An unobserved write that may come next. It costs nothing right before another write, so
    /// while there is one no other write is tried.
    fn unobserved(&self, held: ValueNumber) -> Option<usize> {
        let mut event = self.list.first();
        while held != UNOBSERVED && event > 0 {
            let HistoryEvent::Call(place) = self.list.kind(event) else { break };
            if self.items[place].step == RegisterStep::Write(UNOBSERVED) {
                return Some(place);
            }
            event = self.list.after(event);
        }
        None
    }

    /// Places an operation if it may come next and leads to where the search has not been.
    fn place(
        &mut self,
        place: usize,
        held: ValueNumber,
        unobserved: Option<usize>,
    ) -> Option<ValueNumber> {
        let item = &self.items[place];
        let is_overtaken = unobserved.is_some_and(|unobserved| unobserved != place);
        // While there is an unobserved write no other write is tried, and of twins only the
        // earliest: either may come wherever the other may.
        if is_overtaken && matches!(item.step, RegisterStep::Write(_))
            || item.twin.is_some_and(|twin| !self.placed.get(twin))
        {
            return None;
        }
        let next = item.step.apply(held)?;
        if self.looks_ahead && next != held && self.uses.is_missed(held, item) {
            return None;
        }
        self.placed.set(place);
        // Which operations are placed and what the register holds decide all that can follow, not
        // the order in which they came.
        if self.visited.insert((self.placed.trimmed(), next)) {
            return Some(next);
        }
        self.placed.clear(place);
        None
    }

    fn enter(&mut self, place: usize, held: &mut ValueNumber, next: ValueNumber, left: &mut usize) {
        self.path.push((place, *held));
        self.uses.change(&self.items[place], |count| *count -= 1);
        *held = next;
        *left -= usize::from(self.items[place].returned.is_some());
        self.list.lift(place);
    }

    /// Puts the last operation back that might have been another one, and all after it. Returns
    /// where to go on.
    fn backtrack(&mut self, held: &mut ValueNumber, left: &mut usize) -> Option<usize> {
        loop {
            let (last, before) = self.path.pop()?;
            self.uses.change(&self.items[last], |count| *count += 1);
            *held = before;
            *left += usize::from(self.items[last].returned.is_some());
            self.placed.clear(last);
            self.list.unlift(last);
            // One that changed nothing was right where it was, so nothing else is tried in its
            // place.
            if !self.items[last].step.is_neutral(before, &self.uses) {
                return Some(self.list.after(HistoryList::call(last)));
            }
        }
    }

    fn report(&self, operations: &[RegisterOp], numbering: &ValueNumbers<'_>) -> Violation {
        let stuck = self.deepest.stuck.expect("a search that fails was stuck somewhere");
        let stuck = &operations[self.items[stuck].source];
        let end = stuck.returned.as_ref().map_or(u64::MAX, |(at, _)| *at);
        let mut around: Vec<_> = operations.iter().filter(|o| o.called <= end).cloned().collect();
        around.sort_by_key(|operation| {
            operation.returned.as_ref().map_or(operation.called, |(at, _)| *at)
        });
        around.drain(..around.len().saturating_sub(SHOWN_BEFORE));
        Violation::Impossible {
            stuck: Box::new(stuck.clone()),
            placed: self.deepest.placed,
            held: numbering.value(self.deepest.held),
            around,
        }
    }
}
