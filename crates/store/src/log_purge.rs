//! Log garbage collection: removes segments that no restart needs.

use flotilla_raftlog::Purged;

use crate::error::Error;
use crate::schema::STORE_GROUP;
use crate::store_log::StoreLog;

/// Removes dead segments, oldest first. Where the oldest is held only by what the last durable
/// root holds as well (hard states of idle regions, and where their empty logs begin), the log
/// forgets that and goes on. The log could move it instead, but only once it is long, and would
/// write it again and again; what is forgotten costs nothing any more.
///
/// The store's own group is never forgotten; where it holds the oldest segment it is written again.
pub(crate) fn purge(log: &StoreLog) -> Result<Purged, Error> {
    let mut total = Purged::default();
    let mut is_rewritten = false;
    loop {
        let purged = log.engine().purge_expired_files()?;
        total.segments += purged.segments;
        total.bytes += purged.bytes;
        total.moved_bytes += purged.moved_bytes;
        total.excess_bytes = purged.excess_bytes;
        total.held_by = purged.held_by;
        let own = total.held_by.iter().any(|holder| holder.group == STORE_GROUP);
        if own && !is_rewritten {
            is_rewritten = true;
            log.rewrite_own_group()?;
            continue;
        }
        let holders = total.held_by.iter().filter(|holder| holder.keys);
        if !log.forget(holders.map(|holder| holder.group))? {
            return Ok(total);
        }
    }
}
