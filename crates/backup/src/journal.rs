//! The journal of a backup under way: its beginning, and each region that is finished, in any
//! order. A backup that was interrupted goes on with it, and its manifest takes its place.
//!
//! | bytes | journal |
//! |---|---|
//! | 8 | `flbkjrnl` |
//! | 1 | the version, 1 |
//! | record | the head: varint cluster id, varint time at which the backup was begun |
//! | records | a region each, as in the manifest |
//!
//! | bytes | record |
//! |---|---|
//! | 4, little-endian | length |
//! | 4, little-endian | CRC-32C of the content |
//! | to the length | content |
//!
//! A record that is cut short or damaged, and all behind it, were never finished: their regions are
//! read again.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, put_varint};

use crate::error::BackupError;
use crate::manifest::{BackupRegion, REGION_BYTES_MAX};

const MAGIC: &[u8; 8] = b"flbkjrnl";
const VERSION: u8 = 1;
const RECORD_HEAD_BYTES: usize = 8;

/// The beginning of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// The cluster.
    pub cluster_id: u64,
    /// When it was begun, in milliseconds since 1970.
    pub begun_ms: u64,
}

/// The first bytes of a journal.
#[must_use]
pub fn encode_head(head: JournalHead) -> Vec<u8> {
    let mut content = vec![];
    put_varint(&mut content, head.cluster_id);
    put_varint(&mut content, head.begun_ms);
    let mut out = [&MAGIC[..], &[VERSION]].concat();
    put_record(&mut out, &content);
    out
}

/// The record of a region that is finished.
#[must_use]
pub fn encode_record(region: &BackupRegion) -> Vec<u8> {
    let mut out = vec![];
    put_record(&mut out, &region.encode());
    out
}

fn put_record(out: &mut Vec<u8>, content: &[u8]) {
    assert!(content.len() <= REGION_BYTES_MAX, "a record of {} bytes", content.len());
    let length = u32::try_from(content.len()).expect("a record is shorter than its bound");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(content).to_le_bytes());
    out.extend_from_slice(content);
}

/// The head of a journal, the regions that are finished, and how many bytes are whole. `None` if
/// not even the head is.
///
/// # Errors
///
/// It is no journal, or of another version.
pub fn read_journal(
    bytes: &Bytes,
) -> Result<Option<(JournalHead, Vec<BackupRegion>, usize)>, BackupError> {
    let head_bytes = MAGIC.len() + 1;
    if bytes.len() < head_bytes {
        // The tool ended while it began the file.
        return Ok(None);
    }
    if bytes[..MAGIC.len()] != MAGIC[..] {
        return Err(BackupError::damaged("it is no journal of a backup"));
    }
    if bytes[MAGIC.len()] != VERSION {
        let (what, version, known) = ("the journal", bytes[MAGIC.len()], VERSION);
        return Err(BackupError::Version { what, version, known });
    }
    let mut at = head_bytes;
    let Some(head) = next_record(bytes, &mut at) else { return Ok(None) };
    let mut reader = FieldReader::new(head, "head of a journal");
    let head = JournalHead { cluster_id: reader.varint()?, begun_ms: reader.varint()? };
    let mut regions = vec![];
    while let Some(content) = next_record(bytes, &mut at) {
        regions.push(BackupRegion::decode(content)?);
    }
    Ok(Some((head, regions, at)))
}

/// The content of the record at `at`, which moves behind it; `None` if it is not whole.
fn next_record(bytes: &Bytes, at: &mut usize) -> Option<Bytes> {
    let head = bytes.get(*at..*at + RECORD_HEAD_BYTES)?;
    let number = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
    let (length, crc) = (number(0)? as usize, number(4)?);
    let start = *at + RECORD_HEAD_BYTES;
    // A damaged length may be anything.
    let end = start.checked_add(length).filter(|end| *end <= bytes.len())?;
    let content = bytes.slice(start..end);
    (crc32c::crc32c(&content) == crc).then(|| {
        *at = end;
        content
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::region;

    const HEAD: JournalHead = JournalHead { cluster_id: 300, begun_ms: 7 };

    #[test]
    fn a_journal_is_read_up_to_the_last_whole_record() {
        let regions = [region(2, "", "m"), region(7, "m", "")];
        let head = encode_head(HEAD);
        assert_eq!(head[..9], *b"flbkjrnl\x01");
        let first = [&head[..], &encode_record(&regions[0])].concat();
        let whole = [&first[..], &encode_record(&regions[1])].concat();
        for cut in 0..=whole.len() {
            let read = read_journal(&Bytes::copy_from_slice(&whole[..cut])).unwrap();
            let finished = [head.len(), first.len(), whole.len()].map(|length| cut >= length);
            match finished.iter().filter(|is_whole| **is_whole).count() {
                0 => assert_eq!(read, None, "cut at {cut}"),
                count => {
                    let (read_head, read, bytes) = read.unwrap();
                    assert_eq!((read_head, &read[..]), (HEAD, &regions[..count - 1]));
                    assert_eq!(bytes, [head.len(), first.len(), whole.len()][count - 1]);
                }
            }
        }
        let mut damaged = whole.clone();
        damaged[first.len() + 9] ^= 1;
        let (_, read, bytes) = read_journal(&damaged.into()).unwrap().unwrap();
        assert_eq!((read.len(), bytes), (1, first.len()));
    }

    #[test]
    fn other_files_are_no_journals() {
        assert!(read_journal(&Bytes::from_static(b"something else")).is_err());
        let mut later = encode_head(HEAD);
        later[8] = 2;
        assert!(matches!(read_journal(&later.into()), Err(BackupError::Version { .. })));
    }
}
