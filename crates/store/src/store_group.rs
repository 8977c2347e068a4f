//! The store's own group in the log: the half of its identity that is there, the last start of each
//! other store that it took messages of, and changed settings of the cluster. In the log, because
//! one synced write is all that a handshake, or a change of settings, may have to wait for.

use flotilla_identity::{ClusterSettings, LogIdentity, PeerWrite, StoreRun};
use flotilla_raftlog::{Commit, Durability, LogBatch, LogEngine};

use crate::error::Error;
use crate::schema::{
    self, LOG_IDENTITY_KEY, LOG_SETTINGS_KEY, MalformedRow, RELIED_ROOT_KEY, STORE_GROUP,
};

/// The identity's half in the log, if there is one.
pub(crate) fn identity(log: &LogEngine) -> Result<Option<LogIdentity>, Error> {
    let Some(row) = log.group(STORE_GROUP).and_then(|group| group.get(LOG_IDENTITY_KEY)) else {
        return Ok(None);
    };
    Ok(Some(LogIdentity::decode(&row).map_err(MalformedRow::from)?))
}

/// Writes it, durably.
pub(crate) fn put_identity(log: &LogEngine, identity: &LogIdentity) -> Result<(), Error> {
    put(log, LOG_IDENTITY_KEY, &identity.encode())
}

/// The transaction whose root the log relies on; 0 if it has given up nothing yet.
pub(crate) fn relied_root(log: &LogEngine) -> Result<u64, Error> {
    let row = log.group(STORE_GROUP).and_then(|group| group.get(RELIED_ROOT_KEY));
    let Some(row) = row else { return Ok(0) };
    let number = row[..].try_into().map(u64::from_le_bytes);
    number.map_err(|_| Error::Corrupt("in the log: the number of a root is malformed".to_owned()))
}

/// The last start of each other store that messages were taken of, by store.
pub(crate) fn peer_runs(log: &LogEngine) -> Result<Vec<PeerWrite>, Error> {
    let mut runs = vec![];
    for (key, row) in log.group(STORE_GROUP).map(|group| group.scan()).unwrap_or_default() {
        if let Some(store) = schema::store_of_run_key(&key) {
            let ((starts, nonce), address) = schema::decode_peer_run(&row)?;
            runs.push(PeerWrite { store, run: StoreRun { starts, nonce }, address });
        }
    }
    Ok(runs)
}

/// Remembers a start of another store, durably.
pub(crate) fn put_peer_run(log: &LogEngine, write: &PeerWrite) -> Commit {
    let row = schema::encode_peer_run((write.run.starts, write.run.nonce), &write.address);
    let mut batch = LogBatch::new();
    batch.put(STORE_GROUP, &schema::peer_run_key(write.store), &row);
    log.write(batch, Durability::Synced)
}

/// The settings of the cluster that were kept last, if any were.
pub(crate) fn settings(log: &LogEngine) -> Result<Option<ClusterSettings>, Error> {
    let row = log.group(STORE_GROUP).and_then(|group| group.get(LOG_SETTINGS_KEY));
    let settings = row.map(|row| ClusterSettings::decode(&row)).transpose();
    Ok(settings.map_err(MalformedRow::from)?)
}

/// Keeps settings of the cluster, durably.
pub(crate) fn put_settings(log: &LogEngine, settings: &ClusterSettings) -> Commit {
    let mut batch = LogBatch::new();
    batch.put(STORE_GROUP, LOG_SETTINGS_KEY, &settings.encode());
    log.write(batch, Durability::Synced)
}

/// Writes all of the group again, so that it holds no old segment.
pub(crate) fn rewrite(log: &LogEngine) -> Commit {
    let mut batch = LogBatch::new();
    for (key, row) in log.group(STORE_GROUP).map(|group| group.scan()).unwrap_or_default() {
        batch.put(STORE_GROUP, &key, &row);
    }
    log.write(batch, Durability::Buffered)
}

fn put(log: &LogEngine, key: &[u8], value: &[u8]) -> Result<(), Error> {
    let mut batch = LogBatch::new();
    batch.put(STORE_GROUP, key, value);
    log.write(batch, Durability::Synced).wait()?;
    Ok(())
}
