//! The mailbox of one shard: bounded lanes, so that one kind of message does not block another.
//!
//! - *Completions* of the shard's own effects come first. Posting one never waits, or the workers
//!   could wait for the shard while the shard waits for them. The lane is bounded all the same: at
//!   most one completion for each effect that is outstanding, and the shard bounds those.
//! - *Urgent* messages of other stores (votes, heartbeats, acknowledgements), *appends* of other
//!   stores, and *client* requests each have a semaphore of bytes. A sender waits for room as a
//!   future, without blocking a thread; the shard gives the room back when it takes the message
//!   out.
//!
//! This is the node's backpressure: the shard leaves the lanes of appends and clients alone while
//! its workers are behind (see [`OpenLanes`]). A slow disk slows down the senders of work and never
//! stops heartbeats.
//!
//! A completion that was posted before a message was put into a lane comes out before it. So a
//! client that was told of a new region finds its replica.
//!
//! Each lane is a lock-free queue: senders on many threads and the shard do not wait for each other
//! (docs/decisions/0020). The shard sleeps only after it has announced that and has looked again,
//! so a message that comes meanwhile either is seen or wakes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Instant;

use crossbeam::queue::SegQueue;
use crossbeam::sync::{Parker, Unparker};
use crossbeam::utils::CachePadded;
use flotilla_dispatch::{Lane, OpenLanes};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Messages of one lane that a shard takes at once, so that a step stays short.
const TAKEN_AT_ONCE_MAX: usize = 4096;

/// The mailbox is closed: its shard has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MailboxClosed;

/// Messages for one shard, which alone takes them out.
pub(crate) struct Mailbox<T> {
    completions: SegQueue<T>,
    lanes: [SegQueue<(T, u32)>; LANES.len()],
    room: [Semaphore; LANES.len()],
    /// Bytes that a lane holds at most. A heavier message counts as this much, or it could never
    /// get in.
    weight_max: [u32; LANES.len()],
    /// The shard sleeps, or is about to. Each sender reads it: it has a cache line of its own.
    is_parked: CachePadded<AtomicBool>,
    is_closed: AtomicBool,
    /// Only the shard takes this lock.
    parker: Mutex<Parker>,
    unparker: Unparker,
}

const LANES: [Lane; 3] = Lane::ALL;

impl<T> Mailbox<T> {
    /// An empty mailbox whose lanes have room for these numbers of bytes.
    pub(crate) fn new(urgent_bytes: u32, appends_bytes: u32, clients_bytes: u32) -> Self {
        let weight_max = [urgent_bytes, appends_bytes, clients_bytes];
        assert!(!weight_max.contains(&0), "a lane without room would never take a message");
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        Self {
            completions: SegQueue::new(),
            lanes: [SegQueue::new(), SegQueue::new(), SegQueue::new()],
            room: weight_max.map(|bytes| Semaphore::new(bytes as usize)),
            weight_max,
            is_parked: CachePadded::new(AtomicBool::new(false)),
            is_closed: AtomicBool::new(false),
            parker: Mutex::new(parker),
            unparker,
        }
    }

    /// Puts a message of `bytes` into `lane` as soon as there is room.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it has put nothing.
    pub(crate) async fn send(
        &self,
        lane: Lane,
        message: T,
        bytes: usize,
    ) -> Result<(), MailboxClosed> {
        let limit = self.weight_max[lane as usize];
        // At least one permit: a message without weight would escape the bound.
        let weight = u32::try_from(bytes).unwrap_or(limit).clamp(1, limit);
        let room =
            self.room[lane as usize].acquire_many(weight).await.map_err(|_| MailboxClosed)?;
        // The permits come back when the shard takes the message out, not at the end of this call.
        room.forget();
        self.lanes[lane as usize].push((message, weight));
        self.wake_shard();
        self.refuse_if_closed()
    }

    /// Posts completions of effects, in order. Never waits; after the end they are dropped.
    pub(crate) fn complete_all(&self, messages: impl IntoIterator<Item = T>) {
        messages.into_iter().for_each(|message| self.completions.push(message));
        self.wake_shard();
        // Without a shard they are dropped.
        let _ = self.refuse_if_closed();
    }

    /// Moves the messages in open lanes to `into`, completions first. Waits for the first one until
    /// `deadline`, for ever without one. False once the mailbox is closed.
    pub(crate) fn take(
        &self,
        into: &mut VecDeque<T>,
        open: OpenLanes,
        deadline: Option<Instant>,
    ) -> bool {
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        loop {
            if self.is_closed.load(Ordering::SeqCst) {
                return false;
            }
            if self.drain(into, open) {
                return true;
            }
            self.is_parked.store(true, Ordering::SeqCst);
            // Pairs with the fence of `wake_shard`: either the sender sees the flag, or this thread
            // sees the message.
            fence(Ordering::SeqCst);
            let is_awake = self.is_closed.load(Ordering::SeqCst) || self.drain(into, open);
            if !is_awake {
                let parker = self.parker.lock();
                match deadline {
                    None => parker.park(),
                    Some(deadline) => {
                        parker.park_deadline(deadline);
                    }
                }
            }
            self.is_parked.store(false, Ordering::SeqCst);
            if is_awake || is_over() {
                return !self.is_closed.load(Ordering::SeqCst);
            }
        }
    }

