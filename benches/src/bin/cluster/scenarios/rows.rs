//! Rows that are written in the order of their keys, evenly over the key space.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use flotilla_cli::bench::{bar, fill_with};
use flotilla_cli::tool::Error;
use flotilla_client::Client;

use crate::open_load::KeyChoice;
use crate::test_bench::random_bytes;

/// Fills that are under way at a time.
const FILLS: u64 = 4;
/// Bytes that are written before values repeat.
const VALUES_BYTES: usize = 1 << 20;

/// `count` rows with values of one length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvenRows {
    pub(crate) count: u64,
    pub(crate) value_bytes: usize,
}

impl EvenRows {
    /// As many rows as have `bytes` bytes of values.
    pub(crate) fn of(bytes: u64, value_bytes: usize) -> EvenRows {
        EvenRows { count: (bytes / value_bytes as u64).max(FILLS), value_bytes }
    }

    fn key(&self, number: u64) -> Bytes {
        let place = number * (u64::MAX / self.count);
        let mut key = BytesMut::with_capacity(16);
        key.put_u64(place);
        key.put_slice(b"/row....");
        key.freeze()
    }

    /// Any of the keys.
    pub(crate) fn keys(self) -> KeyChoice {
        Arc::new(move |chance| self.key(chance.u64(..self.count)))
    }

    /// Writes all of them.
    pub(crate) async fn fill(self, client: &Client, seed: u64) -> Result<(), Error> {
        let values = random_bytes(seed, VALUES_BYTES + self.value_bytes);
        let bar = bar("fill", self.count);
        let share = self.count.div_ceil(FILLS);
        let mut fills = tokio::task::JoinSet::new();
        for fill in 0..FILLS {
            let (client, values, bar) = (client.clone(), values.clone(), bar.clone());
            let numbers = fill * share..((fill + 1) * share).min(self.count);
            fills.spawn(async move {
                let pairs = numbers.map(|number| {
                    let from = (number as usize * 8) % VALUES_BYTES;
                    (self.key(number), values.slice(from..from + self.value_bytes))
                });
                fill_with(&client, pairs, self.value_bytes, &bar).await
            });
        }
        while let Some(done) = fills.join_next().await {
            done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        }
        bar.finish_and_clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_order_and_all_over_the_key_space() {
        let rows = EvenRows::of(16_000, 16);
        let keys: Vec<_> = (0..rows.count).map(|number| rows.key(number)).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.is_sorted_by(|one, next| one < next));
        assert!(keys[0][0] == 0 && keys[500][0] == 0x7f && keys[999][0] == 0xff);
    }
}
