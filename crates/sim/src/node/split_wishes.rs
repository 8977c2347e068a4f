//! Splits that leaders wish for, carried out as the node's splitter does.

use flotilla_region::{SplitCommand, SplitReason, SplitWish};
use flotilla_store::ReadError;

use super::SimNode;
use super::running::RunningStore;
use crate::task::{Outbox, WishedSplit};

impl RunningStore {
    /// Looks up the keys for a wish whose turn has come. Nothing comes of it if the region is not
    /// as it was when the wish was made, or has too few rows.
    pub(super) fn look_up_borders(
        &mut self,
        wish: SplitWish,
        out: &mut Outbox,
    ) -> Result<(), ReadError> {
        let Some(region) = self.shard.descriptor(wish.region).filter(|found| wish.is_for(found))
        else {
            self.counts.wishes.void += 1;
            return Ok(());
        };
        let is_by_load = matches!(wish.reason, SplitReason::Load { .. });
        let keys = match wish.reason {
            SplitReason::Load { key, .. } => vec![key],
            SplitReason::Size { parts } => {
                match self.executor.store().read().region(wish.region, None) {
                    Ok(rows) => rows.split_keys(parts, 1)?,
                    // Its replica has ended, and the core has not heard of that.
                    Err(ReadError::RegionNotFound) => Vec::new(),
                    Err(error) => return Err(error),
                }
            }
        };
        // An error if the rows are those of a later version than the core knows.
        match SplitCommand::borders(region, &keys) {
            Ok(borders) if !borders.is_empty() => {
                out.wishes.push(WishedSplit { region: region.clone(), borders, is_by_load });
            }
            _ => self.counts.wishes.void += 1,
        }
        Ok(())
    }
}

impl SimNode {
    /// A region was split because its leader here wished it.
    pub(crate) fn count_wished_split(&mut self, is_by_load: bool) {
        let wishes = &mut self.coverage.driver.wishes;
        *if is_by_load { &mut wishes.by_load } else { &mut wishes.by_size } += 1;
    }
}
