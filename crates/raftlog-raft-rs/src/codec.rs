//! The encoding of raft-rs' structs in the log.
//!
//! An entry's kind byte holds its type in the low bits, and two flags. Only an entry with a context
//! is copied: its data are the context's length (4 bytes, little endian), the context, the data.

use flotilla_raftlog::Entry as LogEntry;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState};

const HAS_CONTEXT: u8 = 0x80;
const SYNC_LOG: u8 = 0x40;
const LENGTH_BYTES: usize = 4;

/// The hard state and the generation of a group, in 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PersistedState {
    pub(crate) term: u64,
    pub(crate) vote: u64,
    pub(crate) commit: u64,
    /// Counts the writes that replaced entries.
    pub(crate) generation: u64,
}

impl PersistedState {
    pub(crate) fn encode(self) -> Vec<u8> {
        [self.term, self.vote, self.commit, self.generation].map(u64::to_le_bytes).concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<PersistedState, &'static str> {
        match numbers(bytes)[..] {
            [term, vote, commit, generation] if bytes.len() == 32 => {
                Ok(PersistedState { term, vote, commit, generation })
            }
            _ => Err("a raft state is 32 bytes"),
        }
    }

    pub(crate) fn hard_state(self) -> HardState {
        let PersistedState { term, vote, commit, .. } = self;
        HardState { term, vote, commit, ..HardState::default() }
    }
}

/// Four lists of numbers, each behind its length, then whether raft leaves the joint state itself.
pub(crate) fn encode_conf_state(conf: &ConfState) -> Vec<u8> {
    let mut out = Vec::new();
    for list in [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next] {
        out.extend((list.len() as u64).to_le_bytes());
        out.extend(list.iter().flat_map(|id| id.to_le_bytes()));
    }
    out.push(u8::from(conf.auto_leave));
    out
}

pub(crate) fn decode_conf_state(bytes: &[u8]) -> Result<ConfState, &'static str> {
    let wrong = "a list of peers is cut short";
    let (auto_leave, bytes) = bytes.split_last().ok_or(wrong)?;
    let all = numbers(bytes);
    let mut rest = &all[..];
    let mut list = || {
        let (count, behind) = rest.split_first().ok_or(wrong)?;
        let count = usize::try_from(*count).map_err(|_| wrong)?;
        let (list, behind) = behind.split_at_checked(count).ok_or(wrong)?;
        rest = behind;
        Ok::<_, &'static str>(list.to_vec())
    };
    let mut conf = ConfState { voters: list()?, learners: list()?, ..ConfState::default() };
    (conf.voters_outgoing, conf.learners_next) = (list()?, list()?);
    conf.auto_leave = *auto_leave == 1;
    if !rest.is_empty() || bytes.len() % 8 > 0 || *auto_leave > 1 {
        return Err("there is something behind the lists of peers");
    }
    Ok(conf)
}

pub(crate) fn entry_to_log(entry: &Entry) -> LogEntry {
    let mut kind = match entry.entry_type {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    };
    if entry.sync_log {
        kind |= SYNC_LOG;
    }
    let mut data = entry.data.clone();
    if !entry.context.is_empty() {
        kind |= HAS_CONTEXT;
        // A batch is below 2^32 bytes; a context beyond that is refused with it.
        let length = (entry.context.len() as u32).to_le_bytes();
        data = [&length[..], &entry.context, &entry.data].concat().into();
    }
    LogEntry { index: entry.index, term: entry.term, kind, data }
}

pub(crate) fn entry_from_log(entry: LogEntry) -> Result<Entry, &'static str> {
    let mut out = Entry { index: entry.index, term: entry.term, ..Entry::default() };
    out.entry_type = match entry.kind & !(HAS_CONTEXT | SYNC_LOG) {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => return Err("an entry is of no kind that raft knows"),
    };
    out.sync_log = entry.kind & SYNC_LOG > 0;
    out.data = entry.data;
    if entry.kind & HAS_CONTEXT > 0 {
        let wrong = "an entry's context is cut short";
        let length = out.data.first_chunk::<LENGTH_BYTES>().ok_or(wrong)?;
        let length = u32::from_le_bytes(*length) as usize;
        let mut data = out.data.split_off(LENGTH_BYTES);
        if length > data.len() {
            return Err(wrong);
        }
        out.context = data.split_to(length);
        out.data = data;
    }
    Ok(out)
}

/// The whole little-endian numbers in the bytes.
fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (chunks, _) = bytes.as_chunks();
    chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(context: &'static [u8], data: &'static [u8]) -> Entry {
        let entry_type = EntryType::EntryConfChangeV2;
        let (context, data) = (context.into(), data.into());
        Entry { index: 5, term: 3, entry_type, context, data, sync_log: true, ..Entry::default() }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for original in [entry(b"", b""), entry(b"", b"data"), entry(b"context", b"data")] {
            assert_eq!(entry_from_log(entry_to_log(&original)), Ok(original));
        }
        let state = PersistedState { term: 1, vote: 2, commit: 3, generation: 4 };
        assert_eq!(PersistedState::decode(&state.encode()), Ok(state));
        let mut conf = ConfState { voters: vec![1, 2], learners: vec![3], ..ConfState::default() };
        assert_eq!(decode_conf_state(&encode_conf_state(&conf)), Ok(conf.clone()));
        (conf.voters_outgoing, conf.learners_next, conf.auto_leave) = (vec![4], vec![5, 6], true);
        assert_eq!(decode_conf_state(&encode_conf_state(&conf)), Ok(conf));
    }

    #[test]
    fn data_of_an_entry_without_context_are_not_copied() {
        let original = entry(b"", b"data");
        assert_eq!(entry_to_log(&original).data.as_ptr(), original.data.as_ptr());
    }

    #[test]
    fn bytes_of_somebody_else_are_errors() {
        assert!(
            PersistedState::decode(&[0; 31]).is_err() && PersistedState::decode(&[0; 40]).is_err()
        );
        let conf = ConfState { voters: vec![1, 2], ..ConfState::default() };
        let bytes = encode_conf_state(&conf);
        for end in 0..bytes.len() {
            assert!(decode_conf_state(&bytes[..end]).is_err(), "{end} of {}", bytes.len());
        }
        assert!(decode_conf_state(&[&bytes[..], &[0]].concat()).is_err());
        assert!(decode_conf_state(&[0xff; 33]).is_err());
        let log =
            |kind, data: &'static [u8]| LogEntry { index: 1, term: 1, kind, data: data.into() };
        assert!(entry_from_log(log(3, b"")).is_err());
        assert!(entry_from_log(log(HAS_CONTEXT, b"abc")).is_err());
        assert!(entry_from_log(log(HAS_CONTEXT, &[4, 0, 0, 0, 1, 2, 3])).is_err());
    }
}
