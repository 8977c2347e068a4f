//! Persistence of raft's Ready, and the messages that wait for the disk.
//!
//! A leader may send its appends before it has written them, once its term is on disk. Every other
//! message promises something about the log, and is held until all earlier writes are on disk.
//! There are two kinds of writes: those that must reach the disk, and those of a mere commit index,
//! for which no message waits. Both share one sequence of numbers.

use std::collections::VecDeque;

use raft::ReadState;
use raft::eraftpb::{Entry, Message, MessageType};

use crate::consensus::Consensus;
use crate::convert;
use crate::effects::LogWrite;
use crate::ids::{PeerId, RegionId, Term};

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
    /// Of the last Ready.
    last_number: u64,
    /// The highest that was reported to be on disk.
    persisted_number: u64,
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
    /// None yet, of a replica that was found with this term on disk.
    pub(crate) fn new(persisted_term: Term) -> InflightWrites {
        InflightWrites {
            held: VecDeque::new(),
            persisted_term: persisted_term.0,
            last_number: 0,
            persisted_number: 0,
        }
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
        // No kind of message carries one (`MessageKind`), so none can have come from outside
        // either.
        assert!(ready.snapshot().is_empty(), "a snapshot, which nobody sends");
        let number = ready.number();
        self.last_number = number;
        let entries = ready.take_entries();
        let applied = consensus.applied_index();
        // Raft must be able to read them back before `advance` is called.
        consensus.window_mut().append(&entries, applied);
        let write = (ready.hs().is_some() || !entries.is_empty()).then(|| LogWrite {
            region,
            peer,
            number,
            // With entries the commit index is always written along: a restarted replica would
            // else campaign without knowing what it must apply first.
            hard_state: Some(convert::hard_state_from_raft(&consensus.hard_state())),
            entries: entries.into_iter().map(convert::entry_from_raft).collect(),
            sync: ready.must_sync(),
            reset: None,
        });
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
            consensus.persisted(number);
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
            consensus.persisted(held.number);
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
