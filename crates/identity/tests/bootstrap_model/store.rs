//! One store of the model: its directory, its process, and what the real code does at each event.

use std::rc::Rc;

use flotilla_identity::{
    Bootstrap, BootstrapPlan, BootstrapRefusal, BootstrapRequest, BootstrapResponse,
    BootstrapWrite, ClusterSettings, ClusterSpec, IdentityState, QuestionToken, StoreIdentity,
    StoreRegistry, StoreRun, StoreUuid, member_answer,
};

/// The stores' names, by number.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// The durable state of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StoreDirectory {
    /// `None` is an empty directory.
    pub(crate) identity: Option<StoreIdentity>,
    /// The plan whose rows it holds.
    pub(crate) rows: Option<Rc<BootstrapPlan>>,
    /// Whether it holds the write that was acknowledged to a client.
    pub(crate) has_write: bool,
}

/// The process of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum StoreProcess {
    /// Nothing.
    #[default]
    Down,
    /// A store that is no member yet, and its specification: a place in [`given_specs`].
    Bootstrapping(usize, Box<Bootstrap>),
    /// A store that serves.
    Member,
}

/// One store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelStore {
    /// Its number, from 0.
    pub(crate) at: usize,
    pub(crate) directory: StoreDirectory,
    pub(crate) process: StoreProcess,
}

/// One thing that happens at one store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreEvent {
    /// It is started. An empty directory gets this uuid, durably, before anything else.
    Start { told: usize, uuid: StoreUuid },
    /// Its process ends.
    Crash,
    /// Its directory is emptied while it is down.
    Wipe,
    /// A question arrives; what follows from it is durable when the answer leaves.
    Question(Rc<BootstrapRequest>),
    /// The answer of another store arrives.
    Answer(usize, QuestionToken, BootstrapResponse),
    /// It does what it can by itself. A plan that it draws gets this cluster id.
    Advance(u64),
    /// It no longer waits for others to keep its plan.
    GiveUp,
    /// It tells a client that a write is done.
    Acknowledge,
}

/// The result of an event.
#[derive(Clone, Debug)]
pub(crate) struct StoreStep {
    pub(crate) store: ModelStore,
    /// Whether answers to earlier questions are void.
    pub(crate) voids_questions: bool,
    /// Questions that are sent, with the stores that they go to. All are sent that are still to
    /// be answered, but those that ask for no promise: those change nothing where they arrive.
    pub(crate) questions: Vec<(usize, BootstrapRequest)>,
    /// Said to all others, without waiting for an answer.
    pub(crate) announcement: Option<BootstrapRequest>,
    pub(crate) response: Option<BootstrapResponse>,
    pub(crate) drawn: Option<Rc<BootstrapPlan>>,
    pub(crate) refusal: Option<BootstrapRefusal>,
    /// The rule that the store broke.
    pub(crate) broken: Option<&'static str>,
}

/// The lists and settings that operators give. The first is the right one.
pub(crate) fn given_specs(stores: usize) -> Vec<ClusterSpec> {
    let addresses = ["a=h:1", "b=h:2", "c=h:3"];
    let reversed: Vec<&str> = addresses[..stores].iter().rev().copied().collect();
    let spec = |list: &[&str], replicas| {
        let stores =
            ClusterSpec::parse_stores(&list.join(",")).expect("a list of names and addresses");
        let settings = ClusterSettings { replicas, ..ClusterSettings::default() };
        ClusterSpec { stores, settings, regions: 1, split_keys: vec![], cluster_id: 0 }
    };
    vec![spec(&addresses[..stores], 3), spec(&reversed, 3), spec(&addresses[..stores], 1)]
}

impl ModelStore {
    pub(crate) fn new(at: usize) -> Self {
        Self { at, directory: StoreDirectory::default(), process: StoreProcess::Down }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process != StoreProcess::Down
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.process == StoreProcess::Member
    }

    pub(crate) fn bootstrap(&self) -> Option<(usize, &Bootstrap)> {
        match &self.process {
            StoreProcess::Bootstrapping(told, bootstrap) => Some((*told, bootstrap)),
            StoreProcess::Down | StoreProcess::Member => None,
        }
    }

    pub(crate) fn is_forming_as_founder(&self) -> bool {
        self.bootstrap().is_some_and(|(_, bootstrap)| bootstrap.is_forming_as_founder())
    }

    /// All questions to which the store lacks answers, with the stores that they go to.
    pub(crate) fn questions(&self) -> Vec<(usize, BootstrapRequest)> {
        let Some((_, bootstrap)) = self.bootstrap() else { return Vec::new() };
        let listed = &bootstrap.spec().stores;
        let number = |place: usize| {
            let found = NAMES.iter().position(|name| *name == listed[place].name);
            found.expect("lists have known names")
        };
        let questions = bootstrap.questions().into_iter();
        questions.map(|(place, request)| (number(place), request)).collect()
    }

