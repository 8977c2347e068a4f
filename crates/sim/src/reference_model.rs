//! The reference model: each region's agreed log, entry by entry, and the state that it makes.
//!
//! The first replica that hands a committed entry out to be applied tells what stands at its place;
//! every other replica, and the same one after a crash, must say the same. From these entries a
//! simple model makes the state at every index and the outcome of every proposal, to compare
//! replicas and answers with.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::entry_data;
use flotilla_region::{ApplyTask, Committed, Index, LogEntry, RegionId, StoreId, Term, Ticket};

use crate::trace::{digest, mix};

/// Something that must never happen, in words.
pub(crate) type CheckFailure = String;

/// Everything that all replicas must agree on.
#[derive(Debug, Default)]
pub(crate) struct ReferenceModel {
    regions: BTreeMap<RegionId, RegionModel>,
    leaders: BTreeMap<(RegionId, Term), StoreId>,
    /// The proposal and the entry that each ticket came out with.
    tickets: BTreeMap<Ticket, (RegionId, Index, usize)>,
}

/// The result of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpResult {
    Done,
    Swapped { succeeded: bool, previous: Option<Bytes> },
}

/// One region's log and what it makes.
#[derive(Debug, Default)]
struct RegionModel {
    /// By index, the first at 0.
    entries: Vec<AgreedEntry>,
    /// The values that each key has had, each with the index that made it.
    values: BTreeMap<Bytes, Vec<(Index, Option<Bytes>)>>,
}

/// The entry at one index.
#[derive(Debug)]
struct AgreedEntry {
    print: u64,
    /// The results of each operation of each proposal.
    results: Vec<Vec<OpResult>>,
}

impl ReferenceModel {
    /// Notes that a replica is about to apply these entries. `command` gives what a ticket's owner
    /// asked for.
    ///
    /// # Errors
    ///
    /// Another replica applied something else there; an entry is missing; an entry carries the
    /// ticket of a request for something else.
    pub(crate) fn agree(
        &mut self,
        store: StoreId,
        task: &ApplyTask,
        command: impl Fn(Ticket) -> Option<Bytes>,
    ) -> Result<(), CheckFailure> {
        let region = self.regions.entry(task.region).or_default();
        for committed in &task.entries {
            let named = |what| format!("store {store}, region {}: {what}", task.region);
            region.agree(&committed.entry).map_err(named)?;
            region.compare_tickets(committed, &command).map_err(named)?;
            for (place, ticket) in committed.tickets.iter().enumerate() {
                self.tickets.insert(*ticket, (task.region, committed.entry.index, place));
            }
        }
        Ok(())
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
        store: StoreId,
    ) -> Result<(), CheckFailure> {
        let other = *self.leaders.entry((region, term)).or_insert(store);
        if other == store {
            return Ok(());
        }
        Err(format!("region {region} has two leaders in term {term}: stores {other} and {store}"))
    }

    /// The first leader of the region in a term later than this, if there is one.
    pub(crate) fn leader_after(&self, region: RegionId, term: Term) -> Option<(Term, StoreId)> {
        let later = (region, Term(term.0 + 1))..=(region, Term(u64::MAX));
        self.leaders.range(later).next().map(|((_, term), store)| (*term, *store))
    }

    /// The results of the proposal with this ticket; `None` if it was not handed out to be applied.
    pub(crate) fn results(&self, ticket: Ticket) -> Option<&[OpResult]> {
        let (region, index, place) = self.tickets.get(&ticket)?;
        let entry = &self.regions[region].entries[index.0 as usize - 1];
        Some(&entry.results[*place])
    }

    /// The region's rows after the entry at `index`, in order.
    pub(crate) fn rows(
        &self,
        region: RegionId,
        index: Index,
    ) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        let values = self.regions.get(&region).map(|model| model.values.iter());
        values.into_iter().flatten().filter_map(move |(key, values)| {
            let (_, value) = values.iter().rev().find(|(from, _)| *from <= index)?;
            Some((key, value.as_ref()?))
        })
    }
}

