//! One published state of the store, and the notice that nobody reads it any more.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::meta::Meta;
use crate::page::PageRef;
use crate::trash::Trash;

/// Transactions whose roots nobody can reach any more, until the writer takes note.
pub(crate) type Ended = Arc<Mutex<Vec<u64>>>;

/// One published state. As long as it lives, no page that it reaches is used for anything else.
#[derive(Debug)]
pub(crate) struct Root {
    /// The transaction that published it.
    pub(crate) txid: u64,
    /// The tree of trees.
    pub(crate) catalogue: PageRef,
    /// What was cut off and waits to be given back.
    pub(crate) trash: Trash,
    /// What the caller wanted to be kept with it.
    pub(crate) mark: Arc<[u8]>,
    ended: Ended,
}

impl Root {
    /// The root that follows this one.
    pub(crate) fn next(&self, catalogue: PageRef, trash: Trash, mark: &Arc<[u8]>) -> Arc<Root> {
        let (mark, ended) = (Arc::clone(mark), Arc::clone(&self.ended));
        Arc::new(Root { txid: self.txid + 1, catalogue, trash, mark, ended })
    }

    /// The root that a meta page names.
    pub(crate) fn durable(meta: &Meta, ended: Ended) -> Arc<Root> {
        let Meta { txid, catalogue, trash, .. } = *meta;
        Arc::new(Root { txid, catalogue, trash, mark: meta.mark.as_slice().into(), ended })
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.ended.lock().push(self.txid);
    }
}
