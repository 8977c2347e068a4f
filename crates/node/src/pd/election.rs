//! Follows the leadership of the system region: starts a leader's term when this store is elected,
//! ends it when another one is. [`TermFollower`] decides.

use std::sync::Arc;
use std::time::Duration;

use flotilla_dispatch::Leadership;
use flotilla_identity::SYSTEM_REGION;
use flotilla_placement::{TermFollower, TermStep};
use flotilla_region::Term;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::context::PdContext;
use super::leader::{PdLeader, PdLeaderError};
use super::repair_loop;

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
    let (mut follower, start) = (TermFollower::default(), Instant::now());
    let now_ms = || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    loop {
        let now = *leadership.borrow_and_update();
        let elected = now.leader.filter(|leader| leader.store == mine).map(|_| now.term.0);
        match follower.next(now_ms(), elected) {
            TermStep::End(term) => {
                tracing::info!("placement: stepped down, term {term}");
                shared.pd_leader.send_replace(None);
            }
            TermStep::Begin(term) => {
                let begun = start_term(context, Term(term)).await;
                if let Err(error) = &begun {
                    tracing::warn!("placement: cannot lead in term {term}: {error}");
                }
                follower.note_begun(now_ms(), begun.is_ok());
            }
            TermStep::Rest(until_ms) => {
                let pd_leader = shared.pd_leader.borrow().clone();
                tokio::select! {
                    changed = leadership.changed() => if changed.is_err() { return },
                    () = until(start, until_ms) => {}
                    () = broken(pd_leader) => {
                        shared.pd_leader.send_replace(None);
                        follower.note_broken(now_ms());
                    }
                }
            }
        }
    }
}

/// Waits for a time, for ever without one.
async fn until(start: Instant, until_ms: Option<u64>) {
    match until_ms {
        Some(until_ms) => sleep_until(start + Duration::from_millis(until_ms)).await,
        None => std::future::pending().await,
    }
}

/// Waits until the term of a leader must end, for ever without one.
async fn broken(pd_leader: Option<Arc<PdLeader>>) {
    match pd_leader {
        Some(pd_leader) => pd_leader.broken().await,
        None => std::future::pending().await,
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
