//! Export: groups of a log as one stream of bytes, to carry them to another log, version or
//! machine.

use crate::batch::frame::EntryRun;
use crate::engine::LogEngine;
use crate::error::Error;
use crate::read::run_entries;
use crate::segments::segment::Segment;
use crate::tools::export_stream::{
    KIND_END, KIND_ENTRIES, KIND_GROUP, KIND_GROUP_END, KIND_KEY, MAGIC, RECORD_BYTES, VERSION,
    put_slice, put_u64, record_checksum, record_header,
};
use crate::tools::verify::ToolProgress;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

/// The totals of an export or import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Groups.
    pub groups: u64,
    /// Entries of them all.
    pub entries: u64,
    /// Keys of them all.
    pub keys: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

/// Writes groups to a stream: these, or all that there are. `on_progress` is called now and then.
///
/// Each group is as it was at one moment; all of them are only without writes meanwhile. Writes and
/// purges go on.
///
/// # Errors
///
/// [`Error::NoGroup`] if one of `groups` is not there; [`Error::Corrupt`] if an entry is not what
/// was written; [`Error::Io`] if the stream cannot be written. The unfinished stream is then of no
/// use.
pub fn export(
    log: &LogEngine,
    groups: Option<&[u64]>,
    out: &mut dyn Write,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<Exported, Error> {
    let ids = match groups {
        Some(ids) => {
            if let Some(group) = ids.iter().find(|id| log.group(**id).is_none()) {
                return Err(Error::NoGroup { group: *group });
            }
            ids.to_vec()
        }
        None => log.group_ids(),
    };
    let sizes = ids.iter().filter_map(|id| log.group(*id)).map(|group| group.size());
    let mut progress = ToolProgress { bytes_done: 0, bytes: sizes.sum() };
    let mut writer = ExportWriter { out, done: Exported::default(), records: 0 };
    writer.write(&[MAGIC.as_slice(), &VERSION.to_le_bytes()].concat())?;
    for id in ids {
        match GroupSnapshot::take(log, id) {
            Some(frozen) => writer.group(id, &frozen, &mut progress, on_progress)?,
            // The group was removed since it was listed.
            None if groups.is_none() => {}
            None => return Err(Error::NoGroup { group: id }),
        }
    }
    let mut body = Vec::new();
    put_u64(&mut body, writer.done.groups);
    put_u64(&mut body, writer.done.entries);
    writer.record(KIND_END, &body)?;
    writer.out.flush()?;
    Ok(writer.done)
}

/// A snapshot of a group, and the files that its entries are in.
struct GroupSnapshot {
    first: u64,
    next: u64,
    /// The term before the first index, if the log was compacted.
    term_before: Option<u64>,
    keys: Vec<(Bytes, Bytes)>,
    runs: Vec<EntryRun>,
    segments: BTreeMap<u64, Arc<Segment>>,
}

impl GroupSnapshot {
    fn take(log: &LogEngine, id: u64) -> Option<GroupSnapshot> {
        let index = log.group_commit.groups.get(id)?;
        let index = index.read();
        if index.is_empty() {
            return None;
        }
        let (first, next) = (index.first(), index.next());
        let term_before = if index.is_compacted() { index.term(first - 1).ok() } else { None };
        let runs: Vec<EntryRun> = index.runs_from(first).collect();
        // A segment with live records is not purged, and one that is held is not recycled.
        let segments = runs
            .chunk_by(|a, b| a.segment == b.segment)
            .filter_map(|runs| Some((runs[0].segment, log.segments.get(runs[0].segment)?)))
            .collect();
        Some(GroupSnapshot { first, next, term_before, keys: index.scan(), runs, segments })
    }
}

struct ExportWriter<'a> {
    out: &'a mut dyn Write,
    done: Exported,
    records: u64,
}

impl ExportWriter<'_> {
    fn group(
        &mut self,
        id: u64,
        group: &GroupSnapshot,
        progress: &mut ToolProgress,
        on_progress: &mut dyn FnMut(ToolProgress),
    ) -> Result<(), Error> {
        let mut body = Vec::new();
        for number in [id, group.first, group.next, group.term_before.unwrap_or(0)] {
            put_u64(&mut body, number);
        }
        body.push(u8::from(group.term_before.is_some()));
        self.record(KIND_GROUP, &body)?;
        for (key, value) in &group.keys {
            body.clear();
            put_slice(&mut body, key);
            put_slice(&mut body, value);
            self.record(KIND_KEY, &body)?;
        }
        body.clear();
        let before = self.done.entries;
        for run in &group.runs {
            let what = "the segment of an entry is not there";
            let gone = || Error::Corrupt { segment: run.segment, offset: run.offset.into(), what };
            let segment = group.segments.get(&run.segment).ok_or_else(gone)?;
            run_entries::each_of_run(id, &*segment.file, run, |entry| {
                if body.len() > RECORD_BYTES {
                    self.record(KIND_ENTRIES, &body)?;
                    body.clear();
                }
                if body.is_empty() {
                    put_u64(&mut body, entry.index);
                }
                put_u64(&mut body, entry.term);
                body.push(entry.kind);
                put_slice(&mut body, entry.data);
                self.done.entries += 1;
                Ok(())
            })?;
            progress.bytes_done += u64::from(run.item_bytes);
            on_progress(*progress);
        }
        if !body.is_empty() {
            self.record(KIND_ENTRIES, &body)?;
        }
        let count = self.done.entries - before;
        debug_assert_eq!(count, group.next - group.first, "entries of group {id}");
        self.done.groups += 1;
        self.done.keys += group.keys.len() as u64;
        self.record(KIND_GROUP_END, &[])
    }

    fn record(&mut self, kind: u8, body: &[u8]) -> Result<(), Error> {
        let header = record_header(kind, body.len() as u32);
        let checksum = record_checksum(self.records, &header, body);
        self.records += 1;
        self.write(&header)?;
        self.write(body)?;
        self.write(&checksum.to_le_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes)?;
        self.done.bytes += bytes.len() as u64;
        Ok(())
    }
}
