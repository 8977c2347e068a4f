//! Commands that change the region itself.

use flotilla_pagestore::WriteTxn;
use flotilla_region::{AdminCommand, Committed, Ticket};

use super::outcome::ApplyOutcome;
use super::{ApplyPlace, ReplicaState};
use crate::error::Error;

impl ReplicaState {
    /// Carries out the command of an entry, or none of it.
    pub(super) fn apply_admin(
        &mut self,
        txn: &mut WriteTxn<'_>,
        place: ApplyPlace<'_>,
        committed: &Committed,
        outcomes: &mut Vec<(Ticket, ApplyOutcome)>,
    ) -> Result<(), Error> {
        let (region, index) = (self.descriptor.id, committed.entry.index);
        let malformed = |source| Error::MalformedEntry { region, index, source };
        let command = AdminCommand::decode(&committed.entry).map_err(malformed)?;
        assert!(
            committed.tickets.len() <= 1,
            "region {region}: entry {index} has more tickets than commands"
        );
        let outcome = match command {
            Some(AdminCommand::Split(split)) => self.split(txn, place, &split)?,
            Some(AdminCommand::Membership(command)) => self.change_members(txn, &command)?,
            Some(AdminCommand::Forget(peer)) => self.forget(txn, peer)?,
            Some(AdminCommand::ComputeDigest { .. }) => self.ask_for_digest(),
            Some(AdminCommand::VerifyDigests(comparison)) => self.verify(txn, &comparison)?,
            None => unreachable!("the caller has seen that the entry holds one"),
        };
        outcomes.extend(committed.tickets.first().map(|ticket| (*ticket, outcome)));
        Ok(())
    }
}
