//! Drives the join of a store with an empty directory to a running cluster.

use std::sync::Arc;
use std::time::Duration;

use flotilla_identity::{
    FEATURE_LEVEL, Join, JoinAnswer, JoinQuestion, JoinStep, JoinTarget, RegisterRequest,
    SCHEMA_VERSION,
};
use flotilla_store::StoreDirectory;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::service::Routes;

use super::join_client::ask;
use super::join_server::WaitingStore;
use super::waiting_server::WaitingServer;
use crate::clock::Clock;
use crate::config::{FirstStart, ResolvedConfig};
use crate::failure::NodeFailure;
use crate::net::dial::Dialer;
use crate::net::security::NodeSecurity;
use crate::start::StartError;

/// Between two rounds over all addresses.
const ROUND_PAUSE: Duration = Duration::from_millis(500);

/// A waiting store logs what it waits for, first after this and then each `WAITING_LOG_INTERVAL`.
const WAITING_LOG_DELAY: Duration = Duration::from_secs(2);
const WAITING_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often a member asks an address of its `--join` that does not answer.
const CHECKS_MAX: u32 = 5;

/// Makes the directory that of a member of the cluster at the addresses of `--join`, reached at
/// `address`. Serves no clients on `listener` meanwhile.
///
/// # Errors
///
/// [`StartError::Refused`] if the cluster does not take the store, or the flags are wrong;
/// [`StartError::Store`] if the directory cannot be written.
///
/// # Cancel safety
///
/// May be dropped; what was registered is found again by the directory.
pub(crate) async fn join_cluster(
    directory: StoreDirectory,
    resolved: &ResolvedConfig,
    address: &str,
    listener: &TcpListener,
    security: &NodeSecurity,
    clock: Clock,
) -> Result<StoreDirectory, StartError> {
    let target = target(&directory, resolved, address)?;
    let uuid = directory.identity().uuid;
    let join = Join::new(directory.identity(), target)
        .map_err(|refusal| refused(resolved, &refusal.to_string()))?;
    let join = Arc::new(Mutex::new(join));
    let waiting = {
        let join = Arc::clone(&join);
        WaitingStore::new(uuid, move || join.lock().waiting())
    };
    let routes = waiting.serve(Routes::default());
    let server = WaitingServer::start(listener, routes, resolved, security)?;
    let joined = run(directory, resolved, &join, security.dialer(), clock).await;
    server.stop().await;
    joined
}

async fn run(
    mut directory: StoreDirectory,
    resolved: &ResolvedConfig,
    join: &Mutex<Join>,
    dialer: &Dialer,
    clock: Clock,
) -> Result<StoreDirectory, StartError> {
    let request = join.lock().request().clone();
    let mut log_due = Instant::now() + WAITING_LOG_DELAY;
    loop {
        let (asked, question) = {
            let join = join.lock();
            let (asked, question) = join.question();
            (asked.to_owned(), question)
        };
        let answer = ask(&asked, dialer, question, &request).await;
        let step = join.lock().hear(clock.now(), answer);
        match step.map_err(|refusal| refused(resolved, &refusal.to_string()))? {
            JoinStep::Ask => {}
            JoinStep::Pause => {
                if Instant::now() >= log_due {
                    log_due = Instant::now() + WAITING_LOG_INTERVAL;
                    tracing::warn!("no cluster yet: waiting for {}", join.lock().waiting());
                }
                tokio::time::sleep(ROUND_PAUSE).await;
            }
            JoinStep::Write(write) => {
                let written = tokio::task::spawn_blocking(move || {
                    directory.join(&write)?;
                    Ok((directory, write))
                });
                let (directory, write) = written
                    .await
                    .expect("writing rows does not panic")
                    .map_err(|source| StartError::Store { dir: dir(resolved), source })?;
                tracing::info!(
                    store = %write.store, cluster = write.cluster_id, "the store has joined"
                );
                return Ok(directory);
            }
        }
    }
}

fn target(
    directory: &StoreDirectory,
    resolved: &ResolvedConfig,
    address: &str,
) -> Result<JoinTarget, StartError> {
    resolved.check_join(address)?;
    let request = RegisterRequest {
        uuid: directory.identity().uuid,
        name: resolved.own().name.clone(),
        address: address.to_owned(),
        labels: resolved.labels.clone(),
        level: FEATURE_LEVEL,
        schema: SCHEMA_VERSION,
        is_replacement: resolved.config.first_start == FirstStart::Replace,
    };
    let (contacts, cluster_id) = (resolved.contacts.clone(), resolved.config.cluster_id);
    Ok(JoinTarget { contacts, cluster_id, given: resolved.config.given(), request })
}

fn refused(resolved: &ResolvedConfig, words: &str) -> StartError {
    StartError::Refused(format!("{}: {words}", dir(resolved)))
}

fn dir(resolved: &ResolvedConfig) -> String {
    resolved.config.data_dir.display().to_string()
}

/// Compares the cluster at the addresses of `--join` with that of a member's directory, beside its
/// service: a member never waits for others to start.
pub(crate) async fn check_contacts(
    resolved: Arc<ResolvedConfig>,
    dialer: Dialer,
    cluster_id: u64,
    failure: NodeFailure,
) {
    let nothing = RegisterRequest::default();
    for contact in &resolved.contacts {
        for _ in 0..CHECKS_MAX {
            match ask(contact, &dialer, JoinQuestion::Locate, &nothing).await {
                JoinAnswer::Member { cluster_id: found, .. } if found != cluster_id => {
                    let words = format!(
                        "{}: the data directory is of cluster {cluster_id}, and --join names \
                         {contact}, a member of cluster {found}: correct --data-dir or --join",
                        dir(&resolved)
                    );
                    return failure.refuse(&words);
                }
                JoinAnswer::Silent(_) => tokio::time::sleep(ROUND_PAUSE).await,
                _ => break,
            }
        }
    }
}
