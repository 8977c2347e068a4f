//! Redo log of durable commits: group commit into a ring in the page file.
//!
//! A published transaction leaves its record in a queue. A thread that wants it durable waits; one
//! of the waiting threads becomes the leader: it takes all that is queued as one frame, appends it,
//! syncs, and wakes the followers. Meanwhile transactions go on and queue: no lock is held over the
//! disk.
//!
//! Records are useless if one is missing before them. A transaction without a record (too long, not
//! expressible, or the ring was full) leaves a *gap*: nothing is recorded until a checkpoint that
//! began behind the gap is durable. So a commit that wants to be durable across a gap makes a
//! checkpoint, and holds the writer lock until it is durable. `docs/decisions/0014` has the
//! reasons.
//!
//! A ring begins short. A checkpoint moves the log to a longer one: from its cut on each frame is
//! appended to both rings, at the same position, until the meta page that names the longer one is
//! durable. So whichever meta page counts after a crash names a ring with all frames behind its
//! root.
//!
//! The transactions between the durable root and the last published one are therefore, without
//! gaps, in the frames from the area's `from` on, in the frame that is being appended, and in the
//! queue.

mod area;
pub(crate) mod frame;
mod record;

pub(crate) use area::{FrameReader, RedoArea};
pub(crate) use record::{
    MalformedRecord, RecorderSavepoint, RedoOp, RedoRecord, RedoRecorder, records,
};

use std::sync::Arc;

use flotilla_vfs::File;

use crate::error::{Error, Result};
use crate::page::Span;
use flotilla_base::commit_window::GroupCommitWindow;
use flotilla_base::sync::atomic::AtomicU64;
use flotilla_base::sync::atomic::Ordering::Relaxed;
use flotilla_base::sync::{Futex, Mutex, MutexGuard};
use frame::{SectorBuffer, frame_bytes};

/// Whether a commit waits for the append of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendUrgency {
    /// A commit waits for it.
    Now,
    /// No commit waits for it; later records are of use only with it.
    Later,
}

/// The redo log: the ring, the queue of records, and the leader.
pub(crate) struct Redo {
    /// A file handle of its own, so that it gets its own write errors.
    file: Arc<dyn File>,
    state: Mutex<RedoState>,
    /// Futexes of waiting threads: those of each round at the futex of its parity.
    futexes: [Futex; 2],
    window: GroupCommitWindow,
    /// Commits that wait for the next frame. Changes under the lock of `state`.
    waiting: AtomicU64,
}

struct RedoState {
    area: Option<RedoArea>,
    ring_switch: RingSwitch,
    /// Nothing is recorded: the published transactions are read from the area.
    is_replaying: bool,
    /// The position of the next frame.
    next: u64,
    /// All frames before this position are durable.
    synced: u64,
    /// The number of the last durable checkpoint.
    checkpoint: u64,
    queue: RecordQueue,
    /// The last published transaction, with or without a record.
    published: u64,
    /// The last transaction without a record that no durable checkpoint contains; 0 if there is
    /// none.
    gap: u64,
    /// All transactions up to here are durable.
    durable: u64,
    lead: CommitLeader,
    is_broken: bool,
    spare: SpareBuffers,
}

/// The move from one ring to a longer one.
#[derive(Default)]
struct RingSwitch {
    /// The longer ring: a checkpoint is writing the meta page that names it.
    to: Option<RedoArea>,
    /// The ring before, and the last round whose leader may write to it.
    old: Option<(Span, u64)>,
}

/// The use of the ring, for those who decide how long it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingUse {
    pub(crate) span: Span,
    /// Bytes of frames that the durable root does not contain.
    pub(crate) used: u64,
    /// A transaction has no record, for instance because it was too long.
    pub(crate) has_gap: bool,
    /// A ring before this one was not given back yet.
    pub(crate) has_old: bool,
}

/// Memory to be used again.
#[derive(Default)]
struct SpareBuffers {
    recorder: Vec<u8>,
    queue: Vec<u8>,
    frame: SectorBuffer,
}

/// Records that wait for the next frame.
#[derive(Default)]
struct RecordQueue {
    bytes: Vec<u8>,
    /// Bytes of the ring that they take at most, each in a frame of its own.
    room: u64,
    /// The last transaction among them, or among those before.
    last: u64,
    /// How many of them a commit waits for.
    wanted: u64,
}

