//! Entries for a follower that is behind, read by another thread.

use crate::kit::{GROUP, append_message, entries, node, open_log, write};
use flotilla_raftlog::{LogBatch, LogEngine};
use flotilla_raftlog_raft_rs::{Config, Fetch, GroupStorage};
use flotilla_vfs::fault::FaultFs;
use raft::eraftpb::{Message, MessageType};
use raft::{RawNode, StateRole};

/// A leader of two voters that holds nothing in memory; its follower says nothing by itself.
struct Leader {
    log: LogEngine,
    node: RawNode<GroupStorage>,
}

impl Leader {
    fn new(entry_count: usize) -> Leader {
        let log = open_log(&FaultFs::new(1));
        let config = Config { entry_cache_bytes_max: 0, async_fetches: true };
        let mut storage = GroupStorage::open(log.clone(), GROUP, config).expect("it opens");
        let mut batch = LogBatch::new();
        storage.persist_conf_state(&mut batch, &(vec![1, 2], vec![]).into());
        let old = entries(1, &vec![1; entry_count]);
        storage.persist_entries(&mut batch, &old).expect("they meet the log");
        write(&log, batch);
        let mut leader = Leader { log, node: node(1, storage, 0) };
        leader.lead();
        leader
    }

    /// It is elected, with the other's vote.
    fn lead(&mut self) {
        self.node.campaign().expect("it may");
        self.work();
        let term = self.node.raft.term;
        let mut vote = Message { from: 2, to: 1, term, ..Message::default() };
        vote.set_msg_type(MessageType::MsgRequestVoteResponse);
        self.node.step(vote).expect("it is for this node");
        assert_eq!(self.node.raft.state, StateRole::Leader);
        self.work();
    }

    /// Carries out what is ready; what is sent.
    fn work(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            let mut batch = LogBatch::new();
            self.node.mut_store().persist_ready(&mut batch, &ready).expect("it meets the log");
            if !batch.is_empty() {
                write(&self.log, batch);
            }
            sent.extend(ready.take_messages());
            sent.extend(ready.take_persisted_messages());
            sent.extend(self.node.advance(ready).take_messages());
            self.node.mut_store().persist_entries(&mut LogBatch::new(), &[]).expect("nothing");
        }
        sent.retain(|message| message.get_msg_type() == MessageType::MsgAppend);
        sent
    }

    /// The follower says that its log ends at zero.
    fn follower_has_nothing(&mut self) -> Vec<Message> {
        let term = self.node.raft.term;
        let index = self.node.raft.raft_log.last_index() - 1;
        let mut message =
            Message { from: 2, to: 1, term, index, reject: true, ..Message::default() };
        message.set_msg_type(MessageType::MsgAppendResponse);
        self.node.step(message).expect("it is for this node");
        self.work()
    }

    /// Which makes raft ask again for what the follower lacks.
    fn follower_answers_a_beat(&mut self) {
        let term = self.node.raft.term;
        let mut beat = Message { from: 2, to: 1, term, ..Message::default() };
        beat.set_msg_type(MessageType::MsgHeartbeatResponse);
        self.node.step(beat).expect("it is for this node");
        assert!(self.work().is_empty(), "there is nothing that could be sent");
    }

    fn fetches(&self) -> Vec<Fetch> {
        self.node.store().take_fetches()
    }
}

#[test]
fn a_follower_that_is_behind_gets_entries_once_they_are_fetched() {
    let mut leader = Leader::new(5);
    assert!(leader.follower_has_nothing().is_empty(), "they have to be fetched");
    let mut fetches = leader.fetches();
    assert_eq!(fetches.len(), 1);
    // Asked again by a heartbeat's answer, it fetches nothing twice.
    leader.follower_answers_a_beat();
    assert!(leader.fetches().is_empty(), "one is under way");
    let fetch = fetches.remove(0);
    assert_eq!(fetch.group(), GROUP);
    let fetched = std::thread::scope(|s| s.spawn(move || fetch.read()).join().expect("it reads"));
    fetched.deliver_to(&mut leader.node).expect("they could be read");
    let sent = leader.work();
    assert_eq!((sent[0].index, sent[0].get_entries()[..5].to_vec()), (0, entries(1, &[1; 5])));
    assert!(leader.fetches().is_empty());
}

#[test]
fn a_fetch_that_is_dropped_is_asked_for_again() {
    let mut leader = Leader::new(5);
    leader.follower_has_nothing();
    drop(leader.fetches());
    leader.follower_answers_a_beat();
    let fetched = leader.fetches().remove(0).read();
    drop(fetched);
    leader.follower_answers_a_beat();
    assert_eq!(leader.fetches().len(), 1);
}

#[test]
fn what_was_fetched_before_a_change_of_leaders_is_not_sent() {
    let mut leader = Leader::new(5);
    leader.follower_has_nothing();
    let fetched = leader.fetches().remove(0).read();
    let term = leader.node.raft.term + 1;
    leader.node.step(append_message(1, term, (3, 1), entries(4, &[term]), 0)).expect("it is newer");
    leader.work();
    fetched.deliver_to(&mut leader.node).expect("they could be read");
    assert!(leader.work().is_empty());
}

#[test]
fn what_was_replaced_while_it_was_fetched_is_not_sent() {
    let mut leader = Leader::new(5);
    leader.follower_has_nothing();
    let fetched = leader.fetches().remove(0).read();
    // It follows another leader, which replaces entries, and leads again.
    let term = leader.node.raft.term + 1;
    leader.node.step(append_message(1, term, (3, 1), entries(4, &[term]), 0)).expect("it is newer");
    leader.work();
    leader.lead();
    leader.follower_has_nothing();
    assert!(leader.fetches().is_empty(), "the old one is still under way");
    fetched.deliver_to(&mut leader.node).expect("they could be read");
    let sent = leader.work();
    assert_eq!(sent[0].get_entries(), entries(1, &[1, 1, 1]));
}

#[test]
fn entries_compacted_while_they_are_fetched_become_a_snapshot() {
    let mut leader = Leader::new(5);
    leader.follower_has_nothing();
    let fetch = leader.fetches().remove(0);
    let mut batch = LogBatch::new();
    leader.node.mut_store().compact_to(&mut batch, 4).expect("the log goes on");
    write(&leader.log, batch);
    fetch.read().deliver_to(&mut leader.node).expect("it is not the disk's fault");
    // There is no source of snapshots, so nothing is sent, and nothing is fetched in vain.
    assert!(leader.work().is_empty() && leader.fetches().is_empty());
}
