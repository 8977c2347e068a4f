//! Recovery of regions whose majority is lost for good, on the directories of stores that are
//! stopped (`docs/decisions/0056-one-voter-by-an-operators-word.md`).
//!
//! 1. [`survivor_report`] says for each replica of a directory how far its log goes.
//! 2. [`plan_recovery`] decides, from the reports of all survivors, which regions have lost their
//!    majority, and which replica of each is the newest.
//! 3. [`recover_directory`] has those of one directory applied to the end of their logs, and makes
//!    each the only voter of its region.
//!
//! The plan follows from the reports alone, so that each survivor may be recovered on its own
//! machine. A recovery that was cut short is begun again: a region that has one voter by then keeps
//! its majority.

mod plan;
mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use flotilla_identity::{StoreRegistry, StoreUuid};
use flotilla_region::{Index, RecoveredReplica, RegionId, Space, Term};
use flotilla_vfs::FileSystem;

pub use plan::{
    LostRange, PlanRefusal, PlannedRegion, RecoveryPlan, SurvivingReplica, SurvivorReport,
    plan_recovery,
};

use crate::config::Config;
use crate::directory::{StartSeed, StoreDirectory};
use crate::error::Error;
use crate::recovery::RecoveredReplicas;
use crate::store::Store;

/// The rows of placement, by key.
pub type SystemRows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A member's directory, and the store in it that no node runs. Counts a start.
fn open(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    config: Config,
    nonce: u64,
) -> Result<(Store, RecoveredReplicas, StoreRegistry), Error> {
    let missing = || Error::WrongDirectory("there is no store of a cluster".to_owned());
    // A start would make what is not there.
    if !fs.list(dir).is_ok_and(|names| names.iter().any(|name| name == "pages")) {
        return Err(missing());
    }
    // The directory has its uuid already.
    let seed = StartSeed { uuid: StoreUuid(0), nonce };
    let directory = StoreDirectory::open(fs, dir, config, seed)?;
    if !directory.identity().is_member() {
        return Err(missing());
    }
    let (registry, _) = directory.copies()?;
    let (store, recovered) = Store::start(directory)?;
    Ok((store, recovered, registry))
}

/// The state of a directory whose store is stopped: each of its replicas, with the end of its log.
/// Entries that are known to be committed are applied before, as a start of the store does.
///
/// # Errors
///
/// The directory is that of no member, its store runs, or it cannot be read.
pub fn survivor_report(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    config: &Config,
    nonce: u64,
) -> Result<SurvivorReport, Error> {
    let (store, recovered, _) = open(Arc::clone(fs), dir, config.clone(), nonce)?;
    replay::replay(&store, recovered, |_| false)?;
    store.checkpoint()?;
    drop(store);
    // All splits are applied now: each region is in the rows.
    let (store, recovered, registry) = open(Arc::clone(fs), dir, config.clone(), nonce)?;
    // It would become the only one, and nothing could mend it any more.
    if let Some(damaged) = recovered.replicas.iter().find(|found| found.is_damaged) {
        return Err(Error::WrongDirectory(format!(
            "the replica of region {} here has lost rows by a damaged page, and needs another store \
             to get them from: recover without this store",
            damaged.descriptor.id
        )));
    }
    let member = store.member_id();
    let replicas = recovered.replicas.iter().map(surviving).collect();
    Ok(SurvivorReport { cluster_id: member.cluster_id, store: member.store, registry, replicas })
}

fn surviving(found: &RecoveredReplica) -> SurvivingReplica {
    let of_last = found.terms.last().map_or(found.truncated.1, |run| run.1);
    let term = if found.last > found.truncated.0 { of_last } else { found.truncated.1 };
    SurvivingReplica {
        descriptor: found.descriptor.clone(),
        peer: found.peer,
        committed: found.hard_state.commit,
        last: (found.last, term),
    }
}

/// The outcome for one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryRecovery {
    /// The regions whose only voter is here now, with the entries that were applied although they
    /// were not known to be committed.
    pub recovered: Vec<(RegionId, u64)>,
    /// Whether the rows of placement were changed here.
    pub has_system: bool,
}

/// Carries out the share of one directory in a plan. `change_rows` gets all rows of placement, if
/// its region is recovered here, and returns those that are to be put. Durable when this returns.
///
/// # Errors
///
/// As [`survivor_report`]; [`Error::WrongDirectory`] if `change_rows` refuses.
pub fn recover_directory(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    config: &Config,
    nonce: u64,
    plan: &RecoveryPlan,
    change_rows: impl FnOnce(&SystemRows) -> Result<SystemRows, String>,
) -> Result<DirectoryRecovery, Error> {
    let (store, recovered, own_copy) = open(Arc::clone(fs), dir, config.clone(), nonce)?;
    let here = store.member_id().store;
    let is_ours = |region: RegionId| plan.winner(region) == Some(here);
    let known: BTreeSet<_> = plan.regions.iter().map(|planned| planned.region).collect();
    // A start that finds an entry committed finds it in the log.
    let uncommitted = |found: &RecoveredReplica| found.last.0 - found.hard_state.commit.0;
    let found = recovered.replicas.iter().filter(|found| is_ours(found.descriptor.id));
    let beyond: BTreeMap<_, _> =
        found.map(|found| (found.descriptor.id, uncommitted(found))).collect();
    replay::replay(&store, recovered, is_ours)?;
    store.checkpoint()?;
    let mut recovery = DirectoryRecovery::default();
    let mut sole_voters = vec![];
    for descriptor in store.descriptors()? {
        let region = descriptor.id;
        // A split at the end of a log may have made regions that no report knows.
        let is_new = !known.contains(&region) && !descriptor.keeps_majority(|it| plan.is_lost(it));
        let Some(peer) = descriptor.peer_on(here) else { continue };
        if is_ours(region) || is_new {
            recovery.recovered.push((region, beyond.get(&region).copied().unwrap_or_default()));
            recovery.has_system |= descriptor.space == Space::System;
            sole_voters.push(descriptor.with_sole_voter(peer.id));
        }
    }
    let rows = match recovery.has_system {
        true => change_rows(&store.system_rows()?).map_err(Error::WrongDirectory)?,
        false => SystemRows::default(),
    };
    let registry = plan.registry.as_ref().filter(|planned| planned.version > own_copy.version);
    store.put_sole_voters(&sole_voters, &rows, registry)?;
    Ok(recovery)
}

/// The order of two logs of a region: the one that ends in the later term, then the longer one, may
/// have entries that the other lacks, and never the other way round.
fn log_order(last: (Index, Term)) -> (Term, Index) {
    (last.1, last.0)
}
