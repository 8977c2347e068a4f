//! An open data directory: its identity, its starts, and how its store becomes a member.
//!
//! The identity has two halves, one in the log and one in the pages. The log's is synced before
//! the root that says the same, so it is at most one start ahead; halves that differ otherwise are
//! of different directories or days. Both are written before a start says a word to other stores.

use std::path::Path;
use std::sync::Arc;

use flotilla_identity::{
    BootstrapWrite, ClusterSettings, IdentityState, JoinWrite, LogIdentity, RunHistory,
    SCHEMA_VERSION, StoreIdentity, StoreRegistry, StoreRun, StoreUuid,
};
use flotilla_pagestore::PageStore;
use flotilla_raftlog::{LogEngine, RecoveryReport};
use flotilla_vfs::FileSystem;

use crate::config::Config;
use crate::error::Error;
use crate::schema::{
    self, APPLY, ApplyState, CLUSTER, CheckpointLsn, IDENT, IDENTITY_KEY, MalformedRow, REGION,
    REGISTRY_KEY, SETTINGS_KEY, STORE_GROUP,
};
use crate::{cluster_copies, recovery, region_ranges, store_group};

/// Starts that a directory remembers of itself.
const STARTS_KEPT: u64 = 1_000;

/// Random numbers for one start, drawn by the driver.
#[derive(Clone, Copy, Debug)]
pub struct StartSeed {
    /// The uuid of a directory that was empty.
    pub uuid: StoreUuid,
    /// Distinguishes this start from one of a copy of the directory.
    pub nonce: u64,
}

/// An open data directory, of any state. Holds both engines' locks.
#[derive(Debug)]
pub struct StoreDirectory {
    pub(crate) config: Config,
    pub(crate) pages: PageStore,
    pub(crate) log: LogEngine,
    pub(crate) log_recovery: RecoveryReport,
    pub(crate) identity: StoreIdentity,
    pub(crate) history: RunHistory,
}

