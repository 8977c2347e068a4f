//! openraft's conformance suite.

use crate::kit::{Log, Types, group, open};
use crate::machine::Machine;
use flotilla_raftlog_openraft::Flusher;
use flotilla_vfs::fault::FaultFs;
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};

/// Makes a new disk for each test.
struct Builder;

impl StoreBuilder<Types, Log, Machine, Flusher> for Builder {
    async fn build(&self) -> Result<(Flusher, Log, Machine), StorageError<u64>> {
        let flusher = open(&FaultFs::new(1));
        let log = group(&flusher, 7);
        Ok((flusher, log, Machine::default()))
    }
}

#[test]
fn openrafts_suite_passes() {
    Suite::test_all(Builder).expect("every test of it passes");
}
