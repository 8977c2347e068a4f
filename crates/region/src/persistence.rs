//! Persistence of raft's Ready, and the messages that wait for the disk.
//!
//! A leader may send its appends before it has written them, once its term is on disk. Every other
//! message promises something about the log, and is held until all earlier writes are on disk.
//! There are two kinds of writes: those that must reach the disk, and those of a mere commit index,
//! for which no message waits. Both share one sequence of numbers.

use std::collections::VecDeque;

use raft::eraftpb::{Entry, Message, MessageType};
use raft::{ReadState, Ready};

use crate::consensus::Consensus;
use crate::convert;
use crate::effects::{LogReset, LogWrite};
use crate::ids::{Index, PeerId, RegionId, Term};

/// The output of one Ready.
pub(crate) struct ReadyOutput {
    /// To be sent now.
    pub(crate) messages: Vec<Message>,
    /// To be written.
    pub(crate) write: Option<LogWrite>,
    /// To be applied.
    pub(crate) committed: Vec<Entry>,
    /// Answers to requests for read indexes.
    pub(crate) read_states: Vec<ReadState>,
}

/// Writes under way that must reach the disk, oldest first.
pub(crate) struct InflightWrites {
    held: VecDeque<InflightWrite>,
    /// The term that is on disk.
    persisted_term: u64,
    /// Numbers up to here are of the time before raft: raft counts its Readies from 1.
    offset: u64,
    /// Of the last Ready.
    last_number: u64,
    /// Of the last write, synced or not.
    last_write: u64,
    /// The highest that was reported to be on disk.
    persisted_number: u64,
}

/// The writes of a replica before it had a raft node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EarlierWrites {
    last_number: u64,
    persisted_number: u64,
}

impl EarlierWrites {
    /// The number of another one.
    pub(crate) fn next(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Whether all are on disk.
    pub(crate) fn are_done(&self) -> bool {
        self.persisted_number == self.last_number
    }

    /// One is on disk, and all before it.
    pub(crate) fn persisted(&mut self, number: u64) {
        assert!(number <= self.last_number, "write {number} was never asked for");
        let before = self.persisted_number;
        assert!(number > before, "write {number} is told to be on disk after write {before}");
        self.persisted_number = number;
    }
}

struct InflightWrite {
    /// The number of the write.
    number: u64,
    /// The term that it writes.
    term: u64,
    /// To be sent then. Also those of later Readies that need no write of their own.
    messages: Vec<Message>,
}

impl InflightWrites {
    /// Of a replica that was found with this term, and may have written it before it had a raft
    /// node.
    pub(crate) fn new(found_term: Term, earlier: EarlierWrites) -> InflightWrites {
        let EarlierWrites { last_number, persisted_number } = earlier;
        assert!(persisted_number <= last_number, "write {persisted_number} was never asked for");
        let mut writes = InflightWrites {
            held: VecDeque::new(),
            persisted_term: found_term.0,
            offset: last_number,
            last_number,
            last_write: last_number,
            persisted_number,
        };
        if persisted_number < last_number {
            // The vote that it goes on with may be in that write: nothing leaves before it.
            writes.persisted_term = 0;
            let (number, term) = (last_number, found_term.0);
            writes.held.push_back(InflightWrite { number, term, messages: vec![] });
        }
        writes
    }

    /// Whether all writes are on disk, those of a mere commit index too.
    pub(crate) fn are_done(&self) -> bool {
        self.held.is_empty() && self.persisted_number >= self.last_write
    }

    /// Whether a term is on disk: messages in it may leave.
    pub(crate) fn has_term(&self, term: Term) -> bool {
        self.persisted_term >= term.0
    }

    /// How many writes are under way.
    pub(crate) fn depth(&self) -> usize {
        self.held.len()
    }

