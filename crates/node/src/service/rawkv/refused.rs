//! Requests that are refused: what a client gets instead of an answer.
//!
//! A call of its own ends with `UNIMPLEMENTED`. A request in a batch has no status: its refusal is
//! an answer of its own kind, in the field by which its client gives up at once. An answer of
//! another kind would bring a client down that casts what it gets, and one of no kind would be
//! tried again.

use flotilla_proto::kvrpcpb::{
    BroadcastTxnStatusResponse, KeyError, RawCoprocessorRequest, RawCoprocessorResponse,
};
use flotilla_proto::tikvpb::batch_commands_request::request::Cmd as Ask;
use flotilla_proto::tikvpb::batch_commands_response::response::Cmd as Told;
use flotilla_proto::tikvpb::tikv_server::SERVICE_NAME;
use flotilla_proto::{coprocessor, kvrpcpb};

use super::errors::{RequestFailure, RpcResponse};
use super::service::RawKv;
use crate::net::refusal::refusal_words;

impl RawKv {
    /// Refuses to run a plugin: there are none.
    pub(super) async fn raw_coprocessor(
        &self,
        _: RawCoprocessorRequest,
    ) -> Result<RawCoprocessorResponse, RequestFailure> {
        Err(RequestFailure::Refused(words("RawCoprocessor")))
    }
}

/// The answer to a request of a batch that is not served; `None` if that has no kind.
pub(super) fn told(request: Ask) -> Option<Told> {
    let told = match request {
        Ask::Get(_) => Told::Get(refused("KvGet")),
        Ask::Scan(_) => Told::Scan(refused("KvScan")),
        Ask::Prewrite(_) => Told::Prewrite(refused("KvPrewrite")),
        Ask::Commit(_) => Told::Commit(refused("KvCommit")),
        Ask::Cleanup(_) => Told::Cleanup(refused("KvCleanup")),
        Ask::BatchGet(_) => Told::BatchGet(refused("KvBatchGet")),
        Ask::BatchRollback(_) => Told::BatchRollback(refused("KvBatchRollback")),
        Ask::Gc(_) => Told::Gc(refused("KvGC")),
        Ask::DeleteRange(_) => Told::DeleteRange(refused("KvDeleteRange")),
        Ask::Coprocessor(_) => Told::Coprocessor(refused("Coprocessor")),
        Ask::PessimisticLock(_) => Told::PessimisticLock(refused("KvPessimisticLock")),
        Ask::PessimisticRollback(_) => Told::PessimisticRollback(refused("KVPessimisticRollback")),
        Ask::CheckTxnStatus(_) => Told::CheckTxnStatus(refused("KvCheckTxnStatus")),
        Ask::TxnHeartBeat(_) => Told::TxnHeartBeat(refused("KvTxnHeartBeat")),
        Ask::CheckSecondaryLocks(_) => Told::CheckSecondaryLocks(refused("KvCheckSecondaryLocks")),
        Ask::FlashbackToVersion(_) => Told::FlashbackToVersion(refused("KvFlashbackToVersion")),
        Ask::PrepareFlashbackToVersion(_) => {
            Told::PrepareFlashbackToVersion(refused("KvPrepareFlashbackToVersion"))
        }
        Ask::Flush(_) => Told::Flush(refused("KvFlush")),
        Ask::BufferBatchGet(_) => Told::BufferBatchGet(refused("KvBufferBatchGet")),
        Ask::GetHealthFeedback(_) => Told::GetHealthFeedback(refused("GetHealthFeedback")),
        // A hint of which nothing comes; its answer has no field for an error.
        Ask::BroadcastTxnStatus(_) => Told::BroadcastTxnStatus(BroadcastTxnStatusResponse {}),
        _ => return None,
    };
    Some(told)
}

fn words(method: &str) -> String {
    refusal_words(&format!("/{SERVICE_NAME}/{method}"))
}

fn refused<T: RefusedResponse>(method: &str) -> T {
    T::refused(words(method))
}

/// A response that can say that its request is refused.
trait RefusedResponse {
    fn refused(words: String) -> Self;
}

/// Responses of transactions: clients take `abort` for an error that lasts.
macro_rules! refused_by_key_error {
    ($($response:ident { $field:ident: $wrap:ident }),* $(,)?) => {$(
        impl RefusedResponse for kvrpcpb::$response {
            fn refused(words: String) -> Self {
                Self { $field: $wrap(KeyError { abort: words }) }
            }
        }
    )*};
}

fn list(error: KeyError) -> Vec<KeyError> {
    vec![error]
}

refused_by_key_error!(
    GetResponse { error: Some },
    ScanResponse { error: Some },
    PrewriteResponse { errors: list },
    CommitResponse { error: Some },
    CleanupResponse { error: Some },
    BatchGetResponse { error: Some },
    BatchRollbackResponse { error: Some },
    GcResponse { error: Some },
    PessimisticLockResponse { errors: list },
    PessimisticRollbackResponse { errors: list },
    CheckTxnStatusResponse { error: Some },
    TxnHeartBeatResponse { error: Some },
    CheckSecondaryLocksResponse { error: Some },
    FlushResponse { errors: list },
    BufferBatchGetResponse { error: Some },
);

macro_rules! refused_by_string {
    ($($response:ident),* $(,)?) => {$(
        impl RefusedResponse for kvrpcpb::$response {
            fn refused(words: String) -> Self {
                Self { error: words }
            }
        }
    )*};
}

refused_by_string!(
    DeleteRangeResponse,
    FlashbackToVersionResponse,
    PrepareFlashbackToVersionResponse,
);

impl RefusedResponse for coprocessor::Response {
    fn refused(words: String) -> Self {
        Self { other_error: words }
    }
}

impl RefusedResponse for kvrpcpb::GetHealthFeedbackResponse {
    fn refused(words: String) -> Self {
        let mut response = Self::default();
        response.set_error(words);
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flotilla_proto::tikvpb::batch_commands_request::Request;
    use flotilla_proto::tikvpb::batch_commands_response::Response;
    use prost::Message;
    use prost::bytes::BufMut;
    use prost::encoding::{WireType, decode_key, encode_key};

    use super::*;

    /// An empty request of the kind that has this number.
    fn request(kind: u32) -> Option<Ask> {
        let mut bytes = vec![];
        encode_key(kind, WireType::LengthDelimited, &mut bytes);
        bytes.put_u8(0);
        Request::decode(&bytes[..]).unwrap().cmd
    }

    #[test]
    fn each_refusal_is_of_the_kind_of_its_request_and_says_why() {
        let mut refused = BTreeSet::new();
        for kind in 1..=255 {
            let Some(told) = request(kind).and_then(told) else { continue };
            let bytes = Response { cmd: Some(told) }.encode_to_vec();
            assert_eq!(decode_key(&mut &bytes[..]).unwrap().0, kind);
            // The hint has no field for words.
            let text = String::from_utf8_lossy(&bytes);
            assert!(
                kind == 40 || text.ends_with(" is not supported by Flotilla"),
                "{kind}: {text}"
            );
            refused.insert(kind);
        }
        let kinds = [1..=4, 6..=8, 11..=12, 22..=26, 33..=33, 35..=40];
        assert_eq!(refused, kinds.into_iter().flatten().collect());
    }
}
