//! The signals that ask a process to end, and the one that has it read its settings again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// Begins to listen; from here on the signals no longer end the process by themselves.
///
/// # Errors
///
/// The error of the kernel.
pub(crate) fn listen() -> io::Result<Signals> {
    Ok(Signals {
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
    })
}

/// SIGHUP.
pub(crate) struct HangupSignals(Signal);

/// Begins to listen for SIGHUP, which no longer ends the process.
///
/// # Errors
///
/// The error of the kernel.
pub(crate) fn listen_for_hangups() -> io::Result<HangupSignals> {
    Ok(HangupSignals(signal(SignalKind::hangup())?))
}

impl HangupSignals {
    /// Waits for the next one.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

impl Signals {
    /// Waits for the next one; its name.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
