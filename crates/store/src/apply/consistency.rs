//! Comparisons of replicas: the verdict is made where the digests are applied, on each replica
//! alike (`docs/decisions/0049-replicas-are-compared-by-digests.md`).

use flotilla_pagestore::WriteTxn;
use flotilla_region::{
    AdminCommand, ApplyTask, Committed, ConsistencyVerdict, DigestComparison, Index, RegionChange,
    RegionId,
};

use super::outcome::ApplyOutcome;
use super::{AppliedReplica, ReplicaState};
use crate::error::Error;
use crate::inconsistent_regions;

impl ReplicaState {
    /// The entry asks for a digest of the rows as they are behind it, which takes long: only the
    /// view is taken where entries are applied. A damaged replica has none.
    pub(super) fn ask_for_digest(&mut self) -> ApplyOutcome {
        let index = self.state.applied;
        if !self.state.is_damaged {
            self.changes.push(RegionChange::DigestDue { index });
        }
        ApplyOutcome::DigestDue { index }
    }

    pub(super) fn verify(
        &mut self,
        txn: &mut WriteTxn<'_>,
        comparison: &DigestComparison,
    ) -> Result<ApplyOutcome, Error> {
        let verdict = comparison.verdict(&self.descriptor);
        inconsistent_regions::put(txn, self.descriptor.id, &verdict)?;
        self.changes.push(RegionChange::Compared { index: self.state.applied, verdict });
        Ok(ApplyOutcome::Done)
    }
}

/// The verdicts of entries that were applied, in order.
pub(crate) fn verdicts(
    replicas: &[AppliedReplica],
) -> impl Iterator<Item = (RegionId, &ConsistencyVerdict)> {
    replicas.iter().flat_map(|replica| {
        replica.changes.iter().filter_map(|change| match change {
            RegionChange::Compared { verdict, .. } => Some((replica.region, verdict)),
            _ => None,
        })
    })
}

/// Tasks that are cut behind an entry that asks for a digest: the view must not have anything of
/// the region behind it.
pub(crate) struct DigestCut {
    pub(crate) region: RegionId,
    pub(crate) index: Index,
    pub(crate) version: u64,
    /// The tasks up to the entry, and those behind it.
    pub(crate) until: Vec<ApplyTask>,
    pub(crate) behind: Vec<ApplyTask>,
}

/// Cuts tasks behind the first entry that asks for a digest, if there is one.
pub(crate) fn cut(tasks: &[ApplyTask]) -> Option<DigestCut> {
    let place = |(number, task): (usize, &ApplyTask)| {
        let found = task.entries.iter().enumerate();
        let mut found = found.filter_map(|(at, one)| Some((at, digest_version(one)?)));
        found.next().map(|(at, version)| (number, at, version))
    };
    let (number, at, version) = tasks.iter().enumerate().find_map(place)?;
    let (region, entries) = (tasks[number].region, &tasks[number].entries);
    let part = |entries: &[Committed]| ApplyTask { region, entries: entries.to_vec() };
    let mut until = tasks[..number].to_vec();
    until.push(part(&entries[..=at]));
    let mut behind = tasks[number + 1..].to_vec();
    if at + 1 < entries.len() {
        behind.insert(0, part(&entries[at + 1..]));
    }
    let count = |tasks: &[ApplyTask]| tasks.iter().map(|task| task.entries.len()).sum::<usize>();
    assert_eq!(count(&until) + count(&behind), count(tasks), "entries are lost behind a digest");
    Some(DigestCut { region, index: entries[at].entry.index, version, until, behind })
}

/// The version of the digest that an entry asks for. One that cannot be read stops the store when
/// it is applied.
fn digest_version(committed: &Committed) -> Option<u64> {
    let entry = &committed.entry;
    let command = AdminCommand::is_in(entry).then(|| AdminCommand::decode(entry).ok().flatten());
    match command.flatten()? {
        AdminCommand::ComputeDigest { version } => Some(version),
        _ => None,
    }
}
