//! The expected contents of the log, kept in the simplest way there is.

use bytes::Bytes;
use flotilla_raftlog::{Entry, Error, LogBatch, LogEngine};
use std::collections::BTreeMap;

/// All groups, as a log that never fails would have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Oracle {
    groups: BTreeMap<u64, Group>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Group {
    /// Bounds of a log that has begun.
    log: Option<(u64, u64)>,
    term_before: Option<u64>,
    entries: BTreeMap<u64, Entry>,
    keys: BTreeMap<Bytes, Bytes>,
}

impl Oracle {
    /// A random batch of changes that fit, carried out here and put into the batch.
    pub(crate) fn change(&mut self, rng: &mut fastrand::Rng) -> LogBatch {
        let mut batch = LogBatch::new();
        for _ in 0..rng.usize(1..=4) {
            let id = rng.u64(1..=4);
            match rng.u8(0..13) {
                0..=5 => self.append(&mut batch, id, rng),
                6 | 7 => self.compact(&mut batch, id, rng),
                8 | 9 => self.put(&mut batch, id, rng),
                10 => self.delete(&mut batch, id, rng),
                11 => self.truncate(&mut batch, id, rng),
                _ if rng.u8(0..3) == 0 => {
                    self.groups.remove(&id);
                    batch.remove_group(id);
                }
                _ => self.append(&mut batch, id, rng),
            }
        }
        batch
    }

    fn append(&mut self, batch: &mut LogBatch, id: u64, rng: &mut fastrand::Rng) {
        let group = self.groups.entry(id).or_default();
        let (low, next) = *group.log.get_or_insert_with(|| {
            let first = rng.u64(1..20);
            (first, first)
        });
        // Mostly at the end, sometimes over the end of what is there.
        let back = if rng.u8(0..4) == 0 { rng.u64(0..=next - low).min(6) } else { 0 };
        let first = next - back;
        let entries: Vec<Entry> =
            (first..first + rng.u64(1..=4)).map(|index| random_entry(index, rng)).collect();
        group.entries.retain(|index, _| *index < first);
        group.entries.extend(entries.iter().map(|e| (e.index, e.clone())));
        group.log = Some((low, first + entries.len() as u64));
        batch.append(id, &entries);
    }

    fn compact(&mut self, batch: &mut LogBatch, id: u64, rng: &mut fastrand::Rng) {
        let group = self.groups.entry(id).or_default();
        let (low, next) = group.log.unwrap_or((1, 1));
        let first = match rng.u8(0..8) {
            0 => next + rng.u64(0..5),
            1 => rng.u64(1..=low),
            _ => rng.u64(low..=next),
        };
        let term_before =
            group.entries.get(&(first - 1)).map_or_else(|| rng.u64(1..9), |entry| entry.term);
        batch.compact_to(id, first, term_before);
        if group.log.is_none_or(|(low, _)| first >= low) {
            group.entries.retain(|index, _| *index >= first);
            group.log = Some((first, next.max(first)));
            group.term_before = Some(term_before);
        }
    }

    fn truncate(&mut self, batch: &mut LogBatch, id: u64, rng: &mut fastrand::Rng) {
        let Some(group) = self.groups.get_mut(&id) else { return batch.truncate_from(id, 1) };
        let (low, next) = group.log.unwrap_or((1, 1));
        let from = if rng.u8(0..3) == 0 { low } else { rng.u64(low..=next) };
        batch.truncate_from(id, from);
        group.entries.retain(|index, _| *index < from);
        group.log = group.log.map(|_| (low, from));
        if from == low && group.term_before.is_none() {
            group.log = None;
            if group.keys.is_empty() {
                self.groups.remove(&id);
            }
        }
    }

    fn put(&mut self, batch: &mut LogBatch, id: u64, rng: &mut fastrand::Rng) {
        let (key, value) = (random_key(rng), random_bytes(rng.usize(0..60), rng));
        batch.put(id, &key, &value);
        self.groups.entry(id).or_default().keys.insert(key, value);
    }

    fn delete(&mut self, batch: &mut LogBatch, id: u64, rng: &mut fastrand::Rng) {
        let key = random_key(rng);
        batch.delete(id, &key);
        if let Some(group) = self.groups.get_mut(&id) {
            group.keys.remove(&key);
            if group.log.is_none() && group.keys.is_empty() {
                self.groups.remove(&id);
            }
        }
    }

    /// Compares everything that can be asked.
    pub(crate) fn check(&self, log: &LogEngine) {
        assert_eq!(log.group_ids(), self.groups.keys().copied().collect::<Vec<_>>());
        for (id, group) in &self.groups {
            let found = log.group(*id).expect("it is among the ids");
            let (first, next) = group.log.unwrap_or((1, 1));
            assert_eq!((found.first_index(), found.last_index()), (first, next - 1), "group {id}");
            let entries = found.entries(first..next, u64::MAX).expect("all of it is there");
            assert!(entries.iter().eq(group.entries.values()), "entries of group {id}");
            for entry in &entries {
                assert_eq!(found.term(entry.index).expect("there"), entry.term);
            }
            let before = match group.term_before {
                Some(term) => Some(term),
                None if first == 1 => Some(0),
                None => None,
            };
            match found.term(first - 1) {
                Ok(term) => assert_eq!(Some(term), before, "group {id}"),
                Err(Error::Compacted { .. }) => assert_eq!(before, None, "group {id}"),
                Err(other) => panic!("{other}"),
            }
            assert_eq!(found.scan(), group.keys.clone().into_iter().collect::<Vec<_>>());
        }
    }
}

fn random_entry(index: u64, rng: &mut fastrand::Rng) -> Entry {
    let len = match rng.u8(0..10) {
        0 => 0,
        1 => rng.usize(1000..3000),
        _ => rng.usize(1..300),
    };
    let data = random_bytes(len, rng);
    Entry { index, term: rng.u64(1..4), kind: rng.u8(0..3), data }
}

/// Sometimes all zeros, which on disk look as if they had never been written, and sometimes the
/// same over and over, which compresses well.
fn random_bytes(len: usize, rng: &mut fastrand::Rng) -> Bytes {
    let mut bytes = vec![0; len];
    match rng.u8(0..5) {
        0 => {}
        1 => {
            let repeated = [rng.u8(1..), rng.u8(1..), rng.u8(1..)];
            bytes.iter_mut().zip(repeated.iter().cycle()).for_each(|(byte, from)| *byte = *from);
        }
        _ => rng.fill(&mut bytes),
    }
    bytes.into()
}

fn random_key(rng: &mut fastrand::Rng) -> Bytes {
    Bytes::from(vec![b'a' + rng.u8(0..4)])
}
