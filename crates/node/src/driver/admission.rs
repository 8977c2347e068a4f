//! Admission control: requests wait for a share of a memory budget, and for a leader, with bounds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flotilla_dispatch::{LeaderWaitState, LeaderWaitStep, Leadership};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    /// Too much is under way; the reason.
    Full(&'static str),
    /// The node stops.
    Stopping,
}

/// Bytes that all requests together may hold: a weighted semaphore. When it is spent, requests wait
/// in the order of their arrival (backpressure), up to a number of them.
pub(crate) struct MemoryBudget {
    bytes: Semaphore,
    bytes_max: u32,
    queued: AtomicUsize,
    queued_count_max: usize,
    finishing: AtomicBool,
}

impl MemoryBudget {
    /// A budget of `bytes_max`, for which up to `queued_count_max` requests may wait.
    pub(crate) fn new(bytes_max: u32, queued_count_max: usize) -> Self {
        assert!(bytes_max > 0, "a budget of nothing admits no request");
        Self {
            bytes: Semaphore::new(bytes_max as usize),
            bytes_max,
            queued: AtomicUsize::new(0),
            queued_count_max,
            finishing: AtomicBool::new(false),
        }
    }

    /// Takes `bytes` of the budget until the permit is dropped. A request larger than the whole
    /// budget takes all of it. Waits until `deadline` at most.
    pub(crate) async fn admit(
        &self,
        bytes: usize,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'_>, AdmissionError> {
        // Looked at first: a permit that is free must not let a request in after the end has begun.
        if self.finishing.load(Ordering::SeqCst) {
            return Err(AdmissionError::Stopping);
        }
        let weight = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        if let Ok(permit) = self.bytes.try_acquire_many(weight) {
            return Ok(permit);
        }
        let _place = QueueSlot::take(&self.queued, self.queued_count_max)
            .ok_or(AdmissionError::Full("too many requests wait"))?;
        match timeout_at(deadline, self.bytes.acquire_many(weight)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(AdmissionError::Stopping),
            Err(_) => Err(AdmissionError::Full("the requests before this one took too long")),
        }
    }

    /// Admits no more requests, and waits until all permits are given back. False if `time_limit`
    /// ends first.
    pub(crate) async fn finish(&self, time_limit: Duration) -> bool {
        self.finishing.store(true, Ordering::SeqCst);
        // A permit for the whole budget is granted only when no request holds a part of it.
        let alone = timeout(time_limit, self.bytes.acquire_many(self.bytes_max)).await;
        self.bytes.close();
        matches!(alone, Ok(Ok(_)))
    }
}

/// One of a bounded number of places in a queue; dropping it leaves.
struct QueueSlot<'a>(&'a AtomicUsize);

impl<'a> QueueSlot<'a> {
    fn take(taken: &'a AtomicUsize, limit: usize) -> Option<Self> {
        let place = Self(taken);
        (taken.fetch_add(1, Ordering::Relaxed) < limit).then_some(place)
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a slot is given back twice");
    }
}

/// Bounds the requests that wait for their region to have a leader, in number and in time.
pub(crate) struct LeaderWait {
    places: Semaphore,
    timeout: Duration,
    /// Times are counted from here.
    start: Instant,
}

impl LeaderWait {
    /// At most `count_max` requests wait, each for `timeout` in all.
    pub(crate) fn new(count_max: usize, timeout: Duration) -> Self {
        Self { places: Semaphore::new(count_max), timeout, start: Instant::now() }
    }

    /// Waits until there is a leader. False if it is not worth trying again.
    pub(crate) async fn await_leader(
        &self,
        mut leadership: watch::Receiver<Leadership>,
        state: &mut LeaderWaitState,
    ) -> bool {
        // Not queued: a request that would wait for a place to wait is better rejected at once.
        let Ok(_place) = self.places.try_acquire() else { return false };
        loop {
            let here = *leadership.borrow_and_update();
            match state.next(self.start.elapsed(), self.timeout, here) {
                LeaderWaitStep::Retry => return true,
                LeaderWaitStep::GiveUp => return false,
                LeaderWaitStep::Wait(until) => {
                    let changed = timeout_at(self.start + until, leadership.changed()).await;
                    // The replica here has ended.
                    if matches!(changed, Ok(Err(_))) {
                        return false;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flotilla_region::{Peer, PeerId, StoreId, Term};

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    fn led(term: u64) -> Leadership {
        let leader = Some(Peer { id: PeerId(101), store: StoreId(1) });
        Leadership { term: Term(term), leader }
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_the_budget_spent_waits_until_it_is_given_back_or_too_late() {
        let budget = Arc::new(MemoryBudget::new(10, 1));
        let first = budget.admit(1 << 40, soon()).await.unwrap();
        let second = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.admit(1, soon()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        // One may wait, and does.
        let third = budget.admit(1, soon()).await.map(drop);
        assert_eq!(third, Err(AdmissionError::Full("too many requests wait")));
        drop(first);
        assert_eq!(second.await.unwrap(), Ok(()));

        let _all = budget.admit(10, soon()).await.unwrap();
        let late = budget.admit(1, soon()).await.map(drop);
        assert_eq!(late, Err(AdmissionError::Full("the requests before this one took too long")));
        assert_eq!(budget.queued.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn finishing_waits_for_those_under_way_and_admits_nobody() {
        let budget = Arc::new(MemoryBudget::new(10, 1));
        let under_way = budget.admit(3, soon()).await.unwrap();
        let finishing = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.finish(Duration::from_secs(5)).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(budget.admit(1, soon()).await.map(drop), Err(AdmissionError::Stopping));
        assert!(!finishing.is_finished());
        drop(under_way);
        assert!(finishing.await.unwrap());

        let budget = MemoryBudget::new(10, 1);
        let _stuck = budget.admit(1, soon()).await.unwrap();
        assert!(!budget.finish(Duration::from_secs(5)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_leader_lets_a_held_request_go_at_once() {
        let leader_wait = Arc::new(LeaderWait::new(1, Duration::from_secs(1)));
        let leadership = watch::Sender::new(Leadership::default());
        let began = Instant::now();
        let held = tokio::spawn({
            let (leader_wait, leadership) = (Arc::clone(&leader_wait), leadership.subscribe());
            async move {
                let mut state = LeaderWaitState::default();
                let found = leader_wait.await_leader(leadership.clone(), &mut state).await;
                // The same leader again is no news.
                (found, leader_wait.await_leader(leadership, &mut state).await)
            }
        });
        tokio::task::yield_now().await;
        // The only place is taken.
        assert!(
            !leader_wait
                .await_leader(leadership.subscribe(), &mut LeaderWaitState::default())
                .await
        );
        leadership.send_replace(led(1));
        assert_eq!(held.await.unwrap(), (true, false));
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_held_for_so_long_and_no_longer_however_often_leaders_change() {
        let leader_wait = LeaderWait::new(1, Duration::from_secs(1));
        let leadership = watch::Sender::new(Leadership::default());
        let mut state = LeaderWaitState::default();
        let began = Instant::now();
        for term in 1..4 {
            leadership.send_replace(led(term));
            assert!(leader_wait.await_leader(leadership.subscribe(), &mut state).await);
            leadership.send_replace(Leadership { term: Term(term), leader: None });
            tokio::time::advance(Duration::from_millis(300)).await;
        }
        assert!(!leader_wait.await_leader(leadership.subscribe(), &mut state).await);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }
}
