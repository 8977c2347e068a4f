//! The private pages of the open transaction, by their first units.
//!
//! They stand in a row, in no order, and a hash map says where: so a page is entered before its
//! bytes are copied, and the map, which is looked up most, fits into the CPU's nearest cache. The
//! memory for both is reused by the next transaction.

use crate::memory::page_table::PageBuffer;
use flotilla_base::id_hash::IdMap;

/// Capacity in pages that is kept for the next transaction, at most.
const KEPT_MAX: usize = 1 << 12;

/// A page or long value that is private to the transaction, and when it was made.
pub(crate) struct Private<T> {
    pub(crate) it: T,
    /// The savepoint epoch in which it was made.
    pub(crate) made: u32,
    /// The savepoint epoch in which it was changed last.
    pub(crate) changed: u32,
}

/// The private pages of the open transaction.
#[derive(Default)]
pub(crate) struct PrivatePages {
    row: Vec<(u64, Private<PageBuffer>)>,
    /// Where in the row each of them stands.
    at: IdMap<u32>,
}

impl PrivatePages {
    pub(crate) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.at.contains_key(&id)
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&Private<PageBuffer>> {
        Some(&self.row[*self.at.get(&id)? as usize].1)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Private<PageBuffer>> {
        Some(&mut self.row[*self.at.get(&id)? as usize].1)
    }

    /// Enters a page, of which there is none yet.
    #[inline]
    pub(crate) fn insert(&mut self, id: u64, own: Private<PageBuffer>) -> &mut PageBuffer {
        let at = u32::try_from(self.row.len()).expect("a file has no more units than that");
        let old = self.at.insert(id, at);
        assert!(old.is_none(), "unit {id} was given out twice");
        self.row.push((id, own));
        &mut self.row[at as usize].1.it
    }

    /// Enters a page in place of what is there, if anything.
    pub(crate) fn put_back(&mut self, id: u64, own: Private<PageBuffer>) {
        match self.get_mut(id) {
            Some(there) => *there = own,
            None => {
                self.insert(id, own);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Private<PageBuffer>> {
        debug_assert_eq!(self.row.len(), self.at.len(), "a page is listed twice");
        let at = self.at.remove(&id)?;
        let (_, own) = self.row.swap_remove(at as usize);
        // The last page has moved into the gap.
        if let Some((moved, _)) = self.row.get(at as usize) {
            self.at.insert(*moved, at);
        }
        Some(own)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PageBuffer> {
        self.row.iter().map(|(_, own)| &own.it)
    }

    /// Takes all of them out. The memory that is left is for the next transaction.
    pub(crate) fn take(&mut self) -> Vec<(u64, PageBuffer)> {
        assert_eq!(self.row.len(), self.at.len(), "a page is listed twice");
        self.at.clear();
        let taken = self.row.drain(..).map(|(id, own)| (id, own.it)).collect();
        if self.row.capacity().max(self.at.capacity()) > KEPT_MAX {
            *self = PrivatePages::default();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use flotilla_vfs::FileSystem;
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::page::{Frame, UNIT_BYTES};
    use crate::{Options, PageStore};

    fn own(fill: u8) -> Private<PageBuffer> {
        Private { it: PageBuffer::from(Frame::from(vec![fill; UNIT_BYTES])), made: 0, changed: 0 }
    }

    fn held(pages: &PrivatePages) -> Vec<Option<u8>> {
        (0..6).map(|id| pages.get(id).map(|own| own.it[0])).collect()
    }

    #[test]
    fn pages_are_found_by_their_units_whatever_was_removed() {
        let mut pages = PrivatePages::default();
        for id in 1..5 {
            pages.insert(id, own(id as u8));
        }
        assert_eq!(held(&pages), [None, Some(1), Some(2), Some(3), Some(4), None]);
        for (id, left) in
            [(2, [Some(1), None, Some(3), Some(4)]), (4, [Some(1), None, Some(3), None])]
        {
            assert_eq!(pages.remove(id).map(|own| own.it[0]), Some(id as u8));
            assert!(pages.remove(id).is_none());
            assert_eq!(held(&pages)[1..5], left);
        }
        pages.put_back(2, own(7));
        pages.put_back(3, own(8));
        pages.get_mut(1).unwrap().it[0] = 9;
        assert_eq!(held(&pages), [None, Some(9), Some(7), Some(8), None, None]);
        assert!(pages.contains(2) && !pages.contains(4));
        let mut taken: Vec<_> = pages.take().iter().map(|(id, buffer)| (*id, buffer[0])).collect();
        taken.sort_unstable();
        assert_eq!(taken, [(1, 9), (2, 7), (3, 8)]);
        assert!(pages.is_empty() && held(&pages).iter().all(Option::is_none));
    }

    #[test]
    fn memory_is_kept_for_the_next_unless_it_is_much() {
        let fs = FaultFs::new(1);
        fs.create_dir_all(Path::new("/data")).unwrap();
        let options = Options::default().checkpoint_interval(None);
        let store = PageStore::open_with(Arc::new(fs), Path::new("/data/pages"), options).unwrap();
        let kept_after = |count: u32| {
            let mut txn = store.write().unwrap();
            for key in 0..count {
                txn.tree("t").unwrap().put(&key.to_be_bytes(), &[1; 900]).unwrap();
            }
            txn.publish().unwrap();
            store.shared().private_pages.lock().row.capacity()
        };
        assert!((1..KEPT_MAX).contains(&kept_after(100)));
        assert_eq!(kept_after(5 * KEPT_MAX as u32), 0);
        assert!(kept_after(100) > 0);
    }

    #[test]
    #[should_panic(expected = "given out twice")]
    fn unit_that_is_taken_is_not_given_out() {
        let mut pages = PrivatePages::default();
        pages.insert(1, own(1));
        pages.insert(1, own(2));
    }
}
