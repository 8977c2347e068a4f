//! Repair in a term of placement, and its steps until the stores that lead the regions report.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_identity::{StoreRegistry, StoreState};
use flotilla_placement::{
    ClusterView, ExitRefusal, OperatorState, RepairLimits, RepairReason, RepairRefusal, Repairer,
    ReplicaStep, RowError, StepAnswer, StoreStanding, rows,
};
use flotilla_proto::peers;
use flotilla_region::StoreId;
use parking_lot::Mutex;

/// A step that its store did not fetch by then is dropped: it is asked for again.
const KEPT_MS: u64 = 1_500;
/// The numbers of replicas that an operator may choose.
pub(super) const REPLICAS: [u32; 4] = [1, 3, 5, 7];
/// The label that names a store's zone.
const ZONE: &str = "zone";

/// Repair in one term, and its steps.
pub(super) struct ReplicaRepair {
    state: Mutex<RepairState>,
}

struct RepairState {
    repairer: Repairer,
    /// The row as it was read or written last.
    row: Option<Vec<u8>>,
    /// Steps that no store has fetched: the store, since when they wait, and the step.
    waiting: Vec<(u64, u64, peers::ReplicaStep)>,
}

/// An operator's word, as the row keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RepairSettings {
    pub(super) is_paused: bool,
    /// 0: the number that the cluster was made with.
    pub(super) replicas: u32,
}

impl RepairSettings {
    /// The bytes of the row: a number, of which the lowest byte is the pause.
    fn encode(self) -> Vec<u8> {
        rows::encode(u64::from(self.replicas) << 8 | u64::from(self.is_paused))
    }

    fn decode(row: &[u8]) -> Result<Self, RowError> {
        let number = rows::decode(rows::REPAIR_KEY, row)?;
        let replicas = u32::try_from(number >> 8).ok();
        let known = replicas.filter(|replicas| *replicas == 0 || REPLICAS.contains(replicas));
        match (known, number & 0xff) {
            (Some(replicas), pause @ (0 | 1)) => Ok(Self { is_paused: pause == 1, replicas }),
            _ => Err(RowError::Malformed { key: rows::REPAIR_KEY, bytes: row.len() }),
        }
    }
}

impl ReplicaRepair {
    /// Repair in a term that begins. `replicas` is the number that the cluster was made with, and
    /// `row` what an operator has said since.
    ///
    /// # Errors
    ///
    /// If the row is not what this program writes.
    pub(super) fn new(replicas: u64, row: Option<&[u8]>) -> Result<Self, RowError> {
        let settings = row.map(RepairSettings::decode).transpose()?.unwrap_or_default();
        let made_with = usize::try_from(replicas).unwrap_or(usize::MAX);
        let replicas = if settings.replicas == 0 { made_with } else { settings.replicas as usize };
        let mut repairer = Repairer::new(RepairLimits::default(), replicas);
        repairer.set_paused(settings.is_paused);
        let row = row.map(<[u8]>::to_vec);
        Ok(Self { state: Mutex::new(RepairState { repairer, row, waiting: vec![] }) })
    }

    /// The steps for `store`, of which each is given once.
    pub(super) fn steps(&self, now_ms: u64, store: StoreId) -> Vec<peers::ReplicaStep> {
        let mut state = self.state.lock();
        let is_young = |since_ms: u64| now_ms.saturating_sub(since_ms) < KEPT_MS;
        state.waiting.retain(|(_, since_ms, _)| is_young(*since_ms));
        let of_store = |(to, ..): &mut (u64, u64, peers::ReplicaStep)| *to == store.0;
        state.waiting.extract_if(.., of_store).map(|(.., step)| step).collect()
    }

    /// Takes what a store says of its steps.
    pub(super) fn answer(&self, now_ms: u64, answers: Vec<peers::StepAnswer>) {
        let mut state = self.state.lock();
        for peers::StepAnswer { region_id, refused, reason } in answers {
            if refused {
                tracing::info!(region = region_id, "a change of replicas was refused: {reason}");
            }
            let answer =
                if refused { StepAnswer::Refused(reason) } else { StepAnswer::Later(reason) };
            state.repairer.answer(now_ms, region_id, answer);
        }
    }

    /// Begins a change that an operator asks for.
    pub(super) fn begin(
        &self,
        now_ms: u64,
        view: &ClusterView,
        here: u64,
        region: u64,
        stores: (&[u64], &[u64]),
    ) -> Result<(), RepairRefusal> {
        self.state.lock().repairer.begin(now_ms, view, here, region, stores)
    }

    /// Whether a refusal may be one because this term is young.
    pub(super) fn may_pass(&self, now_ms: u64, refusal: &RepairRefusal) -> bool {
        self.state.lock().repairer.may_pass(now_ms, refusal)
    }

    /// Whether stores may not have reported yet in this term.
    pub(super) fn is_young(&self, now_ms: u64) -> bool {
        self.state.lock().repairer.is_young(now_ms)
    }

