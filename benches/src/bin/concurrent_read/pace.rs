//! An open loop: requests at a fixed rate, whether those before them have been answered or not.
//!
//! The latency of a request counts from the moment at which it was due. So when a store stalls, all
//! requests that should have been sent meanwhile show it, and not the one alone that met the stall.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flotilla_cli::bench::latencies;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// When requests are due, and how many may wait for their answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) began: Instant,
    pub(crate) interval: Duration,
    pub(crate) count: u64,
    /// Later ones are not sent until an answer comes; their latency counts all the same.
    pub(crate) at_once_max: usize,
}

/// The results of the requests of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Of each request that succeeded, in nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Rows that they returned.
    pub(crate) rows: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<flotilla_client::Error>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { latencies: latencies(), rows: 0, failed: 0, first_failure: None }
    }

    fn add(&mut self, (latency, result): Answer) {
        match result {
            Ok(rows) => {
                let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                self.latencies.saturating_record(nanos);
                self.rows += rows;
            }
            Err(error) => {
                self.failed += 1;
                self.first_failure.get_or_insert(error);
            }
        }
    }
}

/// The time from when a request was due, and the rows that it returned.
type Answer = (Duration, Result<u64, flotilla_client::Error>);

/// Sends all requests, each at its time, and waits for their answers. Blocks; for a thread of its
/// own, because the runtime's timer may be a millisecond late, which is more than a request takes.
///
/// `request` makes the request of a number.
pub(crate) fn send<F>(
    runtime: &Handle,
    pace: Pace,
    bar: &ProgressBar,
    mut request: impl FnMut(u64) -> F,
) -> Tally
where
    F: Future<Output = Result<u64, flotilla_client::Error>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(pace.at_once_max));
    let mut answers: JoinSet<Answer> = JoinSet::new();
    let mut tally = Tally::new();
    let mut due = pace.began;
    for number in 0..pace.count {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let place = runtime.block_on(Arc::clone(&places).acquire_owned());
        let asked = request(number);
        let sent_for = due;
        let answer = async move {
            let result = asked.await;
            drop(place);
            (sent_for.elapsed(), result)
        };
        answers.spawn_on(answer, runtime);
        due += pace.interval;
        while let Some(answer) = answers.try_join_next() {
            tally.add(unwrap(answer));
            bar.inc(1);
        }
    }
    while let Some(answer) = runtime.block_on(answers.join_next()) {
        tally.add(unwrap(answer));
        bar.inc(1);
    }
    tally
}

/// An answer, or the panic of its task.
fn unwrap(answer: Result<Answer, tokio::task::JoinError>) -> Answer {
    answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flotilla_cli::bench::LATENCY_NS_MAX;

    use super::*;

    /// All due an hour ago, so that none has to be waited for.
    fn overdue(count: u64, at_once_max: usize) -> Pace {
        let hour = Duration::from_secs(3600);
        let began = Instant::now().checked_sub(hour).unwrap();
        Pace { began, interval: Duration::from_secs(1), count, at_once_max }
    }

    #[test]
    fn a_latency_counts_from_when_the_request_was_due() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let bar = ProgressBar::hidden();
        let tally =
            send(runtime.handle(), overdue(100, 8), &bar, |number| async move { Ok(number) });
        assert_eq!((tally.latencies.len(), tally.rows, tally.failed), (100, 99 * 100 / 2, 0));
        // An hour is more than the histogram resolves.
        assert!(tally.latencies.min() >= LATENCY_NS_MAX / 2);
        assert_eq!(bar.position(), 100);
    }

    #[test]
    fn no_more_are_under_way_than_may_be_and_failures_are_counted() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let under_way = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let tally = send(runtime.handle(), overdue(200, 3), &ProgressBar::hidden(), |number| {
            let (under_way, most) = (Arc::clone(&under_way), Arc::clone(&most));
            async move {
                most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                under_way.fetch_sub(1, Ordering::SeqCst);
                match number % 4 {
                    0 => Err(flotilla_client::Error::Config("no".to_owned())),
                    _ => Ok(1),
                }
            }
        });
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        assert_eq!((tally.latencies.len(), tally.rows, tally.failed), (150, 150, 50));
        assert!(tally.first_failure.is_some());
    }
}
