//! Log garbage collection: removes segments that no restart needs.

use flotilla_raftlog::PurgeReport;

use crate::error::Error;
use crate::schema::STORE_GROUP;
use crate::store_log::StoreLog;

/// Removes dead segments, oldest first. Where the oldest is held only by what the last durable
/// root holds as well (hard states of idle regions, and where their empty logs begin), the log
/// forgets that and goes on. The log could move it instead, but only once it is long, and would
/// write it again and again; what is forgotten costs nothing any more.
///
/// The store's own group is never forgotten; where it holds the oldest segment it is written again.
pub(crate) fn purge(log: &StoreLog) -> Result<PurgeReport, Error> {
    let mut total = PurgeReport::default();
    let mut is_rewritten = false;
    loop {
        let purged = log.engine().purge_expired_files()?;
        total.segments += purged.segments;
        total.bytes += purged.bytes;
        total.rewritten_bytes += purged.rewritten_bytes;
        total.excess_bytes = purged.excess_bytes;
        total.groups_to_compact.extend(purged.groups_to_compact);
        total.blocking_groups = purged.blocking_groups;
        let own = total.blocking_groups.iter().any(|holder| holder.group == STORE_GROUP);
        if own && !is_rewritten {
            // Once: the rows lie at the end of the log then, and another rewrite would free
            // nothing.
            is_rewritten = true;
            log.rewrite_own_group()?;
            continue;
        }
        let holders = total.blocking_groups.iter().filter(|holder| holder.keys);
        if !log.forget(holders.map(|holder| holder.group))? {
            return Ok(total);
        }
    }
}
