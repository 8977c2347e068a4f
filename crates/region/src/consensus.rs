//! raft's `RawNode`, with the traps of its version closed.
//!
//! - It draws election timeouts from a random source of the thread. Here they are a function of
//!   seed, replica and term, set again after every call, so that a run can be repeated.
//! - Followers would forward proposals. Only a leader is asked to propose.
//! - Raft drops read requests silently if no replica can serve them; see
//!   [`Consensus::can_request_read_index`].

use bytes::Bytes;
use raft::eraftpb::{self, ConfChangeV2, ConfState, Entry, HardState};
use raft::{GetEntriesContext, ProgressState, RawNode, Ready, SnapshotStatus, StateRole, Storage};

use crate::config::Config;
use crate::convert;
use crate::descriptor::Descriptor;
use crate::ids::{Index, PeerId, Term};
use crate::log_window::LogWindow;
use crate::recovered_replica::RecoveredReplica;
use crate::status::Role;

/// Requests for read indexes that a leader keeps; followers repeat theirs.
const READ_REQUESTS_MAX: usize = 1024;

pub(crate) struct Consensus {
    raw: RawNode<LogWindow>,
    seed: u64,
    election_ticks: usize,
}

impl Consensus {
    /// Starts raft on what was found, which must have been checked to be sound.
    pub(crate) fn new(found: &RecoveredReplica, config: &Config) -> Self {
        let window = LogWindow::new(found, config.window.clone());
        let election_ticks = config.election_ticks as usize;
        let raft_config = raft::Config {
            id: found.peer.0,
            election_tick: election_ticks,
            heartbeat_tick: config.heartbeat_ticks as usize,
            // Raft hands out committed entries from here on. Lower, it would ask for entries that
            // the window does not hold, and panic.
            applied: found.applied.0.0,
            max_size_per_msg: config.message_bytes_max,
            max_inflight_msgs: config.messages_max,
            // Leases rest on both (docs/decisions/0005).
            check_quorum: true,
            pre_vote: true,
            max_uncommitted_size: config.uncommitted_bytes_max,
            // A message of its own for each commit would double the messages of a put
            // (docs/decisions/0042-followers-hear-of-commits-with-other-messages.md).
            skip_bcast_commit: true,
            // Committed entries are in memory already; handing them out costs nothing more.
            max_committed_size_per_ready: raft::NO_LIMIT,
            ..Default::default()
        };
        let log = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config, window, &log)
            .expect("the configuration and what was found were checked");
        let mut consensus = Self { raw, seed: config.seed, election_ticks };
        consensus.set_election_timeout();
        consensus
    }

    /// Time has passed. `may_campaign`: whether a follower that hears of no leader becomes a
    /// candidate; it gives its vote to others in either case.
    pub(crate) fn tick(&mut self, may_campaign: bool) {
        if !may_campaign && !self.is_leader() {
            // Up to the election timeout raft takes a leader for alive, and withholds votes; it
            // campaigns at the random one, which is no shorter.
            let longest = 2 * self.election_ticks - 1;
            self.raw.raft.set_randomized_election_timeout(longest);
            let elapsed = &mut self.raw.raft.election_elapsed;
            *elapsed = (*elapsed).min(self.election_ticks - 1);
        }
        self.raw.tick();
        self.set_election_timeout();
    }

    pub(crate) fn campaign(&mut self) {
        // It fails in no case that matters: a leader or a candidate goes on.
        let _ = self.raw.campaign();
        self.set_election_timeout();
    }

    /// Gives raft a message that passed the filter. False if raft does not want it.
    pub(crate) fn step(&mut self, message: eraftpb::Message) -> bool {
        let taken = self.raw.step(message).is_ok();
        self.set_election_timeout();
        taken
    }

    /// Whether a leader may add this many bytes to its uncommitted entries.
    pub(crate) fn has_room(&self, bytes: usize, limit: u64) -> bool {
        let uncommitted = self.raw.raft.uncommitted_size();
        // A single entry above the limit would never be proposed otherwise.
        uncommitted == 0 || (uncommitted + bytes) as u64 <= limit
    }

    /// Makes an entry, and returns its place.
    ///
    /// # Panics
    ///
    /// If the replica does not lead, hands over, or has no room.
    pub(crate) fn propose(&mut self, data: Vec<u8>) -> (Index, Term) {
        assert_eq!(self.role(), Role::Leader, "only a leader proposes");
        // The tickets of the proposals wait at this place: an entry more or less, and they would be
        // answered with the outcome of another entry.
        let place = Index(self.raw.raft.raft_log.last_index() + 1);
        self.raw.propose(vec![], data).expect("a leader with room takes a proposal");
        assert_eq!(self.raw.raft.raft_log.last_index(), place.0, "a proposal makes one entry");
        (place, self.term())
    }

    /// Makes an entry of a change of the replicas, and returns it: raft puts an empty one in the
    /// place of a change that it does not want. None if it takes no entry at all.
    ///
    /// # Panics
    ///
    /// If the replica does not lead.
    pub(crate) fn propose_change(&mut self, change: ConfChangeV2) -> Option<Entry> {
        assert_eq!(self.role(), Role::Leader, "only a leader proposes");
        let place = self.raw.raft.raft_log.last_index() + 1;
        self.raw.propose_conf_change(vec![], change).ok()?;
        let appended = self.raw.raft.raft_log.unstable_entries().last().cloned();
        let appended = appended.expect("an entry that was just appended is not written");
        assert_eq!(appended.index, place, "a proposal makes one entry");
        Some(appended)
    }

    /// The region has these members from now on, by this change. Told before raft counts the entry
    /// as applied (R18 in `docs/many-regions.md`).
    pub(crate) fn apply_change(&mut self, change: &ConfChangeV2, descriptor: &Descriptor) {
        let members = self.raw.apply_conf_change(change);
        let members = members.expect("raft takes each change that the region takes");
        assert!(!members.auto_leave, "raft leaves a joint configuration by itself");
        self.raw.mut_store().set_members(convert::conf_state(descriptor));
        self.check_members(descriptor);
        self.set_election_timeout();
    }

    /// Checks that raft has the members that the region lists (R18).
    pub(crate) fn check_members(&self, descriptor: &Descriptor) {
        let members = self.raw.raft.prs().conf().to_conf_state();
        let expected = convert::conf_state(descriptor);
        assert!(
            is_same_members(&members, &expected),
            "region {}: raft has {members:?}, the rows have {expected:?}",
            descriptor.id
        );
    }

    /// Whether followers hear of each commit at once. If not, they hear of it with the next entry
    /// or heartbeat, or with the answer to a read of theirs.
    pub(crate) fn announce_commits(&mut self, at_once: bool) {
        self.raw.skip_bcast_commit(!at_once);
    }

    /// Whether a change may wait to be applied, one of a predecessor as well.
    pub(crate) fn has_pending_change(&self) -> bool {
        self.raw.raft.has_pending_conf()
    }

    /// Whether the replica votes, as far as it knows.
    pub(crate) fn is_voter(&self) -> bool {
        self.raw.raft.promotable()
    }

    /// Hands the lead over to another voter. Raft refuses proposals from now on, until another
    /// leads or an election timeout has passed.
    pub(crate) fn transfer_leader(&mut self, to: PeerId) {
        self.raw.transfer_leader(to.0);
    }

    /// Whether a transfer is under way.
    pub(crate) fn is_transferring(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// The voter that the lead is handed to.
    pub(crate) fn transfers_to(&self) -> Option<PeerId> {
        self.raw.raft.lead_transferee.map(PeerId)
    }

    /// Whether a leader sends a replica entries as they come, and neither probes for where the logs
    /// agree nor waits for a snapshot. Raft goes on probing a replica that lacks nothing until the
    /// next entry: in a region at rest it keeps up all the same.
    pub(crate) fn replicates_to(&self, peer: PeerId) -> bool {
        let last = self.last().0;
        self.raw.raft.prs().get(peer.0).is_some_and(|progress| match progress.state {
            ProgressState::Replicate => true,
            ProgressState::Probe => progress.matched == last,
            ProgressState::Snapshot => false,
        })
    }

    /// Whether a request for a read index would not be dropped at once.
    pub(crate) fn can_request_read_index(&self) -> bool {
        match self.role() {
            // Raft would answer for a single voter alone, and take itself for that.
            Role::Leader => self.committed_in_term() && self.is_voter(),
            Role::Follower => self.leader().is_some(),
            Role::Candidate => false,
        }
    }

    pub(crate) fn request_read_index(&mut self, context: &Bytes) {
        self.raw.read_index(context.to_vec());
    }

    /// Whether a leader keeps too many requests of followers already.
    pub(crate) fn is_read_queue_full(&self) -> bool {
        self.raw.raft.pending_read_count() >= READ_REQUESTS_MAX
    }

    pub(crate) fn persisted(&mut self, number: u64) {
        self.raw.on_persist_ready(number);
    }

    pub(crate) fn applied(&mut self, index: Index) {
        self.raw.advance_apply_to(index.0);
        // Not before raft counts them as applied: it panics if it lacks an entry that is not.
        self.raw.mut_store().release(index);
    }

    /// Lets raft send entries that it waited for.
    pub(crate) fn fetched(&mut self, entries: Vec<Entry>, askers: Vec<GetEntriesContext>) {
        self.raw.mut_store().lend(entries);
        for asker in askers {
            self.raw.on_entries_fetched(asker);
        }
        // Lent for these sends only: kept, the entries for one slow follower would stay in memory
        // as long as the region rests.
        self.raw.mut_store().lend(vec![]);
    }

    /// Has raft take the next snapshot whether or not its log has as much. Raft forgets it with
    /// the snapshot, or with the term.
    pub(crate) fn want_snapshot(&mut self, index: Index) {
        self.raw.raft.pending_request_snapshot = index.0;
    }

    /// Takes that back: raft has not taken the snapshot, and would refuse entries until another.
    pub(crate) fn want_no_snapshot(&mut self) {
        self.raw.raft.pending_request_snapshot = raft::INVALID_INDEX;
    }

    /// Whether raft has taken a snapshot that was not installed.
    pub(crate) fn has_snapshot(&self) -> bool {
        self.raw.snap().is_some_and(|snapshot| !snapshot.is_empty())
    }

    /// The entry of the snapshot that raft waits for to reach a follower.
    pub(crate) fn pending_snapshot(&self, to: PeerId) -> Option<Index> {
        let progress = self.raw.raft.prs().get(to.0)?;
        let is_pending = self.is_leader() && progress.state == ProgressState::Snapshot;
        is_pending.then_some(Index(progress.pending_snapshot))
    }

    /// The snapshot on its way to a follower has more than raft knows.
    pub(crate) fn raise_pending_snapshot(&mut self, to: PeerId, index: Index) {
        if self.pending_snapshot(to).is_some()
            && let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0)
        {
            progress.pending_snapshot = progress.pending_snapshot.max(index.0);
        }
    }

    /// The snapshot on its way to a follower has arrived, or will not.
    pub(crate) fn report_snapshot(&mut self, to: PeerId, ok: bool) {
        if self.pending_snapshot(to).is_some() {
            let status = if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
            self.raw.report_snapshot(to.0, status);
        }
    }

    pub(crate) fn unreachable(&mut self, peer: PeerId) {
        self.raw.report_unreachable(peer.0);
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.raw.has_ready()
    }

    pub(crate) fn ready(&mut self) -> Ready {
        self.raw.ready()
    }

    /// Completes a Ready whose entries are in the window.
    pub(crate) fn advance(&mut self, ready: Ready) {
        // Async: raft must not take the entries for persisted before the driver says so.
        self.raw.advance_append_async(ready);
        self.set_election_timeout();
    }

    pub(crate) fn window(&self) -> &LogWindow {
        self.raw.store()
    }

    pub(crate) fn window_mut(&mut self) -> &mut LogWindow {
        self.raw.mut_store()
    }

    pub(crate) fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.role() == Role::Leader
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    pub(crate) fn leader(&self) -> Option<PeerId> {
        Some(PeerId(self.raw.raft.leader_id)).filter(|peer| peer.0 != 0)
    }

    pub(crate) fn hard_state(&self) -> HardState {
        self.raw.raft.hard_state()
    }

    pub(crate) fn commit(&self) -> Index {
        Index(self.raw.raft.raft_log.committed)
    }

    /// The term of the last committed entry, which the window may not have yet.
    pub(crate) fn commit_term(&self) -> Term {
        Term(self.raw.raft.raft_log.commit_info().1)
    }

    pub(crate) fn persisted_index(&self) -> Index {
        Index(self.raw.raft.raft_log.persisted)
    }

    pub(crate) fn applied_index(&self) -> Index {
        Index(self.raw.raft.raft_log.applied())
    }

    /// The last entry, written or not.
    pub(crate) fn last(&self) -> Index {
        Index(self.raw.raft.raft_log.last_index())
    }

    /// The term of the last entry, or of the one before the first.
    pub(crate) fn last_term(&self) -> Term {
        Term(self.raw.raft.raft_log.last_term())
    }

    /// Whether an entry of the current term is committed. Before that, a leader does not know what
    /// its predecessors had committed.
    pub(crate) fn committed_in_term(&self) -> bool {
        self.raw.raft.commit_to_current_term()
    }

    /// The last entry of a replica's log that a leader knows to be on disk and like its own.
    pub(crate) fn matched(&self, peer: PeerId) -> Option<Index> {
        self.raw.raft.prs().get(peer.0).map(|progress| Index(progress.matched))
    }

    /// The same of all replicas, the leader itself included.
    pub(crate) fn matched_by_each(&self) -> impl Iterator<Item = (PeerId, Index)> + '_ {
        let progresses = self.raw.raft.prs().iter();
        progresses.map(|(peer, progress)| (PeerId(*peer), Index(progress.matched)))
    }

    fn set_election_timeout(&mut self) {
        // raft draws the timeout from the thread's generator, which no seed repeats
        // (docs/decisions/0002).
        let spread = mix(self.seed, self.raw.raft.id, self.raw.raft.term);
        let extra = spread % self.election_ticks as u64;
        let ticks = self.election_ticks + usize::try_from(extra).expect("less than a usize");
        self.raw.raft.set_randomized_election_timeout(ticks);
    }

    /// Checks that raft and the window agree.
    pub(crate) fn check(&self) {
        self.window().check(self.applied_index());
        let first = self.window().first_index().expect("never fails");
        assert!(first <= self.applied_index().0 + 1, "compacted above the applied index");
    }
}

/// Whether both name the same members. Raft's are in no order.
fn is_same_members(one: &ConfState, other: &ConfState) -> bool {
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    let lists = |state: &ConfState| {
        let outgoing = [&state.voters_outgoing[..], &state.learners_next];
        [&state.voters[..], &state.learners, outgoing[0], outgoing[1]].map(sorted)
    };
    lists(one) == lists(other)
}

/// Mixes three numbers to one that looks random (the finisher of splitmix64).
fn mix(seed: u64, peer: u64, term: u64) -> u64 {
    let mut x = seed ^ peer.rotate_left(32) ^ term.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
