//! A full segment on its way to its footer: synced once, then sealed.

use crate::index::summary::SegmentSummary;
use crate::segments::footer;
use crate::segments::segment::Segment;
use flotilla_base::sync::Mutex;
use std::io;
use std::sync::Arc;

/// A segment that gets no more frames.
#[derive(Debug)]
pub(crate) struct UnsealedSegment {
    pub(super) segment: Arc<Segment>,
    /// Where its last frame ends.
    end: u64,
    pub(super) summary: SegmentSummary,
    synced: Mutex<SyncState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    NotYet,
    Done,
    Failed,
}

impl UnsealedSegment {
    pub(crate) fn new(
        segment: Arc<Segment>,
        end: u64,
        summary: SegmentSummary,
        is_synced: bool,
    ) -> UnsealedSegment {
        let synced = Mutex::new(if is_synced { SyncState::Done } else { SyncState::NotYet });
        UnsealedSegment { segment, end, summary, synced }
    }

    /// Makes its frames durable. Of several threads one does it, and all get its result: the kernel
    /// reports a failed write only once.
    pub(super) fn sync(&self) -> io::Result<()> {
        let mut synced = self.synced.lock();
        match *synced {
            SyncState::Done => return Ok(()),
            SyncState::Failed => {
                return Err(io::Error::other("an earlier sync of the segment failed"));
            }
            SyncState::NotYet => {}
        }
        *synced = SyncState::Failed;
        self.segment.file.sync()?;
        *synced = SyncState::Done;
        Ok(())
    }

    pub(super) fn seal(&self) -> io::Result<()> {
        assert!(self.summary.frames() > 0, "segment {} has no frames", self.segment.number());
        self.sync()?;
        footer::write(&self.segment, &self.summary, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::SegmentHeader;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};
    use std::path::Path;

    #[test]
    fn a_sync_that_failed_for_one_has_failed_for_all() {
        let disk = FaultFs::new(1);
        let file = disk.open(Path::new("/7"), OpenMode::CreateNew).expect("made");
        let header = SegmentHeader { segment: 7, salt: 5, is_reused: false, reduced_at_lsn: 0 };
        let segment = Arc::new(Segment { header, file });
        let unsealed = UnsealedSegment::new(segment.clone(), 64, SegmentSummary::default(), false);
        disk.fail_syncs(true);
        assert!(unsealed.sync().is_err());
        disk.fail_syncs(false);
        // The disk says that all is well, to whoever asks after the one who was told.
        assert!(segment.file.sync().is_ok() && unsealed.sync().is_err());
        let unsealed = UnsealedSegment::new(segment, 64, SegmentSummary::default(), true);
        disk.fail_syncs(true);
        assert!(unsealed.sync().is_ok(), "it was synced before it came here");
    }
}
