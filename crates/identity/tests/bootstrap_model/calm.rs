//! The required outcome of any state once nothing fails any more: all stores are started with the
//! right list, and all messages arrive.

use std::rc::Rc;

use flotilla_identity::BootstrapRequest;

use crate::rules::ModelRules;
use crate::store::StoreEvent;
use crate::world::{ModelWorld, StepTable};

/// Rounds of exchanges after which the stores have settled.
const EXCHANGES_MAX: usize = 30;

/// The rule that is broken at the end, whichever store goes first.
pub(crate) fn broken(
    world: &ModelWorld,
    table: &mut StepTable,
    rules: &mut ModelRules,
) -> Option<&'static str> {
    let forwards: Vec<usize> = (0..world.stores.len()).collect();
    let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
    [forwards, backwards].iter().find_map(|order| broken_in_order(world, table, rules, order))
}

fn broken_in_order(
    world: &ModelWorld,
    table: &mut StepTable,
    rules: &mut ModelRules,
    order: &[usize],
) -> Option<&'static str> {
    let mut world = world.clone();
    world.questions.clear();
    world.answers.clear();
    for &at in order {
        if table.store(&world, at).bootstrap().is_some_and(|(told, _)| told > 0) {
            table.happen(&mut world, at, &StoreEvent::Crash);
        }
        if !table.store(&world, at).is_running() {
            table.start(&mut world, at, 0);
        }
    }
    for _ in 0..EXCHANGES_MAX {
        let before = world.stores.clone();
        order.iter().for_each(|at| exchange(&mut world, table, *at));
        if world.broken.is_some() {
            return world.broken;
        }
        if world.stores == before {
            return judge(&world, table, rules);
        }
    }
    Some("rule 4: the stores never settle")
}

/// One store asks all others what it has to ask, and hears all answers.
fn exchange(world: &mut ModelWorld, table: &mut StepTable, at: usize) {
    let Some((_, bootstrap)) = table.store(world, at).bootstrap() else { return };
    let token = bootstrap.token();
    let was_forming = table.store(world, at).is_forming_as_founder();
    for (to, request) in table.store(world, at).questions() {
        let event = StoreEvent::Question(Rc::new(request));
        let Some(response) = table.happen(world, to, &event).response else { continue };
        if table.happen(world, at, &StoreEvent::Answer(to, token, response)).is_refused {
            return;
        }
    }
    loop {
        let before = world.stores[at];
        let cluster_id = 1000 + world.clusters.len() as u64;
        table.happen(world, at, &StoreEvent::Advance(cluster_id));
        if world.stores[at] == before {
            break;
        }
    }
    for (question, _) in std::mem::take(&mut world.questions) {
        let question = table.questions.values[question].clone();
        if let BootstrapRequest::Begin { .. } = *question.request {
            table.happen(world, question.to, &StoreEvent::Question(question.request));
        }
    }
    if was_forming && table.store(world, at).is_forming_as_founder() {
        table.happen(world, at, &StoreEvent::GiveUp);
    }
    world.questions.clear();
}

/// The defect of the final state. A store that is down was refused.
fn judge(world: &ModelWorld, table: &StepTable, rules: &mut ModelRules) -> Option<&'static str> {
    let stores = world.stores.len();
    let is_serving = |at: &usize| table.store(world, *at).is_serving();
    let serving: Vec<usize> = (0..stores).filter(is_serving).collect();
    if serving.is_empty() {
        return Some("rule 4: nothing begins");
    }
    if (0..stores).any(|at| table.store(world, at).bootstrap().is_some()) {
        return Some("rule 4: a store waits for ever beside members");
    }
    let quorum = stores / 2 + 1;
    let mut has_quorum = |at: usize| {
        let others = serving.iter().filter(|other| **other != at);
        let others = others.filter(|other| rules.accept_each_other(world, table, at, **other));
        others.count() + 1 >= quorum
    };
    let together: Vec<usize> = serving.iter().copied().filter(|at| has_quorum(*at)).collect();
    let is_excused = world.lost.count_ones() as usize > stores - quorum;
    if together.is_empty() && !is_excused {
        return Some("rule 4: members, but no quorum, and no majority was lost");
    }
    let is_left_out = |at: usize| !world.is_lost(at) && !together.contains(&at);
    let is_one_left_out = (0..stores).any(is_left_out);
    (is_one_left_out && !is_excused).then_some("rule 3: a sound store is left out for good")
}
