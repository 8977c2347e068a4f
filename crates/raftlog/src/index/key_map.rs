//! A map from keys to values: a sorted list while it is small, which is nearly always, a B-tree
//! once it is large. The first leaf of a tree alone takes more memory than all the rest of an idle
//! group.

use std::collections::BTreeMap;

/// The most keys of a list.
const FEW: usize = 16;

/// Values by key, in order of the keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyMap<V> {
    map: KeyStorage<V>,
}

#[derive(Clone, Debug)]
enum KeyStorage<V> {
    Few(Vec<(Box<[u8]>, V)>),
    Many(BTreeMap<Box<[u8]>, V>),
}

impl<V> Default for KeyMap<V> {
    fn default() -> KeyMap<V> {
        KeyMap { map: KeyStorage::Few(Vec::new()) }
    }
}

impl<V> KeyMap<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        match &self.map {
            KeyStorage::Few(list) => list.len(),
            KeyStorage::Many(tree) => tree.len(),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        match &self.map {
            KeyStorage::Few(list) => find(list, key).ok().map(|at| &list[at].1),
            KeyStorage::Many(tree) => tree.get(key),
        }
    }

    /// Returns the former value of the key.
    pub(crate) fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        match &mut self.map {
            KeyStorage::Few(list) => match find(list, key) {
                Ok(at) => return Some(std::mem::replace(&mut list[at].1, value)),
                Err(at) if list.len() < FEW => {
                    if list.len() == list.capacity() {
                        list.reserve_exact(1);
                    }
                    list.insert(at, (key.into(), value));
                    debug_assert!(list.is_sorted_by(|a, b| a.0 < b.0), "a key is there twice");
                    return None;
                }
                Err(_) => self.map = KeyStorage::Many(std::mem::take(list).into_iter().collect()),
            },
            KeyStorage::Many(tree) => return tree.insert(key.into(), value),
        }
        self.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<V> {
        match &mut self.map {
            KeyStorage::Few(list) => find(list, key).ok().map(|at| list.remove(at).1),
            KeyStorage::Many(tree) => {
                let removed = tree.remove(key);
                if tree.len() <= FEW / 2 {
                    self.map = KeyStorage::Few(std::mem::take(tree).into_iter().collect());
                }
                removed
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        let (list, tree) = match &self.map {
            KeyStorage::Few(list) => (Some(list), None),
            KeyStorage::Many(tree) => (None, Some(tree)),
        };
        let list = list.into_iter().flatten().map(|(key, value)| (&**key, value));
        list.chain(
            tree.into_iter().flat_map(|tree| tree.iter()).map(|(key, value)| (&**key, value)),
        )
    }

    /// Memory besides the struct itself: exact for a list; for a tree, as if its nodes were half
    /// full, which is the least that they are. `value_bytes` is the memory of a value besides its
    /// place.
    pub(crate) fn memory_bytes(&self, value_bytes: impl Fn(&V) -> usize) -> u64 {
        let place = size_of::<(Box<[u8]>, V)>();
        let places = match &self.map {
            KeyStorage::Few(list) => list.capacity() * place,
            KeyStorage::Many(tree) => tree.len() * 2 * place,
        };
        (places + self.iter().map(|(key, value)| key.len() + value_bytes(value)).sum::<usize>())
            as u64
    }
}

fn find<V>(list: &[(Box<[u8]>, V)], key: &[u8]) -> Result<usize, usize> {
    list.binary_search_by(|(at, _)| (**at).cmp(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_or_many_they_are_the_same() {
        let (mut keys, mut model) = (KeyMap::default(), BTreeMap::new());
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..20_000_u32 {
            // Grows for a while, then shrinks, over and over.
            let key = rng.u8(..60).to_le_bytes();
            if rng.bool() ^ (round / 500 % 2 == 0) && rng.bool() {
                assert_eq!(keys.remove(&key), model.remove(&key));
            } else if round / 500 % 2 == 0 {
                assert_eq!(keys.insert(&key, round), model.insert(key, round));
            }
            assert_eq!(keys.get(&key), model.get(&key));
            assert_eq!((keys.len(), keys.is_empty()), (model.len(), model.is_empty()));
            assert!(keys.iter().eq(model.iter().map(|(key, value)| (&key[..], value))));
        }
    }

    #[test]
    fn one_key_takes_little() {
        let mut keys = KeyMap::default();
        keys.insert(b"hs", 7_u64);
        assert_eq!(keys.memory_bytes(|_| 0), 26);
    }
}
