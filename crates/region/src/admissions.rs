//! Questions to the store about regions that are not here: whether a message may make a replica.
//!
//! One question a region at a time: no answer is older than the slot. A region whose range is held
//! here is not asked about again for a second.

use std::collections::BTreeMap;

use crate::ids::{PeerId, RegionId, Time};

/// How long an answer that the range is held is believed.
const HELD_MS: u64 = 1000;
/// Regions that are remembered: a bound on what others can make this store remember.
const REGIONS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Admissions {
    asked: BTreeMap<RegionId, AdmissionState>,
}

enum AdmissionState {
    Asking {
        /// The greatest replica that has ended since, or ends: the answer does not know it.
        ended: PeerId,
    },
    HeldUntil(Time),
}

impl Admissions {
    /// Whether to ask the store about a region now.
    pub(crate) fn ask(&mut self, region: RegionId, now: Time) -> bool {
        match self.asked.get(&region) {
            Some(AdmissionState::Asking { .. }) => return false,
            Some(AdmissionState::HeldUntil(until)) if now < *until => return false,
            Some(AdmissionState::HeldUntil(_)) => {}
            None if self.asked.len() < REGIONS_MAX => {}
            None => {
                let is_news = |state: &AdmissionState| match state {
                    AdmissionState::Asking { .. } => true,
                    AdmissionState::HeldUntil(until) => now < *until,
                };
                self.asked.retain(|_, state| is_news(state));
                if self.asked.len() >= REGIONS_MAX {
                    return false;
                }
            }
        }
        self.asked.insert(region, AdmissionState::Asking { ended: PeerId(0) });
        true
    }

    /// The store has answered: the range is free, or the replica has ended. Returns the greatest
    /// replica that has ended since it was asked, or ends: the answer may be older than that end.
    pub(crate) fn answered(&mut self, region: RegionId) -> PeerId {
        match self.asked.remove(&region) {
            Some(AdmissionState::Asking { ended }) => ended,
            _ => PeerId(0),
        }
    }

    /// A replica of the region ends, or has ended.
    pub(crate) fn end(&mut self, region: RegionId, peer: PeerId) {
        if let Some(AdmissionState::Asking { ended }) = self.asked.get_mut(&region) {
            *ended = (*ended).max(peer);
        }
    }

    /// The store has answered that the range is held.
    pub(crate) fn held(&mut self, region: RegionId, now: Time) {
        self.asked.insert(region, AdmissionState::HeldUntil(now.after_ms(HELD_MS)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_at_a_time_and_none_for_a_while_after_held() {
        let mut admissions = Admissions::default();
        assert!(admissions.ask(RegionId(7), Time(0)));
        assert!(!admissions.ask(RegionId(7), Time(10_000)), "it is not answered");
        admissions.held(RegionId(7), Time(10_000));
        assert!(!admissions.ask(RegionId(7), Time(10_999)));
        assert!(admissions.ask(RegionId(7), Time(11_000)));
        admissions.answered(RegionId(7));
        assert!(admissions.ask(RegionId(7), Time(11_000)));
    }

    #[test]
    fn an_answer_does_not_know_of_an_end_after_the_question() {
        let mut admissions = Admissions::default();
        admissions.end(RegionId(7), PeerId(3));
        assert!(admissions.ask(RegionId(7), Time(0)));
        admissions.end(RegionId(7), PeerId(5));
        admissions.end(RegionId(7), PeerId(4));
        assert_eq!(admissions.answered(RegionId(7)), PeerId(5));
        assert_eq!(admissions.answered(RegionId(7)), PeerId(0), "told once");
    }

    #[test]
    fn strangers_cannot_fill_the_memory() {
        let mut admissions = Admissions::default();
        for region in 0..2 * REGIONS_MAX as u64 {
            let is_asked = admissions.ask(RegionId(region), Time(0));
            assert_eq!(is_asked, region < REGIONS_MAX as u64);
        }
        admissions.held(RegionId(1), Time(0));
        assert!(!admissions.ask(RegionId(1 << 40), Time(0)));
        assert!(admissions.ask(RegionId(1 << 40), Time(HELD_MS)), "an old answer makes room");
    }
}
