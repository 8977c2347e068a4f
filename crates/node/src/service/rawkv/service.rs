//! The state that the handlers of requests share: the router and the limits.

use std::sync::Arc;

use flotilla_identity::ApiVersion;
use flotilla_kv::ColumnFamily;
use flotilla_proto::kvrpcpb::{
    self, Context, RawGetRequest, RawGetResponse, RawPutRequest, RawPutResponse,
};
use flotilla_region::StoreId;
use tonic::Status;

use super::errors::{RequestFailure, RpcResponse, answer};
use super::read_scheduler::{ReadScheduler, ReadSchedulerConfig};
use super::request_context::RequestContext;
use super::rpc_durations::RpcDurations;
use super::validate::RequestRules;
use crate::border_codec::{BorderCodec, request_version};
use crate::driver::router::Router;
use crate::membership::Membership;
use crate::net::dial::Dialer;
use crate::net::unfetched_room::AnswerRoom;
use crate::wall_clock::WallClockRefusal;

/// Bytes of an answer besides its value, at most.
const ANSWER_OVERHEAD_BYTES: usize = 64;

/// Limits of the service. Every one bounds memory.
#[derive(Clone, Copy, Debug)]
pub struct RawKvLimits {
    /// Bytes of one message that comes in. TiKV's clients send entries of up to 8 MiB.
    pub message_bytes_max: usize,
    /// Bytes of one answer; a scan that finds more is refused. Ten thousand rows, the most that
    /// TiKV's Go client asks for, fit in if they have 3 KiB on average.
    pub answer_bytes_max: u64,
    /// How scans and batches of gets share the store.
    pub reads: ReadSchedulerConfig,
    /// Requests of one batch stream that are under way.
    pub stream_requests_max: u32,
}

impl Default for RawKvLimits {
    fn default() -> Self {
        Self {
            message_bytes_max: 16 << 20,
            answer_bytes_max: 32 << 20,
            reads: ReadSchedulerConfig::default(),
            stream_requests_max: 1024,
        }
    }
}

/// The service that every store offers to clients.
#[derive(Clone)]
pub struct RawKv {
    shared: Arc<RawKvShared>,
    /// The room for the answer of its only request; none where answers are bounded otherwise.
    room: Option<Arc<AnswerRoom>>,
}

struct RawKvShared {
    router: Router,
    /// Knows where other stores are; `None` for callers in the same process.
    membership: Option<Membership>,
    /// The form of the keys.
    api: ApiVersion,
    limits: RawKvLimits,
    read_scheduler: ReadScheduler,
    rpc_durations: Arc<RpcDurations>,
}

impl RawKv {
    /// A service that sends its requests to `router`, for keys of API V1.
    #[must_use]
    pub fn new(router: Router, limits: RawKvLimits) -> Self {
        Self::with_membership(router, limits, None)
    }

    /// The same, which finds other stores by `membership`, and the form of the keys.
    pub(crate) fn with_membership(
        router: Router,
        limits: RawKvLimits,
        membership: Option<Membership>,
    ) -> Self {
        let read_scheduler = ReadScheduler::new(limits.reads);
        let api = membership.as_ref().map_or(ApiVersion::V1Ttl, |it| it.settings().api);
        let rpc_durations = Arc::default();
        let shared = RawKvShared { router, membership, api, limits, read_scheduler, rpc_durations };
        Self { shared: Arc::new(shared), room: None }
    }

    /// The same for one request.
    pub(super) fn answering_in(&self, room: &Arc<AnswerRoom>) -> Self {
        Self { room: Some(Arc::clone(room)), ..self.clone() }
    }

    /// Refuses a request whose answer, with a value of so many bytes, has no room yet: what reads
    /// it waits for the room without the request's snapshot, and begins again.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED`, which no client gets.
    pub(super) fn check_room(&self, value_bytes: usize) -> Result<(), RequestFailure> {
        match &self.room {
            Some(room) if !room.try_reserve(value_bytes + ANSWER_OVERHEAD_BYTES) => {
                Err(RequestFailure::Call(Status::resource_exhausted("no room for the answer")))
            }
            _ => Ok(()),
        }
    }

    /// The answer to a `RawGet`, for callers in the same process.
    ///
    /// # Errors
    ///
    /// The status with which the call would fail.
    pub async fn raw_get(&self, request: RawGetRequest) -> Result<RawGetResponse, Status> {
        self.answer(self.get(request).await)
    }

    /// The answer to a `RawPut`, for callers in the same process.
    ///
    /// # Errors
    ///
    /// The status with which the call would fail.
    pub async fn raw_put(&self, request: RawPutRequest) -> Result<RawPutResponse, Status> {
        self.answer(self.put(request).await)
    }

    /// The result as its client sees it.
    pub(super) fn answer<T: RpcResponse>(
        &self,
        result: Result<T, RequestFailure>,
    ) -> Result<T, Status> {
        answer(self.borders(), result)
    }

    /// The form of borders on the wire.
    pub(super) fn borders(&self) -> BorderCodec {
        BorderCodec(self.shared.api)
    }

    /// The checks of requests of a kind.
    pub(super) fn rules(&self, command: &'static str) -> RequestRules {
        RequestRules { api: self.shared.api, command }
    }

    /// The version that requests have to say.
    pub(super) fn request_version(&self) -> kvrpcpb::ApiVersion {
        request_version(self.shared.api)
    }

    /// The router to the regions.
    pub(super) fn router(&self) -> &Router {
        &self.shared.router
    }

    /// The time for a command in which rows expire.
    pub(super) fn command_ms(&self) -> Result<u64, RequestFailure> {
        let refused = |error: WallClockRefusal| RequestFailure::Refused(error.to_string());
        self.router().wall_clock().command_ms().map_err(refused)
    }

    /// The knowledge of the cluster; `None` for callers in the same process.
    pub(super) fn membership(&self) -> Option<&Membership> {
        self.shared.membership.as_ref()
    }

    /// The address of another store, as last heard, and the way there.
    pub(super) fn way_to(&self, store: StoreId) -> Option<(String, &Dialer)> {
        let membership = self.membership()?;
        let known = membership.store(store)?;
        (!known.address.is_empty()).then(|| (known.address, membership.dialer()))
    }

    /// The column families that can have rows.
    pub(super) fn families(&self) -> &'static [ColumnFamily] {
        let knows_all = self.membership().is_none_or(|it| it.check_families().is_ok());
        match self.shared.api {
            ApiVersion::V1Ttl if knows_all => &ColumnFamily::ALL,
            ApiVersion::V1Ttl | ApiVersion::V2 => &[ColumnFamily::Default],
        }
    }

    /// The limits.
    pub(super) fn limits(&self) -> &RawKvLimits {
        &self.shared.limits
    }

    /// The claims of a request that reached this store.
    pub(super) fn check_context(
        &self,
        context: Option<Context>,
    ) -> Result<RequestContext, RequestFailure> {
        let router = self.router();
        RequestContext::check(context, &router.identity(), |id| router.descriptor(id))
    }

    /// The durations of calls.
    pub(crate) fn rpc_durations(&self) -> &Arc<RpcDurations> {
        &self.shared.rpc_durations
    }

    /// The scheduler of scans and batches of gets.
    pub(super) fn read_scheduler(&self) -> &ReadScheduler {
        &self.shared.read_scheduler
    }
}