/// The leader of a group commit.
#[derive(Default)]
struct CommitLeader {
    is_on: bool,
    /// The last transaction in the frame that is being appended, or in the last one.
    last: u64,
    /// Counts frames.
    round: u64,
}

/// Fails all waiting commits if the leader panics: they would wait for it for ever.
struct LeaderGuard<'a>(&'a Redo);

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}

/// A batch of records that the leader appends.
struct CommitBatch {
    area: RedoArea,
    /// The ring to which the log is moving.
    copy: Option<RedoArea>,
    position: u64,
    /// The position behind the frame.
    end: u64,
    checkpoint: u64,
    records: RecordQueue,
    frame: SectorBuffer,
}

impl Redo {
    /// Without an area.
    pub(crate) fn new(file: Arc<dyn File>, durable: u64) -> Redo {
        let state = RedoState {
            area: None,
            ring_switch: RingSwitch::default(),
            is_replaying: false,
            next: 0,
            synced: 0,
            checkpoint: 0,
            queue: RecordQueue::default(),
            published: durable,
            gap: 0,
            durable,
            lead: CommitLeader::default(),
            is_broken: false,
            spare: SpareBuffers::default(),
        };
        let futexes = Default::default();
        let (window, waiting) = (GroupCommitWindow::default(), AtomicU64::new(0));
        Redo { file, state: Mutex::new(state), futexes, window, waiting }
    }

    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }

    /// For the next transaction.
    pub(crate) fn recorder(&self) -> RedoRecorder {
        let mut state = self.state.lock();
        let bytes_max = match state.area {
            Some(area) if state.is_recording() => area.frame_bytes_max() as usize,
            _ => 0,
        };
        RedoRecorder::new(std::mem::take(&mut state.spare.recorder), bytes_max)
    }

    /// Whether a record that a commit waits for could be queued now. If so it can be until the next
    /// one is queued.
    pub(crate) fn admits(&self, record: &[u8]) -> bool {
        self.state.lock().admits(record, AppendUrgency::Now)
    }

    /// Queues the record of a transaction that was published just now; the caller still holds the
    /// writer lock. Without a record, or without room for it, it leaves a gap.
    pub(crate) fn push(&self, txid: u64, mut recorder: RedoRecorder, wanted: AppendUrgency) {
        let mut state = self.state.lock();
        assert!(txid > state.published, "{txid} is published after {}", state.published);
        state.published = txid;
        if state.area.is_some() && !state.is_replaying {
            match recorder.finish(txid).filter(|record| state.admits(record, wanted)) {
                Some(record) => state.queue.push(txid, record, wanted),
                None => state.gap = txid,
            }
            self.waiting.store(state.queue.wanted, Relaxed);
        }
        state.spare.recorder = recorder.into_spare();
    }

    /// The last transaction whose commit could be waited for by [`Redo::wait`]; nothing if only a
    /// checkpoint makes durable what is published.
    pub(crate) fn last(&self) -> Option<u64> {
        let state = self.state.lock();
        let is_waitable = state.is_recording() || state.durable == state.published;
        is_waitable.then_some(state.published)
    }

    /// Waits until all transactions up to `txid` are durable. There must be no gap among them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it was this thread whose write failed, and [`Error::Poisoned`] if it was
    /// another: the caller has to poison the store in the first case.
    pub(crate) fn wait(&self, txid: u64) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.is_broken {
                return Err(Error::Poisoned);
            }
            if state.durable >= txid {
                return Ok(());
            }
            assert!(txid <= state.published, "a commit waits for {txid}, which is not published");
            if !state.lead.is_on {
                state.lead.is_on = true;
                return self.lead(state);
            }
            // A follower of the running round sleeps apart from those who wait for the next one.
            let is_led = txid <= state.lead.last;
            let futex = &self.futexes[(state.lead.round + u64::from(!is_led)) as usize % 2];
            let seen = futex.load();
            drop(state);
            futex.sleep(seen);
            state = self.state.lock();
        }
    }

    /// Appends the queue as the leader.
    fn lead<'a>(&'a self, state: MutexGuard<'a, RedoState>) -> Result<()> {
        let _guard = LeaderGuard(self);
        // Bound after the guard, so dropped before it.
        let mut state = state;
        if self.window.is_open(state.queue.wanted) {
            drop(state);
            self.window.wait(|| self.waiting.load(Relaxed));
            state = self.state.lock();
        }
        let mut taken = state.take();
        self.waiting.store(0, Relaxed);
        drop(state);
        let outcome = taken.append(self.file());
        let mut state = self.state.lock();
        self.window.expect(taken.records.wanted + state.queue.wanted);
        state.lead.is_on = false;
        assert!(state.synced <= taken.position, "a frame was appended behind the next one");
        state.is_broken |= outcome.is_err();
        if !state.is_broken {
            state.durable = state.durable.max(taken.records.last);
            state.synced = taken.end;
        }
        let is_broken = state.is_broken;
        taken.leave(&mut state.spare);
        self.wake_rounds(state, is_broken);
        match outcome {
            Ok(()) if is_broken => Err(Error::Poisoned),
            other => other,
        }
    }

    /// Wakes the followers of the last round, and one or all of the next.
    fn wake_rounds(&self, state: MutexGuard<'_, RedoState>, all: bool) {
        let round = state.lead.round as usize;
        let (done, next) = (&self.futexes[round % 2], &self.futexes[(round + 1) % 2]);
        done.advance();
        next.advance();
        drop(state);
        // The next leader first, since the disk is idle until it writes.
        if all {
            next.wake_all();
        } else {
            next.wake_one();
        }
        done.wake_all();
    }

    /// Fails all waiting commits: the contents of the file are unknown.
    pub(crate) fn fail(&self) {
        let mut state = self.state.lock();
        state.is_broken = true;
        self.wake_rounds(state, true);
    }

    /// All transactions up to this one are durable.
    pub(crate) fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    /// Begins with the area that the file has. Nothing is recorded until [`Redo::replayed`].
    pub(crate) fn replay(&self, area: RedoArea, checkpoint: u64) {
        let mut state = self.state.lock();
        state.area = Some(area);
        state.next = area.from;
        state.synced = area.from;
        state.checkpoint = checkpoint;
        state.is_replaying = true;
    }

    /// Says that all frames before this position have been replayed.
    pub(crate) fn advance(&self, position: u64) {
        let mut state = self.state.lock();
        assert!(position >= state.next, "replay went back from {} to {position}", state.next);
        state.next = position;
        state.synced = position;
    }

    /// Says that all frames have been, and that all which is published is durable.
    pub(crate) fn replayed(&self) {
        let mut state = self.state.lock();
        state.is_replaying = false;
        state.durable = state.published;
    }

    /// The area as a checkpoint that begins now shall name it: no earlier frame has a transaction
    /// that was published after this call. The caller keeps others from publishing. If the log is
    /// to move to a ring of zeros, the checkpoint names that one.
    pub(crate) fn cut(&self, new_ring: Option<Span>) -> Option<RedoArea> {
        let mut state = self.state.lock();
        debug_assert!(state.area.is_none_or(|area| state.next >= area.from), "the ring went back");
        let span = new_ring.or(state.area.map(|area| area.span))?;
        let area = RedoArea { span, from: state.next };
        if new_ring.is_some() {
            assert!(state.ring_switch.old.is_none(), "the log moves on before it has moved");
            state.ring_switch.to = state.area.map(|_| area);
        }
        Some(area)
    }

    /// The ring and its use, if there is one.
    pub(crate) fn ring_use(&self) -> Option<RingUse> {
        let state = self.state.lock();
        state.area.map(|area| RingUse {
            span: area.span,
            used: state.next - area.from,
            has_gap: state.gap != 0,
            has_old: state.ring_switch.old.is_some(),
        })
    }

    /// The ring before this one, once no leader writes to it any more. It belongs to the caller.
    pub(crate) fn take_old_ring(&self) -> Option<Span> {
        let mut state = self.state.lock();
        let (span, last_round) = state.ring_switch.old?;
        if state.lead.is_on && state.lead.round <= last_round {
            return None;
        }
        state.ring_switch.old = None;
        Some(span)
    }

    /// Says that a checkpoint is durable: its root, and the area as it was at the cut.
    pub(crate) fn checkpointed(&self, txid: u64, number: u64, area: Option<RedoArea>) {
        let mut state = self.state.lock();
        if state.area.is_none() {
            state.next = area.map_or(0, |area| area.from);
            state.synced = state.next;
        }
        assert!(number > state.checkpoint, "checkpoint {number} ends after {}", state.checkpoint);
        let is_ahead = |area: RedoArea| state.area.is_none_or(|old| old.from <= area.from);
        assert!(area.is_none_or(is_ahead), "the beginning of the ring went back");
        if state.ring_switch.to.take().is_some() {
            state.ring_switch.old = state.area.map(|area| (area.span, state.lead.round));
        }
        state.area = area;
        state.checkpoint = number;
        state.durable = state.durable.max(txid);
        if state.gap <= txid {
            state.gap = 0;
        }
        // The checkpoint contains them: appended, they would only take room of the ring.
        if state.queue.last <= txid {
            state.queue.clear();
            self.waiting.store(0, Relaxed);
        }
        self.wake_rounds(state, true);
    }

    /// The area, and the position up to which its frames are durable.
    pub(crate) fn synced(&self) -> Option<(RedoArea, u64)> {
        let state = self.state.lock();
        state.area.map(|area| (area, state.synced))
    }

    /// Bytes of the area that are in use, and of all of it.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        state.area.map_or((0, 0), |area| (state.next - area.from, area.bytes()))
    }
}

