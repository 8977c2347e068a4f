//! The retry budget of one call: its deadline, its attempts, and the backoff between them.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};

use crate::config::Config;
use crate::error::Error;

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// No other attempt will do better.
    Fatal(Error),
    /// Worth another attempt after `wait`.
    Passing {
        reason: String,
        wait: RetryDelay,
        /// The attempt may have had its effect all the same.
        undetermined: bool,
    },
}

/// The delay before the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryDelay {
    /// Nothing: the failure said where to go instead.
    No,
    /// A while that grows from failure to failure.
    Backoff,
    /// The same, but not less than what the store asked for.
    AtLeast(Duration),
}

impl AttemptFailure {
    /// A failure that surely had no effect.
    pub(crate) fn passing(wait: RetryDelay, reason: impl Into<String>) -> AttemptFailure {
        AttemptFailure::Passing { reason: reason.into(), wait, undetermined: false }
    }

    /// The failure of the two that says more about the whole.
    pub(crate) fn or_worse(self, other: AttemptFailure) -> AttemptFailure {
        match (&self, &other) {
            (AttemptFailure::Fatal(_), _)
            | (AttemptFailure::Passing { undetermined: true, .. }, _) => {
                if matches!(other, AttemptFailure::Fatal(_)) { other } else { self }
            }
            _ => other,
        }
    }

    /// The meaning of a failed RPC for a request that was perhaps sent.
    pub(crate) fn of_status(status: &Status, who: &str) -> AttemptFailure {
        let reason = format!("{who}: {}", describe(status));
        match status.code() {
            Code::Unimplemented => {
                AttemptFailure::Fatal(Error::Unimplemented { endpoint: who.to_owned() })
            }
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated => AttemptFailure::Fatal(Error::Rejected(reason)),
            _ => AttemptFailure::Passing {
                reason,
                wait: RetryDelay::Backoff,
                undetermined: !is_connect_error(status),
            },
        }
    }
}

