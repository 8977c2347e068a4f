//! A store for the workers' tests, alone in its cluster.

use std::path::Path;
use std::sync::Arc;

use flotilla_identity::{BootstrapPlan, BootstrapWrite, ClusterSettings, ClusterSpec, StoreUuid};
use flotilla_region::Descriptor;
use flotilla_store::{Config, StartSeed, Store, StoreDirectory};
use flotilla_vfs::fault::FaultFs;

/// The store 1 of a cluster that begins with these regions, in an empty directory.
pub(super) fn open(disk: &FaultFs, regions: &[Descriptor]) -> Store {
    let seed = StartSeed { uuid: StoreUuid(1), nonce: 1 };
    let fs = Arc::new(disk.clone());
    let mut directory = StoreDirectory::open(fs, Path::new("/s"), Config::default(), seed)
        .expect("an empty directory");
    let spec = ClusterSpec {
        stores: ClusterSpec::parse_stores("s1=h:1").expect("a list"),
        settings: ClusterSettings::default(),
        regions: regions.len() as u64 - 1,
        cluster_id: 0,
    };
    let uuids = vec![directory.identity().uuid];
    let regions = regions.to_vec();
    let plan = Box::new(BootstrapPlan { cluster_id: 7, round: 1, uuids, spec, regions });
    for write in [BootstrapWrite::Form { plan, place: 0 }, BootstrapWrite::Member] {
        directory.write(&write).expect("a good disk");
    }
    directory.start().expect("a member's directory").0
}
