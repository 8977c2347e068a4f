//! The right to answer reads alone, and the promise of the others that it rests on.
//!
//! A leader that a quorum has confirmed may answer reads from its own state for a while: counted
//! from when it *asked*, because each of the quorum promised only afterwards. The promise of a
//! replica that heard from its leader: it neither votes nor campaigns for `election_ticks` ticks.
//! [`crate::Config`] names how much shorter the lease is, and which clocks that allows.
//!
//! The promise is counted in ticks and not by the clock, and a late clock ticks once: a process
//! that stood still for a minute would otherwise see its promise expired while messages of that
//! minute wait unread. It does not depend on the term either: raft itself forgets the leader when
//! it receives a higher term from any replica, and would then vote while the lease still runs.
//!
//! The reasons for each number: `docs/decisions/0005-leases.md`.
//!
//! A restarted replica does not know what it promised, so it starts with a whole promise.

use crate::ids::{Term, Time};

/// The leader's side.
#[derive(Default)]
pub(crate) struct Lease {
    /// The term in which it was earned. It means nothing in another one.
    term: Term,
    until: Time,
    /// When it was last of use, if ever.
    used: Option<Time>,
    /// The last term without a lease, because its leader has begun to hand over.
    void: Option<Term>,
    /// Rounds that were asked up to here earn no lease: the settings that it rests on have changed.
    settled: Option<Time>,
}

impl Lease {
    /// A quorum confirmed the leader of `term`, which had asked at `asked`.
    pub(crate) fn renew(&mut self, term: Term, asked: Time, length_ms: u64) {
        // Holds because a change of term ends all rounds that were asked before it
        // (`ReadIndexQueue::restart`).
        assert!(term >= self.term, "a lease of term {term} after one of {}", self.term);
        // The promises that the round was answered with may be of another length than the lease
        // that would be counted now (docs/decisions/0058-settings-change-online.md).
        if self.settled >= Some(asked) {
            return;
        }
        let until = asked.after_ms(length_ms);
        // Rounds of one term may be confirmed out of order.
        self.until = if term == self.term { self.until.max(until) } else { until };
        self.term = term;
    }

    /// Ends the lease of `term` for good: no answer of a quorum renews it. Called before the
    /// message leaves that forces an election, because the votes of that election pass the promises
    /// of those who cast them, and may come late (R22 in `docs/many-regions.md`).
    pub(crate) fn void(&mut self, term: Term) {
        assert!(self.void <= Some(term), "term {term} ends after {:?}", self.void);
        self.void = Some(term);
    }

    /// Whether the leader of `term` may answer alone at `now`.
    pub(crate) fn holds(&self, term: Term, now: Time) -> bool {
        term == self.term && now < self.until && !self.is_void(term)
    }

    /// Ends it at once. A round that was asked before may still confirm another one.
    pub(crate) fn drop_now(&mut self) {
        self.until = Time(0);
    }

    /// The settings that leases rest on are other ones: ends the lease, and that of each round that
    /// was asked up to `now`.
    pub(crate) fn settle(&mut self, now: Time) {
        self.settled = Some(now);
        self.drop_now();
    }

    /// Notes the time of a read: a lease in use is renewed.
    pub(crate) fn mark_used(&mut self, now: Time) {
        self.used = Some(now);
    }

    /// Whether to ask the quorum again before the lease ends: only while reads come, so that a
    /// region at rest costs nothing, and only in its second half.
    pub(crate) fn wants_renewal(&self, term: Term, now: Time, length_ms: u64) -> bool {
        let in_use = self.used.is_some_and(|used| now <= used.after_ms(length_ms));
        in_use && !self.is_void(term) && !self.holds(term, now.after_ms(length_ms / 2))
    }

    /// Whether the term has no lease, for good.
    pub(crate) fn is_void(&self, term: Term) -> bool {
        self.void == Some(term)
    }
}

/// The side of every replica: how many ticks to keep still.
pub(crate) struct Promise {
    ticks: u32,
}

