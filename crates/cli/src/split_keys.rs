//! Splits of a running cluster's regions at given keys.

use bytes::Bytes;
use flotilla_client::Client;
use flotilla_proto::metapb;

use crate::tool::Error;

/// Looks at the regions before those that still lack a border are given up: regions may be split by
/// others meanwhile.
const TRIES_MAX: usize = 10;

/// Splits regions until each of `keys` is a border. Returns how many regions there are then.
///
/// # Errors
///
/// The first split that failed; others may have been carried out.
pub(crate) async fn split(client: &Client, keys: &[Bytes]) -> Result<usize, Error> {
    for _ in 0..TRIES_MAX {
        let regions = client.regions().await?;
        let mut is_done = true;
        for region in regions.iter().map(|located| &located.region) {
            let inside: Vec<_> =
                keys.iter().filter(|key| is_inside(region, key)).cloned().collect();
            if !inside.is_empty() {
                is_done = false;
                client.split_region(region.id, inside).await?;
            }
        }
        if is_done {
            return Ok(regions.len());
        }
    }
    Err(Error::Refused("the regions change too fast to be split at the keys".to_owned()))
}

fn is_inside(region: &metapb::Region, key: &Bytes) -> bool {
    *key > region.start_key && (region.end_key.is_empty() || *key < region.end_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_is_not_inside() {
        let region = |start: &'static str, end: &'static str| metapb::Region {
            start_key: start.into(),
            end_key: end.into(),
            ..Default::default()
        };
        let inside = |region: &metapb::Region, key: &'static str| is_inside(region, &key.into());
        assert!(inside(&region("", ""), "a") && inside(&region("a", "c"), "b"));
        assert!(!inside(&region("a", "c"), "a") && !inside(&region("a", "c"), "c"));
    }
}