impl RegionModel {
    fn agree(&mut self, entry: &LogEntry) -> Result<(), CheckFailure> {
        // The term counts as well: entries of equal bytes and different terms are different ones.
        let print = mix(entry.term.0) ^ digest(&entry.data);
        let known = self.entries.len() as u64;
        match entry.index.0 {
            0 => Err("applies entry 0".to_string()),
            index if index <= known => {
                if self.entries[index as usize - 1].print == print {
                    return Ok(());
                }
                let Index(index) = entry.index;
                Err(format!("entry {index} of term {} is not what another applied", entry.term))
            }
            index if index == known + 1 => {
                let results = self.apply(entry)?;
                self.entries.push(AgreedEntry { print, results });
                Ok(())
            }
            // Replicas apply in order, so all entries below the newest known one are known: this
            // replica left some out.
            index => Err(format!("applies entry {index} while only {known} are known")),
        }
    }

    /// Checks that each ticket is on the proposal that it was given for.
    fn compare_tickets(
        &self,
        committed: &Committed,
        command: &impl Fn(Ticket) -> Option<Bytes>,
    ) -> Result<(), CheckFailure> {
        let index = committed.entry.index;
        // Proposed elsewhere, or before a crash that forgot the tickets.
        if committed.tickets.is_empty() {
            return Ok(());
        }
        let proposals: Vec<_> = entry_data::proposals(&committed.entry.data).flatten().collect();
        if proposals.len() != committed.tickets.len() {
            let (proposals, tickets) = (proposals.len(), committed.tickets.len());
            return Err(format!("entry {index} has {proposals} proposals and {tickets} tickets"));
        }
        for (ticket, proposal) in committed.tickets.iter().zip(proposals) {
            if command(*ticket) != Some(proposal.command) {
                return Err(format!("ticket {ticket} came out with another's proposal at {index}"));
            }
        }
        Ok(())
    }

    /// Applies the next entry and says what its proposals did.
    fn apply(&mut self, entry: &LogEntry) -> Result<Vec<Vec<OpResult>>, CheckFailure> {
        let unreadable = |_| format!("entry {} cannot be read", entry.index);
        let mut all = Vec::new();
        for proposal in entry_data::proposals(&entry.data) {
            let ops = proposal.and_then(|it| raw::decode(it.command)).map_err(unreadable)?;
            all.push(ops.into_iter().map(|op| self.change(entry.index, op)).collect());
        }
        Ok(all)
    }

    fn change(&mut self, index: Index, op: RawOp) -> OpResult {
        match op {
            RawOp::Put { key, value } => self.set(index, key, Some(value)),
            RawOp::Delete { key } => self.set(index, key, None),
            RawOp::DeleteRange { start, end } => {
                let inside =
                    |key: &&Bytes| **key >= start && end.as_ref().is_none_or(|end| **key < *end);
                let keys: Vec<_> = self.values.keys().filter(inside).cloned().collect();
                keys.into_iter().for_each(|key| self.set(index, key, None));
            }
            RawOp::CompareAndSwap { key, expected, value } => {
                let values = self.values.get(&key).and_then(|values| values.last());
                let previous = values.and_then(|(_, value)| value.clone());
                let succeeded = previous == expected;
                if succeeded {
                    self.set(index, key, value);
                }
                return OpResult::Swapped { succeeded, previous };
            }
        }
        OpResult::Done
    }