impl RedoState {
    fn is_recording(&self) -> bool {
        self.area.is_some() && self.gap == 0 && !self.is_replaying
    }

    fn admits(&self, record: &[u8], wanted: AppendUrgency) -> bool {
        let Some(area) = self.area.filter(|_| self.is_recording()) else { return false };
        let room = self.queue.room + frame_bytes(record.len() as u64);
        let free = area.bytes() - (self.next - area.from);
        let limit = match wanted {
            AppendUrgency::Now => area.frame_bytes_max(),
            // The other half is left to commits that wait.
            AppendUrgency::Later => area.frame_bytes_max() / 2,
        };
        room <= free.min(limit)
    }

    fn take(&mut self) -> CommitBatch {
        let area = self.area.expect("transactions are waited for only where there is an area");
        let position = self.next;
        let bytes = std::mem::take(&mut self.spare.queue);
        let frame = std::mem::take(&mut self.spare.frame);
        // An empty queue keeps the last transaction, so that `last` never falls.
        let queue = RecordQueue { bytes, last: self.queue.last, ..RecordQueue::default() };
        let records = std::mem::replace(&mut self.queue, queue);
        self.next += frame_bytes(records.bytes.len() as u64);
        let used = self.next - area.from;
        assert!(used <= area.bytes(), "{used} bytes in a ring of {}", area.bytes());
        self.lead.round += 1;
        self.lead.last = records.last;
        let (copy, end, checkpoint) = (self.ring_switch.to, self.next, self.checkpoint);
        CommitBatch { area, copy, position, end, checkpoint, records, frame }
    }
}

impl RecordQueue {
    fn push(&mut self, txid: u64, record: &[u8], wanted: AppendUrgency) {
        assert!(txid > self.last, "{txid} is queued after {}", self.last);
        self.bytes.extend_from_slice(record);
        self.room += frame_bytes(record.len() as u64);
        self.last = txid;
        self.wanted += u64::from(wanted == AppendUrgency::Now);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.room = 0;
        self.wanted = 0;
    }
}

impl CommitBatch {
    fn append(&mut self, file: &dyn File) -> Result<()> {
        let CommitBatch { area, copy, position, checkpoint, records, frame, .. } = self;
        frame::encode(frame, *position, *checkpoint, records.last, &records.bytes);
        // Either meta page may count after a crash, so either ring must have the frame.
        if let Some(copy) = copy {
            copy.append(file, *position, frame.bytes())?;
        }
        area.append(file, *position, frame.bytes())
    }

    fn leave(mut self, spare: &mut SpareBuffers) {
        self.records.clear();
        spare.queue = self.records.bytes;
        spare.frame = self.frame;
    }
}
