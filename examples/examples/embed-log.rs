//! The log engine in a program of one's own: open, write, read, compact, purge.

use flotilla_raftlog::{Config, Durability, Entry, Error, LogBatch, LogEngine};
use flotilla_vfs::os::OsFs;
use std::sync::Arc;

fn main() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, _) = LogEngine::open_with(Arc::new(OsFs::new()), dir.path(), Config::default())?;

    let mut batch = LogBatch::new();
    for group in [1, 2] {
        let entry =
            |index| Entry { index, term: 1, kind: 0, data: format!("entry {index}").into() };
        batch.append(group, &[entry(1), entry(2), entry(3)]);
        batch.put(group, b"hard state", b"term 1, vote 7");
    }
    let receipt = log.write(batch, Durability::Synced).wait()?;

    let group = log.group(1).expect("it was just written");
    for entry in group.entries(2..4, u64::MAX)? {
        println!(
            "batch {}: {} in term {} says {:?}",
            receipt.lsn, entry.index, entry.term, entry.data
        );
    }
    let mut batch = LogBatch::new();
    batch.compact_to(1, 4, group.term(3)?);
    log.write(batch, Durability::Buffered).wait()?;
    println!("group 1 begins at {}, {:?}", group.first_index(), log.purge_expired_files()?);
    Ok(())
}
