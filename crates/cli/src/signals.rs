//! The signals that ask a process to end, and the one that has it read its settings again.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Bytes that are read from a pipe of which only the end counts.
const INPUT_BYTES: usize = 64;

/// A request of the outside that the process end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndSignal {
    /// SIGINT, as of Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The process at the other end of standard input has ended, or closed it.
    InputEnd,
}

impl EndSignal {
    /// The exit code of a tool that ends for it with its work undone: as a shell gives it to a
    /// program that a signal has ended.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            EndSignal::Interrupt => 130,
            EndSignal::Terminate => 143,
            EndSignal::InputEnd => 1,
        }
    }
}

impl fmt::Display for EndSignal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            EndSignal::Interrupt => "SIGINT",
            EndSignal::Terminate => "SIGTERM",
            EndSignal::InputEnd => "the end of standard input",
        })
    }
}

/// SIGINT, SIGTERM and, if that is asked for, the end of standard input.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Standard input until it has ended, if that counts.
    input: Option<pipe::Receiver>,
}

/// Begins to listen; from here on the signals no longer end the process by themselves.
///
/// # Errors
///
/// The error of the kernel.
pub(crate) fn listen() -> io::Result<Signals> {
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    Ok(Signals { interrupt: signal(interrupt)?, terminate: signal(terminate)?, input: None })
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
    /// The same, and the end of standard input counts as a signal, once.
    ///
    /// # Errors
    ///
    /// Standard input is no pipe.
    pub(crate) fn with_input_end(self) -> io::Result<Signals> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Signals { input: Some(pipe::Receiver::from_owned_fd(input)?), ..self })
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> EndSignal {
        tokio::select! {
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
            () = ended(&mut self.input) => EndSignal::InputEnd,
        }
    }
}

/// Waits until a pipe has no writer any more, and takes it away.
async fn ended(input: &mut Option<pipe::Receiver>) {
    let Some(pipe) = input else { return std::future::pending().await };
    let mut bytes = [0; INPUT_BYTES];
    // An error is an end as well: nothing comes any more.
    while pipe.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
    *input = None;
}
