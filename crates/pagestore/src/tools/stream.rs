//! The bytes of a backup: records, each with its number in its checksum, so that one that is
//! missing, doubled or in another place is found as well.
//!
//! ```text
//! stream := "flotback" format(4: 1) record*
//! record := kind(1) length of the body(4) crc32c(4) body
//!   1 begin: txid u64 | id of the stream before u64, 0 if there is none
//!   2 put:   first unit u64 | page or long value
//!   3 end:   txid u64 | catalogue u64 | deferred frees 24 | commit metadata; nothing follows
//! ```

use std::io::{ErrorKind, Read, Write};

use crate::config::{COMMIT_METADATA_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::{Error, Result};
use crate::page::deferred_free::{DEFERRED_FREE_BYTES, DeferredFree};
use crate::page::{PageRef, UNIT_COUNT_MAX, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"flotback";
const FORMAT: u32 = 1;
const HEAD_BYTES: usize = 9;

const BEGIN: u8 = 1;
const PUT: u8 = 2;
const END: u8 = 3;

const BEGIN_BYTES: usize = 16;
const END_BYTES: usize = 16 + DEFERRED_FREE_BYTES;

/// The head of a backup.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamHead {
    pub(super) txid: u64,
    /// The id of the stream that it follows; 0 if it is a full backup.
    pub(super) base: u64,
}

/// The end of a backup: the fields of a meta page.
#[derive(Clone, Debug)]
pub(super) struct StreamEnd {
    pub(super) txid: u64,
    pub(super) catalogue: PageRef,
    pub(super) deferred_free: DeferredFree,
    pub(super) commit_metadata: Vec<u8>,
}

pub(super) enum StreamRecord {
    Begin(StreamHead),
    /// A page or long value, and its first unit.
    Put(u64, Vec<u8>),
    End(StreamEnd),
}

/// Writes a backup.
pub(super) struct StreamWriter<'a> {
    out: &'a mut dyn Write,
    number: u64,
    bytes: u64,
}

impl<'a> StreamWriter<'a> {
    pub(super) fn begin(out: &'a mut dyn Write) -> Result<StreamWriter<'a>> {
        out.write_all(&MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        Ok(StreamWriter { out, number: 0, bytes: 12 })
    }

    pub(super) fn put_begin(&mut self, begin: StreamHead) -> Result<()> {
        self.record(BEGIN, &[&begin.txid.to_le_bytes(), &begin.base.to_le_bytes()])
    }

    pub(super) fn put(&mut self, unit: u64, bytes: &[u8]) -> Result<()> {
        self.record(PUT, &[&unit.to_le_bytes(), bytes])
    }

    /// Ends the stream. Returns how many pages and long values it has, and its bytes.
    pub(super) fn finish(mut self, end: &StreamEnd) -> Result<(u64, u64)> {
        assert!(self.number > 0, "a stream begins with its head");
        let written = self.number - 1;
        let (txid, catalogue) = (end.txid.to_le_bytes(), end.catalogue.raw().to_le_bytes());
        self.record(END, &[&txid, &catalogue, &end.deferred_free.encode(), &end.commit_metadata])?;
        self.out.flush()?;
        Ok((written, self.bytes))
    }

    fn record(&mut self, kind: u8, parts: &[&[u8]]) -> Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let len = u32::try_from(len).expect("pages and values are at most 16 MiB");
        let crc = parts
            .iter()
            .fold(begin_sum(self.number, kind, len), |crc, part| crc32c::crc32c_append(crc, part));
        self.out.write_all(&[kind])?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&crc.to_le_bytes())?;
        for part in parts {
            self.out.write_all(part)?;
        }
        self.number += 1;
        self.bytes += HEAD_BYTES as u64 + u64::from(len);
        Ok(())
    }
}

/// Reads a backup.
pub(super) struct StreamReader<'a> {
    from: &'a mut dyn Read,
    /// The number of the stream, for errors.
    stream: u64,
    number: u64,
    sum: u32,
    txid: u64,
}

impl<'a> StreamReader<'a> {
    pub(super) fn begin(stream: u64, from: &'a mut dyn Read) -> Result<StreamReader<'a>> {
        let mut reader = StreamReader { from, stream, number: 0, sum: 0, txid: 0 };
        let mut head = [0; 12];
        reader.fill(&mut head)?;
        if head[..8] != MAGIC {
            return reader.corrupt("it is no backup");
        }
        let version = u32_at(&head, 8);
        if version != FORMAT {
            return Err(Error::Unsupported { version });
        }
        Ok(reader)
    }

    /// The next record. Not to be called after the end.
    pub(super) fn next(&mut self) -> Result<StreamRecord> {
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let (kind, len, crc) = (head[0], u32_at(&head, 1), u32_at(&head, 5));
        if len as usize > VALUE_BYTES_MAX + 8 {
            return self.corrupt("length of a record");
        }
        let mut body = vec![0; len as usize];
        self.fill(&mut body)?;
        if crc32c::crc32c_append(begin_sum(self.number, kind, len), &body) != crc {
            return self.corrupt("checksum of a record");
        }
        self.number += 1;
        self.sum = crc32c::crc32c_append(self.sum, &crc.to_le_bytes());
        self.record(kind, body)
    }

    fn record(&mut self, kind: u8, mut body: Vec<u8>) -> Result<StreamRecord> {
        match (kind, body.len()) {
            (BEGIN, BEGIN_BYTES) => {
                let begin = StreamHead { txid: u64_at(&body, 0), base: u64_at(&body, 8) };
                self.txid = begin.txid;
                Ok(StreamRecord::Begin(begin))
            }
            (PUT, 9..) if (2..UNIT_COUNT_MAX).contains(&u64_at(&body, 0)) => {
                let unit = u64_at(&body, 0);
                body.drain(..8);
                Ok(StreamRecord::Put(unit, body))
            }
            (END, END_BYTES..) if body.len() <= END_BYTES + COMMIT_METADATA_BYTES_MAX => {
                let mut more = [0];
                if self.from.read(&mut more)? > 0 {
                    return self.corrupt("something follows its end");
                }
                Ok(StreamRecord::End(StreamEnd {
                    txid: u64_at(&body, 0),
                    catalogue: PageRef::from_raw(u64_at(&body, 8)),
                    deferred_free: DeferredFree::decode(&body[16..END_BYTES]),
                    commit_metadata: body[END_BYTES..].to_vec(),
                }))
            }
            _ => self.corrupt("a record that makes no sense"),
        }
    }

    /// The id of the stream, once it has been read: a checksum of all, and of the transaction.
    pub(super) fn id(&self) -> u64 {
        u64::from(self.sum) << 32 | (self.txid & 0x7fff_ffff) << 1 | 1
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let stream = self.stream;
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::Backup { stream, what: "it is cut short" },
            _ => Error::Io(error),
        })
    }

    fn corrupt<T>(&self, what: &'static str) -> Result<T> {
        Err(Error::Backup { stream: self.stream, what })
    }
}

fn begin_sum(number: u64, kind: u8, len: u32) -> u32 {
    let crc = crc32c::crc32c(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &[kind]), &len.to_le_bytes())
}
