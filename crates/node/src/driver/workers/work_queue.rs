//! The queue of one worker thread, counted in bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Work that waits or is being carried out. Pushing never waits; the producer looks at
/// [`WorkQueue::bytes`] first.
pub(crate) struct WorkQueue<T> {
    state: Mutex<QueueState<T>>,
    wake: Condvar,
    bytes: AtomicUsize,
}

struct QueueState<T> {
    waiting: Vec<(T, usize)>,
    parked: bool,
    end: QueueEnd,
}

/// Whether more is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueEnd {
    /// Yes.
    Open,
    /// No; what waits is still to be done.
    Drain,
    /// No, and what waits is not to be done either.
    Halt,
}

impl<T> WorkQueue<T> {
    /// Nothing to do.
    pub(crate) fn new() -> Self {
        let state = QueueState { waiting: Vec::new(), parked: false, end: QueueEnd::Open };
        Self { state: Mutex::new(state), wake: Condvar::new(), bytes: AtomicUsize::new(0) }
    }

    /// Pushes work, in order. Dropped without a word once the queue is closed.
    pub(crate) fn push_all(&self, work: impl IntoIterator<Item = (T, usize)>) {
        let mut state = self.state.lock();
        if state.end != QueueEnd::Open {
            return;
        }
        let had = state.waiting.len();
        state.waiting.extend(work);
        let bytes = state.waiting[had..].iter().map(|(_, bytes)| bytes).sum();
        // Relaxed: the figure steers backpressure. A shard that reads an old one takes a little
        // more or a little less.
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if state.parked {
            state.parked = false;
            self.wake.notify_one();
        }
    }

    /// Moves all work that waits to `into` and returns its bytes, which count until they are
    /// [`WorkQueue::finish`]ed. Waits for some. None when there will be no more.
    pub(crate) fn take(&self, into: &mut Vec<T>) -> Option<usize> {
        let mut state = self.state.lock();
        loop {
            if state.end == QueueEnd::Halt
                || (state.end == QueueEnd::Drain && state.waiting.is_empty())
            {
                return None;
            }
            if !state.waiting.is_empty() {
                return Some(state.hand_over(into));
            }
            state.parked = true;
            self.wake.wait(&mut state);
            state.parked = false;
        }
    }

    /// Waits until `until` or the end, and moves the work that has come meanwhile to `into` as
    /// well. Returns its bytes. A push does not end this wait.
    pub(crate) fn take_until(&self, into: &mut Vec<T>, until: Instant) -> usize {
        let mut state = self.state.lock();
        while state.end == QueueEnd::Open && !self.wake.wait_until(&mut state, until).timed_out() {}
        state.hand_over(into)
    }

    /// Work of `bytes` is done.
    pub(crate) fn finish(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} bytes are done of {before} that were pushed");
    }

    /// Bytes of work that waits or is being carried out.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes no more work. The worker ends when it has carried out what is queued.
    pub(crate) fn drain(&self) {
        self.close(QueueEnd::Drain);
    }

    /// Takes no more work, and drops what is queued.
    pub(crate) fn halt(&self) {
        self.close(QueueEnd::Halt);
    }

    fn close(&self, end: QueueEnd) {
        assert_ne!(end, QueueEnd::Open, "a closed queue is not opened again");
        let mut state = self.state.lock();
        if state.end != QueueEnd::Halt {
            state.end = end;
        }
        self.wake.notify_all();
    }
}

impl<T> QueueState<T> {
    fn hand_over(&mut self, into: &mut Vec<T>) -> usize {
        let mut bytes = 0;
        into.extend(self.waiting.drain(..).map(|(work, weight)| {
            bytes += weight;
            work
        }));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_until_it_is_finished() {
        let queue = WorkQueue::new();
        queue.push_all([(1, 10), (2, 20)]);
        queue.push_all([(3, 5)]);
        let mut work = Vec::new();
        assert_eq!(queue.take(&mut work), Some(35));
        assert_eq!(work, [1, 2, 3]);
        assert_eq!(queue.bytes(), 35);
        queue.finish(35);
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn draining_does_what_waits_and_halting_does_not() {
        let queue = WorkQueue::new();
        queue.push_all([(1, 1)]);
        queue.drain();
        queue.push_all([(2, 1)]);
        let mut work = Vec::new();
        assert_eq!(queue.take(&mut work), Some(1));
        assert_eq!(work, [1]);
        assert_eq!(queue.take(&mut work), None);

        let queue = WorkQueue::new();
        queue.push_all([(1, 1)]);
        queue.halt();
        assert_eq!(queue.take(&mut work), None);
    }

    #[test]
    fn gathering_ends_in_time_and_at_once_with_the_end() {
        let queue = WorkQueue::new();
        queue.push_all([(1, 1)]);
        let mut work = Vec::new();
        assert_eq!(queue.take_until(&mut work, Instant::now()), 1);
        queue.push_all([(2, 2)]);
        queue.drain();
        let far = Instant::now() + std::time::Duration::from_secs(3600);
        assert_eq!(queue.take_until(&mut work, far), 2);
        assert_eq!(work, [1, 2]);
    }

    #[test]
    fn a_sleeping_worker_is_woken_by_work_and_by_the_end() {
        let queue = std::sync::Arc::new(WorkQueue::new());
        let worker = std::thread::spawn({
            let queue = std::sync::Arc::clone(&queue);
            move || {
                let mut work = Vec::new();
                while queue.take(&mut work).is_some() {}
                work
            }
        });
        queue.push_all([(7, 0)]);
        queue.drain();
        assert_eq!(worker.join().unwrap(), [7]);
    }
}
