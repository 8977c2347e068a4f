//! `/status/settings`: the settings that a node runs with, as they are now.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use flotilla_identity::ClusterSettings;

use crate::net::answer::{self, Answer};
use crate::online_settings::OnlineSettings;

/// The settings of the process, and the cluster's copy, which counts where it has a key.
#[derive(Clone)]
struct SettingsState {
    settings: Arc<OnlineSettings>,
    cluster: ClusterSettings,
}

/// The route.
pub(crate) fn routes(settings: Arc<OnlineSettings>, cluster: ClusterSettings) -> Router {
    let state = SettingsState { settings, cluster };
    Router::new().route("/status/settings", get(running)).with_state(state)
}

async fn running(State(state): State<SettingsState>) -> Answer {
    answer::json(&state.settings.running_values(&state.cluster))
}
