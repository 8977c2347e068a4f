//! A store for unit tests, alone in its cluster.

use std::path::Path;
use std::sync::Arc;

use flotilla_identity::{
    BootstrapPlan, BootstrapWrite, ClusterSettings, ClusterSpec, Handshake, StoreUuid,
};
use flotilla_region::{Descriptor, StoreId};
use flotilla_store::{Config, StartSeed, Store, StoreDirectory};
use flotilla_vfs::fault::FaultFs;

use crate::config::NodeConfig;
use crate::driver::disk_view::DiskView;
use crate::driver::shard_message::Mailboxes;
use crate::driver::workers::page_damage::PageDamage;
use crate::drop_notify::{DropNotify, drop_notify};
use crate::failure::NodeFailure;
use crate::membership::{GivenPlace, Membership};

/// An address without a listener.
const ADDRESS: &str = "h:1";

/// The store 1 of a cluster that begins with these regions, in an empty directory.
pub(crate) fn open(disk: &FaultFs, regions: &[Descriptor]) -> Store {
    Store::start(directory(disk, regions)).expect("a member's directory").0
}

/// The same store, and its place in the cluster.
pub(crate) fn open_member(
    disk: &FaultFs,
    regions: &[Descriptor],
) -> (Arc<DropNotify<Store>>, Membership) {
    let directory = directory(disk, regions);
    let (registry, settings) = directory.copies().expect("a member has them");
    let (store, _) = Store::start(directory).expect("a member's directory");
    let identity = store.identity();
    let run = (identity.uuid, identity.run);
    let greeting =
        Handshake::introduction(store.member_id(), &identity.name, ADDRESS, run, settings);
    let history = store.history().clone();
    let handshake = Handshake::new(greeting, history, registry, Vec::new(), true);
    let (store, failure) = (drop_notify(store).0, NodeFailure::new(|| ()));
    let given = GivenPlace::default();
    let membership =
        Membership::new(Arc::clone(&store), handshake, ADDRESS.to_owned(), given, failure);
    (store, membership)
}

/// Sees to damaged pages of a store.
pub(crate) fn damage(store: &Arc<DropNotify<Store>>, mailboxes: &Mailboxes) -> PageDamage {
    PageDamage {
        store: Arc::clone(store),
        mailboxes: mailboxes.clone(),
        demand: Arc::new(|| ()),
        failure: NodeFailure::new(|| ()),
        under_way: Arc::default(),
    }
}

/// Disks of which nothing was heard.
pub(crate) fn disks(mailboxes: &Mailboxes) -> Arc<DiskView> {
    let config = NodeConfig::default();
    let limits = config.disk.limits(&config.storage);
    Arc::new(DiskView::new(StoreId(1), mailboxes.clone(), limits))
}

fn directory(disk: &FaultFs, regions: &[Descriptor]) -> StoreDirectory {
    let seed = StartSeed { uuid: StoreUuid(1), nonce: 1 };
    let fs = Arc::new(disk.clone());
    let mut directory = StoreDirectory::open(fs, Path::new("/s"), Config::default(), seed)
        .expect("an empty directory");
    let spec = ClusterSpec {
        stores: ClusterSpec::parse_stores(&format!("s1={ADDRESS}")).expect("a list"),
        settings: ClusterSettings::default(),
        regions: regions.len() as u64 - 1,
        split_keys: vec![],
        cluster_id: 0,
    };
    let uuids = vec![directory.identity().uuid];
    let regions = regions.to_vec();
    let plan = Box::new(BootstrapPlan { cluster_id: 7, round: 1, uuids, spec, regions });
    for write in [BootstrapWrite::Form { plan, place: 0 }, BootstrapWrite::Member] {
        directory.write(&write).expect("a good disk");
    }
    directory
}