    /// The result of `event`.
    pub(crate) fn step(&self, event: &StoreEvent, specs: &[ClusterSpec]) -> StoreStep {
        let mut step = StoreStep {
            store: self.clone(),
            voids_questions: false,
            questions: Vec::new(),
            announcement: None,
            response: None,
            drawn: None,
            refusal: None,
            broken: None,
        };
        match event {
            StoreEvent::Start { told, uuid } => step.store.start(*told, *uuid, specs),
            StoreEvent::Crash => step.end(),
            StoreEvent::Wipe => step.store.directory = StoreDirectory::default(),
            StoreEvent::Question(request) => step.answer(request),
            StoreEvent::Answer(from, token, response) => step.hear(*from, *token, response),
            StoreEvent::Advance(cluster_id) => step.advance(*cluster_id),
            StoreEvent::GiveUp => {
                if let StoreProcess::Bootstrapping(_, bootstrap) = &mut step.store.process {
                    bootstrap.ask_anew(0);
                }
            }
            StoreEvent::Acknowledge => step.store.directory.has_write = true,
        }
        let asks = |request: &BootstrapRequest| {
            !matches!(request, BootstrapRequest::Prepare { round: 0, .. })
        };
        step.questions = step.store.questions();
        step.questions.retain(|(_, request)| asks(request));
        step
    }

    fn start(&mut self, told: usize, uuid: StoreUuid, specs: &[ClusterSpec]) {
        let run = StoreRun { starts: 1, nonce: 1 };
        let fresh = || StoreIdentity::new(uuid, run);
        let identity = self.directory.identity.get_or_insert_with(fresh).clone();
        self.process = match identity.state {
            IdentityState::Member => StoreProcess::Member,
            IdentityState::New | IdentityState::Forming => {
                let spec = specs[told].clone();
                let place = spec.place(NAMES[self.at]).expect("all lists name all stores");
                let bootstrap = Bootstrap::new(identity, spec, place, Vec::new());
                StoreProcess::Bootstrapping(told, Box::new(bootstrap))
            }
        };
    }
}

impl StoreStep {
    fn end(&mut self) {
        self.store.process = StoreProcess::Down;
        self.voids_questions = true;
    }

    fn answer(&mut self, request: &BootstrapRequest) {
        match &self.store.process {
            StoreProcess::Down => {}
            StoreProcess::Member => {
                let StoreDirectory { identity, rows, .. } = &self.store.directory;
                let Some((own, rows)) = identity.as_ref().zip(rows.as_ref()) else { return };
                let registry = StoreRegistry::of_plan(rows);
                self.response = Some(member_answer(own, &registry, request));
            }
            StoreProcess::Bootstrapping(_, bootstrap) => {
                let (write, response) = bootstrap.answer(request);
                self.response = Some(response);
                if let Some(write) = write {
                    self.write(&write);
                }
            }
        }
    }

    fn hear(&mut self, from: usize, token: QuestionToken, response: &BootstrapResponse) {
        let StoreProcess::Bootstrapping(_, bootstrap) = &mut self.store.process else { return };
        let place = bootstrap.spec().place(NAMES[from]).expect("all lists name all stores");
        let heard = bootstrap.hear(place, token, response);
        // Operators see which stores answer; nothing else depends on it.
        bootstrap.note_silence(place);
        match heard {
            Ok(Some(write)) => self.write(&write),
            Ok(None) => {}
            Err(refusal) => {
                self.refusal = Some(refusal);
                self.end();
            }
        }
    }

    fn advance(&mut self, cluster_id: u64) {
        let StoreProcess::Bootstrapping(_, bootstrap) = &mut self.store.process else { return };
        let Some(write) = bootstrap.advance(cluster_id) else { return };
        self.write(&write);
        if let BootstrapWrite::Form { .. } = write {
            self.drawn.clone_from(&self.store.directory.rows);
        }
    }

    fn write(&mut self, write: &BootstrapWrite) {
        let StoreProcess::Bootstrapping(_, bootstrap) = &mut self.store.process else { return };
        if let BootstrapWrite::Form { plan, .. } = write {
            if plan.spec != *bootstrap.spec() {
                self.broken = Some("rule 5: a store forms with what it was not told");
            }
            self.store.directory.rows = Some(Rc::new((**plan).clone()));
        }
        bootstrap.written(write);
        self.store.directory.identity = Some(bootstrap.identity().clone());
        self.voids_questions = true;
        if bootstrap.is_member() {
            self.announcement = Some(bootstrap.announcement());
            self.store.process = StoreProcess::Member;
        }
    }
}
