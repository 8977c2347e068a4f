//! All that may happen in a state, one durable step at a time.

use std::rc::Rc;

use flotilla_identity::BootstrapRequest;

use crate::rules::ModelRules;
use crate::store::StoreEvent;
use crate::world::{ModelWorld, SentAnswer, SentQuestion, StepTable};

/// How often the things may happen that would else never end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelBounds {
    pub(crate) stores: usize,
    /// Plans drawn.
    pub(crate) clusters: usize,
    /// Directories wiped.
    pub(crate) wipes: u8,
    /// Starts with another list or other settings.
    pub(crate) odd_starts: u8,
    /// The greatest round that a founder asks for.
    pub(crate) round_max: u64,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelAction {
    Start {
        at: usize,
        told: usize,
    },
    Crash(usize),
    Wipe(usize),
    /// A question under way arrives, and the answer to it is under way.
    Arrive(usize),
    /// A store asks a member, and the answer is under way.
    AskMember {
        at: usize,
        member: usize,
    },
    /// An answer under way arrives.
    Hear(usize),
    Advance(usize),
    GiveUp(usize),
    /// Two members tell a client that its write is done.
    Acknowledge {
        first: usize,
        second: usize,
    },
}

/// The actions that may be possible; some of them change nothing.
pub(crate) fn candidates(
    world: &ModelWorld,
    table: &StepTable,
    rules: &mut ModelRules,
    bounds: &ModelBounds,
) -> Vec<ModelAction> {
    let mut actions = Vec::new();
    for at in 0..bounds.stores {
        let store = table.store(world, at);
        if store.is_running() {
            actions.push(ModelAction::Crash(at));
        } else {
            let identity = store.directory.identity.as_ref();
            let is_member = identity.is_some_and(|own| own.is_member());
            let may_be_odd = !is_member && world.odd_starts < bounds.odd_starts;
            let told = if may_be_odd { 0..3 } else { 0..1 };
            actions.extend(told.map(|told| ModelAction::Start { at, told }));
            if world.wipes < bounds.wipes && identity.is_some() {
                actions.push(ModelAction::Wipe(at));
            }
        }
        for other in (0..bounds.stores).filter(|other| *other != at) {
            let theirs = table.store(world, other);
            if store.bootstrap().is_some() && theirs.is_serving() {
                actions.push(ModelAction::AskMember { at, member: other });
            }
            let is_news = !(store.directory.has_write && theirs.directory.has_write);
            if at < other && is_news && rules.accept_each_other(world, table, at, other) {
                actions.push(ModelAction::Acknowledge { first: at, second: other });
            }
        }
        if store.bootstrap().is_some_and(|(_, bootstrap)| bootstrap.clone().advance(0).is_some()) {
            actions.push(ModelAction::Advance(at));
        }
        if store.is_forming_as_founder() {
            actions.push(ModelAction::GiveUp(at));
        }
    }
    actions.extend(world.questions.iter().map(|(question, _)| ModelAction::Arrive(*question)));
    actions.extend(world.answers.iter().map(|answer| ModelAction::Hear(*answer)));
    actions
}

/// The state after an action. `None` if it is out of bounds.
pub(crate) fn after(
    world: &ModelWorld,
    table: &mut StepTable,
    bounds: &ModelBounds,
    action: ModelAction,
) -> Option<ModelWorld> {
    let mut next = world.clone();
    apply(&mut next, table, action);
    let is_in_bounds =
        |(question, _): &(usize, bool)| match &*table.questions.values[*question].request {
            BootstrapRequest::Prepare { round, .. } => *round <= bounds.round_max,
            BootstrapRequest::Form(_) | BootstrapRequest::Begin { .. } => true,
        };
    let is_in_bounds = next.questions.iter().all(is_in_bounds);
    (is_in_bounds && next.clusters.len() <= bounds.clusters).then_some(next)
}

/// Carries an action out.
pub(crate) fn apply(world: &mut ModelWorld, table: &mut StepTable, action: ModelAction) {
    match action {
        ModelAction::Start { at, told } => {
            world.odd_starts += u8::from(told > 0);
            table.start(world, at, told);
        }
        ModelAction::Crash(at) => {
            table.happen(world, at, &StoreEvent::Crash);
        }
        ModelAction::Wipe(at) => {
            if table.store(world, at).directory.rows.is_some() {
                world.lost |= 1 << at;
            }
            world.wipes += 1;
            table.happen(world, at, &StoreEvent::Wipe);
        }
        ModelAction::Arrive(question) => {
            let is_awaited = world.questions.contains(&(question, true));
            let question = table.questions.values[question].clone();
            ask(world, table, &question, is_awaited);
        }
        ModelAction::AskMember { at, member } => {
            let questions = table.store(world, at).questions();
            if let Some((to, request)) = questions.into_iter().find(|(to, _)| *to == member) {
                let question = SentQuestion { from: at, to, request: Rc::new(request) };
                ask(world, table, &question, true);
            }
        }
        ModelAction::Hear(answer) => {
            let SentAnswer { from, to, token, response } = table.answers.values[answer].clone();
            table.happen(world, to, &StoreEvent::Answer(from, token, response));
        }
        ModelAction::Advance(at) => {
            let cluster_id = 1000 + world.clusters.len() as u64;
            table.happen(world, at, &StoreEvent::Advance(cluster_id));
        }
        ModelAction::GiveUp(at) => {
            table.happen(world, at, &StoreEvent::GiveUp);
        }
        ModelAction::Acknowledge { first, second } => {
            for at in [first, second] {
                let rows = table.store(world, at).directory.rows.as_ref();
                let plan = table.plans.number(Rc::clone(rows.expect("members keep rows")));
                let known = world.clusters.iter_mut().find(|(known, _)| *known == plan);
                known.expect("it was drawn").1 |= 1 << at;
                table.happen(world, at, &StoreEvent::Acknowledge);
            }
        }
    }
}

/// A question is answered, and the answer is under way if the asker still waits for it.
fn ask(world: &mut ModelWorld, table: &mut StepTable, question: &SentQuestion, is_awaited: bool) {
    let SentQuestion { from, to, request } = question;
    let token = table.store(world, *from).bootstrap().map(|(_, bootstrap)| bootstrap.token());
    let event = StoreEvent::Question(Rc::clone(request));
    let response = table.happen(world, *to, &event).response;
    if let (true, Some(token), Some(response)) = (is_awaited, token, response) {
        table.reply(world, SentAnswer { from: *to, to: *from, token, response });
    }
}