impl Promise {
    /// The promise of a replica that starts: whole, if it may have made one before.
    pub(crate) fn at_start(term: Term, election_ticks: u32) -> Self {
        // The promise was in memory only, and a leader may still count on it.
        Self { ticks: if term > Term(0) { election_ticks } else { 0 } }
    }

    /// No promise: of a replica that has never been there before.
    pub(crate) fn none() -> Self {
        Self { ticks: 0 }
    }

    /// A message of the leader was received: the leader may count on it.
    pub(crate) fn make(&mut self, election_ticks: u32) {
        self.ticks = election_ticks;
    }

    pub(crate) fn tick(&mut self) {
        self.ticks = self.ticks.saturating_sub(1);
    }

    /// Whether the replica must neither vote nor campaign.
    pub(crate) fn binds(&self) -> bool {
        self.ticks > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_asking_and_belongs_to_its_term() {
        let mut lease = Lease::default();
        assert!(!lease.holds(Term(0), Time(0)));
        lease.renew(Term(3), Time(100), 50);
        assert!(lease.holds(Term(3), Time(149)));
        assert!(!lease.holds(Term(3), Time(150)));
        assert!(!lease.holds(Term(4), Time(120)));
        lease.renew(Term(3), Time(90), 50);
        assert!(lease.holds(Term(3), Time(149)), "an older answer shortened the lease");
        lease.renew(Term(5), Time(95), 50);
        assert!(!lease.holds(Term(5), Time(145)), "a new term inherited the lease");
        assert!(lease.holds(Term(5), Time(144)));
        lease.drop_now();
        assert!(!lease.holds(Term(5), Time(95)), "a lease that was dropped holds");
    }

    #[test]
    fn a_round_from_before_other_settings_earns_no_lease() {
        let mut lease = Lease::default();
        lease.renew(Term(3), Time(100), 50);
        lease.settle(Time(110));
        assert!(!lease.holds(Term(3), Time(110)), "it was counted by the former settings");
        lease.renew(Term(3), Time(110), 5000);
        assert!(!lease.holds(Term(3), Time(111)), "its promises are of the former settings");
        lease.renew(Term(3), Time(111), 50);
        assert!(lease.holds(Term(3), Time(160)));
    }

    #[test]
    fn it_is_renewed_in_its_second_half_while_reads_come() {
        let mut lease = Lease::default();
        lease.renew(Term(1), Time(0), 100);
        assert!(!lease.wants_renewal(Term(1), Time(90), 100), "nobody reads");
        lease.mark_used(Time(20));
        assert!(!lease.wants_renewal(Term(1), Time(49), 100));
        assert!(lease.wants_renewal(Term(1), Time(50), 100));
        assert!(!lease.wants_renewal(Term(1), Time(121), 100), "nobody reads any more");
    }

    #[test]
    fn a_term_whose_leader_hands_over_has_no_lease_any_more() {
        let mut lease = Lease::default();
        lease.renew(Term(3), Time(0), 100);
        lease.mark_used(Time(10));
        lease.void(Term(3));
        assert!(!lease.holds(Term(3), Time(10)));
        assert!(!lease.wants_renewal(Term(3), Time(90), 100), "rounds for a lease that is void");
        // A round that was asked before is answered now.
        lease.renew(Term(3), Time(20), 100);
        assert!(!lease.holds(Term(3), Time(30)), "a quorum revived it");
        lease.void(Term(3));
        lease.renew(Term(4), Time(30), 100);
        assert!(lease.holds(Term(4), Time(40)), "the next term has none");
    }

    #[test]
    fn a_restarted_replica_keeps_still_and_a_new_one_need_not() {
        assert!(!Promise::at_start(Term(0), 3).binds());
        let mut promise = Promise::at_start(Term(1), 3);
        for _ in 0..3 {
            assert!(promise.binds());
            promise.tick();
        }
        assert!(!promise.binds());
    }
}
