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

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Semaphore;

/// Messages of one lane that a shard takes at once, so that a step stays short.
const TAKEN_AT_ONCE_MAX: usize = 4096;

/// A way into the mailbox with room of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Small messages of other stores that must not wait behind data.
    Urgent,
    /// Log entries of other stores.
    Appends,
    /// Requests of clients.
    Clients,
}

/// The lanes that a shard is ready to take from; the others are always open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenLanes {
    pub(crate) appends: bool,
    pub(crate) clients: bool,
}

impl OpenLanes {
    fn includes(self, lane: Lane) -> bool {
        match lane {
            Lane::Urgent => true,
            Lane::Appends => self.appends,
            Lane::Clients => self.clients,
        }
    }
}

/// The mailbox is closed: its shard has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MailboxClosed;

/// Messages for one shard, which alone takes them out.
pub(crate) struct Mailbox<T> {
    state: Mutex<MailboxState<T>>,
    wake: Condvar,
    room: [Semaphore; LANES.len()],
    /// Bytes that a lane holds at most. A heavier message counts as this much, or it could never
    /// get in.
    weight_max: [u32; LANES.len()],
}

struct MailboxState<T> {
    completions: VecDeque<T>,
    lanes: [VecDeque<(T, u32)>; LANES.len()],
    parked: bool,
    closed: bool,
}

const LANES: [Lane; 3] = [Lane::Urgent, Lane::Appends, Lane::Clients];

impl<T> Mailbox<T> {
    /// An empty mailbox whose lanes have room for these numbers of bytes.
    pub(crate) fn new(urgent_bytes: u32, appends_bytes: u32, clients_bytes: u32) -> Self {
        let weight_max = [urgent_bytes, appends_bytes, clients_bytes];
        assert!(!weight_max.contains(&0), "a lane without room would never take a message");
        Self {
            state: Mutex::new(MailboxState {
                completions: VecDeque::new(),
                lanes: [VecDeque::new(), VecDeque::new(), VecDeque::new()],
                parked: false,
                closed: false,
            }),
            wake: Condvar::new(),
            room: weight_max.map(|bytes| Semaphore::new(bytes as usize)),
            weight_max,
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
        let mut state = self.state.lock();
        if state.closed {
            return Err(MailboxClosed);
        }
        // The permits come back when the shard takes the message out, not at the end of this call.
        room.forget();
        state.lanes[lane as usize].push_back((message, weight));
        self.wake_shard(&mut state);
        Ok(())
    }

    /// Posts completions of effects, in order. Never waits; after the end they are dropped.
    pub(crate) fn complete_all(&self, messages: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock();
        if !state.closed {
            state.completions.extend(messages);
            self.wake_shard(&mut state);
        }
    }

    /// Moves the messages in open lanes to `into`, completions first. Waits for the first one until
    /// `deadline`, for ever without one. False once the mailbox is closed.
    pub(crate) fn take(
        &self,
        into: &mut VecDeque<T>,
        open: OpenLanes,
        deadline: Option<Instant>,
    ) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return false;
            }
            let had = into.len();
            into.extend(state.completions.drain(..));
            for lane in LANES.into_iter().filter(|lane| open.includes(*lane)) {
                let waiting = &mut state.lanes[lane as usize];
                let count = waiting.len().min(TAKEN_AT_ONCE_MAX);
                let mut freed = 0;
                for (message, weight) in waiting.drain(..count) {
                    freed += weight as usize;
                    into.push_back(message);
                }
                self.room[lane as usize].add_permits(freed);
                debug_assert!(
                    self.room[lane as usize].available_permits()
                        <= self.weight_max[lane as usize] as usize,
                    "a lane has more room than it was made with"
                );
            }
            if into.len() > had {
                return true;
            }
            // Set under the lock: a sender that takes the lock next sees it and wakes this thread.
            state.parked = true;
            match deadline {
                None => self.wake.wait(&mut state),
                Some(deadline) => {
                    if self.wake.wait_until(&mut state, deadline).timed_out() {
                        state.parked = false;
                        return !state.closed;
                    }
                }
            }
            state.parked = false;
        }
    }

    /// Drops all messages and refuses new ones.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.completions.clear();
        for lane in &mut state.lanes {
            lane.clear();
        }
        for room in &self.room {
            // Senders that wait for room get an error instead of waiting for ever.
            room.close();
        }
        self.wake.notify_all();
    }

    /// Wakes the shard if it sleeps. Without the flag each message would cost a futex call.
    fn wake_shard(&self, state: &mut MailboxState<T>) {
        if state.parked {
            state.parked = false;
            self.wake.notify_one();
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
}
