//! Groups of a log as one stream of bytes, and back: to carry them from one log, version or machine
//! to another.
//!
//! `docs/log-tools.md` has the format. In short: a stream is a magic, a version and records; a record
//! is kind, length, body and a checksum that also covers its number in the stream, so that one that
//! is missing, doubled or in another place is found.

use crate::batch::frame::EntryRun;
use crate::batch::log_batch::{EntryRef, LogBatch};
use crate::engine::LogEngine;
use crate::error::Error;
use crate::queue::write_queue::Durability;
use crate::read::run_entries;
use crate::segments::segment::Segment;
use crate::tools::verify::ToolProgress;
use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"flotexpo";
const VERSION: u32 = 1;
const KIND_GROUP: u8 = 1;
const KIND_KEY: u8 = 2;
const KIND_ENTRIES: u8 = 3;
const KIND_GROUP_END: u8 = 4;
const KIND_END: u8 = 5;

/// A record of entries ends with the one that makes it longer than this.
const RECORD_BYTES: usize = 1 << 20;
/// No record is longer: an entry is at most as long as a batch.
const RECORD_BYTES_MAX: u32 = (1 << 30) + (2 << 20);
const RECORD_HEADER_BYTES: usize = 5;

/// What was exported or imported.
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
/// Each group is as it was at one moment; all of them are only if nobody writes meanwhile. Writes
/// and purges go on.
///
/// # Errors
///
/// [`Error::NoGroup`] if one of `groups` is not there; [`Error::Corrupt`] if an entry is not what was
/// written; [`Error::Io`] if the stream cannot be written. What is in the stream is then of no use.
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
            // It went since it was listed.
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

/// A group at one moment, and the files that its entries are in.
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
        // What the index names is not purged, and what is held is not used again.
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

/// Writes the groups of a stream to a log. When this returns they are durable. `on_progress` is called now
/// and then; how long the stream is is not known.
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
        // If even this cannot be written the error is that no write can be.
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

/// Records of a stream, proved.
struct ExportReader<'a> {
    input: &'a mut dyn Read,
    /// Where in the stream the next byte comes from.
    offset: u64,
    records: u64,
}

impl ExportReader<'_> {
    fn begin(&mut self) -> Result<(), Error> {
        let mut bytes = [0; 12];
        self.fill(&mut bytes)?;
        if bytes[..8] != MAGIC[..] {
            return Err(Error::Stream { offset: 0, what: "this is no export of a log" });
        }
        if bytes[8..] != VERSION.to_le_bytes() {
            let what = "the export has a version that this program does not know";
            return Err(Error::Stream { offset: 8, what });
        }
        Ok(())
    }

    fn record(&mut self) -> Result<(u8, Vec<u8>), Error> {
        let begin = self.offset;
        let wrong = |what| Err(Error::Stream { offset: begin, what });
        let mut header = [0; RECORD_HEADER_BYTES];
        self.fill(&mut header)?;
        let body_bytes = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        if body_bytes > RECORD_BYTES_MAX {
            return wrong("a record is longer than any can be");
        }
        // The length is not proved yet: memory is taken as bytes come.
        let mut body = Vec::new();
        let count = (&mut self.input).take(body_bytes.into()).read_to_end(&mut body)?;
        self.offset += count as u64;
        let mut checksum = [0; 4];
        self.fill(&mut checksum)?;
        if count < body_bytes as usize {
            return wrong("the stream is cut short");
        }
        if checksum != record_checksum(self.records, &header, &body).to_le_bytes() {
            return wrong("a record fails its checksum");
        }
        self.records += 1;
        Ok((header[0], body))
    }

    /// Nothing may follow.
    fn end(&mut self) -> Result<(), Error> {
        let offset = self.offset;
        match self.input.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Error::Stream { offset, what: "something follows the end of the stream" }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let cut_short = Error::Stream { offset: self.offset, what: "the stream is cut short" };
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(cut_short),
            other => other?,
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// What is left of a record's body, which holds its checksum.
struct RecordBody<'a> {
    rest: &'a [u8],
    /// Where in the stream the record ends.
    offset: u64,
}

impl<'a> RecordBody<'a> {
    fn wrong(&self, what: &'static str) -> Error {
        Error::Stream { offset: self.offset, what }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or_else(|| self.wrong("a record is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn slice(&mut self) -> Result<&'a [u8], Error> {
        let count = self.u32()?;
        self.take(count as usize)
    }

    fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong("a record is too long")) }
    }
}

fn record_header(kind: u8, body_bytes: u32) -> [u8; RECORD_HEADER_BYTES] {
    let [a, b, c, d] = body_bytes.to_le_bytes();
    [kind, a, b, c, d]
}

fn record_checksum(number: u64, header: &[u8], body: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&number.to_le_bytes()), header), body)
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
