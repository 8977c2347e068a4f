//! Fail-stop of the process: a panic ends it at once, with an exit code and one line that says why.
//!
//! A task that panicked has left its work half done: other tasks would wait for it for ever, or go
//! on from a state that breaks an invariant. The hook runs before the stack is unwound: no
//! destructor runs and no lock is released, so no other thread sees the state that a lock guards.
//! Nothing is flushed and no checkpoint is made; acknowledged writes are in the log, and the next
//! start finds them there. The last line is written within bounds, since standard error may be a
//! pipe that is full or closed.

use std::io::{self, Write as _};
use std::panic::{self, PanicHookInfo};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use crate::logging;

/// Exit code after a failure that ended the node, as opposed to one that kept it from starting.
pub const FAILED: i32 = 70;

/// Exit code after a panic: a defect of the program, and not of a disk.
pub const PANICKED: i32 = 71;

/// How long a line may take to be written if it is the last one, or one that another program waits
/// for.
const LINE_LIMIT: Duration = Duration::from_millis(300);

/// How long lines of the log may take that were logged before it.
pub(crate) const LOG_LIMIT: Duration = Duration::from_millis(200);

/// Bytes of a line at most: those that a pipe takes whole, or not at all.
const LINE_BYTES_MAX: usize = 4096;

/// Lines that may wait for the thread that writes them.
const LINES_QUEUED_MAX: usize = 16;

static ERRORS: BoundedWriter = BoundedWriter::new("last-words", |line| {
    // A line that cannot be written is lost; there is no other place to say it.
    let _ = io::stderr().write_all(line);
});
static OUTPUT: BoundedWriter = BoundedWriter::new("announce", |line| {
    let mut output = io::stdout();
    let _ = output.write_all(line).and_then(|()| output.flush());
});

/// From here on a panic on any thread, in any task, ends the process with the code [`PANICKED`] and
/// one line on standard error. For programs; a library leaves that to its owner.
pub fn end_process_on_panic() {
    // Started now: a panic may come because the kernel has no thread left.
    ERRORS.start();
    panic::set_hook(Box::new(|panic| {
        static PANICKED_BEFORE: AtomicBool = AtomicBool::new(false);
        if PANICKED_BEFORE.swap(true, Ordering::Relaxed) {
            // The first one is about to end the process, and its line is the cause.
            loop {
                thread::park();
            }
        }
        end(PANICKED, &panic_line(panic))
    }));
}

/// Ends the process with `code` and a last line, after what was logged before.
pub(crate) fn end(code: i32, line: &str) -> ! {
    say(line);
    process::exit(code)
}

/// Writes a line to standard error after what was logged before. Gives up soon if it takes none.
pub(crate) fn say(line: &str) {
    logging::flush(LOG_LIMIT);
    ERRORS.write(line);
}

/// Writes a line to standard output. Gives up soon if it takes none.
pub(crate) fn announce(line: &str) {
    OUTPUT.write(line);
}

fn panic_line(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    format!(
        "flotilla: stopped by a panic in thread {} at {place}: {}",
        thread.name().unwrap_or("without a name"),
        panic.payload_as_str().unwrap_or("no message")
    )
}

/// Writes lines on a thread of its own, so that the others wait for a bounded time.
struct BoundedWriter {
    name: &'static str,
    write: fn(&[u8]),
    lines: OnceLock<Option<SyncSender<LastLine>>>,
}

struct LastLine {
    bytes: Vec<u8>,
    written: SyncSender<()>,
}

impl BoundedWriter {
    const fn new(name: &'static str, write: fn(&[u8])) -> Self {
        Self { name, write, lines: OnceLock::new() }
    }

    /// The channel to the thread; `None` if the kernel refused it.
    fn start(&self) -> Option<&SyncSender<LastLine>> {
        let started = self.lines.get_or_init(|| {
            let (sender, lines) = mpsc::sync_channel::<LastLine>(LINES_QUEUED_MAX);
            let write = self.write;
            let body = move || {
                for line in lines {
                    write(&line.bytes);
                    // The caller may have given up.
                    let _ = line.written.try_send(());
                }
            };
            thread::Builder::new().name(self.name.to_owned()).spawn(body).ok().map(|_| sender)
        });
        started.as_ref()
    }

    fn write(&self, line: &str) {
        let Some(lines) = self.start() else { return };
        let (written, done) = mpsc::sync_channel(1);
        if lines.try_send(LastLine { bytes: one_line(line), written }).is_ok() {
            let _ = done.recv_timeout(LINE_LIMIT);
        }
    }
}

/// `text` as a single line of bounded length.
fn one_line(text: &str) -> Vec<u8> {
    let end = text.floor_char_boundary(LINE_BYTES_MAX - 1);
    let mut line = text[..end].replace(['\n', '\r'], " ").into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_many_lines_is_one_line_and_bounded() {
        assert_eq!(one_line("left\r\nright\n"), b"left  right \n");
        let long = one_line(&"é\n".repeat(LINE_BYTES_MAX));
        assert!(long.len() <= LINE_BYTES_MAX && std::str::from_utf8(&long).is_ok());
        assert_eq!(long.iter().filter(|byte| **byte == b'\n').count(), 1);
    }

    #[test]
    fn a_writer_that_is_stuck_does_not_hold_its_caller_up() {
        static STUCK: BoundedWriter = BoundedWriter::new("stuck", |_| {
            loop {
                thread::park();
            }
        });
        STUCK.write("a line");
    }
}
