//! One published state of the store, and the notice that nobody reads it any more.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::page::PageRef;

/// Transactions whose roots nobody can reach any more, until the writer takes note.
pub(crate) type Ended = Arc<Mutex<Vec<u64>>>;

/// One published state. As long as it lives, no page that it reaches is used for anything else.
#[derive(Debug)]
pub(crate) struct Root {
    /// The transaction that published it.
    pub(crate) txid: u64,
    /// The tree of trees.
    pub(crate) catalogue: PageRef,
    /// What the caller wanted to be kept with it.
    pub(crate) mark: Box<[u8]>,
    ended: Ended,
}

impl Root {
    /// The root that follows this one.
    pub(crate) fn next(&self, catalogue: PageRef, mark: &[u8]) -> Arc<Root> {
        Root::new(self.txid + 1, catalogue, mark, Arc::clone(&self.ended))
    }

    pub(crate) fn new(txid: u64, catalogue: PageRef, mark: &[u8], ended: Ended) -> Arc<Root> {
        Arc::new(Root { txid, catalogue, mark: mark.into(), ended })
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.ended.lock().push(self.txid);
    }
}
