//! Splits that the leaders of regions ask for, carried out one after the other.

use std::sync::Arc;

use bytes::Bytes;
use flotilla_region::{SplitReason, SplitWish};

use crate::driver::router::Router;
use crate::driver::split_wishes::SplitWishes;

/// Runs as long as the node.
pub(crate) async fn run(router: Router, wishes: Arc<SplitWishes>) {
    loop {
        let wish = wishes.next().await;
        let region = wish.region;
        let (keys, cause) = match keys(&router, wish) {
            Ok(Some(found)) => found,
            // The region is not as it was when the wish was made.
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%region, "no keys to split at: {error}");
                router.read_failed(region, &error);
                continue;
            }
        };
        // It is tried again, if the leader still wants it.
        if let Err(error) = router.split(region, &keys, cause).await {
            tracing::info!(%region, cause, "a region was not split: {error}");
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
