//! Consistency check of a whole store: pages, rows and logs fit together.

use flotilla_pagestore::PageStore;
use flotilla_region::{Descriptor, Space, StoreId, Term};

use crate::error::Error;
use crate::region_ranges;
use crate::schema::{self, ApplyState};
use crate::snapshot_read::StoreSnapshot;
use crate::store_log::StoreLog;

/// The result of a check.
#[derive(Clone, Debug)]
pub struct StoreCheckReport {
    /// The page store's own report: every page is reachable, free or pending.
    pub pages: flotilla_pagestore::PageCheckReport,
    /// How many regions have their rows, disjoint ranges and a log that fits.
    pub regions: u64,
    /// How many rows of data there are, each inside of a region.
    pub rows: u64,
}

/// Checks pages, rows and logs.
pub(crate) fn check(
    pages: &PageStore,
    log: &StoreLog,
    store: StoreId,
) -> Result<StoreCheckReport, Error> {
    let snapshot = pages.read();
    let view = StoreSnapshot::new(snapshot.clone());
    let descriptors = view.descriptors()?;
    region_ranges::check_disjoint(&descriptors).map_err(Error::Corrupt)?;
    let states = view.states()?;
    if states.len() != descriptors.len() {
        return Err(Error::Corrupt(format!(
            "{} regions, but {} apply rows",
            descriptors.len(),
            states.len()
        )));
    }
    for (descriptor, (region, state)) in descriptors.iter().zip(&states) {
        if descriptor.id != *region {
            return Err(Error::Corrupt(format!("region {} has no apply row", descriptor.id)));
        }
        check_log(log, store, descriptor, state)?;
    }
    let mut rows = 0;
    for space in [Space::System, Space::Raw] {
        let Some(tree) = snapshot.tree(schema::data_tree(space))? else { continue };
        let inside: Vec<&Descriptor> = descriptors.iter().filter(|d| d.space == space).collect();
        let mut all = tree.range(..);
        while let Some((key, value)) = all.next()? {
            schema::decode_value(value)?;
            if !inside.iter().any(|descriptor| descriptor.contains(key)) {
                return Err(Error::Corrupt(format!("key {key:?} is in no region")));
            }
            rows += 1;
        }
    }
    Ok(StoreCheckReport { pages: pages.check()?, regions: descriptors.len() as u64, rows })
}

/// The log reaches down to the durable root and up to what is applied, with the same terms.
fn check_log(
    log: &StoreLog,
    store: StoreId,
    descriptor: &Descriptor,
    state: &ApplyState,
) -> Result<(), Error> {
    let region = descriptor.id;
    let corrupt = |what: String| Err(Error::Corrupt(format!("region {region}: {what}")));
    let Some(peer) = descriptor.peer_on(store) else {
        return corrupt("no replica on this store".to_owned());
    };
    let durable = log.durable(peer.id);
    if state.applied < durable {
        return corrupt(format!("applied up to {}, but durable to {durable}", state.applied));
    }
    // A group may hold a hard state and no entry: its log has not begun.
    let Some(group) = log.engine().group(peer.id.0).filter(|group| group.last_index() > 0) else {
        if state.applied > durable {
            return corrupt(format!("no log from {durable} to the applied {}", state.applied));
        }
        return Ok(());
    };
    let (first, last) = (group.first_index(), group.last_index());
    // A restart begins at the durable index, not at the applied one, and needs each entry from
    // there on.
    if first > durable.0 + 1 {
        return corrupt(format!("the log begins at {first}, but only {durable} is durable"));
    }
    if last < state.applied.0 {
        return corrupt(format!("the log ends at {last}, below the applied {}", state.applied));
    }
    match group.term(state.applied.0) {
        Ok(term) if Term(term) != state.term => corrupt(format!(
            "entry {} was applied in term {}, but is of term {term} in the log",
            state.applied, state.term
        )),
        // Compacted: there is no term to compare.
        _ => Ok(()),
    }
}
