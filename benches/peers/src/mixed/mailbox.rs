//! The mailbox of a shard, and that of a thread of clients: lists under one lock.

use flotilla_region::Event;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

/// Events for one shard: completions of its own effects first, then messages of other stores, then
/// requests of clients, which wait while the shard's workers are behind.
#[derive(Default)]
pub struct Mailbox {
    lanes: Mutex<Lanes>,
    wake: Condvar,
}

#[derive(Default)]
struct Lanes {
    completions: Vec<Event>,
    messages: Vec<Event>,
    clients: Vec<Event>,
    is_parked: bool,
    is_closed: bool,
}

impl Mailbox {
    /// Posts completions, in order.
    pub fn complete_all(&self, events: impl IntoIterator<Item = Event>) {
        self.post(|lanes| lanes.completions.extend(events));
    }

    /// Posts messages of another store.
    pub fn send_all(&self, events: impl IntoIterator<Item = Event>) {
        self.post(|lanes| lanes.messages.extend(events));
    }

    /// Posts a client's request.
    pub fn request(&self, event: Event) {
        self.post(|lanes| lanes.clients.push(event));
    }

    /// Ends the shard.
    pub fn close(&self) {
        self.post(|lanes| lanes.is_closed = true);
    }

    fn post(&self, add: impl FnOnce(&mut Lanes)) {
        let mut lanes = self.lanes.lock().expect("nobody panics with it");
        add(&mut lanes);
        if std::mem::take(&mut lanes.is_parked) {
            self.wake.notify_one();
        }
    }

    /// Moves what waits to `into`. Waits for something until `deadline`. False once it is closed.
    pub fn take(
        &self,
        into: &mut VecDeque<Event>,
        clients: bool,
        deadline: Option<Instant>,
    ) -> bool {
        let mut lanes = self.lanes.lock().expect("nobody panics with it");
        let had = into.len();
        loop {
            if lanes.is_closed {
                return false;
            }
            into.extend(lanes.completions.drain(..));
            into.extend(lanes.messages.drain(..));
            if clients {
                into.extend(lanes.clients.drain(..));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if into.len() > had || left.is_some_and(|left| left.is_zero()) {
                return true;
            }
            lanes.is_parked = true;
            lanes = match left {
                None => self.wake.wait(lanes).expect("nobody panics with it"),
                Some(left) => self.wake.wait_timeout(lanes, left).expect("nobody panics with it").0,
            };
            lanes.is_parked = false;
        }
    }
}

/// A list that other threads add to and one thread takes from.
pub struct Inbox<T> {
    state: Mutex<InboxState<T>>,
    wake: Condvar,
}

struct InboxState<T> {
    waiting: Vec<T>,
    is_parked: bool,
}

impl<T> Default for Inbox<T> {
    fn default() -> Inbox<T> {
        let state = InboxState { waiting: Vec::new(), is_parked: false };
        Inbox { state: Mutex::new(state), wake: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// Adds all.
    pub fn push_all(&self, all: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock().expect("nobody panics with it");
        state.waiting.extend(all);
        if std::mem::take(&mut state.is_parked) {
            self.wake.notify_one();
        }
    }

    /// Moves what waits to `into`. Waits for something until `deadline`.
    pub fn take(&self, into: &mut Vec<T>, deadline: Instant) {
        let mut state = self.state.lock().expect("nobody panics with it");
        if state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            state.is_parked = true;
            state = self.wake.wait_timeout(state, left).expect("nobody panics with it").0;
            state.is_parked = false;
        }
        into.append(&mut state.waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flotilla_region::RegionId;

    fn event(region: u64) -> Event {
        Event::Campaign { region: RegionId(region) }
    }

    #[test]
    fn completions_come_first_and_clients_may_have_to_wait() {
        let mailbox = Mailbox::default();
        mailbox.request(event(3));
        mailbox.send_all([event(2)]);
        mailbox.complete_all([event(1)]);
        let mut events = VecDeque::new();
        assert!(mailbox.take(&mut events, false, Some(Instant::now())));
        assert_eq!(events, [event(1), event(2)]);
        assert!(mailbox.take(&mut events, true, Some(Instant::now())));
        assert_eq!(events, [event(1), event(2), event(3)]);
        mailbox.close();
        assert!(!mailbox.take(&mut events, true, None));
    }
}
