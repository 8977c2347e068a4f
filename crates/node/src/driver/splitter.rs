//! Splits that the leaders of regions ask for, carried out one after the other.

use std::sync::Arc;

use bytes::Bytes;
use flotilla_region::{SplitReason, SplitWish};
use tokio::time::Instant;

use crate::driver::router::Router;
use crate::driver::split_wishes::SplitWishes;

/// Runs as long as the node.
pub(crate) async fn run(router: Router, wishes: Arc<SplitWishes>) {
    loop {
        let wish = wishes.next().await;
        let (region, began) = (wish.region, Instant::now());
        let (keys, cause) = match keys(&router, wish) {
            Ok(Some(found)) => found,
            // The region is not as it was when the wish was made.
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%region, "no keys to split at: {error}");
                continue;
            }
        };
        match router.split(region, &keys).await {
            Ok(parts) => {
                let (parts, ms) = (parts.len(), began.elapsed().as_millis());
                tracing::info!(%region, parts, cause, ms = %ms, "region split");
            }
            // It is tried again, if the leader still wants it.
            Err(error) => tracing::info!(%region, cause, "region not split: {error:?}"),
        }
    }
}

/// The borders that a wish asks for, and its cause in words.
fn keys(
    router: &Router,
    wish: SplitWish,
) -> Result<Option<(Vec<Bytes>, &'static str)>, flotilla_store::ReadError> {
    let region = wish.region;
    let keys = match wish.reason {
        _ if !router.descriptor(region).is_some_and(|found| wish.is_for(&found)) => {
            return Ok(None);
        }
        SplitReason::Load { key, .. } => (vec![key], "load"),
        SplitReason::Size { parts } => (router.split_keys(region, parts)?, "size"),
    };
    Ok(Some(keys).filter(|(keys, _)| !keys.is_empty()))
}
