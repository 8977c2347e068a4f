//! The search for an order: Wing and Gong's, with a memory of what was tried as Lowe proposed.
//!
//! Calls and returns stand in one list by moment. An operation may come next if its call stands
//! before the first return left in the list. Placing it takes both of its marks out; if the search
//! gets stuck, the last placed one is put back. A set of (operations placed, value held) keeps it
//! from walking the same way twice.
//!
//! Three things keep it nearly linear on histories of a register:
//! - What changes nothing is placed as soon as it can be, and never tried elsewhere.
//! - Writes that nobody saw are all the same, and come right before another write.
//! - Operations without an answer have a call and no return. They need not be placed; those that
//!   could explain nothing are left out, and of equal ones only the earliest is tried.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasherDefault;

use super::marks::{List, Mark};
use super::places::{Bits, Mixer};
use super::register::{Action, Answer, Operation, Value, Violation};

/// Steps after which the search gives up: some seconds.
const STEPS_MAX: u64 = 20_000_000;
/// Operations before the stuck one that a report shows.
const SHOWN_BEFORE: usize = 12;

/// A value by number, 0 for "nothing".
type Held = u32;
/// Any of the values that nobody saw.
const HIDDEN: Held = Held::MAX;

/// What an operation needs the register to hold, and leaves in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Write(Held),
    Read(Held),
    Swap {
        expected: Held,
        value: Held,
    },
    /// A swap that found something else.
    Miss {
        expected: Held,
        previous: Held,
    },
}

impl Step {
    fn apply(self, held: Held) -> Option<Held> {
        match self {
            Self::Write(value) => Some(value),
            Self::Read(seen) => (seen == held).then_some(held),
            Self::Swap { expected, value } => (expected == held).then_some(value),
            Self::Miss { expected, previous } => {
                (previous == held && expected != held).then_some(held)
            }
        }
    }

    /// Whether it may come next and would change nothing.
    fn is_free(self, held: Held) -> bool {
        match self {
            Self::Read(_) | Self::Miss { .. } => self.apply(held).is_some(),
            Self::Write(value) => value == HIDDEN && held == HIDDEN,
            Self::Swap { .. } => false,
        }
    }
}

/// One operation as the search sees it.
struct Item {
    /// Its place in the caller's list.
    source: usize,
    called: u64,
    /// `None` for an operation without an answer.
    returned: Option<u64>,
    step: Step,
    /// The nearest earlier operation without an answer and with the same step.
    twin: Option<usize>,
}

pub(super) fn search(operations: &[Operation]) -> Result<(), Violation> {
    let mut names = Names::default();
    let mut items = Vec::with_capacity(operations.len());
    for (source, operation) in operations.iter().enumerate() {
        items.extend(names.item(source, operation)?);
    }
    sort_out_unseen(&mut items);
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
        list: List::new(items.iter().map(|item| (item.called, item.returned))),
        placed: Bits::new(items.len()),
        tried: HashSet::default(),
        path: Vec::new(),
        deepest: Deepest::default(),
        items,
    };
    search.run(required).map_err(|stuck| match stuck {
        Stuck::GaveUp(steps) => Violation::Undecided { steps },
        Stuck::Proved => search.report(operations, &names),
    })
}

/// Values by number.
#[derive(Default)]
struct Names<'a> {
    numbers: BTreeMap<&'a [u8], Held>,
    values: Vec<&'a bytes::Bytes>,
}

impl<'a> Names<'a> {
    fn number(&mut self, value: &'a Value) -> Held {
        let Some(value) = value else { return 0 };
        self.number_of(value)
    }

    fn number_of(&mut self, value: &'a bytes::Bytes) -> Held {
        *self.numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            Held::try_from(self.values.len()).expect("fewer than 2^32 operations fit into memory")
        })
    }

    fn value(&self, held: Held) -> Value {
        if held == HIDDEN {
            return Some(bytes::Bytes::from_static(b"(a value that nobody saw)"));
        }
        let place = (held as usize).checked_sub(1)?;
        Some(self.values[place].clone())
    }

    /// The operation as the search sees it; `None` for a get without an answer, which says nothing.
    fn item(&mut self, source: usize, operation: &'a Operation) -> Result<Option<Item>, Violation> {
        let answer = operation.returned.as_ref().map(|(_, answer)| answer);
        let step = match (&operation.action, answer) {
            (Action::Get, None) => return Ok(None),
            (Action::Get, Some(Answer::Seen(seen))) => Step::Read(self.number(seen)),
            (Action::Put(value), None | Some(Answer::Done)) => Step::Write(self.number_of(value)),
            (Action::Delete, None | Some(Answer::Done)) => Step::Write(0),
            (Action::Swap { expected, value }, None) => {
                Step::Swap { expected: self.number(expected), value: self.number(value) }
            }
            (
                Action::Swap { expected, value },
                Some(Answer::Swapped { succeeded: true, previous }),
            ) if previous == expected => {
                Step::Swap { expected: self.number(expected), value: self.number(value) }
            }
            (
                Action::Swap { expected, .. },
                Some(Answer::Swapped { succeeded: false, previous }),
            ) if previous != expected => {
                Step::Miss { expected: self.number(expected), previous: self.number(previous) }
            }
            _ => return Err(Violation::Mismatch(Box::new(operation.clone()))),
        };
        let returned = operation.returned.as_ref().map(|(at, _)| *at);
        Ok(Some(Item { source, called: operation.called, returned, step, twin: None }))
    }
}

