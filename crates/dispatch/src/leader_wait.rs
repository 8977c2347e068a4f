//! A request whose region has no leader waits for one and is tried again, within bounds
//! (`docs/decisions/0006-waiting-for-a-leader.md`).

use std::time::Duration;

use flotilla_region::{Peer, Term};

/// The leadership of a region, as far as a node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The term in which that is so.
    pub term: Term,
    /// The leader; `None` while there is none, or none is known.
    pub leader: Option<Peer>,
}

/// How long one request has waited, and the leader at which it was tried last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaderWaitState {
    until: Option<Duration>,
    tried: Option<Leadership>,
}

/// The next step of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderWaitStep {
    /// It is tried again.
    Retry,
    /// It waits for another leadership, until this time.
    Wait(Duration),
    /// It is refused.
    GiveUp,
}

impl LeaderWaitState {
    /// Whether the request has not waited yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.until.is_none()
    }

    /// The next step at the time `now`, of a request that was refused for want of a leader and may
    /// wait for `timeout` in all, however often it is tried.
    pub fn next(&mut self, now: Duration, timeout: Duration, here: Leadership) -> LeaderWaitStep {
        let until = *self.until.get_or_insert(now + timeout);
        // A shard publishes its role before it refuses a request. So a leader that refused this one
        // does not know yet that it leads, and a retry at the same leadership would be refused
        // again.
        if here.leader.is_some() && self.tried != Some(here) {
            self.tried = Some(here);
            return LeaderWaitStep::Retry;
        }
        if now < until { LeaderWaitStep::Wait(until) } else { LeaderWaitStep::GiveUp }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{PeerId, StoreId};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(1000);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn led(term: u64, store: u64) -> Leadership {
        let leader = Peer { id: PeerId(100 + store), store: StoreId(store) };
        Leadership { term: Term(term), leader: Some(leader) }
    }

    fn without(term: u64) -> Leadership {
        Leadership { term: Term(term), leader: None }
    }

    #[test]
    fn a_request_is_tried_once_at_each_leadership() {
        let mut state = LeaderWaitState::default();
        assert!(state.is_new());
        let mut next = |ms, here| state.next(at(ms), TIMEOUT, here);
        assert_eq!(next(5, without(1)), LeaderWaitStep::Wait(at(1005)));
        assert_eq!(next(10, led(1, 1)), LeaderWaitStep::Retry);
        assert_eq!(next(20, led(1, 1)), LeaderWaitStep::Wait(at(1005)), "the same is no news");
        assert_eq!(next(30, led(1, 2)), LeaderWaitStep::Retry);
        assert_eq!(next(40, led(2, 2)), LeaderWaitStep::Retry);
        assert_eq!(next(1005, led(2, 2)), LeaderWaitStep::GiveUp);
        assert!(!state.is_new());
    }

    #[test]
    fn however_often_leaders_change_a_request_waits_no_longer() {
        let mut state = LeaderWaitState::default();
        let mut now = at(0);
        for term in 1.. {
            match state.next(now, TIMEOUT, if term % 2 == 0 { led(term, 1) } else { without(term) })
            {
                LeaderWaitStep::Retry => {}
                LeaderWaitStep::Wait(until) => assert_eq!(until, TIMEOUT),
                LeaderWaitStep::GiveUp => break,
            }
            now += at(70);
        }
        assert!(now >= TIMEOUT && now < TIMEOUT + at(200), "{now:?}");
    }
}
