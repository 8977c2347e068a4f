//! Puts changed settings of the cluster into force in all shards
//! (decision 58, `docs/decisions/0058-settings-change-online.md`).

use tokio::sync::oneshot;

use crate::config::region_settings;
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::membership::Membership;

/// Runs as long as the node.
pub(crate) async fn run(membership: Membership, mailboxes: Mailboxes) {
    let mut changes = membership.settings_changes();
    loop {
        let settings = *changes.borrow_and_update();
        if settings.version > membership.settings_in_force() {
            let mut taken_up = Vec::new();
            for place in 0..mailboxes.count() {
                let (done, taken) = oneshot::channel();
                let message = ShardMessage::Reconfigure(region_settings(&settings), done);
                // Behind no lane: a shard with a backlog drops its leases as soon as one without.
                mailboxes.at(place).complete_all([message]);
                taken_up.push(taken);
            }
            for taken in taken_up {
                if taken.await.is_err() {
                    // The shards have ended.
                    return;
                }
            }
            tracing::info!(
                version = settings.version,
                tick_ms = settings.tick_ms,
                entry_bytes_max = settings.entry_bytes_max,
                leases = settings.uses_leases(),
                "the settings of the cluster have changed"
            );
            membership.note_settings_in_force(settings.version);
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