/// Whether no connection could be made, so that nothing can have been sent.
pub(crate) fn is_connect_error(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether a store said this, and not the connection or the own clock: what was made of an error
/// here has that as its cause.
pub(crate) fn is_answer(status: &Status) -> bool {
    std::error::Error::source(status).is_none()
}

/// The status' message and the deepest cause, which names the operating system's reason.
pub(crate) fn describe(status: &Status) -> String {
    let mut cause = std::error::Error::source(status);
    let mut deepest = None;
    while let Some(error) = cause {
        deepest = Some(error.to_string());
        cause = error.source();
    }
    match deepest {
        Some(deepest) if deepest != status.message() => {
            format!("{} ({deepest})", status.message())
        }
        _ if status.message().is_empty() => format!("{:?}", status.code()),
        _ => status.message().to_owned(),
    }
}

/// One call's time, and what came of it so far.
#[derive(Debug, Clone)]
pub(crate) struct RetryBudget {
    started: Instant,
    deadline: Instant,
    attempt_timeout: Duration,
    backoff: Duration,
    backoff_max: Duration,
    resend_undetermined: bool,
    attempts: u32,
    /// Immediate attempts that are still free. Two stores that each name the other as leader
    /// would otherwise be asked as fast as they answer.
    free_attempts: u32,
    undetermined: bool,
}

/// Enough for a leader hint that leads to another one.
const FREE_ATTEMPTS: u32 = 3;

impl RetryBudget {
    pub(crate) fn new(config: &Config) -> RetryBudget {
        let started = Instant::now();
        let deadline = started + config.deadline;
        RetryBudget {
            started,
            deadline: config.until.map_or(deadline, |until| deadline.min(until.into())),
            attempt_timeout: config.attempt_timeout,
            backoff: *config.backoff.start(),
            backoff_max: *config.backoff.end(),
            resend_undetermined: config.resend_undetermined,
            attempts: 0,
            free_attempts: FREE_ATTEMPTS,
            undetermined: false,
        }
    }

    /// For a write that must not take effect twice.
    pub(crate) fn once(config: &Config) -> RetryBudget {
        RetryBudget { resend_undetermined: false, ..RetryBudget::new(config) }
    }

    /// Counts an attempt, and says until when it may take.
    pub(crate) fn attempt(&mut self) -> Instant {
        self.attempts += 1;
        self.deadline.min(Instant::now() + self.attempt_timeout)
    }

    /// Waits as the failure asks for.
    ///
    /// # Errors
    ///
    /// If another attempt is of no use, not allowed, or would come after the deadline.
    pub(crate) async fn pause(&mut self, failure: AttemptFailure) -> Result<(), Error> {
        let (reason, wait, undetermined) = match failure {
            AttemptFailure::Fatal(error) => return Err(error),
            AttemptFailure::Passing { reason, wait, undetermined } => (reason, wait, undetermined),
        };
        tracing::debug!(reason, attempts = self.attempts, "attempt failed");
        // Kept to the end: a later attempt that surely did nothing does not undo an earlier one
        // that may have done something.
        self.undetermined |= undetermined;
        if undetermined && !self.resend_undetermined {
            return Err(Error::Undetermined(reason));
        }
        let now = Instant::now();
        let until = now + self.length(wait);
        // A wait that cannot be followed by an attempt only delays the error.
        if until >= self.deadline {
            return Err(Error::Deadline {
                waited_ms: millis(now - self.started),
                attempts: self.attempts,
                reason,
                undetermined: self.undetermined,
            });
        }
        sleep_until(until).await;
        Ok(())
    }

    fn length(&mut self, wait: RetryDelay) -> Duration {
        let least = match wait {
            RetryDelay::No if self.free_attempts > 0 => {
                self.free_attempts -= 1;
                return Duration::ZERO;
            }
            RetryDelay::No | RetryDelay::Backoff => Duration::ZERO,
            RetryDelay::AtLeast(least) => least,
        };
        // Jitter, or all clients of a store that restarts would come back at the same moment.
        let jittered = self.backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.backoff = (self.backoff * 2).min(self.backoff_max);
        // After a wait a hint may be a new one, and is followed at once again.
        self.free_attempts = FREE_ATTEMPTS;
        jittered.max(least)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            deadline: Duration::from_secs(1),
            backoff: Duration::from_millis(10)..=Duration::from_millis(80),
            ..Config::default()
        }
    }

    fn undetermined() -> AttemptFailure {
        AttemptFailure::Passing {
            reason: "cut".to_owned(),
            wait: RetryDelay::Backoff,
            undetermined: true,
        }
    }

    #[test]
    fn waits_grow_to_a_bound_and_vary() {
        let mut budget = RetryBudget::new(&config());
        let mut waits = Vec::new();
        for step in 0..20 {
            let full = Duration::from_millis(10 << step.min(3));
            let wait = budget.length(RetryDelay::Backoff);
            assert!(wait <= full && wait >= full / 2, "wait {step} is {wait:?}");
            waits.push(wait);
        }
        waits.drain(..4);
        waits.dedup();
        assert!(waits.len() > 1, "all waits are alike");
        assert!(
            budget.length(RetryDelay::AtLeast(Duration::from_secs(3))) >= Duration::from_secs(3)
        );
    }

    #[test]
    fn immediate_attempts_run_out() {
        let mut budget = RetryBudget::new(&config());
        let waits: Vec<_> = (0..4).map(|_| budget.length(RetryDelay::No)).collect();
        assert_eq!(waits[..3], [Duration::ZERO; 3]);
        assert!(waits[3] >= Duration::from_millis(5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_ends_it_and_tells_what_is_known() {
        let mut budget = RetryBudget::new(&config());
        budget.attempt();
        budget.pause(undetermined()).await.unwrap();
        let error = loop {
            budget.attempt();
            if let Err(error) =
                budget.pause(AttemptFailure::passing(RetryDelay::Backoff, "no leader")).await
            {
                break error;
            }
        };
        assert!(error.is_undetermined(), "the first attempt may have had its effect");
        let Error::Deadline { waited_ms, attempts, reason, .. } = error else { panic!("{error}") };
        assert!((900..=1000).contains(&waited_ms), "{waited_ms}");
        assert!(attempts > 10, "{attempts}");
        assert_eq!(reason, "no leader");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_must_not_come_twice_is_not_sent_again() {
        let mut budget = RetryBudget::once(&config());
        budget.pause(AttemptFailure::passing(RetryDelay::No, "not leader")).await.unwrap();
        let error = budget.pause(undetermined()).await.unwrap_err();
        assert!(matches!(error, Error::Undetermined(_)), "{error}");
    }
}
