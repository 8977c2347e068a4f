//! One state of the model: numbers of stores and of messages under way. The values themselves are
//! kept once, and so is what follows from each event at each of them.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use flotilla_identity::{
    BootstrapPlan, BootstrapRequest, BootstrapResponse, ClusterSpec, QuestionToken, StoreUuid,
};

use crate::store::{ModelStore, StoreEvent, StoreStep, given_specs};

/// A question that was sent. It stays under way, so it may arrive late, twice or never.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SentQuestion {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) request: Rc<BootstrapRequest>,
}

/// An answer under way. It stays so until the process that asked ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SentAnswer {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) token: QuestionToken,
    pub(crate) response: BootstrapResponse,
}

/// One state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelWorld {
    /// By store: its value in [`StepTable::stores`].
    pub(crate) stores: Vec<usize>,
    /// The plans that were drawn, and the stores, as bits, that acknowledged a write under each.
    pub(crate) clusters: Vec<(usize, u8)>,
    /// Questions under way, and whether the asker still waits for the answer; in order.
    pub(crate) questions: Vec<(usize, bool)>,
    /// Answers under way, in order.
    pub(crate) answers: Vec<usize>,
    /// Stores, as bits, whose directory was wiped when it held rows of a plan.
    pub(crate) lost: u8,
    /// How many empty directories each store had.
    pub(crate) directories: Vec<u8>,
    /// Directories wiped.
    pub(crate) wipes: u8,
    /// Starts with another list or other settings than the right ones.
    pub(crate) odd_starts: u8,
    /// The rule that the last event broke.
    pub(crate) broken: Option<&'static str>,
}

impl ModelWorld {
    /// A number that two states share only if nothing tells them apart.
    pub(crate) fn fingerprint(&self) -> u64 {
        fingerprint_of(self)
    }

    pub(crate) fn is_lost(&self, at: usize) -> bool {
        self.lost >> at & 1 == 1
    }
}

/// Values, each once, by number.
#[derive(Debug)]
pub(crate) struct ValueTable<T> {
    pub(crate) values: Vec<T>,
    numbers: BTreeMap<u64, usize>,
}

impl<T> Default for ValueTable<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: BTreeMap::new() }
    }
}

impl<T: Hash> ValueTable<T> {
    pub(crate) fn number(&mut self, value: T) -> usize {
        let values = &mut self.values;
        *self.numbers.entry(fingerprint_of(&value)).or_insert_with(|| {
            values.push(value);
            values.len() - 1
        })
    }
}

/// The result of an event at a store, by numbers.
#[derive(Debug)]
struct KnownStep {
    step: StoreStep,
    store: usize,
    drawn: Option<usize>,
    questions: Vec<usize>,
    /// For each other store.
    announcements: Vec<usize>,
}

/// All values that occur, and what follows at each store.
#[derive(Debug)]
pub(crate) struct StepTable {
    specs: Vec<ClusterSpec>,
    pub(crate) stores: ValueTable<ModelStore>,
    pub(crate) plans: ValueTable<Rc<BootstrapPlan>>,
    pub(crate) questions: ValueTable<SentQuestion>,
    pub(crate) answers: ValueTable<SentAnswer>,
    steps: BTreeMap<(usize, u64), Rc<KnownStep>>,
}

impl StepTable {
    pub(crate) fn new(stores: usize) -> Self {
        Self {
            specs: given_specs(stores),
            stores: ValueTable::default(),
            plans: ValueTable::default(),
            questions: ValueTable::default(),
            answers: ValueTable::default(),
            steps: BTreeMap::new(),
        }
    }

    /// Empty directories, and nothing runs.
    pub(crate) fn first(&mut self) -> ModelWorld {
        let stores = 0..self.specs[0].stores.len();
        let directories = vec![0; stores.len()];
        let stores = stores.map(|at| self.stores.number(ModelStore::new(at))).collect();
        ModelWorld { stores, directories, ..ModelWorld::default() }
    }

    pub(crate) fn store(&self, world: &ModelWorld, at: usize) -> &ModelStore {
        &self.stores.values[world.stores[at]]
    }

