//! Logging to standard error: one line for each event that an operator should know.
//!
//! Logging neither blocks nor panics, whatever has become of standard error: see
//! `log_line_queue.rs`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use flotilla_base::redact;
use flotilla_node::ProcessLog;
use flotilla_node::config::LogFormat;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::log_line::{self, LogLine};
use crate::log_line_queue::LogQueue;

/// The queue of this process, once logging has started.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// The filter of this process, once logging has started.
static FILTER: OnceLock<CurrentFilter> = OnceLock::new();

/// The filter as a text, and how it is replaced.
struct CurrentFilter {
    text: Mutex<String>,
    replace: Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>,
}

/// Starts logging, once for the process. With `is_redacted` keys stay out of the log, and of all
/// other texts but answers (see `flotilla_base::redact`).
///
/// # Errors
///
/// The filter is wrong, or the kernel refused a thread or a file descriptor.
pub fn start(filter: &str, format: LogFormat, is_redacted: bool) -> Result<(), String> {
    redact::set(is_redacted);
    let (text, parsed) = (filter.to_owned(), parse(filter)?);
    let output = io::stderr().as_fd().try_clone_to_owned().map(|fd| LogOutput(fd.into()));
    let output = output.map_err(|error| format!("cannot log to standard error: {error}"))?;
    let queue = QUEUE.get_or_init(LogQueue::default);
    let line = LogLine::new(format, io::stderr().is_terminal());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(move || queue)
        // Else it writes of its own errors to standard error, and panics if that is closed.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .event_format(line)
        .with_filter_reloading();
    let handle = subscriber.reload_handle();
    subscriber.try_init().map_err(|error| error.to_string())?;
    FILTER.get_or_init(|| CurrentFilter {
        text: Mutex::new(text),
        replace: Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())),
    });
    ProcessLog { lines_lost, recent_lines, filter: current_filter, set_filter }.register();
    // Not guarded: a writer that is gone means lost lines, which the queue counts.
    thread::Builder::new()
        .name("log-lines".to_owned())
        .spawn(move || queue.write_to(output))
        .map_err(|error| format!("cannot start threads: {error}"))?;
    Ok(())
}

/// Waits until standard error has all lines that were logged before, `limit` at most.
pub(crate) fn flush(limit: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.push(log_line::left_out_at_end().as_bytes());
        queue.flush(limit);
    }
}

/// The filter now; empty if logging has not started.
fn current_filter() -> String {
    FILTER.get().map_or_else(String::new, |current| current.text.lock().clone())
}

/// Logs by another filter from now on.
///
/// # Errors
///
/// The filter is wrong.
pub(crate) fn set_filter(text: &str) -> Result<(), String> {
    let filter = parse(text)?;
    let current = FILTER.get().ok_or("logging has not started")?;
    // Held meanwhile: two callers must not leave the text of one and the filter of the other.
    let mut kept = current.text.lock();
    (current.replace)(filter)?;
    text.clone_into(&mut kept);
    Ok(())
}

/// Refuses a filter of the settings that is none.
///
/// # Errors
///
/// Says what would be right.
pub(crate) fn check(filter: &str) -> Result<(), String> {
    parse(filter).map(|_| ()).map_err(|error| format!("log = \"{filter}\": {error}"))
}

/// Lines that were dropped because standard error did not take them.
#[must_use]
pub fn lines_lost() -> u64 {
    QUEUE.get().map_or(0, LogQueue::lines_lost)
}

/// The last lines that were logged, those that were dropped too.
fn recent_lines() -> String {
    QUEUE.get().map_or_else(String::new, LogQueue::recent)
}

/// The filter that `text` stands for. The library takes every word that is no level for the name of
/// a module, and then logs nothing else.
fn parse(text: &str) -> Result<EnvFilter, String> {
    const RIGHT: &str = "expected a level (error, warn, info, debug, trace, off) or directives \
                         such as flotilla_node=debug,warn";
    // The library takes spaces for a part of the name that follows them.
    let directives: Vec<_> =
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if directives.is_empty() {
        return Err(format!("it is empty; {RIGHT}"));
    }
    for directive in &directives {
        // Names of spans and their fields stand in brackets, and the library checks those itself.
        if directive.contains('[') {
            continue;
        }
        let level = directive.split_once('=').map_or(*directive, |(_, level)| level);
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(format!("\"{level}\" is no level; {RIGHT}"));
        }
    }
    EnvFilter::try_new(directives.join(",")).map_err(|error| format!("{error}; {RIGHT}"))
}

/// Standard error, without the lock of the standard library's handle: this may wait for a reader as
/// long as it likes, and others must not wait with it.
struct LogOutput(File);

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                // Another process may have made the pipe that both have one that does not block.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_refused_by_name() {
        for right in [
            "info",
            "WARN",
            "off",
            "flotilla_node=debug,warn",
            "info, flotilla_node::pd=trace",
            "[request]=debug",
            "flotilla_node[request{region=7}]=trace",
            "info,",
        ] {
            assert!(parse(right).is_ok(), "{right}: {}", parse(right).unwrap_err());
        }
        for (wrong, named) in [
            ("loud", "\"loud\" is no level"),
            ("flotilla_node", "\"flotilla_node\" is no level"),
            ("info,loud", "\"loud\" is no level"),
            ("flotilla_node=loud", "\"loud\" is no level"),
            ("flotilla_node=", "\"\" is no level"),
            ("", "it is empty"),
            (",", "it is empty"),
            ("[request", "invalid filter directive"),
        ] {
            let error = parse(wrong).map(|_| ()).unwrap_err();
            assert!(error.starts_with(named) && error.contains("error, warn, info"), "{error}");
        }
    }
}
