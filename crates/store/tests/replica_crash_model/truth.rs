//! The regions as their groups have decided them, whatever this store has of it.

use std::collections::BTreeMap;

pub(crate) type RegionId = u32;
pub(crate) type ReplicaId = u32;
pub(crate) type Index = u32;
pub(crate) type Key = u8;

/// The applied index of the first rows of a region.
pub(crate) const FIRST: Index = 5;
/// Keys are below this.
pub(crate) const KEYS: Key = 64;

/// The effect of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Put(Key, u32),
    /// The part from `key` on is another region from here on.
    Split {
        key: Key,
        end: Key,
        region: RegionId,
        replica: ReplicaId,
    },
    /// The replica on this store goes.
    Remove(ReplicaId),
}

/// One region and its whole log.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecidedRegion {
    pub(crate) start: Key,
    end: Key,
    first_rows: BTreeMap<Key, u32>,
    log: Vec<Operation>,
    /// The replica on this store by the latest configuration that had one.
    pub(crate) replica: ReplicaId,
    /// The index from which on that one is a member.
    pub(crate) since: Index,
    /// Whether that one was removed again.
    pub(crate) is_removed: bool,
}

impl DecidedRegion {
    pub(crate) fn new(
        (start, end): (Key, Key),
        first_rows: BTreeMap<Key, u32>,
        replica: ReplicaId,
    ) -> Self {
        Self { start, end, first_rows, replica, since: FIRST, ..Default::default() }
    }

    pub(crate) fn last(&self) -> Index {
        FIRST + self.log.len() as Index
    }

    pub(crate) fn operation(&self, index: Index) -> Operation {
        self.log[(index - FIRST - 1) as usize]
    }

    pub(crate) fn decide(&mut self, operation: Operation) {
        self.is_removed |= operation == Operation::Remove(self.replica);
        self.log.push(operation);
    }

    /// The end of the range and the rows once `index` is applied.
    pub(crate) fn at(&self, index: Index) -> (Key, BTreeMap<Key, u32>) {
        let (mut end, mut rows) = (self.end, self.first_rows.clone());
        for operation in &self.log[..(index - FIRST) as usize] {
            match *operation {
                Operation::Put(key, value) => {
                    rows.insert(key, value);
                }
                Operation::Split { key, .. } => {
                    end = key;
                    rows.retain(|own, _| *own < key);
                }
                Operation::Remove(_) => {}
            }
        }
        (end, rows)
    }
}
