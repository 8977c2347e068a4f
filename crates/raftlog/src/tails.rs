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