    fn set(&mut self, index: Index, key: Bytes, value: Option<Bytes>) {
        // All values are kept: a replica is compared at its own index, which may be far behind.
        self.values.entry(key).or_default().push((index, value));
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::EntryKind;

    use super::*;

    const REGION: RegionId = RegionId(2);

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// An entry as the core makes it: a format byte, then version, length and operations.
    fn entry(index: u64, term: u64, ops: &[&[RawOp]]) -> LogEntry {
        let mut data = vec![1];
        for ops in ops {
            let command = raw::encode(ops);
            data.extend([1, u8::try_from(command.len()).unwrap()]);
            data.extend(command);
        }
        let data = if ops.is_empty() { Bytes::new() } else { data.into() };
        LogEntry { index: Index(index), term: Term(term), kind: EntryKind::Normal, data }
    }

    fn agree(
        reference_model: &mut ReferenceModel,
        entry: LogEntry,
        tickets: &[u64],
    ) -> Result<(), CheckFailure> {
        let tickets = tickets.iter().copied().map(Ticket).collect();
        let task = ApplyTask { region: REGION, entries: vec![Committed { entry, tickets }] };
        // Ticket n asked for a put of key n.
        reference_model.agree(StoreId(1), &task, |ticket| Some(raw::encode(&[put(ticket.0)])))
    }

    fn put(number: u64) -> RawOp {
        RawOp::Put { key: number.to_string().into(), value: text("v") }
    }

    #[test]
    fn replicas_that_agree_are_good_and_others_are_not() {
        let mut reference_model = ReferenceModel::default();
        assert_eq!(agree(&mut reference_model, entry(1, 1, &[]), &[]), Ok(()));
        assert_eq!(agree(&mut reference_model, entry(2, 1, &[&[put(1)]]), &[]), Ok(()));
        assert_eq!(agree(&mut reference_model, entry(1, 1, &[]), &[]), Ok(()));
        assert!(agree(&mut reference_model, entry(1, 2, &[]), &[]).is_err(), "other term");
        assert!(agree(&mut reference_model, entry(2, 1, &[&[put(2)]]), &[]).is_err(), "other data");
        assert!(agree(&mut reference_model, entry(4, 1, &[]), &[]).is_err(), "a gap");
        assert!(agree(&mut reference_model, entry(0, 1, &[]), &[]).is_err());
    }

    #[test]
    fn tickets_belong_to_their_proposals() {
        let mut reference_model = ReferenceModel::default();
        let two: &[&[RawOp]] = &[&[put(7)], &[put(8)]];
        assert_eq!(agree(&mut reference_model, entry(1, 1, two), &[7, 8]), Ok(()));
        assert_eq!(reference_model.results(Ticket(8)), Some(&[OpResult::Done][..]));
        assert_eq!(reference_model.results(Ticket(9)), None);
        assert!(agree(&mut reference_model, entry(1, 1, two), &[8, 7]).is_err());
        assert!(agree(&mut reference_model, entry(1, 1, two), &[7]).is_err());
    }

    #[test]
    fn the_state_is_known_at_every_index() {
        let mut reference_model = ReferenceModel::default();
        let swap = |expected, value| {
            let (expected, value) = (Some(text(expected)), Some(text(value)));
            RawOp::CompareAndSwap { key: text("1"), expected, value }
        };
        let all = RawOp::DeleteRange { start: text("1"), end: Some(text("2")) };
        agree(&mut reference_model, entry(1, 1, &[&[put(1), put(2)]]), &[]).unwrap();
        agree(&mut reference_model, entry(2, 1, &[&[swap("v", "w")], &[swap("v", "x")]]), &[])
            .unwrap();
        agree(&mut reference_model, entry(3, 1, &[&[all]]), &[]).unwrap();
        let rows = |index| reference_model.rows(REGION, Index(index)).collect::<Vec<_>>();
        let (one, two, v, w) = (&text("1"), &text("2"), &text("v"), &text("w"));
        assert_eq!(rows(0), []);
        assert_eq!(rows(1), [(one, v), (two, v)]);
        assert_eq!(rows(2), [(one, w), (two, v)]);
        assert_eq!(rows(3), [(two, v)]);
        let swapped = |succeeded, previous: &Bytes| {
            vec![OpResult::Swapped { succeeded, previous: Some(previous.clone()) }]
        };
        let results = &reference_model.regions[&REGION].entries[1].results;
        assert_eq!(*results, [swapped(true, v), swapped(false, w)]);
    }

    #[test]
    fn a_term_has_one_leader() {
        let mut reference_model = ReferenceModel::default();
        assert_eq!(reference_model.lead(REGION, Term(1), StoreId(1)), Ok(()));
        assert_eq!(reference_model.lead(REGION, Term(1), StoreId(1)), Ok(()));
        assert_eq!(reference_model.lead(REGION, Term(2), StoreId(2)), Ok(()));
        assert!(reference_model.lead(REGION, Term(1), StoreId(2)).is_err());
    }
}
