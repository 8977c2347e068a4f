//! Reads the rows of a snapshot, on a thread that may block.

use bytes::Bytes;
use flotilla_region::{RegionId, SnapshotHead};
use flotilla_store::{ReadError, SnapshotEnd, SnapshotReader};
use tokio::sync::{mpsc, oneshot};

use super::{CHUNK_BYTES, CHUNKS_IN_FLIGHT};
use crate::driver::workers::page_damage::PageDamage;

/// A part of a snapshot.
pub(super) enum SourcePart {
    /// Rows, as the store has packed them.
    Rows(Bytes),
    /// There are no more.
    End(SnapshotEnd),
}

/// The view of one region. Its thread ends with it.
pub(super) struct SnapshotSource {
    /// The state of the region in the view.
    pub(super) head: SnapshotHead,
    /// Rows, about.
    pub(super) rows: u64,
    /// Their bytes, about.
    pub(super) bytes: u64,
    parts: mpsc::Receiver<Result<SourcePart, String>>,
}

impl SnapshotSource {
    /// Takes a view, and begins to read it ahead, by as many chunks as may be under way.
    ///
    /// # Errors
    ///
    /// The region is not here, or the disk failed, in words.
    pub(super) async fn open(damage: PageDamage, region: RegionId) -> Result<Self, String> {
        let (opened, source) = oneshot::channel();
        tokio::task::spawn_blocking(move || read(&damage, region, opened));
        source.await.unwrap_or_else(|_| Err("its thread has ended".to_owned()))
    }

    /// The next part.
    ///
    /// # Errors
    ///
    /// The view was ended because it kept too many pages, or the disk failed, in words.
    pub(super) async fn next(&mut self) -> Result<SourcePart, String> {
        self.parts.recv().await.unwrap_or_else(|| Err("its thread has ended".to_owned()))
    }
}

fn read(
    damage: &PageDamage,
    region: RegionId,
    opened: oneshot::Sender<Result<SnapshotSource, String>>,
) {
    let failed = |error: ReadError| {
        damage.read_failed(region, &error);
        error.to_string()
    };
    let mut reader = match damage.store.open_snapshot(region) {
        Ok(reader) => reader,
        // An error means that the task has ended, here and below.
        Err(error) => return drop(opened.send(Err(failed(error)))),
    };
    let (sender, parts) = mpsc::channel(CHUNKS_IN_FLIGHT as usize);
    let (head, size) = (reader.head().clone(), reader.total());
    let source = SnapshotSource { head, rows: size.keys, bytes: size.bytes, parts };
    if opened.send(Ok(source)).is_err() {
        return;
    }
    loop {
        let part = next_part(&mut reader).map_err(failed);
        let is_last = !matches!(part, Ok(SourcePart::Rows(_)));
        if sender.blocking_send(part).is_err() || is_last {
            return;
        }
    }
}

fn next_part(reader: &mut SnapshotReader) -> Result<SourcePart, ReadError> {
    Ok(match reader.next_chunk(CHUNK_BYTES)? {
        Some(chunk) => SourcePart::Rows(chunk.bytes),
        None => SourcePart::End(reader.end()),
    })
}
