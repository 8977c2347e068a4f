//! Replay of the redo records beyond the durable root, when a store is opened.

use std::sync::Arc;

use crate::checkpoint::{self, CheckpointScope};
use crate::error::{Error, Result};
use crate::redo::{FrameReader, MalformedRecord, RedoArea, RedoOp, RedoRecord, records};
use crate::shared::StoreShared;
use crate::txn::write_txn::WriteTxn;

/// Dirty bytes after which a checkpoint is made.
const DIRTY_BYTES_MAX: u64 = 256 << 20;

/// Brings the store, opened at its durable root, to the last durable transaction.
pub(crate) fn run(shared: &Arc<StoreShared>) -> Result<()> {
    let (area, checkpoint) = {
        let written = shared.last_checkpoint.lock();
        (written.meta.redo, written.meta.number)
    };
    let Some(area) = area else { return Ok(()) };
    shared.redo.replay(area, checkpoint);
    let mut frames = FrameReader::new(area, shared.redo.file(), checkpoint);
    loop {
        let begin = frames.position();
        let Some(body) = frames.next()? else { break };
        for record in records(&body) {
            let record = record.map_err(|MalformedRecord| corrupt(&area, begin))?;
            let current = shared.current().txid;
            // Transactions that the checkpoint contains already.
            if record.txid <= current {
                continue;
            }
            if record.txid != current + 1 {
                return Err(corrupt(&area, begin));
            }
            let mut txn = WriteTxn::begin(shared)?;
            carry_out(&mut txn, record, || corrupt(&area, begin))?;
            txn.replay()?;
            assert_eq!(shared.current().txid, record.txid, "a replayed transaction has its number");
        }
        shared.redo.advance(frames.position());
        let dirty_bytes = shared.space.lock().dirty_bytes();
        if dirty_bytes > DIRTY_BYTES_MAX {
            checkpoint::run(shared, CheckpointScope::Pages)?;
        }
    }
    shared.redo.replayed();
    Ok(())
}

fn corrupt(area: &RedoArea, position: u64) -> Error {
    Error::Corrupt { page: area.unit(position), what: "redo records that make no sense" }
}

/// Applies a record to `txn`.
pub(crate) fn carry_out(
    txn: &mut WriteTxn<'_>,
    record: RedoRecord<'_>,
    corrupt: impl Fn() -> Error,
) -> Result<()> {
    let text = |name| std::str::from_utf8(name).map_err(|_| corrupt());
    let mut tree = None;
    for op in record.ops() {
        match op.map_err(|MalformedRecord| corrupt())? {
            RedoOp::Tree(name) => {
                txn.tree(tree.insert(text(name)?))?;
            }
            RedoOp::Put(key, value) => txn.tree(tree.ok_or_else(&corrupt)?)?.put(key, value)?,
            RedoOp::Delete(key) => {
                txn.tree(tree.ok_or_else(&corrupt)?)?.delete(key)?;
            }
            RedoOp::DeleteRange(start, end) => {
                txn.tree(tree.ok_or_else(&corrupt)?)?.delete_range(start, end)?;
            }
            RedoOp::CommitMetadata(commit_metadata) => txn.set_commit_metadata(commit_metadata),
            RedoOp::DeleteTree(name) => {
                txn.delete_tree(text(name)?)?;
            }
            RedoOp::CreateTree(name, options) => {
                let made = txn.create_tree(text(name)?, options).map(|_| ());
                made.map_err(|error| match error {
                    Error::PageUnits { .. } | Error::TreeExists { .. } => corrupt(),
                    other => other,
                })?;
            }
            RedoOp::RenameTree(from, to) => {
                txn.rename_tree(text(from)?, text(to)?)?;
            }
        }
    }
    Ok(())
}
