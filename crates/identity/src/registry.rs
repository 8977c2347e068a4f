//! The registry of all stores of a cluster. One row of the system region is authoritative, changed
//! whole by compare-and-swap; each store keeps a copy, so that it can start without a quorum.

use flotilla_base::fields::{FieldReader, Malformed, put_varint};
use flotilla_region::StoreId;

use crate::codec::{fixed_u128, put_text, row, text};
use crate::spec::{BootstrapPlan, ClusterSpec};
use crate::store_identity::{StoreRun, StoreUuid};
use crate::{FEATURE_LEVEL, SCHEMA_VERSION};

/// The first byte of the registry row.
const FORMAT: u8 = 1;

/// Whether a store takes part. PD's store states, with what an operator can say in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    /// It takes part.
    #[default]
    Up,
    /// It leads no regions and gets no replicas; it keeps those that it has. For a restart.
    Draining,
    /// Its replicas are being moved away; it goes.
    Leaving,
    /// Its directory is gone for ever.
    Lost,
    /// It has left.
    Removed,
}

impl StoreState {
    /// For people and for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Leaving => "leaving",
            Self::Lost => "lost",
            Self::Removed => "removed",
        }
    }
}

/// One store of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRecord {
    /// Its id.
    pub id: StoreId,
    /// Its name, unique among stores that are not lost or removed.
    pub name: String,
    /// Where clients and other stores reach it, `host:port`. No part of its identity.
    pub address: String,
    /// Its directory.
    pub uuid: StoreUuid,
    /// Where it stands, for placement: `zone` = `a`.
    pub labels: Vec<(String, String)>,
    /// Whether it takes part.
    pub state: StoreState,
    /// The feature level of the version that it last ran.
    pub level: u64,
    /// The schema of its rows.
    pub schema: u64,
    /// The last of its starts that the registry knows.
    pub run: StoreRun,
}

/// A store's report of its current start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// The store.
    pub store: StoreId,
    /// Its directory.
    pub uuid: StoreUuid,
    /// Where it is to be reached.
    pub address: String,
    /// Its start.
    pub run: StoreRun,
    /// Its feature level.
    pub level: u64,
    /// Its schema.
    pub schema: u64,
    /// The labels that it was started with; those that it had stay if none are given.
    pub labels: Vec<(String, String)>,
}

/// The registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRegistry {
    /// Counts changes; 1 at the bootstrap.
    pub version: u64,
    /// The least feature level that any store may have; never falls.
    pub level: u64,
    /// All stores that ever were, by id.
    pub stores: Vec<StoreRecord>,
}

impl StoreRegistry {
    /// The registry of a cluster that begins by `plan`.
    #[must_use]
    pub fn of_plan(plan: &BootstrapPlan) -> Self {
        let stores = plan.spec.stores.iter().zip(&plan.uuids).enumerate();
        let stores = stores.map(|(place, (store, uuid))| StoreRecord {
            id: ClusterSpec::store_id(place),
            name: store.name.clone(),
            address: store.address.clone(),
            uuid: *uuid,
            level: FEATURE_LEVEL,
            schema: SCHEMA_VERSION,
            ..StoreRecord::default()
        });
        Self { version: 1, level: FEATURE_LEVEL, stores: stores.collect() }
    }

    /// The store with this id.
    #[must_use]
    pub fn store(&self, id: StoreId) -> Option<&StoreRecord> {
        self.stores.iter().find(|store| store.id == id)
    }

