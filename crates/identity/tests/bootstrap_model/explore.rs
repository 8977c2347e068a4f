//! Goes through the states, the nearest first, and tells how a broken rule is reached.

use std::collections::{BTreeSet, VecDeque};

use crate::actions::{ModelAction, ModelBounds, after, apply, candidates};
use crate::rules::ModelRules;
use crate::world::{ModelWorld, StepTable};

/// How far an exploration came.
#[derive(Debug, Default)]
pub(crate) struct Exploration {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) is_whole: bool,
    /// States in which some store is a member.
    pub(crate) begun: usize,
    /// States in which a write was acknowledged.
    pub(crate) acknowledged: usize,
}

/// From where an exploration begins: how far the bootstrap of all stores has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FirstState {
    /// All directories are empty.
    Empty,
    /// All have promised, and the founder has drawn its plan.
    Drawn,
    /// All keep the plan, and the founder has not heard of it.
    Kept,
    /// The founder is a member, and no other store has heard of it.
    Begun,
}

/// The state to begin with, reached by the same actions as all others.
fn first_state(table: &mut StepTable, first: FirstState, stores: usize) -> ModelWorld {
    let mut world = table.first();
    if first >= FirstState::Drawn {
        (0..stores).for_each(|at| table.start(&mut world, at, 0));
        deliver_questions(&mut world, table);
        deliver_answers(&mut world, table);
        apply(&mut world, table, ModelAction::Advance(0));
    }
    if first >= FirstState::Kept {
        deliver_questions(&mut world, table);
    }
    if first >= FirstState::Begun {
        deliver_answers(&mut world, table);
        apply(&mut world, table, ModelAction::Advance(0));
        assert!(table.store(&world, 0).is_serving());
    }
    world
}

fn deliver_questions(world: &mut ModelWorld, table: &mut StepTable) {
    for (question, _) in world.questions.clone() {
        apply(world, table, ModelAction::Arrive(question));
    }
}

fn deliver_answers(world: &mut ModelWorld, table: &mut StepTable) {
    for answer in world.answers.clone() {
        apply(world, table, ModelAction::Hear(answer));
    }
}

/// Explores all that follows from a first state, up to `states_max` states.
///
/// # Panics
///
/// If a state breaks a rule; the message says how it is reached.
pub(crate) fn explore(bounds: &ModelBounds, first: FirstState, states_max: usize) -> Exploration {
    let (mut table, mut rules) = (StepTable::new(bounds.stores), ModelRules::default());
    let first = first_state(&mut table, first, bounds.stores);
    let mut seen = BTreeSet::from([first.fingerprint()]);
    // By number of state: the state before it, and the action between them.
    let mut reached: Vec<Option<(u32, ModelAction)>> = vec![None];
    let mut open = VecDeque::from([(first.clone(), 0, 0)]);
    let mut exploration = Exploration::default();
    while let Some((world, number, depth)) = open.pop_front() {
        exploration.depth = depth;
        let is_begun = (0..bounds.stores).any(|at| table.store(&world, at).is_serving());
        exploration.begun += usize::from(is_begun);
        exploration.acknowledged += usize::from(world.clusters.iter().any(|(_, by)| *by > 0));
        if let Some(rule) = rules.broken(&world, &mut table) {
            panic!("{rule}\n{}", trace(first, &mut table, &reached, number));
        }
        if reached.len() >= states_max {
            continue;
        }
        for action in candidates(&world, &table, &mut rules, bounds) {
            let Some(next) = after(&world, &mut table, bounds, action) else { continue };
            if seen.insert(next.fingerprint()) {
                open.push_back((next, reached.len() as u32, depth + 1));
                reached.push(Some((number, action)));
            }
        }
    }
    exploration.states = reached.len();
    exploration.is_whole = reached.len() < states_max;
    exploration
}

/// The actions on the way to a state, and the stores at its end.
fn trace(
    mut world: ModelWorld,
    table: &mut StepTable,
    reached: &[Option<(u32, ModelAction)>],
    mut number: u32,
) -> String {
    let mut actions = Vec::new();
    while let Some((before, action)) = reached[number as usize] {
        actions.push(action);
        number = before;
    }
    let mut lines = String::new();
    for action in actions.iter().rev() {
        let shown = match *action {
            ModelAction::Arrive(question) => format!("{:?}", table.questions.values[question]),
            ModelAction::Hear(answer) => format!("{:?}", table.answers.values[answer]),
            _ => String::new(),
        };
        lines += &format!("{action:?} {shown}\n");
        apply(&mut world, table, *action);
    }
    for at in 0..world.stores.len() {
        lines += &format!("store {at}: {:?}\n", table.store(&world, at));
    }
    lines
}
