//! The bounded queue between threads that log and standard error: logging never blocks.
//!
//! Standard error may be a pipe whose reader is slow, has stopped or has died. A thread that logs
//! must neither wait for it nor fail with it, so it only copies its line into memory; a thread of
//! the queue's own writes. A line that finds the queue full, or cannot be written, is dropped and
//! counted, and the next line that is written follows one that says how many were lost.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::recent_lines::RecentLines;

/// Bytes of lines that may wait to be written; as many may be on their way out.
const QUEUED_BYTES_MAX: usize = 1 << 20;

/// Lines that wait for standard error, and the count of those that it never got.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    queued: Mutex<QueuedLines>,
    /// There is something to write.
    filled: Condvar,
    /// All was written, or has failed.
    drained: Condvar,
    lines_lost: AtomicU64,
    /// For those who ask this process and do not see its standard error.
    recent: Mutex<RecentLines>,
}

#[derive(Debug, Default)]
struct QueuedLines {
    bytes: Vec<u8>,
    /// The writer has taken lines out of the queue and is not done with them.
    is_writing: bool,
}

impl LogQueue {
    /// Queues a line, or drops it if there is no room. The lock is held for a copy in memory only,
    /// never while something is written.
    pub(crate) fn push(&self, line: &[u8]) {
        self.recent.lock().push(line);
        let mut queued = self.queued.lock();
        if queued.bytes.len() + line.len() > QUEUED_BYTES_MAX {
            drop(queued);
            self.lose(line);
            return;
        }
        queued.bytes.extend_from_slice(line);
        self.filled.notify_one();
    }

    /// The last lines that were pushed, those that were dropped too.
    pub(crate) fn recent(&self) -> String {
        self.recent.lock().text()
    }

    /// Lines that were dropped since the process began.
    pub(crate) fn lines_lost(&self) -> u64 {
        self.lines_lost.load(Ordering::Relaxed)
    }

    /// Waits until all queued lines are written, `limit` at most. A panicking thread may hold the
    /// lock, so waiting for that is bounded too.
    pub(crate) fn flush(&self, limit: Duration) {
        let Some(mut queued) = self.queued.try_lock_for(limit) else { return };
        let is_busy = |queued: &mut QueuedLines| queued.is_writing || !queued.bytes.is_empty();
        // Lines that do not go out in time stay behind: nothing waits for them any longer.
        let _ = self.drained.wait_while_for(&mut queued, is_busy, limit);
    }

    /// Writes to `output` what is queued, for as long as the process lives.
    pub(crate) fn write_to(&self, mut output: impl Write) -> ! {
        let mut lines = Vec::new();
        let mut told = 0;
        loop {
            self.take(&mut lines);
            // One line a call: others may write to the same pipe, and what fits into its buffer is
            // not torn apart there.
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                self.tell_losses(&mut output, &mut told);
                if output.write_all(line).is_err() {
                    self.lose(line);
                }
            }
            // Lines that were dropped while the pipe was full may be the last ones for long.
            self.tell_losses(&mut output, &mut told);
        }
    }

    /// Waits for lines, and takes all.
    fn take(&self, lines: &mut Vec<u8>) {
        lines.clear();
        let mut queued = self.queued.lock();
        queued.is_writing = false;
        if queued.bytes.is_empty() {
            self.drained.notify_all();
            self.filled.wait_while(&mut queued, |queued| queued.bytes.is_empty());
        }
        std::mem::swap(&mut queued.bytes, lines);
        queued.is_writing = true;
    }

    /// Says how many lines were lost since that was last said. An attempt that fails is repeated
    /// with the next line.
    fn tell_losses(&self, output: &mut impl Write, told: &mut u64) {
        let lost = self.lines_lost();
        if lost > *told {
            let line = format!(
                "flotilla: {} lines of the log are lost: standard error did not take them\n",
                lost - *told
            );
            if output.write_all(line.as_bytes()).is_ok() {
                *told = lost;
            }
        }
    }

    fn lose(&self, lines: &[u8]) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count();
        self.lines_lost.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Takes lines of any length, and never refuses one: a logger that gets an error would report it to
/// standard error itself, where it must not wait.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Takes a line when the test gives it leave to, and sends the line to the test.
    struct SteppedOutput {
        leave: mpsc::Receiver<io::Result<()>>,
        written: mpsc::Sender<String>,
    }

    impl Write for SteppedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The test is over: the thread waits until the process ends.
            let leave = self.leave.recv().unwrap_or_else(|_| {
                loop {
                    std::thread::park()
                }
            });
            leave?;
            self.written.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct QueueFixture {
        queue: Arc<LogQueue>,
        leave: mpsc::Sender<io::Result<()>>,
        written: mpsc::Receiver<String>,
    }

    impl QueueFixture {
        fn start() -> Self {
            let queue = Arc::new(LogQueue::default());
            let (leave, left) = mpsc::channel();
            let (tell, written) = mpsc::channel();
            let writer = Arc::clone(&queue);
            std::thread::spawn(move || {
                writer.write_to(SteppedOutput { leave: left, written: tell })
            });
            Self { queue, leave, written }
        }

        /// The next line that is written.
        fn next(&self) -> String {
            self.leave.send(Ok(())).unwrap();
            self.written.recv_timeout(PATIENCE).unwrap()
        }
    }

    #[test]
    fn a_full_queue_drops_lines_counts_them_and_says_so_once() {
        let fixture = QueueFixture::start();
        fixture.queue.push(b"first\n");
        // The writer stands with that line, and the queue is empty.
        while !fixture.queue.queued.lock().is_writing {
            std::thread::yield_now();
        }
        let line = format!("{}\n", "x".repeat((1 << 16) - 1));
        for _ in 0..20 {
            fixture.queue.push(line.as_bytes());
        }
        assert_eq!(fixture.queue.lines_lost(), 4);
        assert_eq!(fixture.next(), "first\n");
        assert!(fixture.next().starts_with("flotilla: 4 lines of the log are lost"));
        for _ in 0..16 {
            assert_eq!(fixture.next(), line);
        }
        fixture.queue.push(b"later\n");
        assert_eq!(fixture.next(), "later\n");
        assert_eq!(fixture.queue.lines_lost(), 4);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_told_when_they_can() {
        let fixture = QueueFixture::start();
        let broken = || Err(io::ErrorKind::BrokenPipe.into());
        fixture.leave.send(broken()).unwrap();
        // After the line, and before the next one, it tries to say that one is lost.
        fixture.leave.send(broken()).unwrap();
        fixture.queue.push(b"first\n");
        fixture.queue.flush(PATIENCE);
        assert_eq!(fixture.queue.lines_lost(), 1);
        fixture.queue.push(b"second\n");
        assert!(fixture.next().starts_with("flotilla: 1 lines of the log are lost"));
        assert_eq!(fixture.next(), "second\n");
    }

    #[test]
    fn waiting_for_a_stuck_pipe_ends() {
        let fixture = QueueFixture::start();
        fixture.queue.push(b"never\n");
        fixture.queue.flush(Duration::from_millis(1));
        assert_eq!(fixture.queue.lines_lost(), 0);
    }
}