    /// The store with this name that takes part.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&StoreRecord> {
        // A name may be given again once its store is gone for good.
        self.stores.iter().find(|store| store.name == name && store.is_here())
    }

    /// Whether a store was declared lost, or has left: it never takes part again.
    #[must_use]
    pub fn is_gone(&self, id: StoreId) -> bool {
        self.store(id).is_some_and(|store| !store.is_here())
    }

    /// Why the store itself must stop, if it is gone.
    #[must_use]
    pub fn departure(&self, id: StoreId) -> Option<String> {
        let StoreRecord { name, state, .. } = self.store(id)?;
        let how = match state {
            StoreState::Up | StoreState::Draining | StoreState::Leaving => return None,
            StoreState::Lost => "was declared lost",
            StoreState::Removed => "has left the cluster",
        };
        Some(format!(
            "store {id}, {name}, {how} and never takes part again: its data is on the other stores; \
             to add a store, start one with an empty --data-dir and --join"
        ))
    }

    /// Whether a store has left in this `run` of it: it did what it was told to. A later run of the
    /// directory, which placement has not heard of before, finds that it must not take part.
    #[must_use]
    pub fn has_left(&self, id: StoreId, run: StoreRun) -> bool {
        let record = self.store(id);
        record.is_some_and(|store| store.state == StoreState::Removed && store.run == run)
    }

    /// Whether this is a state of the registry from after `earlier`, or the same: stores come and
    /// change, none ever becomes another directory, and one that is gone stays so.
    #[must_use]
    pub fn continues(&self, earlier: &Self) -> bool {
        let has = |known: &StoreRecord| {
            let record = self.store(known.id);
            record.is_some_and(|record| {
                record.uuid == known.uuid && (known.is_here() || !record.is_here())
            })
        };
        self.version >= earlier.version
            && self.level >= earlier.level
            && earlier.stores.iter().all(has)
    }

    /// Whether no other store takes part.
    #[must_use]
    pub fn is_lone(&self) -> bool {
        self.stores.len() == 1
    }

    /// The registry with a store's newer start, if the report says something new.
    #[must_use]
    pub fn with_run(&self, report: &RunReport) -> Option<Self> {
        let at = self.stores.iter().position(|store| store.id == report.store)?;
        let known = &self.stores[at];
        // A late report of an earlier start would bring its old address back.
        if known.uuid != report.uuid || report.run.starts < known.run.starts || !known.is_here() {
            return None;
        }
        let record = StoreRecord {
            address: report.address.clone(),
            run: report.run,
            level: report.level,
            schema: report.schema,
            labels: match report.labels.is_empty() {
                true => known.labels.clone(),
                false => report.labels.clone(),
            },
            ..known.clone()
        };
        // Stores repeat their reports, and each change of the row costs a quorum.
        if record == *known {
            return None;
        }
        let mut changed = self.clone();
        changed.version += 1;
        changed.stores[at] = record;
        changed.raise_level();
        Some(changed)
    }

    /// The level of the cluster is the lowest of its stores'.
    pub(crate) fn raise_level(&mut self) {
        // One that never comes back must not keep the features of the others.
        let here = self.stores.iter().filter(|store| store.is_here());
        let least = here.map(|store| store.level).min();
        // Never lower: other stores may have used the features of the level already.
        self.level = self.level.max(least.unwrap_or_default());
    }

    /// Checks that all stores know of what begins with the level `needed`.
    ///
    /// # Errors
    ///
    /// The stores that do not.
    pub fn check_level(&self, needed: u64) -> Result<(), LevelRefusal> {
        if self.level >= needed {
            return Ok(());
        }
        let behind = self.stores.iter().filter(|store| store.is_here() && store.level < needed);
        let behind = behind.map(|store| store.name.clone()).collect();
        Err(LevelRefusal { level: self.level, needed, behind })
    }

    /// The bytes of the row, as `docs/durability.md` has them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.version);
        put_varint(&mut out, self.level);
        put_varint(&mut out, self.stores.len() as u64);
        for store in &self.stores {
            store.encode(&mut out);
        }
        out
    }

    /// Reads what [`StoreRegistry::encode`] wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or of a format that this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = row(bytes, FORMAT, "registry row")?;
        let (version, level, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let stores: Result<Vec<_>, _> =
            (0..count).map(|_| StoreRecord::decode(&mut reader)).collect();
        let stores = stores?;
        reader.finish()?;
        Ok(Self { version, level, stores })
    }
}

