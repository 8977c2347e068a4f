//! A store whose cluster has lost its majority: the logs are applied to their ends, and each region
//! goes on with the replica here alone.

use std::collections::BTreeSet;

use flotilla_identity::StoreState;
use flotilla_vfs::FileSystem;

use super::splits::{CHILD, split_entry};
use super::*;
use crate::{DirectoryRecovery, SystemRows, plan_recovery, recover_directory, survivor_report};

const DIR: &str = "/data/store";
const LOST: StoreId = StoreId(2);

fn disk(fs: &FaultFs) -> Arc<dyn FileSystem> {
    Arc::new(fs.clone())
}

/// The outcome of a recovery without the other store, which puts a row of placement.
fn recover(fs: &FaultFs) -> Result<DirectoryRecovery, Error> {
    let (dir, nonce) = (Path::new(DIR), fs.operations());
    let report = survivor_report(&disk(fs), dir, &config(), nonce)?;
    let plan = plan_recovery(&[report], &BTreeSet::from([LOST])).unwrap();
    let change = |rows: &SystemRows| {
        assert_eq!(rows.get(&b"placement/ids"[..]), Some(&b"7".to_vec()));
        Ok(SystemRows::from([(b"placement/ids".to_vec(), b"8".to_vec())]))
    };
    recover_directory(&disk(fs), dir, &config(), nonce + 1, &plan, change)
}

/// Region 2 has a write that is applied, one that is committed, and behind them a split and a write
/// of which this store does not know that they are.
fn prepare(fs: &FaultFs) {
    let (store, _) = open(fs);
    run(&store, 1, &[ops(1, &[put("placement/ids", "7")])]);
    run(&store, 2, &[ops(1, &[put("a", "applied")])]);
    let open_write = entry(4, 1, data(&[(2, &[put("e", "open")])]));
    append(&store, 2, &[ops(2, &[put("b", "committed")]), split_entry(3), open_write], 2);
}

#[test]
fn a_log_is_applied_to_its_end_and_its_replica_votes_alone() {
    let fs = FaultFs::new(0);
    prepare(&fs);
    let report = survivor_report(&disk(&fs), Path::new(DIR), &config(), 5).unwrap();
    let two = report.replicas.iter().find(|it| it.descriptor.id == RegionId(2)).unwrap();
    assert_eq!((two.committed, two.last), (Index(2), (Index(4), Term(1))));
    let DirectoryRecovery { recovered, has_system } = recover(&fs).unwrap();
    let open_entries = |region: u64| (RegionId(region), u64::from(region == 2) * 2);
    assert_eq!(recovered, [1, 2, 3, 4, CHILD].map(open_entries));
    assert!(has_system);

    let directory = try_directory(&fs, config()).unwrap();
    let (registry, _) = directory.copies().unwrap();
    assert_eq!(registry.store(LOST).unwrap().state, StoreState::Lost);
    let (store, recovered) = Store::start(directory).unwrap();
    assert_eq!(recovered.replicas.len(), 5);
    for found in &recovered.replicas {
        let Descriptor { id, peers, removed, epoch, .. } = &found.descriptor;
        let own = Peer { id: peer(id.0), store: HERE };
        assert_eq!(peers, &[own.into()], "region {id}");
        assert_eq!(removed.unconfirmed.len(), 1, "region {id}");
        assert!(epoch.conf_version > 1_000 && epoch.version > 1_000, "region {id}: {epoch:?}");
    }
    assert_eq!(get(&store, CHILD, "a").unwrap(), "applied");
    assert_eq!(get(&store, CHILD, "b").unwrap(), "committed");
    assert_eq!(get(&store, 2, "e").unwrap(), "open");
    assert_eq!(get(&store, 1, "placement/ids").unwrap(), "8");
    store.check().unwrap();
}

#[test]
fn a_directory_of_no_store_and_one_that_is_open_are_refused() {
    let fs = FaultFs::new(0);
    let absent = survivor_report(&disk(&fs), Path::new("/elsewhere"), &config(), 1).unwrap_err();
    assert!(absent.to_string().contains("no store of a cluster"), "{absent}");
    prepare(&fs);
    let (_store, _) = open(&fs);
    let open = survivor_report(&disk(&fs), Path::new(DIR), &config(), 1).unwrap_err();
    assert!(matches!(open, Error::Log(_) | Error::Pages(_)), "{open}");
}

/// Whenever power fails, a second run ends as one that was not interrupted.
#[test]
fn a_recovery_that_a_power_loss_cuts_short_is_begun_again() {
    let whole = {
        let fs = FaultFs::new(0);
        prepare(&fs);
        let before = fs.operations();
        recover(&fs).unwrap();
        fs.operations() - before
    };
    for cut in (0..whole).step_by(3) {
        let fs = FaultFs::new(cut);
        prepare(&fs);
        fs.cut_power_after(cut);
        // The power may fail at the very end.
        let _ = recover(&fs);
        fs.power_loss(cut);
        let dir = Path::new(DIR);
        let report = survivor_report(&disk(&fs), dir, &config(), 77).unwrap();
        // All regions are changed in one root.
        if plan_recovery(&[report], &BTreeSet::from([LOST])).is_ok() {
            recover(&fs).unwrap();
        }
        let (store, recovered) = Store::start(try_directory(&fs, config()).unwrap()).unwrap();
        assert!(recovered.replicas.iter().all(|it| it.descriptor.peers.len() == 1), "cut at {cut}");
        assert_eq!(get(&store, 2, "e").unwrap(), "open", "cut at {cut}");
        store.check().unwrap();
    }
}
