//! One comparison of the replicas of a region: the digest of the replica here, and, where it leads,
//! those of the others until the verdict is proposed.
//!
//! Every replica that applies the entry computes a digest and tells the leader, again and again
//! until the verdict is applied: so notices may be lost and the leader may change. A leader that
//! has its own digest gives the others as long again and more, then goes on without them. A replica
//! that was down, or is behind, takes no part in the comparison.

use std::collections::BTreeMap;

use crate::descriptor::Descriptor;
use crate::digest_comparison::DigestComparison;
use crate::ids::{Index, PeerId, Time};

/// A comparison ends after so many milliseconds, whatever it has: a digest may take as long as its
/// store keeps the view, which is less.
const ROUND_MS_MAX: u64 = 20 * 60 * 1000;
/// The others get so many times the milliseconds that the digest took here, and these at least.
const PATIENCE: u64 = 2;
const PATIENCE_MS_MIN: u64 = 10_000;
/// From telling the leader to telling it again; twice as long each time.
const REPEAT_MS: u64 = 2000;

#[derive(Default)]
pub(crate) struct ConsistencyCheck {
    /// On the heap: most replicas have none.
    round: Option<Box<DigestRound>>,
    /// The last entry about which there is a verdict.
    ended: Index,
}

struct DigestRound {
    /// The entry that has asked for the digests.
    index: Index,
    began: Time,
    /// The digest of the replica here, and when it was there. The outer: it is not there yet.
    own: Option<(Option<u64>, Time)>,
    /// When the leader is told next, and the wait behind that.
    tell_at: Time,
    repeat_ms: u64,
    /// The digests of others, of a leader only.
    others: BTreeMap<PeerId, Option<u64>>,
    /// The verdict is in the log of this leader.
    is_proposed: bool,
}

impl ConsistencyCheck {
    /// An entry asks for a digest. An earlier comparison is over: it was given up elsewhere.
    pub(crate) fn begin(&mut self, index: Index, now: Time) {
        // The digest of a small region may come before the word that its entry is applied.
        if self.round_at(index).is_some() {
            return;
        }
        // Its replicas would wait for a verdict that is behind them.
        assert!(index > self.ended, "a comparison of {index} begins behind that of {}", self.ended);
        self.round = Some(Box::new(DigestRound {
            index,
            began: now,
            own: None,
            tell_at: now,
            repeat_ms: REPEAT_MS,
            others: BTreeMap::new(),
            is_proposed: false,
        }));
    }

    /// Whether a comparison has no verdict yet.
    pub(crate) fn is_under_way(&self) -> bool {
        self.round.is_some()
    }

    /// Another leader, or another term. Its followers tell it anew.
    pub(crate) fn restart(&mut self) {
        if let Some(round) = &mut self.round {
            round.others.clear();
            round.is_proposed = false;
        }
    }

    /// The digest of the replica here is computed, or given up.
    pub(crate) fn note_own(&mut self, index: Index, digest: Option<u64>, now: Time) {
        if self.round.as_ref().is_none_or(|round| round.index < index) && index > self.ended {
            self.begin(index, now);
        }
        if let Some(round) = self.round_at(index) {
            round.own = Some((digest, now));
            round.tell_at = now;
        }
    }

    /// Another replica has told its digest to the leader here.
    pub(crate) fn note_other(&mut self, peer: PeerId, index: Index, digest: Option<u64>) {
        // Of another entry: it is an old one, or the one that is not applied here yet. That comes
        // again.
        if let Some(round) = self.round_at(index) {
            round.others.insert(peer, digest);
        }
    }

    /// The digest of the replica here, if it is time to tell the leader.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<(Index, Option<u64>)> {
        let round = self.round.as_mut()?;
        let (digest, _) = round.own?;
        if now < round.tell_at {
            return None;
        }
        round.tell_at = now.after_ms(round.repeat_ms);
        round.repeat_ms = round.repeat_ms.saturating_mul(2);
        Some((round.index, digest))
    }

    /// The digests that a leader has, once there is nothing more to wait for. They are proposed,
    /// and [`ConsistencyCheck::note_proposed`] is called.
    pub(crate) fn complete(
        &self,
        now: Time,
        me: PeerId,
        members: &Descriptor,
    ) -> Option<DigestComparison> {
        let round = self.round.as_ref().filter(|round| !round.is_proposed)?;
        assert!(!round.others.contains_key(&me), "replica {me} has told its digest to itself");
        let others = members.peers.iter().map(|member| member.id).filter(|id| *id != me);
        let has_all =
            round.own.is_some() && others.clone().all(|id| round.others.contains_key(&id));
        if !has_all && now < round.deadline() {
            return None;
        }
        let own = round.own.and_then(|(digest, _)| digest).map(|digest| (me, digest));
        let others = others.filter_map(|id| Some((id, (*round.others.get(&id)?)?)));
        Some(DigestComparison {
            index: round.index,
            digests: own.into_iter().chain(others).collect(),
        })
    }

    pub(crate) fn note_proposed(&mut self) {
        if let Some(round) = &mut self.round {
            round.is_proposed = true;
        }
    }

    /// The verdict about this entry is applied.
    pub(crate) fn end(&mut self, index: Index) {
        self.ended = self.ended.max(index);
        self.round.take_if(|round| round.index <= index);
    }

    /// Gives a comparison up of which no leader has made a verdict.
    pub(crate) fn give_up_late(&mut self, now: Time) {
        self.round.take_if(|round| now >= round.began.after_ms(ROUND_MS_MAX));
    }

    fn round_at(&mut self, index: Index) -> Option<&mut DigestRound> {
        self.round.as_deref_mut().filter(|round| round.index == index)
    }
}

impl DigestRound {
    /// When the verdict is made of what is there.
    fn deadline(&self) -> Time {
        let last = self.began.after_ms(ROUND_MS_MAX);
        match self.own {
            None => last,
            Some((_, at)) => {
                let took_ms = at.0.saturating_sub(self.began.0);
                let patience_ms = took_ms.saturating_mul(PATIENCE).max(PATIENCE_MS_MIN);
                at.after_ms(patience_ms).min(last)
            }
        }
    }
}
