//! One store to try things on, and a client of it that behaves.

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::errorpb;
use flotilla_proto::kvrpcpb::{Context, KvPair, RawGetRequest, RawPutRequest, RawScanRequest};
use flotilla_proto::pdpb::GetRegionRequest;
use flotilla_proto::pdpb::pd_client::PdClient;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tonic::transport::{Channel, Endpoint};

use crate::background::Background;
use crate::certificates::Certificates;
use crate::processes::{Processes, until_within};
use crate::tunnel;

/// The bound on the growth of a store's memory under abuse.
const GROWTH_BYTES_MAX: u64 = 128 << 20;
/// Within this the memory is back; without optimisation what has come must be worked off first.
const SHRINKS_WITHIN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 10 });
/// An answer may be as large as the server likes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Regions stay what they are, whatever the load: requests here find none again.
const UNSPLIT: &str = "[split]\nautomatic = false\n";

/// One store with four regions: borders at 0x4000, 0x8000 and 0xc000.
pub(crate) struct Target {
    pub(crate) cluster: Processes,
    /// The address for bytes that no library would send: the store's, or a tunnel's to it that puts
    /// TLS around them.
    pub(crate) raw_addr: String,
    /// Where abusers work.
    pub(crate) background: Background,
    pub(crate) kv: TikvClient<Channel>,
    pub(crate) pd: PdClient<Channel>,
}

impl Target {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// One with these settings too.
    pub(crate) async fn start_with(settings: &str) -> Self {
        let mut cluster = Self::plan();
        cluster.configure(0, &format!("{settings}{}{UNSPLIT}", cluster.settings(0)));
        cluster.start_all();
        cluster.ready().await;
        let raw_addr = cluster.endpoints()[0].clone();
        let url = format!("http://{raw_addr}");
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        Self::new(cluster, raw_addr, channel, Background::start())
    }

    /// The same, where connections must have TLS.
    pub(crate) async fn start_secure() -> Self {
        let certificates = Certificates::new(1).await;
        let mut cluster = Self::plan();
        let tls = certificates.settings("required", "store-s0");
        cluster.configure(0, &format!("{}{UNSPLIT}{tls}", cluster.settings(0)));
        cluster.start_all();
        cluster.ready_by(certificates.config("client-app")).await;
        let addr = cluster.endpoints()[0].clone();
        let dialer = certificates.flags("client-app").dialer().unwrap().unwrap();
        let endpoint = Endpoint::from_shared(format!("https://{addr}")).unwrap();
        let channel = dialer.connect(&endpoint).await.unwrap();
        let background = Background::start();
        let raw_addr = tunnel::open(dialer, addr, background.handle()).await;
        Self::new(cluster, raw_addr, channel, background)
    }

    fn plan() -> Processes {
        let cluster = Processes::plan(1, 4);
        cluster.configure(0, &format!("{}{UNSPLIT}", cluster.settings(0)));
        cluster
    }

    /// Both kinds.
    pub(crate) async fn start_as(is_secure: bool) -> Self {
        if is_secure { Self::start_secure().await } else { Self::start().await }
    }

    fn new(cluster: Processes, raw_addr: String, channel: Channel, background: Background) -> Self {
        let kv = TikvClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Self { cluster, raw_addr, background, kv, pd: PdClient::new(channel) }
    }

    /// The context of a well-behaved client for the region of `key`.
    pub(crate) async fn context(&mut self, key: &[u8]) -> Context {
        let region_key = Bytes::copy_from_slice(key);
        let request = GetRegionRequest { region_key, ..Default::default() };
        let found = self.pd.get_region(request).await.unwrap().into_inner();
        let region = found.region.unwrap();
        Context {
            region_id: region.id,
            region_epoch: region.region_epoch,
            peer: found.leader,
            cluster_id: found.header.unwrap().cluster_id,
            ..Default::default()
        }
    }

    pub(crate) async fn put(
        &mut self,
        context: Context,
        key: &[u8],
        value: Bytes,
    ) -> (String, errorpb::Error) {
        let key = Bytes::copy_from_slice(key);
        let request = RawPutRequest { context: Some(context), key, value, ..Default::default() };
        let response = self.kv.raw_put(request).await.unwrap().into_inner();
        (response.error, response.region_error.unwrap_or_default())
    }

    pub(crate) async fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        let context = Some(self.context(key).await);
        let key = Bytes::copy_from_slice(key);
        let request = RawGetRequest { context, key, ..Default::default() };
        let response = self.kv.raw_get(request).await.unwrap().into_inner();
        assert_eq!((response.error.as_str(), response.region_error), ("", None));
        (!response.not_found).then_some(response.value)
    }

    pub(crate) async fn scan(
        &mut self,
        key: &[u8],
        request: RawScanRequest,
    ) -> Result<Vec<KvPair>, errorpb::Error> {
        let context = Some(self.context(key).await);
        let request = RawScanRequest { context, ..request };
        let response = self.kv.raw_scan(request).await.unwrap().into_inner();
        response.region_error.map_or(Ok(response.kvs), Err)
    }

    /// A client that behaves is served.
    pub(crate) async fn serves(&mut self) {
        let context = self.context(b"good").await;
        assert_eq!(self.put(context, b"good", "client".into()).await, Default::default());
        assert_eq!(self.get(b"good").await.unwrap(), "client");
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.cluster.pid(0))).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The store's memory is back in time, but for what its allocator keeps for later.
    pub(crate) async fn shrinks_back(&self, before: u64) {
        until_within(SHRINKS_WITHIN, async || {
            let growth = self.resident_bytes().saturating_sub(before);
            match growth <= GROWTH_BYTES_MAX {
                true => Ok(()),
                false => Err(format!("{growth} bytes more than before")),
            }
        })
        .await;
    }

    /// The store has not grown by more than it may since it had `before` bytes.
    pub(crate) fn has_not_grown(&self, before: u64) {
        let growth = self.resident_bytes().saturating_sub(before);
        println!("grown by {} KiB", growth / 1024);
        assert!(growth <= GROWTH_BYTES_MAX, "grown by {growth} bytes");
    }
}
