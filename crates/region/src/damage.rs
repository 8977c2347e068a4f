//! The damage of a replica: rows of it are lost here, and a snapshot of its leader replaces all of
//! them (`docs/decisions/0060-a-damaged-replica-is-rebuilt-in-place.md`).
//!
//! Its log is whole, so it goes on voting, its acknowledgements hold, and it follows changes of its
//! region. But the snapshot has to reach up to the end of the log, for that goes with the rows, and
//! no entry that was acknowledged may go. So the log does not grow while it waits, and for a while
//! does again if none has come: the leader may need this replica for its majority.
//!
//! It leaves the lead to others as long as one of them takes it. If its log is the longest, none of
//! them can: then it leads until another one has that log as well.

/// The first time without entries, in election timeouts. Each is twice as long as the one before.
const HELD_TIMEOUTS: u32 = 50;
/// The most doublings.
const DOUBLINGS_MAX: u32 = 4;
/// The time with entries in between, in election timeouts.
const OPEN_TIMEOUTS: u32 = 5;
/// The time without word of a leader until it campaigns, in election timeouts. Others do so within
/// two.
const LEADERLESS_TIMEOUTS: u32 = 5;

#[derive(Debug, Default)]
pub(crate) struct ReplicaDamage {
    is_damaged: bool,
    /// Ticks since it began to take no entries.
    ticks: u32,
    /// How often it has waited in vain.
    vain: u32,
    /// Ticks without word of a leader.
    leaderless: u32,
}

impl ReplicaDamage {
    /// As it was found at a start.
    pub(crate) fn new(is_damaged: bool) -> Self {
        Self { is_damaged, ..Self::default() }
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Rows are lost.
    pub(crate) fn note(&mut self) {
        self.is_damaged = true;
    }

    /// A snapshot takes the place of the rows.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Time has passed for a damaged follower. Returns whether it asks its leader for a snapshot.
    pub(crate) fn tick(&mut self, election_ticks: u32) -> bool {
        assert!(self.is_damaged, "a sound replica needs no snapshot");
        let held = (HELD_TIMEOUTS << self.vain.min(DOUBLINGS_MAX)) * election_ticks;
        let asks = self.ticks < held && self.ticks.is_multiple_of(election_ticks);
        self.ticks += 1;
        if self.ticks >= held + OPEN_TIMEOUTS * election_ticks {
            (self.ticks, self.vain) = (0, self.vain + 1);
        }
        asks
    }

    /// Time has passed for a replica with or without a leader. Returns whether it may campaign.
    pub(crate) fn tick_leader(&mut self, has_leader: bool, election_ticks: u32) -> bool {
        self.leaderless =
            if has_leader || !self.is_damaged { 0 } else { self.leaderless.saturating_add(1) };
        !self.is_damaged || self.leaderless > LEADERLESS_TIMEOUTS * election_ticks
    }

    /// Whether entries are taken.
    pub(crate) fn takes_entries(&self, election_ticks: u32) -> bool {
        let held = (HELD_TIMEOUTS << self.vain.min(DOUBLINGS_MAX)) * election_ticks;
        !self.is_damaged || self.ticks >= held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_twice_as_long_each_time_and_takes_entries_in_between() {
        let mut damage = ReplicaDamage::default();
        assert!(damage.takes_entries(10));
        damage.note();
        for held in [500, 1000, 2000, 4000, 8000, 8000] {
            let mut asked = 0;
            for _ in 0..held {
                assert!(!damage.takes_entries(10));
                asked += u32::from(damage.tick(10));
            }
            assert_eq!(asked, held / 10);
            for _ in 0..50 {
                assert!(damage.takes_entries(10) && !damage.tick(10));
            }
        }
        damage.clear();
        assert!(damage.takes_entries(10) && !damage.is_damaged());
    }

    #[test]
    fn it_campaigns_if_nobody_else_has_for_long() {
        let mut damage = ReplicaDamage::default();
        assert!(damage.tick_leader(false, 10), "it is sound");
        damage.note();
        for _ in 0..2 {
            assert!(!damage.tick_leader(true, 10));
            assert!((0..50).all(|_| !damage.tick_leader(false, 10)));
            assert!(damage.tick_leader(false, 10));
        }
    }
}
