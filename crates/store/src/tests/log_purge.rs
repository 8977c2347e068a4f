//! Tests of log garbage collection with concurrent writes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use flotilla_raftlog::LogEngine;
use flotilla_region::{Index, RegionId, Term};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;

use super::*;
use crate::store_log::{RecoveredGroup, StoreLog, hard_state as logged};

fn log() -> StoreLog {
    let fs = FaultFs::new(0);
    fs.create_dir_all(Path::new("/log")).unwrap();
    let (engine, _) = LogEngine::open_with(Arc::new(fs), Path::new("/log"), config().log).unwrap();
    let log = StoreLog::new(engine, 1).unwrap();
    let durable = (Index(0), Term(0));
    log.note_recovered(
        RegionId(2),
        peer(2),
        RecoveredGroup {
            durable,
            hard_state: HardState::default(),
            hard_state_ahead: false,
            absent: true,
        },
    );
    log
}

fn vote(log: &StoreLog, term: u64) {
    log.write(&[write(2, hard_state(term, 201, 0), &[])], &[], &[], &[]).wait().unwrap();
}

fn forget(log: &StoreLog) -> bool {
    log.forget([peer(2).0].into_iter()).unwrap()
}

#[test]
fn a_hard_state_is_forgotten_only_when_a_durable_root_has_it() {
    let log = log();
    vote(&log, 1);
    assert!(!forget(&log), "no checkpoint was made");
    let input = log.checkpoint_input();
    assert!(!forget(&log), "none was finished");
    log.complete_checkpoint(&input, 2, [(peer(2), Index(0))].into_iter(), &BTreeSet::new());
    assert!(forget(&log));
    assert!(log.engine().group(peer(2).0).is_none());
    assert!(!forget(&log), "nothing is left");
}

#[test]
fn a_vote_during_a_checkpoint_waits_for_the_next() {
    let log = log();
    vote(&log, 1);
    let input = log.checkpoint_input();
    vote(&log, 2);
    log.complete_checkpoint(&input, 2, [(peer(2), Index(0))].into_iter(), &BTreeSet::new());
    assert!(!forget(&log));
    let group = log.engine().group(peer(2).0).unwrap();
    assert_eq!(logged(&group).unwrap(), Some(hard_state(2, 201, 0)));
    assert!(log.bytes_ahead() > 0);
    let input = log.checkpoint_input();
    log.complete_checkpoint(&input, 2, [(peer(2), Index(0))].into_iter(), &BTreeSet::new());
    assert_eq!(log.bytes_ahead(), 0);
    assert!(forget(&log));
}

#[test]
fn groups_of_no_region_here_are_kept() {
    let log = log();
    let stranger = write(9, hard_state(1, 901, 0), &[]);
    log.write(&[stranger], &[], &[], &[]).wait().unwrap();
    let input = log.checkpoint_input();
    log.complete_checkpoint(&input, 2, [(peer(2), Index(0))].into_iter(), &BTreeSet::new());
    assert!(!log.forget([peer(9).0].into_iter()).unwrap());
    assert!(log.engine().group(peer(9).0).is_some());
}
