//! The client: the public API.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_proto::{kvrpcpb, metapb};

use crate::batch::{self, ExpiringPair};
use crate::config::Config;
use crate::error::Error;
use crate::request_router::RequestRouter;
use crate::retry_budget::RetryBudget;
use crate::scan::{self, Scan};

/// A key and its value.
pub type Pair = (Bytes, Bytes);

/// A connection to a cluster. Cheap to clone; all clones share routes and connections.
///
/// Every call finds the region, follows its leader, waits and tries again, until
/// [`Config::deadline`] has passed. A call that is dropped may still have its effect.
#[derive(Debug, Clone)]
pub struct Client {
    router: Arc<RequestRouter>,
    family: ColumnFamily,
}

/// The result of a compare-and-swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CasOutcome {
    /// Whether the key held what was expected, and was changed.
    pub succeeded: bool,
    /// The former value of the key; `None` if it was absent.
    pub previous: Option<Bytes>,
}

/// How long a key still lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingTtl {
    /// Until it is deleted.
    Unlimited,
    /// So many seconds, more than 0.
    Seconds(u64),
}

/// A region as placement describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct LocatedRegion {
    /// Range, epoch and replicas.
    pub region: metapb::Region,
    /// The leader, if known.
    pub leader: Option<metapb::Peer>,
}

impl Client {
    /// Finds the cluster by any of its `endpoints`, each a `host:port`.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if none answers before the deadline; [`Error::Config`] for an
    /// endpoint or a limit that cannot be.
    pub async fn connect<E: AsRef<str>>(endpoints: &[E], config: Config) -> Result<Client, Error> {
        let endpoints: Vec<_> = endpoints.iter().map(|e| e.as_ref().to_owned()).collect();
        let router = Arc::new(RequestRouter::connect(&endpoints, config).await?);
        Ok(Client { router, family: ColumnFamily::Default })
    }

    /// The same for the keys of another column family, over the same connections.
    #[must_use]
    pub fn in_family(&self, family: ColumnFamily) -> Client {
        Client { router: Arc::clone(&self.router), family }
    }

    /// The cluster's id.
    pub fn cluster_id(&self) -> u64 {
        self.router.placement.cluster_id()
    }

