//! Bytes from a log or a disk, read as everything that the region crate can read.
//!
//! Nothing panics, and what can be read is written and read back the same.
#![no_main]

use bytes::Bytes;
use flotilla_base::fields::put_bytes;
use flotilla_kv::raw;
use flotilla_region::{
    AdminCommand, ConsistencyVerdict, Descriptor, EntryKind, HardState, LogEntry, entry_data,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(descriptor) = Descriptor::decode(bytes.clone()) {
        assert_eq!(Descriptor::decode(descriptor.encode()).as_ref(), Ok(&descriptor));
    }
    if let Ok(verdict) = ConsistencyVerdict::decode(bytes.clone()) {
        assert_eq!(ConsistencyVerdict::decode(verdict.encode()).as_ref(), Ok(&verdict));
    }
    if let Ok(state) = HardState::decode(bytes.clone()) {
        assert_eq!(HardState::decode(state.encode()).as_ref(), Ok(&state));
    }
    if let Ok(command) = raw::decode(bytes.clone()) {
        let again = raw::encode_in(command.family, command.time_ms, &command.ops);
        assert_eq!(raw::decode(again).as_ref(), Ok(&command));
    }
    for kind in [EntryKind::Normal, EntryKind::ConfChangeV2] {
        let entry = LogEntry { kind, data: bytes.clone(), ..LogEntry::default() };
        let Ok(Some(command)) = AdminCommand::decode(&entry) else { continue };
        let data = match kind {
            EntryKind::Normal => command.encode(),
            // The context of raft's encoding.
            EntryKind::ConfChangeV2 => {
                let mut data = vec![0x1a];
                put_bytes(&mut data, &command.encode());
                data.into()
            }
        };
        let again = LogEntry { data, ..entry };
        assert_eq!(AdminCommand::decode(&again), Ok(Some(command)));
    }
    for proposal in entry_data::proposals(&bytes) {
        // An entry is read until the first proposal that cannot be read.
        let Ok(proposal) = proposal else { break };
        let _ = raw::decode(proposal.command);
    }
});
