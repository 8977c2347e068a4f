//! Prints the plan of a recovery and its outcome, as tables or as JSON.

use std::io::Write as _;

use flotilla_identity::StoreRegistry;
use flotilla_region::{Space, StoreId};
use flotilla_store::{DirectoryRecovery, PlannedRegion, RecoveryPlan};
use serde_json::{Value, json};

use crate::ctl::escape;
use crate::tool::{Error, TableCell, number, table, tell};
use crate::units::counted;

/// The name of a store, and its number if it has none.
fn name_of(registry: &StoreRegistry, store: StoreId) -> String {
    let record = registry.store(store);
    record.map_or_else(|| format!("store {store}"), |record| record.name.clone())
}

/// Whether placement has to be told that the stores are lost, once it runs.
fn tells_placement(plan: &RecoveryPlan) -> bool {
    plan.registry.is_none()
}

/// The plan, region by region.
pub(super) fn plan(
    plan: &RecoveryPlan,
    cluster_id: u64,
    registry: &StoreRegistry,
    is_json: bool,
) -> Result<(), Error> {
    let out = &mut std::io::stdout().lock();
    if is_json {
        let told = json!({
            "cluster_id": cluster_id.to_string(),
            "lost": plan.lost.iter().map(|store| store.0).collect::<Value>(),
            "regions": plan.regions.iter().map(to_json).collect::<Value>(),
            "tell_placement": tells_placement(plan),
        });
        return Ok(writeln!(out, "{told:#}")?);
    }
    let lost: Vec<_> = plan.lost.iter().map(|store| name_of(registry, *store)).collect();
    writeln!(out, "cluster {cluster_id} without {}:\n", lost.join(", "))?;
    let mut rows =
        table(&["region", "start", "logs of survivors", "goes on by", "not surely there"]);
    for planned in &plan.regions {
        let logs = planned.replicas.iter().map(|(store, committed, (last, term))| {
            let store = name_of(registry, *store);
            format!("{store}: {committed} of {last}, term {term}")
        });
        let goes_on = match planned.is_recovered {
            true => format!("{} alone", name_of(registry, planned.newest)),
            false => "its majority".to_owned(),
        };
        let start = match planned.descriptor.space {
            Space::System => "(placement)".to_owned(),
            Space::Raw => escape(&planned.descriptor.start),
        };
        rows.add_row([
            number(planned.region.0),
            TableCell::new(start),
            TableCell::new(logs.collect::<Vec<_>>().join("; ")),
            TableCell::new(goes_on),
            TableCell::new(match planned.is_recovered {
                true => counted(uncommitted(planned), "entry", "entries"),
                false => String::new(),
            }),
        ]);
    }
    writeln!(out, "{rows}\n")?;
    writeln!(
        out,
        "Each region that goes on by one replica has what that replica has: all entries of its log \
         are applied,\nalso those of which it does not know that they were committed. Writes that \
         only the lost stores had are lost."
    )?;
    Ok(out.flush()?)
}

/// Entries that the newest replica does not know as committed.
fn uncommitted(planned: &PlannedRegion) -> u64 {
    let newest = planned.replicas.iter().find(|(store, ..)| *store == planned.newest);
    newest.map_or(0, |(_, committed, (last, _))| last.0.saturating_sub(committed.0))
}

fn to_json(planned: &PlannedRegion) -> Value {
    let replicas = planned.replicas.iter().map(|(store, committed, (last, term))| {
        json!({
            "store": store.0,
            "committed": committed.0,
            "last_index": last.0,
            "last_term": term.0,
        })
    });
    json!({
        "region": planned.region.0,
        "space": match planned.descriptor.space { Space::System => "system", Space::Raw => "raw" },
        "start": escape(&planned.descriptor.start),
        "end": escape(&planned.descriptor.end),
        "newest": planned.newest.0,
        "is_recovered": planned.is_recovered,
        "uncommitted": uncommitted(planned),
        "replicas": replicas.collect::<Value>(),
    })
}

/// The outcome, and the next steps.
pub(super) fn done(
    plan: &RecoveryPlan,
    done: &[(StoreId, DirectoryRecovery)],
    registry: &StoreRegistry,
    is_json: bool,
) -> Result<(), Error> {
    for (store, recovery) in done {
        let (store, regions) = (name_of(registry, *store), recovery.recovered.len() as u64);
        let regions = counted(regions, "region goes", "regions go");
        tell(format_args!("{store}: {regions} on by the replica there alone"));
    }
    if is_json {
        return Ok(());
    }
    let lost: Vec<_> = plan.lost.iter().map(|store| name_of(registry, *store)).collect();
    let out = &mut std::io::stdout().lock();
    writeln!(out, "\nStart the survivors. Add stores with `serve --join`, for replicas.")?;
    if tells_placement(plan) {
        writeln!(
            out,
            "Then `flotilla ctl store lost` for each of {}: until that is done they must not start.",
            lost.join(", ")
        )?;
    }
    Ok(out.flush()?)
}
