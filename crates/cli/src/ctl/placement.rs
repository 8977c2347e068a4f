//! Requests to the store that leads placement, whichever that is.

use std::time::{Duration, Instant};

use flotilla_client::StoreOperator;
use flotilla_proto::peers::KnownStore;

use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, Error, is_gone};

/// Between two looks at what is waited for, and for the leader of placement.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// The end of a wait of so many seconds.
pub(super) fn end_of(seconds: u64) -> Instant {
    // Waits that the clock cannot hold are for ever, as good as.
    let now = Instant::now();
    now.checked_add(Duration::from_secs(seconds)).unwrap_or(now + Duration::from_secs(1 << 31))
}

/// The answer of the store that leads placement. `request` gives none at all others.
pub(super) async fn ask<T>(
    target: &ClusterTarget,
    stores: &[KnownStore],
    until: Instant,
    request: impl AsyncFn(StoreOperator) -> Result<Option<T>, flotilla_client::Error>,
) -> Result<T, Error> {
    loop {
        let mut silent = vec![];
        // The address of one that is gone may be its successor's.
        for store in stores.iter().filter(|store| !is_gone(store)) {
            let address = store.store.clone().unwrap_or_default().address;
            match request(StoreOperator::new(&address, &target.config())?).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) => silent.push(format!("{}: {}", store.name, reason(&error))),
            }
        }
        if Instant::now() >= until {
            let silent =
                if silent.is_empty() { String::new() } else { format!(" ({})", silent.join("; ")) };
            return Err(Error::NoQuorum(format!("no store leads placement{silent}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}