    /// Carries an event out at one store, and puts under way what it sends.
    pub(crate) fn happen(
        &mut self,
        world: &mut ModelWorld,
        at: usize,
        event: &StoreEvent,
    ) -> Happened {
        let known = self.known_step(world.stores[at], event);
        let step = &known.step;
        world.stores[at] = known.store;
        if step.voids_questions {
            self.void(world, at, !step.store.is_running() || step.store.is_serving());
        }
        for question in &known.questions {
            send(world, *question, true);
        }
        for announcement in &known.announcements {
            send(world, *announcement, false);
        }
        if let Some(plan) = known.drawn {
            world.clusters.push((plan, 0));
        }
        if step.refusal.is_some() && !world.is_lost(at) {
            world.broken = Some("rule 3: a sound store is told that it is not");
        }
        world.broken = world.broken.or(step.broken);
        Happened { response: step.response.clone(), is_refused: step.refusal.is_some() }
    }

    /// A uuid for an empty directory that is started.
    pub(crate) fn start(&mut self, world: &mut ModelWorld, at: usize, told: usize) {
        let is_empty = self.store(world, at).directory.identity.is_none();
        world.directories[at] += u8::from(is_empty);
        let uuid = StoreUuid(at as u128 * 100 + u128::from(world.directories[at]));
        self.happen(world, at, &StoreEvent::Start { told, uuid });
    }

    /// Answers to what `at` asked are void; those that came are let go of if it asks no more.
    fn void(&self, world: &mut ModelWorld, at: usize, asks_no_more: bool) {
        for (question, is_awaited) in &mut world.questions {
            *is_awaited &= self.questions.values[*question].from != at;
        }
        if asks_no_more {
            world.answers.retain(|answer| self.answers.values[*answer].to != at);
        }
    }

    fn known_step(&mut self, number: usize, event: &StoreEvent) -> Rc<KnownStep> {
        let key = (number, fingerprint_of(event));
        if let Some(known) = self.steps.get(&key) {
            return Rc::clone(known);
        }
        let before = &self.stores.values[number];
        let from = before.at;
        let mut step = before.step(event, &self.specs);
        let sent = std::mem::take(&mut step.questions).into_iter();
        let questions = sent.map(|(to, request)| self.question(from, to, request)).collect();
        let others = (0..self.specs[0].stores.len()).filter(|to| *to != from);
        let announcements = match &step.announcement {
            Some(announcement) => {
                others.map(|to| self.question(from, to, announcement.clone())).collect()
            }
            None => Vec::new(),
        };
        let drawn = step.drawn.clone().map(|plan| self.plans.number(plan));
        let store = self.stores.number(step.store.clone());
        let known = Rc::new(KnownStep { step, store, drawn, questions, announcements });
        self.steps.insert(key, Rc::clone(&known));
        known
    }

    fn question(&mut self, from: usize, to: usize, request: BootstrapRequest) -> usize {
        self.questions.number(SentQuestion { from, to, request: Rc::new(request) })
    }

    /// Puts an answer under way, if it can make a difference.
    pub(crate) fn reply(&mut self, world: &mut ModelWorld, answer: SentAnswer) {
        let is_word = matches!(
            answer.response,
            BootstrapResponse::Fresh
                | BootstrapResponse::Differs(_)
                | BootstrapResponse::Misdirected { .. }
                | BootstrapResponse::Begun
                | BootstrapResponse::NotBegun
        );
        let number = self.answers.number(answer);
        if let (false, Err(place)) = (is_word, world.answers.binary_search(&number)) {
            world.answers.insert(place, number);
        }
    }
}

/// The feedback to the origin of an event.
#[derive(Debug)]
pub(crate) struct Happened {
    pub(crate) response: Option<BootstrapResponse>,
    pub(crate) is_refused: bool,
}

fn send(world: &mut ModelWorld, question: usize, is_awaited: bool) {
    match world.questions.binary_search_by_key(&question, |(known, _)| *known) {
        Ok(place) => world.questions[place].1 |= is_awaited,
        Err(place) => world.questions.insert(place, (question, is_awaited)),
    }
}

/// A hash of 64 bits that costs little: it is most of what the model does.
#[derive(Default)]
struct Fingerprinter(u64);

impl Hasher for Fingerprinter {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) fn fingerprint_of(value: &impl Hash) -> u64 {
    let mut hasher = Fingerprinter::default();
    value.hash(&mut hasher);
    hasher.finish()
}
