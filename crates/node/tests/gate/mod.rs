//! A disk whose syncs can be held up: a write that stands before its sync is neither there nor not
//! there, for as long as a test likes.

use std::sync::Arc;
use std::time::Duration;

use flotilla_vfs::FileSystem;
use flotilla_vfs::hooked::{HookedFs, Operation};
use tokio::sync::watch;

/// How long anything may take on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Stands before every sync of a disk.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    shut: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

/// Opens the gate at the end of a test, also if that fails: the threads behind it can end then.
pub(crate) struct OpenAtEnd(Gate);

impl Gate {
    /// An open gate, and the disk `fs` behind it.
    pub(crate) fn before(fs: impl FileSystem + 'static) -> (Self, Arc<dyn FileSystem>) {
        let gate = Self { shut: watch::Sender::new(false), waiting: watch::Sender::new(0) };
        let syncs = gate.clone();
        let disk = HookedFs::new(Arc::new(fs), move |operation| {
            if operation == Operation::Sync {
                syncs.pass();
            }
        });
        (gate, Arc::new(disk))
    }

    /// Holds every sync from now on.
    pub(crate) fn shut(&self) -> OpenAtEnd {
        self.shut.send_replace(true);
        OpenAtEnd(self.clone())
    }

    /// Lets those that wait go on, and the others pass.
    pub(crate) fn open(&self) {
        self.shut.send_replace(false);
    }

    /// Waits until a sync is held.
    pub(crate) async fn holds(&self) {
        let mut waiting = self.waiting.subscribe();
        let held = waiting.wait_for(|count| *count > 0);
        tokio::time::timeout(PATIENCE, held).await.expect("something is synced").unwrap();
    }

    fn pass(&self) {
        self.waiting.send_modify(|count| *count += 1);
        let mut shut = self.shut.subscribe();
        // Syncs are made by threads that are not tokio's.
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(async { shut.wait_for(|shut| !shut).await.map(drop) })
            .unwrap();
        self.waiting.send_modify(|count| *count -= 1);
    }
}

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}