    /// Moves what the lanes hold now to `into`. False if that was nothing.
    fn drain(&self, into: &mut VecDeque<T>, open: OpenLanes) -> bool {
        let had = into.len();
        self.drain_completions(into);
        let in_order = into.len();
        for lane in LANES.into_iter().filter(|lane| open.includes(*lane)) {
            let lane = lane as usize;
            let mut freed = 0;
            for _ in 0..TAKEN_AT_ONCE_MAX {
                let Some((message, weight)) = self.lanes[lane].pop() else { break };
                freed += weight as usize;
                into.push_back(message);
            }
            self.room[lane].add_permits(freed);
            debug_assert!(
                self.room[lane].available_permits() <= self.weight_max[lane] as usize,
                "a lane has more room than it was made with"
            );
        }
        // A completion may have come behind the first look, and before a message of a lane.
        let from_lanes = into.len() - in_order;
        if from_lanes > 0 {
            self.drain_completions(into);
            into.make_contiguous()[in_order..].rotate_left(from_lanes);
        }
        into.len() > had
    }

    fn drain_completions(&self, into: &mut VecDeque<T>) {
        // No more than there are now: completions may come as fast as they are taken.
        into.extend((0..self.completions.len()).map_while(|_| self.completions.pop()));
    }

    /// Drops all messages and refuses new ones.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        for room in &self.room {
            // Senders that wait for room get an error instead of waiting for ever.
            room.close();
        }
        let _ = self.refuse_if_closed();
        self.unparker.unpark();
    }

    /// Drops the messages of a closed mailbox. A sender calls it after its push: a message that
    /// came in after [`Mailbox::close`] had looked would else stay, and its sender would wait for
    /// ever.
    fn refuse_if_closed(&self) -> Result<(), MailboxClosed> {
        if !self.is_closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        while self.completions.pop().is_some() {}
        for lane in &self.lanes {
            while lane.pop().is_some() {}
        }
        Err(MailboxClosed)
    }

    /// Wakes the shard if it sleeps. Without the flag each message would cost a futex call.
    fn wake_shard(&self) {
        fence(Ordering::SeqCst);
        if self.is_parked.load(Ordering::Relaxed) && self.is_parked.swap(false, Ordering::SeqCst) {
            self.unparker.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    const ALL: OpenLanes = OpenLanes { appends: true, clients: true };

    fn taken(mailbox: &Mailbox<u32>, open: OpenLanes) -> Vec<u32> {
        let mut messages = VecDeque::new();
        mailbox.take(&mut messages, open, Some(Instant::now()));
        messages.into()
    }

    #[tokio::test]
    async fn completions_come_first_and_each_lane_keeps_its_order() {
        let mailbox = Mailbox::new(100, 100, 100);
        mailbox.send(Lane::Clients, 30, 1).await.unwrap();
        mailbox.send(Lane::Appends, 20, 1).await.unwrap();
        mailbox.send(Lane::Appends, 21, 1).await.unwrap();
        mailbox.send(Lane::Urgent, 10, 1).await.unwrap();
        mailbox.complete_all([1, 2]);
        assert_eq!(taken(&mailbox, ALL), [1, 2, 10, 20, 21, 30]);
        assert!(taken(&mailbox, ALL).is_empty());
    }

    #[tokio::test]
    async fn a_full_lane_makes_its_senders_wait_and_nobody_else() {
        let mailbox = Arc::new(Mailbox::new(10, 10, 10));
        mailbox.send(Lane::Clients, 1, 10).await.unwrap();
        let second = tokio::spawn({
            let mailbox = Arc::clone(&mailbox);
            async move { mailbox.send(Lane::Clients, 2, 1).await }
        });
        mailbox.send(Lane::Urgent, 3, 10).await.unwrap();
        mailbox.complete_all([4]);
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        assert_eq!(taken(&mailbox, ALL), [4, 3, 1]);
        second.await.unwrap().unwrap();
        assert_eq!(taken(&mailbox, ALL), [2]);
    }

    #[tokio::test]
    async fn a_message_heavier_than_its_lane_gets_in_alone() {
        let mailbox = Mailbox::new(10, 10, 10);
        mailbox.send(Lane::Appends, 1, 1 << 40).await.unwrap();
        assert_eq!(taken(&mailbox, ALL), [1]);
        mailbox.send(Lane::Appends, 2, 10).await.unwrap();
        assert_eq!(taken(&mailbox, ALL), [2]);
    }

    #[tokio::test]
    async fn a_shut_lane_keeps_its_messages_and_its_room() {
        let mailbox = Mailbox::new(10, 10, 10);
        mailbox.send(Lane::Clients, 1, 10).await.unwrap();
        mailbox.send(Lane::Urgent, 2, 1).await.unwrap();
        assert_eq!(taken(&mailbox, OpenLanes { appends: true, clients: false }), [2]);
        assert!(taken(&mailbox, OpenLanes { appends: true, clients: false }).is_empty());
        assert_eq!(taken(&mailbox, ALL), [1]);
    }

    #[tokio::test]
    async fn more_messages_than_are_taken_at_once_come_in_order_and_without_waiting() {
        let mailbox = Mailbox::new(u32::MAX >> 4, u32::MAX >> 4, u32::MAX >> 4);
        let count = 2 * TAKEN_AT_ONCE_MAX as u32 + 7;
        for number in 0..count {
            mailbox.send(Lane::Clients, number, 1).await.unwrap();
        }
        let (mut all, mut takes) = (Vec::new(), 0);
        while all.len() < count as usize {
            let mut messages = VecDeque::new();
            assert!(mailbox.take(&mut messages, ALL, Some(Instant::now())));
            assert!((1..=TAKEN_AT_ONCE_MAX).contains(&messages.len()), "{}", messages.len());
            all.extend(messages);
            takes += 1;
        }
        assert!(all.into_iter().eq(0..count));
        assert_eq!(takes, 3);
    }

    #[tokio::test]
    async fn closing_ends_the_taker_and_refuses_the_senders() {
        let mailbox = Arc::new(Mailbox::<u32>::new(10, 10, 10));
        let taker = std::thread::spawn({
            let mailbox = Arc::clone(&mailbox);
            move || mailbox.take(&mut VecDeque::new(), ALL, None)
        });
        mailbox.send(Lane::Urgent, 1, 10).await.unwrap();
        assert!(taker.join().unwrap());
        mailbox.close();
        assert!(!mailbox.take(&mut VecDeque::new(), ALL, None));
        assert_eq!(mailbox.send(Lane::Urgent, 2, 1).await, Err(MailboxClosed));
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        let mailbox = Mailbox::<u32>::new(10, 10, 10);
        let mut messages = VecDeque::new();
        let deadline = Instant::now() + Duration::from_millis(5);
        assert!(mailbox.take(&mut messages, ALL, Some(deadline)));
        assert!(messages.is_empty() && Instant::now() >= deadline);
    }

    #[test]
    fn no_message_is_missed_by_a_shard_that_goes_to_sleep() {
        let mailbox = Arc::new(Mailbox::<u32>::new(10, 10, 10));
        let (answer, answers) = std::sync::mpsc::channel();
        let shard = std::thread::spawn({
            let mailbox = Arc::clone(&mailbox);
            move || {
                let mut messages = VecDeque::new();
                while mailbox.take(&mut messages, ALL, None) {
                    messages.drain(..).for_each(|message| answer.send(message).unwrap());
                }
            }
        });
        // Each message meets the shard somewhere on its way to sleep.
        for number in 0..100_000 {
            mailbox.complete_all([number]);
            assert_eq!(answers.recv_timeout(Duration::from_secs(30)), Ok(number));
        }
        mailbox.close();
        shard.join().unwrap();
    }

    #[test]
    fn a_completion_comes_before_what_was_sent_after_it() {
        const COUNT: u32 = 20_000;
        let mailbox = Arc::new(Mailbox::<(bool, u32)>::new(1 << 20, 1 << 20, 1 << 20));
        let sender = std::thread::spawn({
            let mailbox = Arc::clone(&mailbox);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for number in 0..COUNT {
                    mailbox.complete_all([(true, number)]);
                    runtime.block_on(mailbox.send(Lane::Clients, (false, number), 1)).unwrap();
                }
            }
        });
        let (mut messages, mut completed, mut sent) = (VecDeque::new(), 0, 0);
        while sent < COUNT {
            assert!(mailbox.take(&mut messages, ALL, None));
            for (is_completion, number) in messages.drain(..) {
                let counter = if is_completion { &mut completed } else { &mut sent };
                assert_eq!(number, *counter);
                *counter += 1;
                assert!(sent <= completed, "message {number} came before its completion");
            }
        }
        sender.join().unwrap();
    }

    #[test]
    fn messages_that_meet_the_close_are_dropped() {
        for _ in 0..1000 {
            let mailbox = Mailbox::new(10, 10, 10);
            let message = Arc::new(());
            std::thread::scope(|scope| {
                scope.spawn(|| (0..4).for_each(|_| mailbox.complete_all([Arc::clone(&message)])));
                scope.spawn(|| mailbox.close());
            });
            assert_eq!(Arc::strong_count(&message), 1, "a message stays in a closed mailbox");
        }
    }
}
