//! `/status/settings`: the settings that a node runs with, as they are now.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;

use crate::membership::Membership;
use crate::net::answer::{self, Answer};
use crate::online_settings::OnlineSettings;

/// The settings of the process, and the cluster's copy, which counts where it has a key.
#[derive(Clone)]
struct SettingsState {
    settings: Arc<OnlineSettings>,
    membership: Membership,
}

/// The route.
pub(crate) fn routes(settings: Arc<OnlineSettings>, membership: Membership) -> Router {
    let state = SettingsState { settings, membership };
    Router::new().route("/status/settings", get(running)).with_state(state)
}

async fn running(State(state): State<SettingsState>) -> Answer {
    answer::json(&state.settings.running_values(&state.membership.settings()))
}
