//! Follows the leadership of the system region: starts a leader's term when this store is elected,
//! ends it when another one is.

use std::sync::Arc;
use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use flotilla_region::Term;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::context::PdContext;
use super::leader::{PdLeader, PdLeaderError};
use super::repair_loop;
use crate::driver::routes::Leadership;

/// Backoff after a term could not be started.
const RETRY: Duration = Duration::from_millis(100);

/// Runs as long as the node. A store without a replica of the system region has nothing to do until
/// it gets one.
pub(super) async fn follow(context: PdContext) {
    loop {
        let mut changes = context.shared.router.changes();
        if let Some(leadership) = context.shared.router.leadership(SYSTEM_REGION) {
            follow_replica(&context, leadership).await;
            context.shared.pd_leader.send_replace(None);
        }
        // Of any region: roles are told as soon as they are known.
        if matches!(changes.recv().await, Err(RecvError::Closed)) {
            return;
        }
    }
}

/// Follows as long as the replica of the system region is here.
async fn follow_replica(context: &PdContext, mut leadership: watch::Receiver<Leadership>) {
    let shared = &context.shared;
    let mine = shared.router.identity().store;
    loop {
        let now = *leadership.borrow_and_update();
        let elected = now.leader.is_some_and(|leader| leader.store == mine).then_some(now.term);
        let held = shared.pd_leader.borrow().as_ref().map(|pd_leader| pd_leader.term());
        if held.is_some() && held != elected {
            tracing::info!("placement: stepped down, term {}", held.unwrap_or_default());
            shared.pd_leader.send_replace(None);
        }
        match elected {
            Some(term) if held != elected => {
                if let Err(error) = start_term(context, term).await {
                    tracing::warn!("placement: cannot lead in term {term}: {error}");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            Some(_) => {
                let pd_leader = shared.pd_leader.borrow().clone();
                let Some(pd_leader) = pd_leader else { continue };
                tokio::select! {
                    changed = leadership.changed() => if changed.is_err() { return },
                    () = pd_leader.broken() => {
                        shared.pd_leader.send_replace(None);
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
            None => {
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn start_term(context: &PdContext, term: Term) -> Result<(), PdLeaderError> {
    let shared = &context.shared;
    let pd_leader =
        PdLeader::start_term(shared.router.clone(), shared.membership.clone(), term).await?;
    tracing::info!("placement: this store leads in term {term}");
    tokio::spawn(repair_loop::run(Arc::downgrade(&pd_leader)));
    shared.pd_leader.send_replace(Some(pd_leader));
    Ok(())
}
