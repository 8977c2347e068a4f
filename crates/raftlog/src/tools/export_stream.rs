//! The byte stream of an export: a magic, a version, then records with checksums.
//!
//! A record is kind, length, body and a checksum that also covers its number in the stream, so that
//! a record that is missing, doubled or in another place is found. `docs/log-tools.md` has the
//! format.

use crate::error::Error;
use crc32c::{crc32c, crc32c_append};
use std::io::{self, Read};

pub(super) const MAGIC: &[u8; 8] = b"flotexpo";
pub(super) const VERSION: u32 = 1;
pub(super) const KIND_GROUP: u8 = 1;
pub(super) const KIND_KEY: u8 = 2;
pub(super) const KIND_ENTRIES: u8 = 3;
pub(super) const KIND_GROUP_END: u8 = 4;
pub(super) const KIND_END: u8 = 5;

/// A record of entries ends with the one that makes it longer than this.
pub(super) const RECORD_BYTES: usize = 1 << 20;
/// No record is longer: an entry is at most as long as a batch.
pub(super) const RECORD_BYTES_MAX: u32 = (1 << 30) + (2 << 20);
pub(super) const RECORD_HEADER_BYTES: usize = 5;
/// Reads the records of a stream, and checks them.
pub(super) struct ExportReader<'a> {
    pub(super) input: &'a mut dyn Read,
    /// The offset in the stream of the next byte.
    pub(super) offset: u64,
    pub(super) records: u64,
}

impl ExportReader<'_> {
    pub(super) fn begin(&mut self) -> Result<(), Error> {
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

    pub(super) fn record(&mut self) -> Result<(u8, Vec<u8>), Error> {
        let begin = self.offset;
        let wrong = |what| Err(Error::Stream { offset: begin, what });
        let mut header = [0; RECORD_HEADER_BYTES];
        self.fill(&mut header)?;
        let body_bytes = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        if body_bytes > RECORD_BYTES_MAX {
            return wrong("a record is longer than any can be");
        }
        // The length is not checked yet: memory is taken as bytes come.
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

    /// The stream must end here.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        let offset = self.offset;
        match self.input.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Error::Stream { offset, what: "something follows the end of the stream" }),
        }
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let cut_short = Error::Stream { offset: self.offset, what: "the stream is cut short" };
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(cut_short),
            other => other?,
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// The rest of a record's body, whose checksum matched.
pub(super) struct RecordBody<'a> {
    pub(super) rest: &'a [u8],
    /// The offset in the stream of the record's end.
    pub(super) offset: u64,
}

impl<'a> RecordBody<'a> {
    pub(super) fn wrong(&self, what: &'static str) -> Error {
        Error::Stream { offset: self.offset, what }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or_else(|| self.wrong("a record is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(super) fn slice(&mut self) -> Result<&'a [u8], Error> {
        let count = self.u32()?;
        self.take(count as usize)
    }

    pub(super) fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong("a record is too long")) }
    }
}

pub(super) fn record_header(kind: u8, body_bytes: u32) -> [u8; RECORD_HEADER_BYTES] {
    let [a, b, c, d] = body_bytes.to_le_bytes();
    [kind, a, b, c, d]
}

pub(super) fn record_checksum(number: u64, header: &[u8], body: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&number.to_le_bytes()), header), body)
}

pub(super) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