impl StoreDirectory {
    /// Opens the directory `dir` and counts this start, durably. An empty one gets an identity.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDirectory`] if a half of it is missing or of another day; [`Error::Corrupt`]
    /// if the engines do not fit together; else an engine failed. Nothing was written then but a
    /// log's torn tail cut.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        config: Config,
        seed: StartSeed,
    ) -> Result<Self, Error> {
        let log_dir = dir.join("log");
        fs.create_dir_all(&log_dir).map_err(Error::Directory)?;
        let (log, log_recovery) =
            LogEngine::open_with(Arc::clone(&fs), &log_dir, config.log.clone())?;
        let pages = PageStore::open_with(fs, &dir.join("pages"), config.pages.clone())?;
        let identity = next_identity(&pages, &log, seed)?;
        let mut history = history(&pages)?;
        let mut directory = {
            // The end as this start finds it: below what others heard of in the start before, it
            // proves an older copy (`RunHistory`).
            let log_end = log.durable_lsn();
            let StoreRun { starts, nonce } = identity.run;
            history.runs.insert(starts, (nonce, log_end));
            Self { config, pages, log, log_recovery, identity, history }
        };
        directory.count_start()?;
        Ok(directory)
    }

    /// The identity of the directory.
    #[must_use]
    pub fn identity(&self) -> &StoreIdentity {
        &self.identity
    }

    /// Where a member was to be reached in its last start; by the plan of its cluster if it has not
    /// run yet.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`], or the page store failed.
    pub fn own_address(&self) -> Result<Option<String>, Error> {
        if !self.identity.is_member() {
            return Ok(None);
        }
        let own = self.identity.store;
        let runs = store_group::peer_runs(&self.log)?;
        if let Some(run) = runs.into_iter().find(|run| run.store == own) {
            return Ok(Some(run.address));
        }
        let (registry, _) = self.copies()?;
        Ok(registry.store(own).map(|record| record.address.clone()))
    }

    /// Makes the start durable: first in the log, then in the pages.
    pub(crate) fn count_start(&mut self) -> Result<(), Error> {
        let StoreIdentity { uuid, run, .. } = self.identity;
        let latest = self.history.runs.keys().next_back();
        assert_eq!(latest, Some(&run.starts), "a start is the latest of its directory");
        // The log comes first: a crash in between leaves it one start ahead, which the next start
        // accepts.
        store_group::put_identity(&self.log, &LogIdentity { uuid, run })?;
        let mut txn = self.pages.write()?;
        if self.identity.state == IdentityState::New {
            // A member's start demands a position in the log, and the first checkpoint that writes
            // one may not have come by then.
            txn.set_commit_metadata(&CheckpointLsn::default().encode());
        }
        let mut ident = txn.tree(IDENT)?;
        ident.put(IDENTITY_KEY, &self.identity.encode())?;
        let record = self.history.runs[&run.starts];
        ident.put(&schema::start_key(run.starts), &schema::encode_start(record))?;
        // Bounded: a store that crashes in a loop must not fill its directory with starts.
        if let Some(old) = run.starts.checked_sub(STARTS_KEPT) {
            ident.delete(&schema::start_key(old))?;
            self.history.runs.remove(&old);
        }
        txn.publish()?;
        self.pages.checkpoint()?;
        Ok(())
    }

    /// Carries out a write of the bootstrap, in one durable root.
    ///
    /// # Errors
    ///
    /// [`Error::Bootstrap`] for a plan whose regions contradict each other; nothing has changed
    /// then. Else an engine failed.
    pub fn write(&mut self, write: &BootstrapWrite) -> Result<(), Error> {
        // Becomes the identity only once it is durable: nothing may be answered from a state that a
        // crash takes back.
        let next = write.apply(&self.identity);
        assert!(
            !self.identity.is_member() && next.state >= self.identity.state,
            "the bootstrap leads from {:?} to {:?}",
            self.identity.state,
            next.state
        );
        let mut txn = self.pages.write()?;
        if let BootstrapWrite::Form { plan, .. } = write {
            region_ranges::check_first(&plan.regions)?;
            // The rows of an earlier plan go.
            for tree in [REGION, APPLY, CLUSTER] {
                txn.tree(tree)?.delete_range(b"", None)?;
            }
            // Region by region of this store only: a row without a replica here would have no log,
            // and fail the next start.
            let here = plan.regions.iter().filter(|region| region.peer_on(next.store).is_some());
            for region in here {
                let key = schema::region_key(region.id);
                txn.tree(REGION)?.put(&key, &region.encode())?;
                txn.tree(APPLY)?.put(&key, &ApplyState::default().encode())?;
            }
            let registry = StoreRegistry::of_plan(plan);
            cluster_copies::put(&mut txn, &registry, Some(&plan.spec.settings))?;
        }
        txn.tree(IDENT)?.put(IDENTITY_KEY, &next.encode())?;
        txn.publish()?;
        self.pages.checkpoint()?;
        self.identity = next;
        Ok(())
    }

    /// Makes the directory that of a store that has joined a cluster, in one durable root. It has
    /// no replicas.
    ///
    /// # Errors
    ///
    /// An engine failed.
    pub fn join(&mut self, write: &JoinWrite) -> Result<(), Error> {
        // Only a directory that no cluster can count on: one that keeps a plan may be a store of
        // another cluster already.
        assert_eq!(self.identity.state, IdentityState::New, "a store joins once");
        let next = write.apply(&self.identity);
        let mut txn = self.pages.write()?;
        cluster_copies::put(&mut txn, &write.registry, Some(&write.settings))?;
        txn.tree(IDENT)?.put(IDENTITY_KEY, &next.encode())?;
        txn.publish()?;
        // Before the store speaks: others remember it from its first greeting on, and a directory
        // that has forgotten its id must not get another one.
        self.pages.checkpoint()?;
        self.identity = next;
        Ok(())
    }

    /// The own copies of the registry and of the cluster's settings.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if there are none, as in a directory of no cluster.
    pub fn copies(&self) -> Result<(StoreRegistry, ClusterSettings), Error> {
        let missing = || Error::Corrupt("the directory has no registry or no settings".to_owned());
        let cluster = self.pages.read().tree(CLUSTER)?.ok_or_else(missing)?;
        let registry = cluster.get(REGISTRY_KEY)?.ok_or_else(missing)?;
        let settings = cluster.get(SETTINGS_KEY)?.ok_or_else(missing)?;
        let registry = StoreRegistry::decode(&registry).map_err(MalformedRow::from)?;
        let first = ClusterSettings::decode(&settings).map_err(MalformedRow::from)?;
        let changed = store_group::settings(&self.log)?;
        let settings = changed.filter(|changed| changed.version > first.version).unwrap_or(first);
        Ok((registry, settings))
    }
}

