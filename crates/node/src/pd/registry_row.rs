//! The row of the registry, as the leader of placement saw it last: changed whole by
//! compare-and-swap, one change at a time.

use flotilla_identity::StoreRegistry;
use flotilla_placement::{RowSwap, SwapResult, rows};

/// The row, and whether a change of it is under way.
pub(super) struct RegistryRow {
    registry: StoreRegistry,
    /// Whether the system region has the row: a new cluster's first leader writes it.
    is_written: bool,
    is_changing: bool,
}

impl RegistryRow {
    /// The row as a term begins with it.
    pub(super) fn new(registry: StoreRegistry, is_written: bool) -> Self {
        Self { registry, is_written, is_changing: false }
    }

    /// The registry.
    pub(super) fn registry(&self) -> &StoreRegistry {
        &self.registry
    }

    /// Whether a change is under way.
    pub(super) fn is_changing(&self) -> bool {
        self.is_changing
    }

    /// Begins to change the row to `changed`: the swap to carry out. Its outcome goes to
    /// [`RegistryRow::settle`]. `None` if another change is under way, or `changed` was made of an
    /// earlier state: it would take back what came between.
    pub(super) fn begin(&mut self, changed: &StoreRegistry) -> Option<RowSwap> {
        let version = self.registry.version;
        let is_next = changed.version == version + 1;
        let is_first = !self.is_written && changed.version == version;
        if self.is_changing || !(is_next || is_first) {
            return None;
        }
        self.is_changing = true;
        let expected = self.is_written.then(|| self.registry.encode());
        Some(RowSwap { key: rows::STORES_KEY, expected, value: changed.encode() })
    }

    /// The outcome of the change. False if it is not known, or the row cannot be read.
    pub(super) fn settle(&mut self, changed: StoreRegistry, result: SwapResult) -> bool {
        self.is_changing = false;
        let found = match result {
            SwapResult::Done => Some(changed),
            // An earlier change of this term was carried out although it seemed not to be.
            SwapResult::Refused { current: Some(row) } => match StoreRegistry::decode(&row) {
                Ok(found) => Some(found),
                Err(_) => return false,
            },
            SwapResult::Refused { current: None } => None,
            // The next change finds out.
            SwapResult::Unknown => return false,
        };
        self.is_written = found.is_some();
        if let Some(found) = found {
            self.registry = found;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(version: u64) -> StoreRegistry {
        StoreRegistry { version, ..StoreRegistry::default() }
    }

    #[test]
    fn the_row_is_what_the_region_says() {
        let mut row = RegistryRow::new(registry(1), false);
        assert_eq!(row.begin(&registry(1)).unwrap().expected, None, "it is the first");
        assert!(row.is_changing() && row.begin(&registry(2)).is_none(), "one at a time");
        assert!(!row.settle(registry(1), SwapResult::Unknown));
        assert_eq!(row.begin(&registry(2)).unwrap().expected, None, "not known to be written");
        // It was: the change starts from what is there.
        let current = Some(registry(1).encode());
        assert!(row.settle(registry(2), SwapResult::Refused { current }));
        assert_eq!(row.registry(), &registry(1));
        let swap = row.begin(&registry(2)).unwrap();
        assert_eq!((swap.expected, swap.value), (Some(registry(1).encode()), registry(2).encode()));
        assert!(row.settle(registry(2), SwapResult::Done));
        assert_eq!(row.registry(), &registry(2));
        row.begin(&registry(3)).unwrap();
        assert!(!row.settle(registry(3), SwapResult::Unknown));
        assert_eq!(row.registry(), &registry(2), "not known to be written");
    }

    #[test]
    fn a_change_of_an_earlier_state_is_not_written() {
        let mut row = RegistryRow::new(registry(1), true);
        let joined = registry(2);
        row.begin(&joined).unwrap();
        assert!(row.settle(joined, SwapResult::Done));
        // A report of a start was looked at before: it would take the store out again.
        assert_eq!(row.begin(&registry(2)), None);
        assert_eq!(row.begin(&registry(1)), None);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_not_taken() {
        let mut row = RegistryRow::new(registry(1), true);
        row.begin(&registry(2)).unwrap();
        assert!(!row.settle(registry(2), SwapResult::Refused { current: Some(vec![9]) }));
        assert_eq!(row.registry(), &registry(1));
    }
}
