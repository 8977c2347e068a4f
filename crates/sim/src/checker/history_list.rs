//! The history as a doubly linked list of calls and returns by moment; operations can be lifted and
//! put back.

/// An event of the history: the call or the return of an operation.
#[derive(Clone, Copy)]
pub(super) enum HistoryEvent {
    Call(usize),
    Return(usize),
}

/// Calls and returns by moment, in a list from which marks are lifted and put back in reverse
/// order. Mark `2p + 1` is the call of operation `p`, `2p + 2` its return, 0 the head.
pub(super) struct HistoryList {
    next: Vec<usize>,
    previous: Vec<usize>,
    has_return: Vec<bool>,
}

impl HistoryList {
    pub(super) fn new(operations: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let (mut events, mut has_return) = (Vec::new(), Vec::new());
        for (place, (called, returned)) in operations.enumerate() {
            events.push((called, false, Self::call(place)));
            events.extend(returned.map(|at| (at, true, Self::call(place) + 1)));
            has_return.push(returned.is_some());
        }
        // At equal moments calls come first: such operations overlap.
        events.sort_unstable();
        let mut list = Self {
            next: vec![0; 2 * has_return.len() + 1],
            previous: vec![0; 2 * has_return.len() + 1],
            has_return,
        };
        let mut last = 0;
        for (_, _, event) in events {
            list.next[last] = event;
            list.previous[event] = last;
            last = event;
        }
        list.previous[0] = last;
        list
    }

    pub(super) fn call(place: usize) -> usize {
        2 * place + 1
    }

    pub(super) fn first(&self) -> usize {
        self.next[0]
    }

    pub(super) fn after(&self, event: usize) -> usize {
        self.next[event]
    }

    pub(super) fn kind(&self, event: usize) -> HistoryEvent {
        assert!(event > 0, "the list ends only after the last return, and then nothing is left");
        if event % 2 == 1 {
            HistoryEvent::Call(event / 2)
        } else {
            HistoryEvent::Return(event / 2 - 1)
        }
    }

    pub(super) fn lift(&mut self, place: usize) {
        self.unlink(Self::call(place));
        if self.has_return[place] {
            self.unlink(Self::call(place) + 1);
        }
    }

    pub(super) fn unlift(&mut self, place: usize) {
        // In the reverse order of `lift`: an event goes back between the neighbours that it had
        // when it was taken out.
        if self.has_return[place] {
            self.link(Self::call(place) + 1);
        }
        self.link(Self::call(place));
    }

    fn unlink(&mut self, event: usize) {
        let (before, after) = (self.previous[event], self.next[event]);
        self.next[before] = after;
        self.previous[after] = before;
    }

    fn link(&mut self, event: usize) {
        let (before, after) = (self.previous[event], self.next[event]);
        self.next[before] = event;
        self.previous[after] = event;
    }
}
