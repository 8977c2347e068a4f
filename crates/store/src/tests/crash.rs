//! One small history, cut off at every single operation of its disk.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_region::{Index, LogEntry};
use flotilla_vfs::fault::FaultFs;

use super::expected_state::{ReplicaState, stored_rows};
use super::*;

type ExpectedStates = BTreeMap<u64, ReplicaState>;

/// Logs, applies, makes checkpoints, compacts and purges, until the disk fails.
fn work(fs: &FaultFs, expected: &mut ExpectedStates) -> Result<(), Error> {
    let (store, _) = try_open(fs)?;
    for round in 1..=3_u64 {
        for region in [2, 3] {
            let first = 4 * round - 3;
            let entries: Vec<LogEntry> = (first..first + 4).map(|i| filled(region, i)).collect();
            let replica = expected.get_mut(&region).unwrap();
            let term = entries[3].term.0;
            log(&store, replica, write(region, hard_state(term, 0, first), &entries))?;
            store.apply(&[task(region, &entries[..3])])?;
            replica.apply(&entries[..3]);
            let rest = write(region, hard_state(term, 0, first + 3), &[]);
            log(&store, replica, LogWrite { sync: false, ..rest })?;
            store.apply(&[task(region, &entries[3..])])?;
            replica.apply(&entries[3..]);
        }
        let vote = write(4, hard_state(round + 1, 402, 0), &[]);
        log(&store, expected.get_mut(&4).unwrap(), vote)?;
        if round == 2 {
            continue;
        }
        for replica in store.checkpoint()?.replicas {
            expected.get_mut(&replica.region.0).unwrap().durable = replica.applied.0;
        }
        let first = Index(4 * round + 1);
        let compactions = [2, 3].map(|region| Compaction {
            region: RegionId(region),
            peer: peer(region),
            first,
            term_before: filled(region, first.0 - 1).term,
        });
        store.write_log(&[], &[], &compactions, &[]).wait()?;
        store.purge_log()?;
    }
    Ok(())
}

fn log(store: &Store, replica: &mut ReplicaState, write: LogWrite) -> Result<(), Error> {
    let commit = store.write_log(std::slice::from_ref(&write), &[], &[], &[]);
    replica.queue(&write);
    commit.wait()?;
    replica.ack(&write);
    Ok(())
}

fn filled(region: u64, index: u64) -> LogEntry {
    let start = if region == 2 { "c" } else { "k" };
    let value = format!("{index}-{}", "v".repeat(150));
    let keys = [format!("{start}{}", index % 5), format!("{start}-all")];
    let all = keys.map(|key| put(&key, &value));
    if index % 6 == 1 {
        return entry(index, index / 5 + 1, Bytes::new());
    }
    entry(index, index / 5 + 1, data(&[(1, &all)]))
}

/// Opens what the crash left, checks it, and does the rest of what was committed.
fn inspect(fs: &FaultFs, expected: &mut ExpectedStates, at: &str) {
    let (store, recovered) = open(fs);
    assert_eq!(recovered.len(), 4, "{at}");
    for found in &recovered {
        let region = found.descriptor.id.0;
        let replica = expected.get_mut(&region).unwrap();
        replica.check(found, &stored_rows(&store, region));
        replica.restart(found);
        let committed = (found.hard_state.commit.0 - found.applied.0.0) as usize;
        if committed > 0 {
            store.apply(&[task(region, &found.tail[..committed])]).unwrap();
            replica.apply(&found.tail[..committed]);
        }
        replica.durable = replica.applied_now;
    }
    store.check().unwrap();
    store.checkpoint().unwrap();
    store.purge_log().unwrap();
    store.check().unwrap();
}

fn blank() -> ExpectedStates {
    (1..=4).map(|region| (region, ReplicaState::default())).collect()
}

#[test]
fn the_power_may_go_at_any_operation() {
    let whole = FaultFs::new(0);
    work(&whole, &mut blank()).unwrap();
    let operations = whole.operations();
    assert!(operations > 60, "only {operations} operations");
    for cut in 1..=operations {
        for seed in 0..4 {
            let fs = FaultFs::new(0);
            fs.cut_power_after(cut);
            let mut expected = blank();
            assert!(work(&fs, &mut expected).is_err(), "cut at {cut}");
            fs.power_loss(seed * 1000 + cut);
            let at = format!("cut at operation {cut}, seed {seed}");
            // The next start is cut off as well, each time somewhere else.
            fs.cut_power_after(cut % 7 + seed + 1);
            let _ = try_open(&fs);
            fs.power_loss(seed);
            inspect(&fs, &mut expected, &at);
            fs.power_loss(seed + 1);
            inspect(&fs, &mut expected, &at);
        }
    }
}

#[test]
fn without_a_crash_all_is_there() {
    let fs = FaultFs::new(0);
    let mut expected = blank();
    work(&fs, &mut expected).unwrap();
    fs.power_loss(0);
    let (store, recovered) = open(&fs);
    for found in &recovered {
        expected[&found.descriptor.id.0].check(found, &stored_rows(&store, found.descriptor.id.0));
    }
    assert_eq!(recovered[1].applied.0, Index(12));
    assert_eq!(recovered[3].hard_state, hard_state(4, 402, 0));
}
