//! The reference model: each region's agreed log, entry by entry, and the state that it makes.
//!
//! The first replica that hands a committed entry out to be applied tells what stands at its place;
//! every other replica, and the same one after a crash, must say the same. From these entries a
//! simple model makes the state at every index and the outcome of every proposal, to compare
//! replicas and answers with. A split gives birth to logs: the rows of a new region are those that
//! its parent had at the split.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flotilla_region::{
    ApplyTask, Descriptor, EndTask, Index, Notice, NoticeKind, Peer, PeerId, RegionId, Space,
    StoreId, Term, Ticket,
};

mod ended_replicas;
mod region_model;
#[cfg(test)]
mod tests;

#[cfg(test)]
use flotilla_region::DigestComparison;

use ended_replicas::EndedReplicas;
use region_model::RegionModel;
pub(crate) use region_model::{OpResult, ProposalResult, RowKey};

/// Something that must never happen, in words.
pub(crate) type CheckFailure = String;

/// Everything that all replicas must agree on.
#[derive(Debug, Default)]
pub(crate) struct ReferenceModel {
    regions: BTreeMap<RegionId, RegionModel>,
    /// Every replica that any region ever had.
    peers: BTreeSet<PeerId>,
    leaders: BTreeMap<(RegionId, Term), Peer>,
    ended: EndedReplicas,
    /// The proposal and the entry that each ticket came out with.
    tickets: BTreeMap<Ticket, (RegionId, Index, usize)>,
    /// A script has altered rows of a store.
    may_differ: bool,
}

impl ReferenceModel {
    /// The first regions of a cluster, without entries.
    pub(crate) fn new(first: &[Descriptor]) -> Self {
        let regions = first.iter().map(|region| (region.id, RegionModel::first(region.clone())));
        let peers = first.iter().flat_map(|region| &region.peers).map(|peer| peer.id);
        Self { regions: regions.collect(), peers: peers.collect(), ..Self::default() }
    }

    /// Whether a store had the only vote of any region at any time.
    pub(crate) fn had_lone_voter(&self, store: StoreId) -> bool {
        self.regions.values().any(|region| region.had_lone_voter(store))
    }

    /// Notes that a replica is about to apply these entries. `command` gives what a ticket's owner
    /// asked for.
    ///
    /// # Errors
    ///
    /// Another replica applied something else there; an entry is missing; an entry carries the
    /// ticket of a request for something else; a split uses ids again, or leaves keys without a
    /// region.
    pub(crate) fn agree(
        &mut self,
        store: StoreId,
        task: &ApplyTask,
        command: impl Fn(Ticket) -> Option<Bytes>,
    ) -> Result<(), CheckFailure> {
        let named = |what| format!("store {store}, region {}: {what}", task.region);
        let region = self.regions.get_mut(&task.region);
        let region = region.ok_or_else(|| named("it was never born".to_owned()))?;
        let mut born = Vec::new();
        for committed in &task.entries {
            born.extend(region.agree(&committed.entry).map_err(named)?);
            if let Some((_, last)) = region.comparisons().last()
                && !self.may_differ
                && last.verdict(region.newest()).has_difference()
            {
                return Err(named(format!("replicas differ: {last:?}")));
            }
            region.compare_tickets(committed, &command).map_err(named)?;
            self.peers.extend(region.newest().peers.iter().map(|peer| peer.id));
            for (place, ticket) in committed.tickets.iter().enumerate() {
                self.tickets.insert(*ticket, (task.region, committed.entry.index, place));
            }
        }
        if born.is_empty() {
            return Ok(());
        }
        born.into_iter().try_for_each(|child| self.bear(child)).map_err(named)?;
        self.check_cover().map_err(named)
    }

    /// Takes a region in that a split has made.
    fn bear(&mut self, child: RegionModel) -> Result<(), CheckFailure> {
        let descriptor = child.newest().clone();
        for peer in &descriptor.peers {
            if !self.peers.insert(peer.id) {
                return Err(format!("replica {} of region {} is not new", peer.id, descriptor.id));
            }
        }
        if self.regions.insert(descriptor.id, child).is_some() {
            return Err(format!("region {} is not new", descriptor.id));
        }
        Ok(())
    }

    /// The newest descriptors cover each space, and no key twice.
    fn check_cover(&self) -> Result<(), CheckFailure> {
        for space in [Space::System, Space::Raw] {
            let mut regions: Vec<_> =
                self.descriptors().filter(|region| region.space == space).collect();
            regions.sort_by(|one, other| one.start.cmp(&other.start));
            let connected = regions
                .windows(2)
                .all(|pair| !pair[0].end.is_empty() && pair[0].end == pair[1].start);
            let ends = [regions.first().map(|it| &it.start), regions.last().map(|it| &it.end)];
            if !connected || ends.iter().any(|end| end.is_none_or(|end| !end.is_empty())) {
                return Err(format!("the regions of {space:?} have holes or overlap: {regions:?}"));
            }
        }
        Ok(())
    }

