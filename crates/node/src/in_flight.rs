//! A list of work that is in flight, for operators: an item is on it as long as its guard lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Work that is in flight. Cheap to clone; all clones are one list.
pub(crate) struct InFlightList<T> {
    state: Arc<Mutex<InFlightState<T>>>,
}

struct InFlightState<T> {
    next: u64,
    items: BTreeMap<u64, (Instant, T)>,
}

/// One item of an [`InFlightList`]. It is in flight until this is dropped, in whichever way the
/// work ends.
pub(crate) struct InFlightGuard<T> {
    list: InFlightList<T>,
    number: u64,
}

impl<T> Clone for InFlightList<T> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<T> Default for InFlightList<T> {
    fn default() -> Self {
        Self { state: Arc::new(Mutex::new(InFlightState { next: 0, items: BTreeMap::new() })) }
    }
}

impl<T> InFlightList<T> {
    /// Puts an item on the list, which begins now.
    pub(crate) fn begin(&self, item: T) -> InFlightGuard<T> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.items.insert(number, (Instant::now(), item));
        InFlightGuard { list: self.clone(), number }
    }
}

impl<T: Clone> InFlightList<T> {
    /// All items with their beginnings, the oldest first.
    pub(crate) fn items(&self) -> Vec<(Instant, T)> {
        self.state.lock().items.values().cloned().collect()
    }
}

impl<T> InFlightGuard<T> {
    /// Changes the item.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T)) {
        let mut state = self.list.state.lock();
        let (_, item) = state.items.get_mut(&self.number).expect("its guard lives");
        change(item);
    }
}

impl<T> Drop for InFlightGuard<T> {
    fn drop(&mut self) {
        self.list.state.lock().items.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_listed_as_long_as_its_guard_lives() {
        let list = InFlightList::default();
        let items = || list.items().into_iter().map(|(_, item)| item).collect::<Vec<_>>();
        let first = list.begin(1);
        let second = list.begin(2);
        second.update(|item| *item = 20);
        assert_eq!(items(), [1, 20]);
        drop(first);
        assert_eq!(items(), [20]);
        drop(second);
        assert!(items().is_empty());
    }
}
