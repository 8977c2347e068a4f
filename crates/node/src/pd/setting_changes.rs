//! Changes of the cluster's settings: written to their row by the leader of placement, and rolled
//! out as the stores report what they have. The rules are those of `SettingsRollout`.

use flotilla_identity::{ClusterSettings, LevelRefusal, SETTINGS_LEVEL, SettingChange};
use flotilla_placement::{RowSwap, SwapResult, rows};
use flotilla_proto::peers::{
    ChangeSettingRequest, ChangeSettingResponse, ClusterSettingsResponse, SetRepairRequest,
};
use flotilla_region::StoreId;

use super::context::PdContext;
use super::leader::PdLeader;
use super::repair_requests::RepairRequests;
use super::settings_row::step_words;
use crate::config::{ClusterChange, cluster_change};
use crate::online_settings::cluster_values;

/// Tries of a write that others come before.
const TRIES_MAX: usize = 16;

/// Why a setting is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotSet {
    /// Some stores do not know of it, and would keep their leases.
    #[error(transparent)]
    Level(#[from] LevelRefusal),
    /// Whether it was written is not known.
    #[error("placement cannot write the settings now: ask again")]
    Unwritten,
}

impl PdLeader {
    /// A store has these versions of settings, durably and in force, and of the registry. Returns
    /// the settings if it lacks them.
    pub(super) fn note_settings(
        &self,
        store: StoreId,
        settings: u64,
        registry: u64,
    ) -> Option<ClusterSettings> {
        let newer = self.settings.lock().rollout.note(store, settings, registry);
        // A store of an earlier version says nothing, and would not read them.
        newer.filter(|_| settings > 0)
    }

    /// Begins a change; the settings that have it, or are on the way to it. Returns once they are
    /// committed.
    pub(super) async fn change_setting(
        &self,
        change: SettingChange,
    ) -> Result<ClusterSettings, NotSet> {
        self.registry.lock().registry().check_level(SETTINGS_LEVEL)?;
        for _ in 0..TRIES_MAX {
            let settings = self.committed_settings().await?;
            let Some(changed) = settings.with_change(change) else { return Ok(settings) };
            match self.write_settings(&settings, changed).await {
                SwapResult::Done => {
                    tracing::info!(version = changed.version, ?change, "a setting is changed");
                    return Ok(changed);
                }
                // Another change, or the next step of one, came before.
                SwapResult::Refused { .. } => {}
                SwapResult::Unknown => return Err(NotSet::Unwritten),
            }
        }
        Err(NotSet::Unwritten)
    }

    /// Takes the next step of a change, if it is due.
    pub(super) async fn roll_out_settings(&self) {
        let (settings, next, is_certain) = {
            let registry = self.registry.lock();
            let mut row = self.settings.lock();
            row.log_slow_step(self.now_ms(), registry.registry());
            let next = row.rollout.advance(self.now_ms(), registry.registry());
            (*row.settings(), next, row.is_certain)
        };
        if next.is_none() && is_certain {
            return;
        }
        // Without a step the same again: that tells what the row has.
        let to = next.unwrap_or(settings);
        if self.write_settings(&settings, to).await == SwapResult::Done && next.is_some() {
            let step = step_words(&to);
            let step = if step.is_empty() { "all stores have the new tick" } else { step.as_str() };
            tracing::info!(version = to.version, "{step}");
        }
    }

    /// The settings in the row, as every write acknowledged before has left them.
    async fn committed_settings(&self) -> Result<ClusterSettings, NotSet> {
        let (settings, is_certain) = {
            let row = self.settings.lock();
            (*row.settings(), row.is_certain)
        };
        if !is_certain {
            self.write_settings(&settings, settings).await;
        } else if self.confirm().await.is_err() {
            return Err(NotSet::Unwritten);
        }
        let row = self.settings.lock();
        if row.is_certain { Ok(*row.settings()) } else { Err(NotSet::Unwritten) }
    }

    async fn write_settings(&self, from: &ClusterSettings, to: ClusterSettings) -> SwapResult {
        let (key, value) = (rows::SETTINGS_KEY, to.encode());
        self.settings.lock().is_certain = false;
        let written = self.write(RowSwap { key, expected: Some(from.encode()), value }).await;
        match &written {
            SwapResult::Done => self.note_row(to),
            SwapResult::Refused { current: Some(row) } => match ClusterSettings::decode(row) {
                Ok(found) => self.note_row(found),
                Err(error) => tracing::error!("row placement/settings: {error}"),
            },
            // It was not known whether the first leader had written it.
            SwapResult::Refused { current: None } => {
                self.write(RowSwap { key, expected: None, value: from.encode() }).await;
            }
            // Also if another write was heard of meanwhile.
            SwapResult::Unknown => self.settings.lock().is_certain = false,
        }
        written
    }

    /// The row has these settings.
    fn note_row(&self, settings: ClusterSettings) {
        self.settings.lock().note(self.now_ms(), settings);
    }
}

/// Settings of the cluster, for the operator service.
pub(crate) struct SettingRequests(pub(super) PdContext);

impl SettingRequests {
    /// Begins to change a setting. Answered once that is committed.
    pub(crate) async fn change(&self, request: ChangeSettingRequest) -> ChangeSettingResponse {
        let response = ChangeSettingResponse::default();
        let Ok(pd_leader) = self.0.pd_leader().await else {
            return ChangeSettingResponse { is_led_elsewhere: true, ..response };
        };
        let change = match cluster_change(&request.key, &request.value) {
            Ok(change) => change,
            Err(refusal) => return ChangeSettingResponse { refusal, ..response },
        };
        match change {
            ClusterChange::Replicas(replicas) => {
                let request = SetRepairRequest { is_paused: None, replicas };
                let set = RepairRequests(self.0.clone()).set(request).await;
                let (is_led_elsewhere, refusal) = (set.is_led_elsewhere, set.refusal);
                let version = pd_leader.settings.lock().settings().version;
                ChangeSettingResponse { is_led_elsewhere, refusal, version, ..response }
            }
            ClusterChange::Setting(change) => match pd_leader.change_setting(change).await {
                Ok(settings) => ChangeSettingResponse { version: settings.version, ..response },
                Err(why) => ChangeSettingResponse {
                    refusal: why.to_string(),
                    is_passing: why == NotSet::Unwritten,
                    ..response
                },
            },
        }
    }

    /// The settings of the cluster, and who does not have them yet.
    pub(crate) async fn cluster(&self) -> ClusterSettingsResponse {
        let elsewhere = ClusterSettingsResponse {
            is_led_elsewhere: true,
            ..ClusterSettingsResponse::default()
        };
        let Ok(pd_leader) = self.0.pd_leader().await else { return elsewhere };
        let Ok(settings) = pd_leader.committed_settings().await else { return elsewhere };
        let (_, replicas) = pd_leader.repair().settings();
        let registry = pd_leader.registry.lock().registry().clone();
        let missing = {
            let row = pd_leader.settings.lock();
            row.rollout.missing(&registry).into_iter().map(str::to_owned).collect()
        };
        ClusterSettingsResponse {
            is_led_elsewhere: false,
            values: cluster_values(&ClusterSettings { replicas: replicas.into(), ..settings }),
            version: settings.version,
            change: step_words(&settings),
            missing,
        }
    }
}