/// Tells the writes apart whose value nobody needs. Those of unknown fate are left out: an order
/// with such a write stays good without it, because whatever stood between it and the next write
/// looked at nothing. Of the others it does not matter which value they wrote.
fn sort_out_unseen(items: &mut Vec<Item>) {
    let mut needed = BTreeSet::new();
    loop {
        let before = needed.len();
        for item in items.iter() {
            match item.step {
                Step::Read(held) | Step::Miss { previous: held, .. } => needed.insert(held),
                Step::Swap { expected, value } => {
                    (item.returned.is_some() || needed.contains(&value)) && needed.insert(expected)
                }
                Step::Write(_) => false,
            };
        }
        if needed.len() == before {
            break;
        }
    }
    items.retain_mut(|item| match &mut item.step {
        Step::Write(value) if !needed.contains(value) => {
            *value = HIDDEN;
            item.returned.is_some()
        }
        Step::Swap { value, .. } => item.returned.is_some() || needed.contains(value),
        Step::Write(_) | Step::Read(_) | Step::Miss { .. } => true,
    });
}

enum Stuck {
    Proved,
    GaveUp(u64),
}

/// How far the best try came.
#[derive(Default)]
struct Deepest {
    placed: usize,
    held: Held,
    stuck: Option<usize>,
}

struct Search {
    items: Vec<Item>,
    list: List,
    placed: Bits,
    tried: HashSet<(Box<[u64]>, Held), BuildHasherDefault<Mixer>>,
    /// Operations placed so far, each with the value held before it.
    path: Vec<(usize, Held)>,
    deepest: Deepest,
}

impl Search {
    fn run(&mut self, required: usize) -> Result<(), Stuck> {
        let (mut held, mut left, mut steps) = (0, required, 0);
        let mut mark = self.place_free(&mut held, &mut left);
        let mut hidden = self.hidden(held);
        while left > 0 {
            steps += 1;
            if steps > STEPS_MAX {
                return Err(Stuck::GaveUp(steps));
            }
            match self.list.kind(mark) {
                Mark::Call(place) => {
                    if let Some(next) = self.place(place, held, hidden) {
                        self.enter(place, &mut held, next, &mut left);
                        mark = self.place_free(&mut held, &mut left);
                        hidden = self.hidden(held);
                    } else {
                        mark = self.list.after(mark);
                    }
                }
                Mark::Return(place) => {
                    if self.deepest.stuck.is_none() || self.path.len() > self.deepest.placed {
                        self.deepest =
                            Deepest { placed: self.path.len(), held, stuck: Some(place) };
                    }
                    mark = self.step_back(&mut held, &mut left).ok_or(Stuck::Proved)?;
                    hidden = self.hidden(held);
                }
            }
        }
        Ok(())
    }

    /// Places everything that changes nothing and may come next: if there is a good order with such
    /// an operation later, there is one with it now. Returns where to go on.
    fn place_free(&mut self, held: &mut Held, left: &mut usize) -> usize {
        let mut mark = self.list.first();
        while *left > 0 {
            let Mark::Call(place) = self.list.kind(mark) else { break };
            mark = self.list.after(mark);
            if self.items[place].step.is_free(*held) {
                self.placed.set(place);
                self.enter(place, held, *held, left);
                // One return less may let more operations come next, and earlier ones are theirs.
                mark = self.list.first();
            }
        }
        self.list.first()
    }

    /// A write that nobody saw and that may come next. It costs nothing right before another
    /// write, so while there is one no other write is tried.
    fn hidden(&self, held: Held) -> Option<usize> {
        let mut mark = self.list.first();
        while held != HIDDEN && mark > 0 {
            let Mark::Call(place) = self.list.kind(mark) else { break };
            if self.items[place].step == Step::Write(HIDDEN) {
                return Some(place);
            }
            mark = self.list.after(mark);
        }
        None
    }

    /// Places an operation if it may come next and leads to where the search has not been.
    fn place(&mut self, place: usize, held: Held, hidden: Option<usize>) -> Option<Held> {
        let item = &self.items[place];
        let is_overtaken = hidden.is_some_and(|hidden| hidden != place);
        if is_overtaken && matches!(item.step, Step::Write(_))
            || item.twin.is_some_and(|twin| !self.placed.get(twin))
        {
            return None;
        }
        let next = item.step.apply(held)?;
        self.placed.set(place);
        if self.tried.insert((self.placed.trimmed(), next)) {
            return Some(next);
        }
        self.placed.clear(place);
        None
    }

    fn enter(&mut self, place: usize, held: &mut Held, next: Held, left: &mut usize) {
        self.path.push((place, *held));
        *held = next;
        *left -= usize::from(self.items[place].returned.is_some());
        self.list.lift(place);
    }

    /// Puts the last operation back that might have been another one, and all after it. Returns
    /// where to go on.
    fn step_back(&mut self, held: &mut Held, left: &mut usize) -> Option<usize> {
        loop {
            let (last, before) = self.path.pop()?;
            *held = before;
            *left += usize::from(self.items[last].returned.is_some());
            self.placed.clear(last);
            self.list.put_back(last);
            if !self.items[last].step.is_free(before) {
                return Some(self.list.after(List::call(last)));
            }
        }
    }

    fn report(&self, operations: &[Operation], names: &Names<'_>) -> Violation {
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
            held: names.value(self.deepest.held),
            around,
        }
    }
}
