//! The entries of whole runs, for export and salvage.

use crate::batch::frame::EntryRun;
use crate::batch::log_batch::EntryRef;
use crate::error::Error;
use crate::format::item::AppendHead;
use crate::read::append_entries;
use flotilla_vfs::File;

/// Calls `take` with the entries of a run of the group, in order.
///
/// # Errors
///
/// [`Error::Corrupt`] if one of them is not what was written; what `take` returns.
pub(crate) fn each_of_run(
    group: u64,
    file: &dyn File,
    run: &EntryRun,
    mut take: impl FnMut(EntryRef<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut item = vec![0; run.item_bytes as usize];
    file.read_exact_at(&mut item, run.offset.into())?;
    let offset = u64::from(run.offset);
    let corrupt = |what| Error::Corrupt { segment: run.segment, offset, what };
    let head = AppendHead::decode(&item).map_err(corrupt)?;
    let holds = head.group == group && head.first <= run.first;
    if !holds || run.end > head.first + head.count {
        return Err(corrupt("an append is not the one that was written"));
    }
    let mut result = Ok(());
    append_entries::each_entry(&item, &head, |entry| {
        if result.is_ok() && (run.first..run.end).contains(&entry.index) {
            let (index, term, kind) = (entry.index, entry.term, entry.kind);
            let data = entry.data.map_err(corrupt);
            result = data.and_then(|data| take(EntryRef { index, term, kind, data }));
        }
    });
    result
}
