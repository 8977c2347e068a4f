//! The rows of placement behind a recovery: the lost stores are lost, and nothing is handed out
//! that the lost leaders may have handed out.

use flotilla_identity::{StateChange, StoreRegistry};
use flotilla_placement::{FLOOR, rows};
use flotilla_store::{RecoveryPlan, SystemRows};

/// Ids that the lost leaders may have leased without a word to the survivors are fewer: ten
/// thousand blocks.
const IDS_STEP: u64 = 100_000_000;
/// Timestamps that they may have given are less far ahead of the clock of this machine.
const TSO_STEP_MS: u64 = 60_000;

/// The rows that are to be put. Those of the system region are `rows`.
pub(super) fn change(
    rows: &SystemRows,
    plan: &RecoveryPlan,
    now_ms: u64,
) -> Result<SystemRows, String> {
    let planned = plan.registry.clone().unwrap_or_default();
    let stored = rows.get(rows::STORES_KEY).map(|row| StoreRegistry::decode(row)).transpose();
    let stored = stored.map_err(|error| error.to_string())?.unwrap_or_default();
    // The log may have had a newer one than the survivors' copies, or they a newer one.
    let mut registry = if stored.version > planned.version { stored } else { planned.clone() };
    for store in &plan.lost {
        if let Ok(Some(changed)) = registry.with_state(*store, StateChange::Lost) {
            registry = changed;
        }
    }
    // Above each copy, so that all survivors take it.
    registry.version = registry.version.max(planned.version) + 1;
    let number = |key, floor: u64| {
        let row = rows.get(key).map(|row| rows::decode(key, row)).transpose();
        row.map(|number| number.unwrap_or_default().max(floor)).map_err(|error| error.to_string())
    };
    let (ids, tso_ms) = (number(rows::IDS_KEY, FLOOR)?, number(rows::TSO_KEY, now_ms)?);
    Ok(SystemRows::from([
        (rows::STORES_KEY.to_vec(), registry.encode()),
        (rows::IDS_KEY.to_vec(), rows::encode(ids + IDS_STEP)),
        (rows::TSO_KEY.to_vec(), rows::encode(tso_ms + TSO_STEP_MS)),
    ]))
}

#[cfg(test)]
mod tests {
    use flotilla_identity::StoreRecord;
    use flotilla_region::StoreId;

    use super::*;

    fn registry(version: u64) -> StoreRegistry {
        let record = |id| StoreRecord { id: StoreId(id), ..StoreRecord::default() };
        StoreRegistry { version, level: 1, stores: (1..=3).map(record).collect() }
    }

    #[test]
    fn the_newest_registry_loses_the_stores_and_all_numbers_rise() {
        let lost = [StoreId(2), StoreId(3)].into();
        let planned = Some(registry(7));
        let plan = RecoveryPlan { lost, regions: vec![], registry: planned };
        for stored in [4, 9] {
            let before = SystemRows::from([
                (rows::STORES_KEY.to_vec(), registry(stored).encode()),
                (rows::IDS_KEY.to_vec(), rows::encode(FLOOR + 7)),
                (rows::TSO_KEY.to_vec(), rows::encode(50)),
                (b"other".to_vec(), vec![1]),
            ]);
            let after = change(&before, &plan, 1_000).unwrap();
            assert_eq!(after.len(), 3, "the others stay");
            let found = StoreRegistry::decode(&after[rows::STORES_KEY]).unwrap();
            assert!(found.is_gone(StoreId(2)) && found.is_gone(StoreId(3)));
            assert!(found.version > 7 && found.version > stored && !found.is_gone(StoreId(1)));
            assert!(found.continues(&registry(stored)));
            assert_eq!(after[rows::IDS_KEY], rows::encode(FLOOR + 7 + IDS_STEP));
            assert_eq!(after[rows::TSO_KEY], rows::encode(1_000 + TSO_STEP_MS));
        }
        let damaged = SystemRows::from([(rows::IDS_KEY.to_vec(), vec![9])]);
        assert!(change(&damaged, &plan, 1_000).is_err());
        let none = change(&SystemRows::new(), &plan, 1_000).unwrap();
        assert_eq!(none[rows::IDS_KEY], rows::encode(FLOOR + IDS_STEP));
    }
}
