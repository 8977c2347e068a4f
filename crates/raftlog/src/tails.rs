//! Where each group's log will begin and end once all that is queued is written.
//!
//! A batch is checked against this when it is queued, so a wrong one is refused before it is
//! written, and batches behind it never fail because of it.

use crate::batch::{Append, Change};
use crate::error::Error;
use crate::groups::Groups;
use std::collections::HashMap;

/// Groups that queued batches change.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    queued: HashMap<u64, Queued>,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    tail: Option<Tail>,
    /// The last batch that changes the group. Once it is written, the index knows it all.
    ticket: u64,
}

/// The log of one group is `first .. next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    first: u64,
    next: u64,
}

impl Tails {
    /// Takes the changes of the batch `ticket` in, all of them or none.
    ///
    /// # Errors
    ///
    /// The first change that does not fit.
    pub(crate) fn admit(
        &mut self,
        changes: &[Change],
        ticket: u64,
        groups: &Groups,
    ) -> Result<(), Error> {
        let mut undo = Vec::new();
        for change in changes {
            let Some(group) = group_of(change) else { continue };
            let before = self.queued.get(&group).copied();
            let tail = before.map_or_else(|| tail_of(groups, group), |queued| queued.tail);
            match after(tail, change) {
                Ok(tail) => {
                    undo.push((group, before));
                    self.queued.insert(group, Queued { tail, ticket });
                }
                Err(error) => {
                    self.restore(undo);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Forgets the groups of a batch that is written and in the index, unless a later one is queued.
    pub(crate) fn settle(&mut self, changes: &[Change], ticket: u64) {
        for group in changes.iter().filter_map(group_of) {
            if self.queued.get(&group).is_some_and(|queued| queued.ticket <= ticket) {
                self.queued.remove(&group);
            }
        }
    }

    /// Forgets all: nothing is queued any more.
    pub(crate) fn clear(&mut self) {
        self.queued.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    fn restore(&mut self, undo: Vec<(u64, Option<Queued>)>) {
        for (group, before) in undo.into_iter().rev() {
            match before {
                Some(queued) => self.queued.insert(group, queued),
                None => self.queued.remove(&group),
            };
        }
    }
}

/// The group whose log the change moves; keys have no order to check.
fn group_of(change: &Change) -> Option<u64> {
    match change {
        Change::Append(append) => Some(append.group),
        Change::Compact { group, .. } | Change::Remove { group } => Some(*group),
        Change::Put { .. } | Change::Delete { .. } | Change::Discard { .. } => None,
    }
}

fn tail_of(groups: &Groups, group: u64) -> Option<Tail> {
    let index = groups.get(group)?;
    let index = index.read();
    index.has_begun().then(|| Tail { first: index.first(), next: index.next() })
}

fn after(tail: Option<Tail>, change: &Change) -> Result<Option<Tail>, Error> {
    Ok(match change {
        Change::Append(append) => Some(appended(tail, append)?),
        Change::Compact { first, .. } => {
            let tail = tail.unwrap_or(Tail { first: *first, next: *first });
            let first = tail.first.max(*first);
            Some(Tail { first, next: tail.next.max(first) })
        }
        Change::Remove { .. } => None,
        Change::Put { .. } | Change::Delete { .. } | Change::Discard { .. } => tail,
    })
}

fn appended(tail: Option<Tail>, append: &Append) -> Result<Tail, Error> {
    let (group, got) = (append.group, append.first);
    let tail = tail.unwrap_or(Tail { first: got, next: got });
    if got < tail.first {
        return Err(Error::Stale { group, first: tail.first, got });
    }
    if got > tail.next {
        return Err(Error::Gap { group, expected: tail.next, got });
    }
    Ok(Tail { first: tail.first, next: got + append.count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Place;
    use crate::ledger::Ledger;

    fn append(first: u64, count: u64) -> Change {
        let terms = vec![(count, 1)];
        Change::Append(Append { group: 1, first, count, terms, offset: 40, item_bytes: 100 })
    }

    fn compact(first: u64) -> Change {
        Change::Compact { group: 1, first, term_before: 1 }
    }

    #[test]
    fn each_change_is_checked_against_those_before() {
        let groups = Groups::default();
        let remove = || Change::Remove { group: 1 };
        let good: [&[Change]; 6] = [
            &[append(7, 3), append(10, 1), append(7, 1), append(8, 1)],
            &[append(7, 3), compact(9), append(9, 1)],
            &[append(7, 3), compact(20), append(20, 1)],
            &[append(7, 3), compact(2), append(7, 1)],
            &[append(7, 3), remove(), append(1, 1)],
            &[compact(9), append(9, 1)],
        ];
        for changes in good {
            assert!(Tails::default().admit(changes, 1, &groups).is_ok(), "{changes:?}");
        }
        let bad: [&[Change]; 5] = [
            &[append(7, 3), append(11, 1)],
            &[append(7, 3), append(6, 9)],
            &[append(7, 3), compact(9), append(8, 1)],
            &[append(7, 3), compact(20), append(21, 1)],
            &[compact(9), append(8, 1)],
        ];
        for changes in bad {
            let mut tails = Tails::default();
            assert!(tails.admit(changes, 1, &groups).is_err(), "{changes:?}");
            assert!(tails.queued.is_empty(), "a refused batch leaves nothing");
        }
    }

    #[test]
    fn what_is_queued_counts_until_the_last_batch_is_written() {
        let (groups, mut ledger) = (Groups::default(), Ledger::default());
        let mut tails = Tails::default();
        let (first, second) = ([append(5, 2)], [append(7, 2)]);
        tails.admit(&first, 1, &groups).expect("right");
        tails.admit(&second, 2, &groups).expect("right");
        let place = Place { segment: 1, offset: 64, lsn: 1 };
        groups.apply(&first[0], place, &mut ledger).expect("right");
        tails.settle(&first, 1);
        assert!(tails.admit(&[append(9, 1), append(11, 1)], 3, &groups).is_err());
        assert!(tails.admit(&[append(9, 1)], 3, &groups).is_ok(), "as if nothing had been refused");
        groups.apply(&second[0], place, &mut ledger).expect("right");
        groups.apply(&append(9, 1), place, &mut ledger).expect("right");
        tails.settle(&[append(9, 1)], 3);
        assert!(tails.queued.is_empty());
        assert!(tails.admit(&[append(10, 1)], 4, &groups).is_ok(), "now the index tells");
    }
}