    /// Whether the leaders of a store can go elsewhere.
    pub(super) fn check_drain(
        &self,
        now_ms: u64,
        view: &ClusterView,
        store: u64,
    ) -> Result<(), ExitRefusal> {
        self.state.lock().repairer.check_drain(now_ms, view, store)
    }

    /// Whether regions keep their number of replicas without a store.
    pub(super) fn check_leave(
        &self,
        now_ms: u64,
        view: &ClusterView,
        store: u64,
    ) -> Result<(), ExitRefusal> {
        self.state.lock().repairer.check_leave(now_ms, view, store)
    }

    /// The stores that leave and have nothing more to do here.
    pub(super) fn emptied(&self, now_ms: u64, view: &ClusterView, here: u64) -> Vec<u64> {
        self.state.lock().repairer.emptied(now_ms, view, here)
    }

    /// How far the last change of a region is.
    pub(super) fn state(&self, region: u64) -> Option<OperatorState> {
        self.state.lock().repairer.state(region)
    }

    /// The regions whose replicas are being changed, and why.
    pub(super) fn under_way(&self) -> Vec<(u64, RepairReason)> {
        self.state.lock().repairer.under_way().collect()
    }

    /// Whether it is paused, and the number of replicas.
    pub(super) fn settings(&self) -> (bool, u32) {
        let state = self.state.lock();
        let replicas = u32::try_from(state.repairer.replicas()).unwrap_or(u32::MAX);
        (state.repairer.is_paused(), replicas)
    }

    /// The row, and how it is with other settings.
    pub(super) fn row_with(&self, settings: RepairSettings) -> (Option<Vec<u8>>, Vec<u8>) {
        (self.state.lock().row.clone(), settings.encode())
    }

    /// Follows settings that are written.
    pub(super) fn apply(&self, settings: RepairSettings, row: Vec<u8>) {
        let mut state = self.state.lock();
        state.repairer.set_paused(settings.is_paused);
        if settings.replicas != 0 {
            state.repairer.set_replicas(settings.replicas as usize);
        }
        state.row = Some(row);
    }

    /// The steps to be asked for now, each with its reason.
    pub(super) fn look(
        &self,
        now_ms: u64,
        view: &ClusterView,
        here: u64,
    ) -> Vec<(ReplicaStep, Option<RepairReason>)> {
        let mut state = self.state.lock();
        let steps = state.repairer.propose(now_ms, view, here);
        let reasons: BTreeMap<_, _> = state.repairer.under_way().collect();
        let with_reason = |step: ReplicaStep| {
            let reason = reasons.get(&step.region).copied();
            (step, reason)
        };
        steps.into_iter().map(with_reason).collect()
    }

    /// The regions whose replicas are being changed.
    pub(super) fn busy(&self) -> BTreeSet<u64> {
        self.state.lock().repairer.under_way().map(|(region, _)| region).collect()
    }

    /// Keeps a step for the store that leads its region.
    pub(super) fn wait(&self, now_ms: u64, store: u64, step: peers::ReplicaStep) {
        self.state.lock().waiting.push((store, now_ms, step));
    }
}

/// Tells the view what the registry says of the stores.
pub(super) fn note_standings(view: &mut ClusterView, registry: &StoreRegistry) {
    for store in &registry.stores {
        let zone = store.labels.iter().find(|(name, _)| name == ZONE);
        let standing = StoreStanding {
            zone: zone.map(|(_, zone)| zone.clone()).unwrap_or_default(),
            is_draining: store.state == StoreState::Draining,
            is_leaving: store.state == StoreState::Leaving,
            is_lost: matches!(store.state, StoreState::Lost | StoreState::Removed),
        };
        view.note_standing(store.id.0, standing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_keeps_the_pause_and_the_number() {
        for replicas in [0, 1, 3, 5, 7] {
            for is_paused in [false, true] {
                let settings = RepairSettings { is_paused, replicas };
                assert_eq!(RepairSettings::decode(&settings.encode()), Ok(settings));
            }
        }
        for strange in [rows::encode(2), rows::encode(4 << 8), rows::encode(u64::MAX), vec![1]] {
            assert!(RepairSettings::decode(&strange).is_err(), "{strange:?}");
        }
        let paused = RepairSettings { is_paused: true, replicas: 0 }.encode();
        let repair = ReplicaRepair::new(3, Some(&paused)).unwrap();
        assert_eq!(repair.settings(), (true, 3));
        repair.apply(RepairSettings { is_paused: false, replicas: 5 }, vec![]);
        assert_eq!(repair.settings(), (false, 5));
    }

    #[test]
    fn each_step_is_given_once_to_the_store_that_leads_and_not_for_long() {
        let repair = ReplicaRepair::new(3, None).unwrap();
        let step = |region_id| peers::ReplicaStep { region_id, ..Default::default() };
        repair.wait(0, 1, step(2));
        repair.wait(0, 2, step(3));
        assert_eq!(repair.steps(10, StoreId(1)), [step(2)]);
        assert_eq!(repair.steps(10, StoreId(1)), []);
        assert_eq!(repair.steps(KEPT_MS, StoreId(2)), []);
    }
}
