//! Follows the leadership of the system region: takes up office when this store is elected, lays
//! it down when another one is.

use std::time::Duration;

use flotilla_identity::SYSTEM_REGION;
use flotilla_region::Term;

use super::context::Driver;
use super::leader::{Office, OfficeError};

/// After a failure to take up office, the next attempt comes so much later.
const RETRY: Duration = Duration::from_millis(100);

/// Runs as long as the node. A store without a replica of the system region has nothing to do.
pub(super) async fn follow(driver: Driver) {
    let shared = &driver.shared;
    let Some(mut leadership) = shared.router.leadership(SYSTEM_REGION) else { return };
    let mine = shared.router.identity().store;
    loop {
        let now = *leadership.borrow_and_update();
        let elected = now.leader.is_some_and(|leader| leader.store == mine).then_some(now.term);
        let held = shared.office.borrow().as_ref().map(|office| office.term());
        if held.is_some() && held != elected {
            tracing::info!("placement: laid down the office of term {}", held.unwrap_or_default());
            shared.office.send_replace(None);
        }
        match elected {
            Some(term) if held != elected => {
                if let Err(error) = take_up(&driver, term).await {
                    tracing::warn!("placement: no office in term {term}: {error}");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            Some(_) => {
                let office = shared.office.borrow().clone();
                let Some(office) = office else { continue };
                tokio::select! {
                    changed = leadership.changed() => if changed.is_err() { return },
                    () = office.broken() => {
                        shared.office.send_replace(None);
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

async fn take_up(driver: &Driver, term: Term) -> Result<(), OfficeError> {
    let shared = &driver.shared;
    let office = Office::take_up(shared.router.clone(), shared.membership.clone(), term).await?;
    tracing::info!("placement: took up the office of term {term}");
    shared.office.send_replace(Some(office));
    Ok(())
}
