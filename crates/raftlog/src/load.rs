//! What each segment says that it changes, read by several threads.

use crate::batch::Change;
use crate::directory::Directory;
use crate::error::Error;
use crate::footer::{self, Draft};
use crate::format::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::item;
use crate::scan::{self, Scan, ScannedFrame};
use crate::segment::Segment;
use crate::summary::Summary;
use flotilla_vfs::View;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A segment that is on disk, and what it says.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) segment: Segment,
    /// The number of its first frame, if that is whole as far as its header.
    pub(crate) first_lsn: Option<u64>,
    /// Where its last frame ends, and the number of the one that comes next.
    pub(crate) end: u64,
    pub(crate) next_lsn: u64,
    /// All frames up to here are synced, as its own say.
    pub(crate) synced_lsn: u64,
    /// The footer of a segment that has frames and no footer.
    pub(crate) footer_draft: Option<Draft>,
    summary: Option<Summary>,
    /// What is wrong with a frame that is whole, and where.
    fault: Option<(usize, &'static str)>,
}

impl Loaded {
    pub(crate) fn number(&self) -> u64 {
        self.segment.number()
    }

    pub(crate) fn has_frames(&self) -> bool {
        self.first_lsn.is_some_and(|first| self.next_lsn > first)
    }

    /// Whether a footer says that all its frames are there and synced.
    pub(crate) fn is_sealed(&self) -> bool {
        self.has_frames() && self.footer_draft.is_none()
    }

    /// What it changes. To be called once.
    pub(crate) fn take_summary(&mut self) -> Result<Summary, Error> {
        match self.fault {
            Some((offset, what)) => Err(self.corrupt(offset, what)),
            None => Ok(self.summary.take().unwrap_or_default()),
        }
    }

    /// All bytes of the file, as they are in the page cache: a copy of a whole segment would cost
    /// more than looking at it. To be dropped before the file is written to or cut.
    pub(crate) fn view(&self) -> Result<View, Error> {
        Ok(self.segment.file.view(0..self.segment.file.len()?)?)
    }

    pub(crate) fn corrupt(&self, offset: usize, what: &'static str) -> Error {
        Error::Corrupt { segment: self.number(), offset: offset as u64, what }
    }
}

/// Loads segments, in this order, with as many threads as the configuration says.
///
/// # Errors
///
/// A segment has no whole header, or cannot be read. What is wrong with its frames is not told here.
pub(crate) fn all(directory: &Directory, numbers: &[u64]) -> Result<Vec<Loaded>, Error> {
    let thread_count = directory.config.recovery_threads.min(numbers.len());
    if thread_count <= 1 {
        return numbers.iter().map(|number| load(directory, *number)).collect();
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(numbers.len()));
    thread::scope(|scope| {
        let work = || {
            while let at = next.fetch_add(1, Ordering::Relaxed)
                && let Some(number) = numbers.get(at)
            {
                let loaded = load(directory, *number);
                results.lock().push((at, loaded));
            }
        };
        // If the system has no more threads to give, those that there are do it.
        for _ in 1..thread_count {
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, loaded)| loaded).collect()
}

fn load(directory: &Directory, number: u64) -> Result<Loaded, Error> {
    let segment = directory.open(number)?;
    let end = SEGMENT_HEADER_BYTES as u64;
    let mut loaded = Loaded {
        segment,
        first_lsn: None,
        end,
        next_lsn: 0,
        synced_lsn: 0,
        footer_draft: None,
        summary: None,
        fault: None,
    };
    if let Some(footer) = footer::read(&loaded.segment)? {
        loaded.first_lsn = Some(footer.summary.first_lsn());
        loaded.next_lsn = footer.summary.last_lsn() + 1;
        loaded.synced_lsn = footer.summary.last_lsn();
        loaded.end = footer.end;
        loaded.summary = Some(footer.summary);
        return Ok(loaded);
    }
    let file_bytes = loaded.segment.file.len()? as usize;
    let header = loaded.segment.header;
    // Most that are empty show it here.
    let beginning =
        loaded.segment.read(0, file_bytes.min(SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES))?;
    loaded.first_lsn = scan::first_lsn(&beginning, header);
    if let Some(first_lsn) = loaded.first_lsn {
        let bytes = loaded.view()?;
        let mut scan = Scan::new(&bytes, header, first_lsn);
        let mut summary = Summary::default();
        while let Some(frame) = scan.step() {
            if let Err(what) = take(&frame, &mut summary) {
                loaded.fault = Some((frame.offset, what));
                break;
            }
        }
        loaded.end = scan.offset() as u64;
        loaded.next_lsn = scan.next_lsn();
        loaded.synced_lsn = scan.synced_lsn();
        loaded.footer_draft = Some(Draft::new(&summary));
        loaded.summary = Some(summary);
    }
    Ok(loaded)
}

/// Takes what a frame says into a summary.
fn take(frame: &ScannedFrame<'_>, summary: &mut Summary) -> Result<(), &'static str> {
    let offset = u32::try_from(frame.offset).map_err(|_| "a frame begins beyond 4 GiB")?;
    summary.begin_frame(frame.lsn);
    let mut input = frame.items;
    while !input.is_empty() {
        let at = FRAME_HEADER_BYTES + frame.items.len() - input.len();
        summary.apply(&Change::of(item::take_item(&mut input)?, at as u32), offset)?;
    }
    Ok(())
}