    /// The regions in their newest forms, in the order of their ids.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        self.regions.values().map(RegionModel::newest)
    }

    /// A region in its newest form.
    pub(crate) fn descriptor(&self, region: RegionId) -> Option<&Descriptor> {
        self.regions.get(&region).map(RegionModel::newest)
    }

    /// A region as it is after the entry at `index`.
    pub(crate) fn descriptor_at(&self, region: RegionId, index: Index) -> Option<&Descriptor> {
        self.regions.get(&region)?.descriptor_at(index)
    }

    /// The region that holds a client's key now.
    pub(crate) fn region_of(&self, key: &[u8]) -> &Descriptor {
        let holds = |region: &&Descriptor| region.space == Space::Raw && region.contains(key);
        self.descriptors().find(holds).expect("the regions cover all keys")
    }

    /// The regions that have come of one of the first, itself included.
    pub(crate) fn descendants(&self, first: RegionId) -> impl Iterator<Item = RegionId> {
        let comes_of =
            move |(id, model): (&RegionId, &RegionModel)| (model.root() == first).then_some(*id);
        self.regions.iter().filter_map(comes_of)
    }

    /// Notes that a replica leads.
    ///
    /// # Errors
    ///
    /// Another one leads in the same term.
    pub(crate) fn lead(
        &mut self,
        region: RegionId,
        term: Term,
        leader: Peer,
    ) -> Result<(), CheckFailure> {
        let other = *self.leaders.entry((region, term)).or_insert(leader);
        if other == leader {
            return Ok(());
        }
        Err(format!("region {region} has two leaders in term {term}: {other:?} and {leader:?}"))
    }

    /// Checks that a store may end a replica.
    ///
    /// # Errors
    ///
    /// The region still has it as a member: its votes and entries would be lost.
    pub(crate) fn end(&self, store: StoreId, task: &EndTask) -> Result<(), CheckFailure> {
        let EndTask { region, peer } = *task;
        match self.descriptor(region) {
            Some(newest) if newest.listed(peer).is_some() => {
                Err(format!("store {store} ends replica {peer}, which region {region} has"))
            }
            _ => Ok(()),
        }
    }

    /// The first leader of the region in a term later than this, if there is one.
    pub(crate) fn leader_after(&self, region: RegionId, term: Term) -> Option<(Term, StoreId)> {
        let later = (region, Term(term.0 + 1))..=(region, Term(u64::MAX));
        self.leaders.range(later).next().map(|((_, term), leader)| (*term, leader.store))
    }

    /// Notes that a root of a store has the end of a replica.
    pub(crate) fn note_ended(&mut self, store: StoreId, region: RegionId, peer: PeerId) {
        self.ended.note(store, region, peer);
    }

    /// Checks that no root of the store has the end of this replica, which is there or speaks.
    ///
    /// # Errors
    ///
    /// One has.
    pub(crate) fn check_alive(
        &self,
        store: StoreId,
        region: RegionId,
        peer: PeerId,
    ) -> Result<(), CheckFailure> {
        self.ended.check_alive(store, region, peer)
    }

    /// Checks that a notice tells the truth: a replica has ended by a root, or its region has
    /// dropped it for good.
    ///
    /// # Errors
    ///
    /// It is a lie.
    pub(crate) fn check_notice(&self, notice: &Notice) -> Result<(), CheckFailure> {
        let Notice { region, from, peer, .. } = *notice;
        let newest = self.descriptor(region);
        let is_dropped = newest.is_some_and(|it| it.floor() >= peer && it.listed(peer).is_none());
        let is_true = match notice.kind {
            // The digests are compared, and the verdict is looked at.
            NoticeKind::WhoIs | NoticeKind::Digest { .. } => true,
            NoticeKind::Ended => self.ended.has(from, region, peer),
            NoticeKind::Gone | NoticeKind::End => is_dropped,
        };
        let words = || format!("store {from} says a lie: {notice:?}, and the region is {newest:?}");
        if is_true { Ok(()) } else { Err(words()) }
    }

    /// From now on a comparison may find that replicas differ.
    #[cfg(test)]
    pub(crate) fn allow_differences(&mut self) {
        self.may_differ = true;
    }

    /// The comparisons of the replicas of a region, each with the index of its verdict.
    #[cfg(test)]
    pub(crate) fn comparisons(&self, region: RegionId) -> &[(Index, DigestComparison)] {
        self.regions.get(&region).map_or(&[], RegionModel::comparisons)
    }

    /// The result of the proposal with this ticket; `None` if it was not handed out to be applied.
    pub(crate) fn result(&self, ticket: Ticket) -> Option<&ProposalResult> {
        let (region, index, place) = self.tickets.get(&ticket)?;
        Some(&self.regions[region].results(*index)[*place])
    }

    /// The region's rows after the entry at `index`, family by family, in order.
    pub(crate) fn rows(
        &self,
        region: RegionId,
        index: Index,
    ) -> impl Iterator<Item = (&RowKey, &Bytes)> {
        self.regions.get(&region).into_iter().flat_map(move |model| model.rows(index))
    }
}