    /// The key's value, or `None` if it has none. Sees every write that was acknowledged before.
    ///
    /// # Errors
    ///
    /// Any [`Error`], as for all that follow.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>, Error> {
        let key = key.into();
        let request = kvrpcpb::RawGetRequest {
            key: key.clone(),
            cf: self.family.request_name(),
            ..Default::default()
        };
        let response = self.router.call(&key, request, self.budget()).await?;
        Ok((!response.not_found).then_some(response.value))
    }

    /// Writes the value; returns once it is on the disks of a majority.
    ///
    /// # Errors
    ///
    /// See [`Error::is_undetermined`] for whether it may have been written all the same.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<(), Error> {
        self.put_with_ttl(key, value, 0).await
    }

    /// As [`put`](Client::put); the key is gone after `ttl_s` seconds, 0 for never.
    ///
    /// # Errors
    ///
    /// As [`put`](Client::put); [`Error::Rejected`] by stores that keep no times to live.
    pub async fn put_with_ttl(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl_s: u64,
    ) -> Result<(), Error> {
        let (key, value) = (key.into(), value.into());
        let request = kvrpcpb::RawPutRequest {
            key: key.clone(),
            value,
            cf: self.family.request_name(),
            ttl: ttl_s,
            ..Default::default()
        };
        self.router.call(&key, request, self.budget()).await?;
        Ok(())
    }

    /// How long the key still lives, or `None` if it has no value.
    ///
    /// # Errors
    ///
    /// Any [`Error`].
    pub async fn ttl(&self, key: impl Into<Bytes>) -> Result<Option<RemainingTtl>, Error> {
        let key = key.into();
        let request = kvrpcpb::RawGetKeyTtlRequest {
            key: key.clone(),
            cf: self.family.request_name(),
            ..Default::default()
        };
        let response = self.router.call(&key, request, self.budget()).await?;
        let remaining = match response.ttl {
            0 => RemainingTtl::Unlimited,
            seconds => RemainingTtl::Seconds(seconds),
        };
        Ok((!response.not_found).then_some(remaining))
    }

    /// Deletes the key, whether or not it exists.
    ///
    /// # Errors
    ///
    /// As [`put`](Client::put).
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<(), Error> {
        let key = key.into();
        let request = kvrpcpb::RawDeleteRequest {
            key: key.clone(),
            cf: self.family.request_name(),
            ..Default::default()
        };
        self.router.call(&key, request, self.budget()).await?;
        Ok(())
    }

    /// Writes `value` (deletes, if `None`) if the key holds `expected` (is absent, if `None`), and
    /// tells what it held. Is never sent twice.
    ///
    /// # Errors
    ///
    /// [`Error::Undetermined`] if an attempt was lost on its way.
    pub async fn compare_and_swap(
        &self,
        key: impl Into<Bytes>,
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Result<CasOutcome, Error> {
        self.compare_and_swap_with_ttl(key, expected, value, 0).await
    }

    /// As [`compare_and_swap`](Client::compare_and_swap); what it writes is gone after `ttl_s`
    /// seconds, 0 for never.
    ///
    /// # Errors
    ///
    /// As [`compare_and_swap`](Client::compare_and_swap); [`Error::Rejected`] by stores that keep
    /// no times to live.
    pub async fn compare_and_swap_with_ttl(
        &self,
        key: impl Into<Bytes>,
        expected: Option<Bytes>,
        value: Option<Bytes>,
        ttl_s: u64,
    ) -> Result<CasOutcome, Error> {
        let key = key.into();
        let request = kvrpcpb::RawCasRequest {
            key: key.clone(),
            previous_not_exist: expected.is_none(),
            previous_value: expected.unwrap_or_default(),
            delete: value.is_none(),
            value: value.unwrap_or_default(),
            cf: self.family.request_name(),
            ttl: ttl_s,
            ..Default::default()
        };
        // Sent twice, a swap that was carried out would find its own value and report that it
        // failed.
        let budget = RetryBudget::once(&self.router.config);
        let response = self.router.call(&key, request, budget).await?;
        let previous = (!response.previous_not_exist).then_some(response.previous_value);
        Ok(CasOutcome { succeeded: response.succeed, previous })
    }

    /// Writes all pairs; those of one region and request at once or not at all. Of two pairs with
    /// the same key the later one wins.
    ///
    /// # Errors
    ///
    /// After an error some pairs may have been written.
    pub async fn batch_put(&self, pairs: impl IntoIterator<Item = Pair>) -> Result<(), Error> {
        self.batch_put_with_ttl(pairs.into_iter().map(|pair| (pair, 0))).await
    }

    /// As [`batch_put`](Client::batch_put); each pair is gone after its seconds, 0 for never.
    ///
    /// # Errors
    ///
    /// As [`batch_put`](Client::batch_put); [`Error::Rejected`] by stores that keep no times to
    /// live.
    pub async fn batch_put_with_ttl(
        &self,
        pairs: impl IntoIterator<Item = (Pair, u64)>,
    ) -> Result<(), Error> {
        let pairs = latest(pairs).into_iter().map(|(key, (value, ttl_s))| {
            let pair = kvrpcpb::KvPair { key, value };
            ExpiringPair { pair, ttl_s }
        });
        batch::put(&self.router, self.family.request_name(), pairs.collect()).await
    }

    /// The values of the keys, in their order; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Any [`Error`].
    pub async fn batch_get(
        &self,
        keys: impl IntoIterator<Item = Bytes>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let keys: Vec<_> = keys.into_iter().collect();
        let found = batch::get(&self.router, self.family.request_name(), keys.clone()).await?;
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    /// Deletes all keys.
    ///
    /// # Errors
    ///
    /// After an error some keys may have been deleted.
    pub async fn batch_delete(&self, keys: impl IntoIterator<Item = Bytes>) -> Result<(), Error> {
        batch::delete(&self.router, self.family.request_name(), keys.into_iter().collect()).await
    }

    /// The rows of a range, over all its regions. Each region's rows are of one moment; those of
    /// different regions need not be.
    ///
    /// # Errors
    ///
    /// Any [`Error`]. The deadline is that of each page.
    pub async fn scan(&self, scan: Scan) -> Result<Vec<Pair>, Error> {
        let rows = scan::scan(&self.router, &self.family.request_name(), scan).await?;
        Ok(rows.into_iter().map(|row| (row.key, row.value)).collect())
    }

    /// Deletes `[start, end)`, region by region; an empty `end` means no end.
    ///
    /// # Errors
    ///
    /// After an error the range may have been deleted in part.
    pub async fn delete_range(
        &self,
        start: impl Into<Bytes>,
        end: impl Into<Bytes>,
    ) -> Result<(), Error> {
        scan::delete_range(&self.router, &self.family.request_name(), start.into(), end.into())
            .await
    }

    /// The region that holds `key`, freshly asked from placement.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] if placement has no leader.
    pub async fn region_of(&self, key: impl Into<Bytes>) -> Result<LocatedRegion, Error> {
        let mut regions = self.regions_from(key.into(), 1).await?;
        regions.pop().ok_or_else(|| Error::Protocol("no region holds the key".to_owned()))
    }

    /// All regions of the key space, by range.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] if placement has no leader.
    pub async fn regions(&self) -> Result<Vec<LocatedRegion>, Error> {
        let mut regions = Vec::new();
        let mut start = Bytes::new();
        loop {
            let page = self.regions_from(start, REGIONS_PAGE).await?;
            let Some(last) = page.last() else { return Ok(regions) };
            let next = last.region.end_key.clone();
            regions.extend(page);
            if next.is_empty() {
                return Ok(regions);
            }
            start = next;
        }
    }

    /// Splits a region at `keys`, or into halves of its bytes if there are none. Returns all parts
    /// by their keys, once they are there; the last of them keeps the id.
    ///
    /// More than 128 keys go in several requests, one after the other: the store
    /// takes its time for many. After an error some of them may have been carried out.
    ///
    /// # Errors
    ///
    /// [`Error::NoRegion`]; [`Error::Rejected`] if a key is not inside of it, or if it has too few
    /// rows to be halved. A split without keys is never sent twice.
    pub async fn split_region(
        &self,
        id: u64,
        keys: impl IntoIterator<Item = Bytes>,
    ) -> Result<Vec<metapb::Region>, Error> {
        let mut keys: Vec<_> = keys.into_iter().collect();
        if keys.is_empty() {
            // Halves would be halved again; a key that is a border already does no harm.
            return self.split_once(id, keys, RetryBudget::once(&self.router.config)).await;
        }
        // The region keeps the last part, which the keys of the next request lie in.
        keys.sort_unstable();
        let mut parts = vec![];
        for keys in keys.chunks(SPLIT_KEYS_MAX) {
            parts.pop();
            parts.extend(self.split_once(id, keys.to_vec(), self.budget()).await?);
        }
        Ok(parts)
    }

    async fn split_once(
        &self,
        id: u64,
        split_keys: Vec<Bytes>,
        mut budget: RetryBudget,
    ) -> Result<Vec<metapb::Region>, Error> {
        let request =
            kvrpcpb::SplitRegionRequest { split_keys, is_raw_kv: true, ..Default::default() };
        loop {
            let found = self.router.placement.region_by_id(id, &mut budget).await?;
            let route = found.ok_or(Error::NoRegion(id))?;
            match self.router.attempt(&Arc::new(route), request.clone(), &mut budget).await {
                Ok(response) => {
                    let api = self.router.config.api;
                    return response.regions.into_iter().map(|region| api.decode(region)).collect();
                }
                Err(failure) => budget.pause(failure).await?,
            }
        }
    }

    /// All stores, as placement knows them.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] if placement has no leader.
    pub async fn stores(&self) -> Result<Vec<metapb::Store>, Error> {
        self.router.placement.stores(&mut self.budget()).await
    }

    async fn regions_from(&self, start: Bytes, limit: i32) -> Result<Vec<LocatedRegion>, Error> {
        let placement = &self.router.placement;
        let regions = placement.regions_from(start, limit, &mut self.budget()).await?;
        Ok(regions.into_iter().map(|(region, leader)| LocatedRegion { region, leader }).collect())
    }

    fn budget(&self) -> RetryBudget {
        RetryBudget::new(&self.router.config)
    }
}

const REGIONS_PAGE: i32 = 1024;

/// Keys of one request to split a region.
const SPLIT_KEYS_MAX: usize = 128;

/// One pair for each key. Requests of a batch travel side by side, so an earlier pair could
/// otherwise arrive after a later one.
fn latest(pairs: impl IntoIterator<Item = (Pair, u64)>) -> BTreeMap<Bytes, (Bytes, u64)> {
    pairs.into_iter().map(|((key, value), ttl_s)| (key, (value, ttl_s))).collect()
}