/// The identity of this start, if the two halves allow one.
fn next_identity(
    pages: &PageStore,
    log: &LogEngine,
    seed: StartSeed,
) -> Result<StoreIdentity, Error> {
    let has_replicas = log.group_ids().iter().any(|group| *group != STORE_GROUP);
    let wrong = |what: String| Err(Error::WrongDirectory(what));
    let nonce = seed.nonce;
    let (logged, found) = (store_group::identity(log)?, stored_identity(pages)?);
    let (logged, found) = match (logged, found) {
        (Some(logged), Some(found)) => (logged, found),
        (None, Some(_)) => {
            return wrong(
                "the data directory has its pages, but not its log: bring the whole directory back"
                    .to_owned(),
            );
        }
        // A first start that died before its pages were written.
        (Some(logged), None) if !has_replicas && logged.run.starts == 1 => {
            return Ok(StoreIdentity::new(logged.uuid, StoreRun { starts: 1, nonce }));
        }
        (None, None) if !has_replicas => {
            return Ok(StoreIdentity::new(seed.uuid, StoreRun { starts: 1, nonce }));
        }
        (_, None) => {
            return wrong(
                "the data directory has its log, but not its pages: bring the whole directory back"
                    .to_owned(),
            );
        }
    };
    if found.schema > SCHEMA_VERSION {
        return wrong(format!(
            "the data directory was written by a later version: its rows have schema {}, and this \
             version knows {SCHEMA_VERSION}: run the later version",
            found.schema
        ));
    }
    let (ahead, last) = (logged.run, found.run);
    if logged.uuid != found.uuid {
        return wrong(format!(
            "the log is that of directory {}, the pages are those of directory {}: bring the two \
             back that belong together",
            logged.uuid, found.uuid
        ));
    }
    // One ahead is a start that died between the two writes, before it sent a word.
    if ahead != last && ahead.starts != last.starts + 1 {
        return wrong(format!(
            "log and pages are not of the same day: the log ends in {ahead}, the pages in {last}; a \
             data directory is never restored, nor a half of it: bring the newest disk back"
        ));
    }
    let (relied, root) = (store_group::relied_root(log)?, pages.durable().txid);
    if root < relied {
        return wrong(format!(
            "the pages are older than the log relies on: it has given up what root {relied} holds, \
             and the pages are at root {root}; a data directory is never restored, nor a half of \
             it: bring the newest disk back"
        ));
    }
    if !found.is_member() && has_replicas {
        return wrong(
            "the log holds replicas, but the pages are of no cluster: bring the whole directory back"
                .to_owned(),
        );
    }
    // In a directory of no cluster no root follows the log yet.
    if found.is_member() {
        recovery::check_log_position(pages, log)?;
    }
    // From the pages: a start that only the log has counted never spoke to another store, so its
    // number is free.
    let run = StoreRun { starts: last.starts + 1, nonce };
    // From here on the directory may have rows that older versions do not know.
    Ok(StoreIdentity { run, schema: SCHEMA_VERSION, ..found })
}

fn stored_identity(pages: &PageStore) -> Result<Option<StoreIdentity>, Error> {
    let Some(ident) = pages.read().tree(IDENT)? else { return Ok(None) };
    let Some(row) = ident.get(IDENTITY_KEY)? else { return Ok(None) };
    if StoreIdentity::is_format_1(&row) {
        return Err(Error::WrongDirectory(
            "the data directory was written by a version whose stores had no identity of their \
             own (format 1), which this version does not take over: copy the data out with that \
             version, and begin a new cluster in empty directories"
                .to_owned(),
        ));
    }
    Ok(Some(StoreIdentity::decode(&row).map_err(MalformedRow::from)?))
}

fn history(pages: &PageStore) -> Result<RunHistory, Error> {
    let mut history = RunHistory::default();
    let Some(ident) = pages.read().tree(IDENT)? else { return Ok(history) };
    let (first, end) = schema::start_keys();
    let mut rows = ident.range(&first[..]..&end[..]);
    while let Some((key, row)) = rows.next()? {
        history.runs.insert(schema::starts_of_key(key)?, schema::decode_start(row)?);
    }
    Ok(history)
}
