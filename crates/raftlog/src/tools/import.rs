//! Import: the groups of an export stream, written to a log.

use crate::batch::log_batch::{EntryRef, LogBatch};
use crate::engine::LogEngine;
use crate::error::Error;
use crate::queue::write_queue::Durability;
use crate::tools::export::Exported;
use crate::tools::export_stream::{
    ExportReader, KIND_END, KIND_ENTRIES, KIND_GROUP, KIND_GROUP_END, KIND_KEY, RECORD_BYTES,
    RecordBody,
};
use crate::tools::verify::ToolProgress;
use std::io::Read;

/// Writes the groups of a stream to a log. When this returns they are durable. `on_progress` is
/// called now and then; the length of the stream is not known.
///
/// # Errors
///
/// [`Error::GroupExists`]; [`Error::Stream`] if the stream is damaged, cut short or of another
/// version; those of a write. Groups that were complete by then are in the log, as far as they were
/// synced; nothing is left of the one that was not.
pub fn import(
    log: &LogEngine,
    input: &mut dyn Read,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<Exported, Error> {
    let mut importer = Importer {
        reader: ExportReader { input, offset: 0, records: 0 },
        log,
        batch: LogBatch::new(),
        group: None,
        done: Exported::default(),
    };
    let result = importer.run(on_progress);
    if let (Err(_), Some(group)) = (&result, &importer.group) {
        let mut batch = LogBatch::new();
        batch.remove_group(group.id);
        // If even this cannot be written, the error is already that of a write.
        let _ = log.write(batch, Durability::Synced).wait();
    }
    result
}

struct Importer<'a> {
    reader: ExportReader<'a>,
    log: &'a LogEngine,
    batch: LogBatch,
    group: Option<ImportedGroup>,
    done: Exported,
}

/// The group that is being read.
struct ImportedGroup {
    id: u64,
    /// The index of the next entry, and the one after the last.
    index: u64,
    end: u64,
}

impl Importer<'_> {
    fn run(&mut self, on_progress: &mut dyn FnMut(ToolProgress)) -> Result<Exported, Error> {
        self.reader.begin()?;
        loop {
            let (kind, body) = self.reader.record()?;
            let mut body = RecordBody { rest: &body, offset: self.reader.offset };
            match (kind, self.group.is_some()) {
                (KIND_GROUP, false) => self.begin(&mut body)?,
                (KIND_KEY, true) => self.key(&mut body)?,
                (KIND_ENTRIES, true) => self.entries(&mut body)?,
                (KIND_GROUP_END, true) => self.end_group(&body)?,
                (KIND_END, false) => {
                    let (groups, entries) = (body.u64()?, body.u64()?);
                    if (groups, entries) != (self.done.groups, self.done.entries) {
                        return Err(body.wrong("the stream does not hold what its end says"));
                    }
                    body.end()?;
                    self.reader.end()?;
                    self.log.sync().wait()?;
                    self.done.bytes = self.reader.offset;
                    return Ok(self.done);
                }
                _ => return Err(body.wrong("a record is where it cannot be")),
            }
            body.end()?;
            on_progress(ToolProgress { bytes_done: self.reader.offset, bytes: self.reader.offset });
        }
    }

    fn begin(&mut self, body: &mut RecordBody<'_>) -> Result<(), Error> {
        let (id, index, end, term_before) = (body.u64()?, body.u64()?, body.u64()?, body.u64()?);
        let is_compacted = body.u8()? == 1;
        if index == 0 || index > end || end == u64::MAX {
            return Err(body.wrong("a group has indexes that cannot be"));
        }
        if self.log.group(id).is_some() {
            return Err(Error::GroupExists { group: id });
        }
        self.group = Some(ImportedGroup { id, index, end });
        if is_compacted {
            self.batch.compact_to(id, index, term_before);
        }
        Ok(())
    }

    fn key(&mut self, body: &mut RecordBody<'_>) -> Result<(), Error> {
        let Some(group) = &self.group else { return Ok(()) };
        let (key, value) = (body.slice()?, body.slice()?);
        self.batch.put(group.id, key, value);
        self.done.keys += 1;
        if self.batch.bytes() > RECORD_BYTES as u64 { self.write() } else { Ok(()) }
    }

    fn entries(&mut self, body: &mut RecordBody<'_>) -> Result<(), Error> {
        let Some(group) = &mut self.group else { return Ok(()) };
        if body.u64()? != group.index {
            return Err(body.wrong("the entries of a group do not follow one another"));
        }
        let mut entries = Vec::new();
        while !body.rest.is_empty() {
            let (term, kind, data) = (body.u64()?, body.u8()?, body.slice()?);
            if group.index == group.end {
                return Err(body.wrong("a group has more entries than it says"));
            }
            entries.push(EntryRef { index: group.index, term, kind, data });
            group.index += 1;
        }
        self.batch.append(group.id, entries.iter().copied());
        self.done.entries += entries.len() as u64;
        self.write()
    }

    fn end_group(&mut self, body: &RecordBody<'_>) -> Result<(), Error> {
        if self.group.as_ref().is_some_and(|group| group.index != group.end) {
            return Err(body.wrong("a group has fewer entries than it says"));
        }
        if !self.batch.is_empty() {
            self.write()?;
        }
        self.group = None;
        self.done.groups += 1;
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        let batch = std::mem::take(&mut self.batch);
        self.log.write(batch, Durability::Buffered).wait().map(drop)
    }
}