/// Some stores run a version that does not know of what is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the feature level is {level}, and {needed} is needed: upgrade {}", .behind.join(", "))]
pub struct LevelRefusal {
    /// The feature level of the cluster.
    pub level: u64,
    /// The one that is needed.
    pub needed: u64,
    /// The names of the stores below that.
    pub behind: Vec<String>,
}

impl StoreRecord {
    /// Whether the store is neither lost nor removed.
    #[must_use]
    pub fn is_here(&self) -> bool {
        !matches!(self.state, StoreState::Lost | StoreState::Removed)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id.0);
        put_text(out, &self.name);
        put_text(out, &self.address);
        out.extend_from_slice(&self.uuid.0.to_le_bytes());
        put_varint(out, self.labels.len() as u64);
        for (key, value) in &self.labels {
            put_text(out, key);
            put_text(out, value);
        }
        out.push(match self.state {
            StoreState::Up => 0,
            StoreState::Draining => 1,
            StoreState::Leaving => 2,
            StoreState::Lost => 3,
            StoreState::Removed => 4,
        });
        for number in [self.level, self.schema, self.run.starts, self.run.nonce] {
            put_varint(out, number);
        }
    }

    fn decode(reader: &mut FieldReader) -> Result<Self, Malformed> {
        let id = StoreId(reader.varint()?);
        let (name, address) = (text(reader)?, text(reader)?);
        let uuid = StoreUuid(fixed_u128(reader)?);
        let count = reader.varint()?;
        let labels: Result<Vec<_>, _> =
            (0..count).map(|_| Ok((text(reader)?, text(reader)?))).collect();
        let labels = labels?;
        let state = match reader.byte()? {
            0 => StoreState::Up,
            1 => StoreState::Draining,
            2 => StoreState::Leaving,
            3 => StoreState::Lost,
            4 => StoreState::Removed,
            _ => return Err(reader.malformed()),
        };
        let (level, schema) = (reader.varint()?, reader.varint()?);
        let run = StoreRun { starts: reader.varint()?, nonce: reader.varint()? };
        Ok(Self { id, name, address, uuid, labels, state, level, schema, run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_change::StateChange;

    fn registry() -> StoreRegistry {
        let store = |id: u64| StoreRecord {
            id: StoreId(id),
            name: format!("s{id}"),
            address: format!("h:{id}"),
            uuid: StoreUuid(id.into()),
            labels: vec![("zone".to_owned(), "a".to_owned())],
            level: 1,
            schema: 1,
            ..StoreRecord::default()
        };
        StoreRegistry { version: 1, level: 1, stores: vec![store(1), store(2)] }
    }

    fn report(starts: u64, address: &str) -> RunReport {
        RunReport {
            store: StoreId(2),
            uuid: StoreUuid(2),
            address: address.to_owned(),
            run: StoreRun { starts, nonce: 7 },
            level: 1,
            schema: 1,
            labels: Vec::new(),
        }
    }

    #[test]
    fn rows_come_back_and_damaged_ones_do_not() {
        let registry = registry();
        let bytes = registry.encode();
        assert_eq!(StoreRegistry::decode(&bytes), Ok(registry));
        for len in 0..bytes.len() {
            assert!(StoreRegistry::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn a_newer_start_brings_its_address_and_an_older_one_changes_nothing() {
        let moved = registry().with_run(&report(3, "new:2")).unwrap();
        assert_eq!((moved.version, moved.stores[1].address.as_str()), (2, "new:2"));
        assert_eq!(moved.with_run(&report(3, "new:2")), None, "it is no news");
        assert_eq!(moved.with_run(&report(2, "old:2")), None, "an older start");
        let other = RunReport { uuid: StoreUuid(9), ..report(4, "h:9") };
        assert_eq!(moved.with_run(&other), None, "another directory");
        assert_eq!(registry().named("s2").unwrap().id, StoreId(2));
    }

    #[test]
    fn labels_of_a_start_replace_the_former_ones_and_none_leave_them() {
        let labels = vec![("zone".to_owned(), "b".to_owned())];
        let told = RunReport { labels: labels.clone(), ..report(3, "h:2") };
        let moved = registry().with_run(&told).unwrap();
        assert_eq!(moved.stores[1].labels, labels);
        let kept = moved.with_run(&report(4, "h:2")).unwrap();
        assert_eq!(kept.stores[1].labels, labels);
    }

    #[test]
    fn a_later_registry_has_all_stores_with_their_directories() {
        let earlier = registry();
        let later = StoreRegistry { version: 2, ..earlier.clone() };
        assert!(later.continues(&earlier) && earlier.continues(&earlier));
        assert!(!earlier.continues(&later), "an earlier version");
        let mut other = later.clone();
        other.stores[0].uuid = StoreUuid(9);
        assert!(!other.continues(&earlier), "another directory");
        let mut fewer = later.clone();
        fewer.stores.pop();
        assert!(!fewer.continues(&earlier), "a store is gone");
        assert!(!StoreRegistry { level: 0, ..later.clone() }.continues(&earlier), "a lower level");
        for state in [StoreState::Lost, StoreState::Removed] {
            let mut gone = later.clone();
            gone.stores[1].state = state;
            assert!(gone.continues(&earlier) && !later.continues(&gone), "{state:?} for ever");
        }
    }

    #[test]
    fn a_store_that_is_gone_stops_and_keeps_no_level_down() {
        let mut registry = registry();
        registry.stores[0].level = 3;
        let id = StoreId(2);
        assert_eq!((registry.departure(id), registry.is_gone(id)), (None, false));
        registry.stores[1].state = StoreState::Draining;
        assert_eq!((registry.departure(id), registry.is_gone(id)), (None, false));
        for (state, how) in [
            (StoreState::Lost, "store 2, s2, was declared lost"),
            (StoreState::Removed, "store 2, s2, has left the cluster"),
        ] {
            registry.stores[1].state = state;
            assert!(registry.is_gone(id) && registry.departure(id).unwrap().starts_with(how));
            assert_eq!(registry.with_run(&report(9, "h:2")), None, "it reports in vain");
        }
        assert!(!registry.is_gone(StoreId(9)));
        let run = registry.stores[1].run;
        let later = StoreRun { starts: run.starts + 1, ..run };
        assert!(registry.has_left(id, run) && !registry.has_left(id, later), "a start after that");
        registry.stores[1].state = StoreState::Lost;
        assert!(!registry.has_left(id, run), "it was not told to go");
        let newer =
            RunReport { store: StoreId(1), uuid: StoreUuid(1), level: 3, ..report(3, "h:1") };
        assert_eq!(registry.with_run(&newer).unwrap().level, 3, "the gone store has level 1");
    }

    #[test]
    fn stores_that_hold_the_level_back_are_named() {
        let mut registry = registry();
        let store = StoreRecord { id: StoreId(3), name: "s3".to_owned(), ..StoreRecord::default() };
        registry.stores.push(StoreRecord { level: 3, ..store });
        assert_eq!(registry.check_level(1), Ok(()));
        let refusal = registry.check_level(3).unwrap_err().to_string();
        assert_eq!(refusal, "the feature level is 1, and 3 is needed: upgrade s1, s2");
        registry.stores[0].level = 3;
        // One that is gone holds nothing back: the level rises with its end.
        let lost = registry.with_state(StoreId(2), StateChange::Lost).unwrap().unwrap();
        assert_eq!((lost.level, lost.check_level(3)), (3, Ok(())));
    }

    #[test]
    fn a_name_belongs_to_the_store_that_takes_part() {
        let mut registry = registry();
        registry.stores[1].state = StoreState::Lost;
        assert_eq!(registry.named("s2"), None);
        assert!(registry.named("s1").is_some());
    }
}
