//! Requests of operators about repair, answered by the leader of placement.

use flotilla_base::redact;
use flotilla_identity::{MEMBERSHIP_LEVEL, StateChange};
use flotilla_placement::{OperatorState, RowSwap, SwapResult, rows};
use flotilla_proto::peers::{
    ChangeReplicasRequest, ChangeReplicasResponse, ChangeState, ChangeStoreRequest,
    ChangeStoreResponse, RegionRepair, RepairStatusRequest, RepairStatusResponse, SetRepairRequest,
    SetRepairResponse, StoreChange,
};
use flotilla_region::StoreId;

use super::context::PdContext;
use super::replica_repair::{REPLICAS, RepairSettings};
use super::store_changes::WrittenState;
use crate::membership::state_to_wire;

/// Stores that one request names at most.
const STORES_MAX: usize = 16;

/// Repair, for the operator service.
pub(crate) struct RepairRequests(pub(super) PdContext);

impl RepairRequests {
    /// Begins to bring a region to other stores.
    pub(crate) async fn change(&self, request: &ChangeReplicasRequest) -> ChangeReplicasResponse {
        let ChangeReplicasRequest { region_id, add_stores, remove_stores } = request;
        let response = ChangeReplicasResponse::default();
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return ChangeReplicasResponse { is_led_elsewhere: true, ..response };
        };
        if add_stores.len() + remove_stores.len() > STORES_MAX {
            let refusal = format!("more than {STORES_MAX} stores are named");
            return ChangeReplicasResponse { refusal, ..response };
        }
        let known = pd_leader.registry.lock().registry().check_level(MEMBERSHIP_LEVEL);
        if let Err(why) = known {
            return ChangeReplicasResponse { refusal: why.to_string(), ..response };
        }
        match pd_leader.begin_change(*region_id, (add_stores, remove_stores)) {
            Ok(()) => ChangeReplicasResponse { is_begun: true, ..response },
            Err(why) => ChangeReplicasResponse {
                refusal: why.to_string(),
                is_passing: pd_leader.repair().may_pass(pd_leader.now_ms(), &why),
                ..response
            },
        }
    }

    /// How far the change of a region is, and what else is under way.
    pub(crate) async fn status(&self, request: &RepairStatusRequest) -> RepairStatusResponse {
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return RepairStatusResponse { is_led_elsewhere: true, ..Default::default() };
        };
        let repair = pd_leader.repair();
        let (state, note) = match repair.state(request.region_id) {
            None => (ChangeState::ChangeUnknown, String::new()),
            Some(OperatorState::UnderWay { note, .. }) => (ChangeState::ChangeUnderWay, note),
            Some(OperatorState::Done) => (ChangeState::ChangeDone, String::new()),
            Some(OperatorState::Failed(why)) => (ChangeState::ChangeFailed, why),
        };
        let (is_paused, replicas) = repair.settings();
        let under_way = repair.under_way().into_iter().map(|(region_id, reason)| RegionRepair {
            region_id,
            reason: reason.words().to_owned(),
        });
        RepairStatusResponse {
            is_led_elsewhere: false,
            state: state.into(),
            note,
            is_paused,
            replicas,
            under_way: under_way.collect(),
        }
    }

    /// Changes the state of a store.
    pub(crate) async fn change_store(&self, request: ChangeStoreRequest) -> ChangeStoreResponse {
        let response = ChangeStoreResponse::default();
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return ChangeStoreResponse { is_led_elsewhere: true, ..response };
        };
        let change = match request.change() {
            StoreChange::Drain => StateChange::Drain,
            StoreChange::Leave => StateChange::Leave,
            StoreChange::Cancel => StateChange::Cancel,
            StoreChange::Lost => StateChange::Lost,
            StoreChange::None => {
                let refusal = "the request names no change that is known here".to_owned();
                return ChangeStoreResponse { refusal, ..response };
            }
        };
        match pd_leader.change_store(StoreId(request.store_id), change).await {
            Ok(WrittenState { state, registry_version }) => ChangeStoreResponse {
                state: state_to_wire(state).into(),
                registry_version,
                ..response
            },
            Err(why) => {
                let is_young = pd_leader.repair().is_young(pd_leader.now_ms());
                let refusal = redact::shown(|| why.to_string());
                let is_passing = why.is_passing(is_young);
                ChangeStoreResponse { refusal, is_passing, ..response }
            }
        }
    }

    /// Pauses or resumes repair, or sets the number of replicas, for this term and all others.
    pub(crate) async fn set(&self, request: SetRepairRequest) -> SetRepairResponse {
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return SetRepairResponse { is_led_elsewhere: true, ..Default::default() };
        };
        let repair = pd_leader.repair();
        let refused = |refusal: &str| {
            let (is_paused, replicas) = repair.settings();
            let refusal = refusal.to_owned();
            SetRepairResponse { is_led_elsewhere: false, refusal, is_paused, replicas }
        };
        if request.replicas != 0 && !REPLICAS.contains(&request.replicas) {
            let many = request.replicas;
            return refused(&format!("{many} replicas: a region can have 1, 3, 5 or 7"));
        }
        let (is_paused, replicas) = repair.settings();
        let settings = RepairSettings {
            is_paused: request.is_paused.unwrap_or(is_paused),
            replicas: if request.replicas == 0 { replicas } else { request.replicas },
        };
        let (expected, value) = repair.row_with(settings);
        let swap = RowSwap { key: rows::REPAIR_KEY, expected, value: value.clone() };
        match pd_leader.write(swap).await {
            SwapResult::Done => {
                repair.apply(settings, value);
                refused("")
            }
            SwapResult::Refused { .. } => refused("another operator has changed it just now"),
            SwapResult::Unknown => refused("it is not known whether it was written: ask again"),
        }
    }
}