    /// Takes the next Ready apart and advances raft.
    pub(crate) fn take(
        &mut self,
        region: RegionId,
        peer: PeerId,
        consensus: &mut Consensus,
    ) -> ReadyOutput {
        let mut ready = consensus.ready();
        let number = self.offset + ready.number();
        self.last_number = number;
        let entries = ready.take_entries();
        let reset = take_snapshot(&ready, consensus);
        assert!(reset.is_none() || entries.is_empty(), "entries behind a snapshot");
        let applied = consensus.applied_index();
        // Raft must be able to read them back before `advance` is called.
        consensus.window_mut().append(&entries, applied);
        let is_written = ready.hs().is_some() || !entries.is_empty() || reset.is_some();
        let write = is_written.then(|| LogWrite {
            region,
            peer,
            number,
            // With entries the commit index is always written along: a restarted replica would
            // else campaign without knowing what it must apply first.
            hard_state: Some(convert::hard_state_from_raft(&consensus.hard_state())),
            entries: entries.into_iter().map(convert::entry_from_raft).collect(),
            sync: ready.must_sync(),
            reset,
        });
        self.last_write = if write.is_some() { number } else { self.last_write };
        let mut taken = ReadyOutput {
            messages: ready.take_messages(),
            write,
            committed: ready.take_committed_entries(),
            read_states: ready.take_read_states(),
        };
        let mut messages = ready.take_persisted_messages();
        let must_sync = ready.must_sync();
        consensus.advance(ready);
        let term = consensus.hard_state().term;
        // A sound replica leads when its own vote is on disk, since no other has heard of its term
        // before. Votes that are forged may come sooner.
        if term > self.persisted_term {
            messages.splice(..0, taken.messages.drain(..));
        }
        // A question promises nothing.
        let is_question = |message: &Message| message.msg_type == MessageType::MsgReadIndex;
        taken.messages.extend(messages.extract_if(.., |message| is_question(message)));
        // Messages of a Ready without a synced write wait for the last one that has: they may
        // promise its entries.
        if must_sync {
            // Also where only a term or a vote is new: a vote that left before it was on disk could
            // be given again, to another candidate, after a power loss.
            self.held.push_back(InflightWrite { number, term, messages });
        } else if let Some(last) = self.held.back_mut() {
            last.messages.append(&mut messages);
        } else {
            // With no write on its way, all that these messages could promise is on disk.
            consensus.persisted(number - self.offset);
            taken.messages.append(&mut messages);
        }
        taken
    }

    /// A write is on disk, and all before it: returns the messages that may be sent now.
    pub(crate) fn persisted(&mut self, number: u64, consensus: &mut Consensus) -> Vec<Message> {
        assert!(number <= self.last_number, "write {number} was never asked for");
        let before = self.persisted_number;
        assert!(number > before, "write {number} is told to be on disk after write {before}");
        self.persisted_number = number;
        let mut messages = vec![];
        while let Some(mut held) = self.held.pop_front_if(|held| held.number <= number) {
            consensus.persisted(held.number - self.offset);
            debug_assert!(held.term >= self.persisted_term, "the term on disk goes back");
            self.persisted_term = held.term;
            messages.append(&mut held.messages);
        }
        messages
    }

    /// Checks the order of what is held.
    pub(crate) fn check(&self) {
        let mut last = self.persisted_number;
        for held in &self.held {
            assert!(held.number > last, "write {} is held behind write {last}", held.number);
            last = held.number;
        }
        assert!(
            last <= self.last_number.max(self.persisted_number),
            "a write that is not made yet"
        );
    }
}

/// Lets the window begin behind the snapshot of a Ready, if it has one.
fn take_snapshot(ready: &Ready, consensus: &mut Consensus) -> Option<LogReset> {
    if ready.snapshot().is_empty() {
        return None;
    }
    let metadata = ready.snapshot().get_metadata();
    let (index, term) = (Index(metadata.index), Term(metadata.term));
    // As with entries: raft reads it back before `advance` is called.
    consensus.window_mut().reset(index, term, metadata.get_conf_state().clone());
    Some(LogReset { index, term })
}
