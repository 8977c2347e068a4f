//! Signals during a load: the first one stops the work at hand, the next one ends the process.

use std::process;

use crate::signals::{self, EndSignal, Signals};
use crate::tool::Error;

/// Listens for the signals, and remembers the first one.
pub(super) struct Interrupts {
    signals: Signals,
    first: Option<EndSignal>,
}

impl Interrupts {
    /// Begins to listen; from here on the signals no longer end the process by themselves.
    pub(super) fn listen() -> Result<Self, Error> {
        let listened = signals::listen();
        let words = |error| Error::Refused(format!("cannot listen for signals: {error}"));
        Ok(Self { signals: listened.map_err(words)?, first: None })
    }

    /// The outcome of `work`, unless the first signal comes before. A signal after the first one
    /// ends the process at once.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`].
    pub(super) async fn until<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            done = work => Ok(done),
            signal = self.signals.next() => match self.first {
                Some(_) => process::exit(signal.exit_code().into()),
                None => {
                    self.first = Some(signal);
                    Err(signal.into())
                }
            },
        }
    }

    /// The first signal, if one has come.
    pub(super) fn first(&self) -> Option<EndSignal> {
        self.first
    }
}
