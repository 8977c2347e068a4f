//! The rules that hold in every state.

use std::collections::BTreeMap;
use std::rc::Rc;

use flotilla_identity::{Handshake, HelloDecision, RunHistory, StoreRegistry};

use crate::calm;
use crate::store::ModelStore;
use crate::world::{ModelWorld, StepTable};

/// The rules, with a memory of what was found before for stores in the same condition.
#[derive(Debug, Default)]
pub(crate) struct ModelRules {
    accepted: BTreeMap<(usize, usize), bool>,
    /// The inputs of a final state, messages under way aside: stores, losses, plans drawn.
    calm: BTreeMap<(Vec<usize>, u8, usize), Option<&'static str>>,
}

impl ModelRules {
    /// The rule that a state breaks.
    pub(crate) fn broken(
        &mut self,
        world: &ModelWorld,
        table: &mut StepTable,
    ) -> Option<&'static str> {
        if let Some(rule) = world.broken.or_else(|| self.unsafety(world, table)) {
            return Some(rule);
        }
        let key = (world.stores.clone(), world.lost, world.clusters.len());
        if let Some(known) = self.calm.get(&key) {
            return *known;
        }
        let found = calm::broken(world, table, self);
        self.calm.insert(key, found);
        found
    }

    fn unsafety(&mut self, world: &ModelWorld, table: &StepTable) -> Option<&'static str> {
        let serving = world.clusters.iter().filter(|(_, acknowledged_by)| *acknowledged_by > 0);
        if serving.count() > 1 && world.lost.count_ones() as usize * 2 <= world.stores.len() {
            return Some("rule 1: two clusters acknowledged writes");
        }
        let stores = world.stores.len();
        let pairs = (0..stores).flat_map(|at| (0..stores).map(move |other| (at, other)));
        for (at, other) in pairs.filter(|(at, other)| at != other) {
            if !self.accept_each_other(world, table, at, other) {
                continue;
            }
            let (own, theirs) = (table.store(world, at), table.store(world, other));
            let Some(rows) = &own.directory.rows else {
                return Some("rule 2: a store serves without rows");
            };
            let has_acknowledged = world.clusters.iter().any(|(plan, acknowledged_by)| {
                table.plans.values[*plan] == *rows && acknowledged_by >> at & 1 == 1
            });
            if has_acknowledged && !own.directory.has_write {
                return Some("rule 2: a store serves without what it acknowledged");
            }
            if theirs.directory.rows.as_ref() != Some(rows) {
                return Some("rule 1: members of two plans serve together");
            }
        }
        None
    }

    /// Whether two stores are members, and each takes the other's messages.
    pub(crate) fn accept_each_other(
        &mut self,
        world: &ModelWorld,
        table: &StepTable,
        at: usize,
        other: usize,
    ) -> bool {
        let (first, second) = (table.store(world, at), table.store(world, other));
        if !first.is_serving() || !second.is_serving() {
            return false;
        }
        let key = (world.stores[at], world.stores[other]);
        *self.accepted.entry(key).or_insert_with(|| accept_each_other(first, second))
    }
}

fn accept_each_other(first: &ModelStore, second: &ModelStore) -> bool {
    let id = |store: &ModelStore| store.directory.identity.as_ref().map(|own| own.store);
    let (Some(first_id), Some(second_id)) = (id(first), id(second)) else { return true };
    let (Some(mut first), Some(mut second)) = (handshake(first), handshake(second)) else {
        return true;
    };
    let is_taken = |decision| matches!(decision, HelloDecision::Accept(_));
    is_taken(first.decide(&second.greet(first_id), 0))
        && is_taken(second.decide(&first.greet(second_id), 0))
}

/// The real handshake of a member. `None` if it has no rows to say what the cluster is.
fn handshake(store: &ModelStore) -> Option<Handshake> {
    let own = store.directory.identity.as_ref()?;
    let plan: &Rc<_> = store.directory.rows.as_ref()?;
    let identity = (own.uuid, own.run);
    let settings = plan.spec.settings;
    let who = Handshake::introduction(own.member_id(), &own.name, "h:1", identity, settings);
    let history = RunHistory { runs: BTreeMap::from([(own.run.starts, (own.run.nonce, 0))]) };
    let registry = StoreRegistry::of_plan(plan);
    Some(Handshake::new(who, history, registry, Vec::new(), false))
}
