//! RawKV's requests under one trait, so that routing and retrying are written once.

use flotilla_proto::errorpb;
use flotilla_proto::kvrpcpb::{self, Context};
use flotilla_proto::tikvpb::batch_commands_request::request::Cmd as Command;
use flotilla_proto::tikvpb::batch_commands_response::response::Cmd as Reply;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tonic::Status;
use tonic::transport::Channel;

/// Whether a request changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEffect {
    Read,
    Write,
}

/// A request that one region can serve.
pub(crate) trait Call: Clone + Send + 'static {
    type Response: RawResponse;
    const EFFECT: CallEffect;
    fn set_context(&mut self, context: Context);
    /// The request as a command of the batch stream, if there is one for it.
    fn command(&self) -> Option<Command>;
    /// The response, if the stream answered with the kind that belongs to this request.
    fn reply(reply: Reply) -> Option<Self::Response>;
    fn unary(
        self,
        client: TikvClient<Channel>,
    ) -> impl Future<Output = Result<Self::Response, Status>> + Send;
}

/// The common part of all responses.
pub(crate) trait RawResponse: Send + 'static {
    fn region_error(&mut self) -> Option<errorpb::Error>;
    /// Why the request is refused for good; empty if it is not.
    fn refusal(&mut self) -> String;
}

/// `reads` have no `error` field: they fail as a region or not at all.
macro_rules! call {
    ($request:ident, $response:ident, $method:ident, $effect:ident, $refusal:expr $(, $arm:ident)?) => {
        impl Call for kvrpcpb::$request {
            type Response = kvrpcpb::$response;
            const EFFECT: CallEffect = CallEffect::$effect;

            fn set_context(&mut self, context: Context) {
                self.context = Some(context);
            }

            fn command(&self) -> Option<Command> {
                None$(.or_else(|| Some(Command::$arm(self.clone()))))?
            }

            fn reply(reply: Reply) -> Option<kvrpcpb::$response> {
                match reply {
                    $(Reply::$arm(response) => Some(response),)?
                    _ => None,
                }
            }

            async fn unary(
                self,
                mut client: TikvClient<Channel>,
            ) -> Result<kvrpcpb::$response, Status> {
                Ok(client.$method(self).await?.into_inner())
            }
        }

        impl RawResponse for kvrpcpb::$response {
            fn region_error(&mut self) -> Option<errorpb::Error> {
                self.region_error.take()
            }

            fn refusal(&mut self) -> String {
                let refusal: fn(&mut kvrpcpb::$response) -> String = $refusal;
                refusal(self)
            }
        }
    };
}

macro_rules! calls {
    ($($request:ident -> $response:ident by $method:ident, $effect:ident, $refusal:expr $(, $arm:ident)?;)*) => {
        $(call!($request, $response, $method, $effect, $refusal $(, $arm)?);)*
    };
}

calls! {
    RawGetRequest -> RawGetResponse by raw_get, Read, |r| std::mem::take(&mut r.error), RawGet;
    // The answers of these two have no field for a refusal.
    RawBatchGetRequest -> RawBatchGetResponse by raw_batch_get, Read, |_| String::new(), RawBatchGet;
    RawScanRequest -> RawScanResponse by raw_scan, Read, |_| String::new(), RawScan;
    // Without an arm: `BatchCommands` has none.
    RawGetKeyTtlRequest -> RawGetKeyTtlResponse by raw_get_key_ttl, Read, |r| std::mem::take(&mut r.error);
    RawPutRequest -> RawPutResponse by raw_put, Write, |r| std::mem::take(&mut r.error), RawPut;
    RawBatchPutRequest -> RawBatchPutResponse by raw_batch_put, Write, |r| std::mem::take(&mut r.error), RawBatchPut;
    RawDeleteRequest -> RawDeleteResponse by raw_delete, Write, |r| std::mem::take(&mut r.error), RawDelete;
    RawBatchDeleteRequest -> RawBatchDeleteResponse by raw_batch_delete, Write, |r| std::mem::take(&mut r.error), RawBatchDelete;
    RawDeleteRangeRequest -> RawDeleteRangeResponse by raw_delete_range, Write, |r| std::mem::take(&mut r.error), RawDeleteRange;
    // It has no arm either, and its refusals are the status of the call.
    SplitRegionRequest -> SplitRegionResponse by split_region, Write, |_| String::new();
    // Without an arm: TiKV's `BatchCommands` has no compare-and-swap, so it goes by a call of its
    // own.
    RawCasRequest -> RawCasResponse by raw_compare_and_swap, Write, |r| std::mem::take(&mut r.error);
}
