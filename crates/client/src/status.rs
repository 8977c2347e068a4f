//! Status of a single store: for tools that watch a cluster.

use bytes::Bytes;
use flotilla_proto::metapb;
use flotilla_proto::peers::{self, status_client::StatusClient};
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::config::Config;
use crate::dial;
use crate::document::{self, Document};
use crate::error::Error;
use crate::retry_budget::{describe, is_answer};

/// Asks one store, and only that one. Nothing is tried twice: that a store does not answer is news.
#[derive(Debug, Clone)]
pub struct Observer {
    address: String,
    channel: Channel,
    client: StatusClient<Channel>,
    config: Config,
}

/// Regions in one page of an answer.
const PAGE_REGIONS: u32 = 4096;

impl Observer {
    /// For the store at `address`; connects when it is first asked.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if `address` is no `host:port`.
    pub fn new(address: &str, config: Config) -> Result<Observer, Error> {
        let channel = dial::channel(address, &config)?;
        let client =
            StatusClient::new(channel.clone()).max_decoding_message_size(config.message_bytes_max);
        Ok(Observer { address: address.to_owned(), channel, client, config })
    }

    /// The stores that this one knows of, itself among them, and the version of the registry that
    /// it knows them from: the copies of other stores may be older or newer.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if it does not answer within the attempt's time;
    /// [`Error::NotServing`] if it does, but has no cluster yet, or stops.
    pub async fn stores(&self) -> Result<peers::StoresResponse, Error> {
        let mut client = self.client.clone();
        self.ask(client.stores(peers::StoresRequest {})).await
    }

    /// The replicas that this store has, by region id.
    ///
    /// # Errors
    ///
    /// As [`stores`](Observer::stores).
    pub async fn regions(&self) -> Result<Vec<peers::RegionStatus>, Error> {
        let mut client = self.client.clone();
        let mut regions: Vec<peers::RegionStatus> = Vec::new();
        loop {
            let last = regions.last().and_then(|status| status.region.as_ref());
            let after_region_id = last.map_or(0, |region: &metapb::Region| region.id);
            let request = peers::RegionsRequest { after_region_id, limit: PAGE_REGIONS };
            let page = self.ask(client.regions(request)).await?;
            // An empty page that promises more would be asked for again for ever.
            let goes_on = page.more && !page.regions.is_empty();
            regions.extend(page.regions);
            if !goes_on {
                return Ok(regions);
            }
        }
    }

    /// The replica of the lowest region id that this store has. That of placement's own rows is the
    /// lowest of all.
    ///
    /// # Errors
    ///
    /// As [`stores`](Observer::stores).
    pub async fn first_region(&self) -> Result<Option<peers::RegionStatus>, Error> {
        let mut client = self.client.clone();
        let request = peers::RegionsRequest { after_region_id: 0, limit: 1 };
        Ok(self.ask(client.regions(request)).await?.regions.into_iter().next())
    }

    /// The store's counters since it started.
    ///
    /// # Errors
    ///
    /// As [`stores`](Observer::stores).
    pub async fn stats(&self) -> Result<peers::StatsResponse, Error> {
        let mut client = self.client.clone();
        self.ask(client.stats(peers::StatsRequest {})).await
    }

    /// A document that the store serves by plain HTTP at `path`, as `/metrics`, of `bytes_max`
    /// bytes at most.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if it does not answer within the attempt's time;
    /// [`Error::NotServing`] if it answers with another status than 200, or with more bytes.
    pub async fn document(&self, path: &str, bytes_max: usize) -> Result<Bytes, Error> {
        let asked = document::get(self.channel.clone(), path, bytes_max);
        let endpoint = self.address.clone();
        match timeout(self.config.attempt_timeout, asked).await {
            Ok(Document::Found(document)) => Ok(document),
            Ok(Document::Refused(reason)) => Err(Error::NotServing { endpoint, reason }),
            Ok(Document::Silent(reason)) => Err(Error::Unreachable { endpoints: endpoint, reason }),
            Err(_) => {
                let reason = "no answer in time".to_owned();
                Err(Error::Unreachable { endpoints: endpoint, reason })
            }
        }
    }

    async fn ask<A>(
        &self,
        call: impl Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    ) -> Result<A, Error> {
        let reason = match timeout(self.config.attempt_timeout, call).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) if is_answer(&status) => {
                let (endpoint, reason) = (self.address.clone(), describe(&status));
                return Err(Error::NotServing { endpoint, reason });
            }
            Ok(Err(status)) => describe(&status),
            Err(_) => "no answer in time".to_owned(),
        };
        Err(Error::Unreachable { endpoints: self.address.clone(), reason })
    }
}
