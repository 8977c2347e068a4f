//! The fake store's RawKV service.

use std::pin::Pin;

use flotilla_proto::kvrpcpb;
use flotilla_proto::tikvpb::batch_commands_request::request::Cmd as Command;
use flotilla_proto::tikvpb::batch_commands_response::Response as BatchResponse;
use flotilla_proto::tikvpb::batch_commands_response::response::Cmd as Reply;
use flotilla_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse, tikv_server::Tikv};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Fault;
use super::store::Store;

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A unary call is the command of the same name, and a lost answer is one that never comes.
macro_rules! unary {
    ($self:ident, $request:ident, $arm:ident) => {
        match $self.serve(Command::$arm($request.into_inner()))? {
            Some(Reply::$arm(response)) => Ok(Response::new(response)),
            _ => std::future::pending().await,
        }
    };
}

#[tonic::async_trait]
impl Tikv for Store {
    async fn raw_get(&self, r: Request<kvrpcpb::RawGetRequest>) -> Answer<kvrpcpb::RawGetResponse> {
        unary!(self, r, RawGet)
    }

    async fn raw_put(&self, r: Request<kvrpcpb::RawPutRequest>) -> Answer<kvrpcpb::RawPutResponse> {
        unary!(self, r, RawPut)
    }

    async fn raw_delete(
        &self,
        r: Request<kvrpcpb::RawDeleteRequest>,
    ) -> Answer<kvrpcpb::RawDeleteResponse> {
        unary!(self, r, RawDelete)
    }

    async fn raw_batch_get(
        &self,
        r: Request<kvrpcpb::RawBatchGetRequest>,
    ) -> Answer<kvrpcpb::RawBatchGetResponse> {
        unary!(self, r, RawBatchGet)
    }

    async fn raw_batch_put(
        &self,
        r: Request<kvrpcpb::RawBatchPutRequest>,
    ) -> Answer<kvrpcpb::RawBatchPutResponse> {
        unary!(self, r, RawBatchPut)
    }

    async fn raw_batch_delete(
        &self,
        r: Request<kvrpcpb::RawBatchDeleteRequest>,
    ) -> Answer<kvrpcpb::RawBatchDeleteResponse> {
        unary!(self, r, RawBatchDelete)
    }

    async fn raw_scan(
        &self,
        r: Request<kvrpcpb::RawScanRequest>,
    ) -> Answer<kvrpcpb::RawScanResponse> {
        unary!(self, r, RawScan)
    }

    async fn raw_delete_range(
        &self,
        r: Request<kvrpcpb::RawDeleteRangeRequest>,
    ) -> Answer<kvrpcpb::RawDeleteRangeResponse> {
        unary!(self, r, RawDeleteRange)
    }

    async fn raw_batch_scan(
        &self,
        _: Request<kvrpcpb::RawBatchScanRequest>,
    ) -> Answer<kvrpcpb::RawBatchScanResponse> {
        Err(Status::unimplemented("not used by the client"))
    }

    async fn raw_checksum(
        &self,
        _: Request<kvrpcpb::RawChecksumRequest>,
    ) -> Answer<kvrpcpb::RawChecksumResponse> {
        Err(Status::unimplemented("not used by the client"))
    }

    async fn unsafe_destroy_range(
        &self,
        _: Request<kvrpcpb::UnsafeDestroyRangeRequest>,
    ) -> Answer<kvrpcpb::UnsafeDestroyRangeResponse> {
        Err(Status::unimplemented("not used by the client"))
    }

    async fn raw_coprocessor(
        &self,
        _: Request<kvrpcpb::RawCoprocessorRequest>,
    ) -> Answer<kvrpcpb::RawCoprocessorResponse> {
        Err(Status::unimplemented("not used by the client"))
    }

    async fn kv_scan_lock(
        &self,
        _: Request<kvrpcpb::ScanLockRequest>,
    ) -> Answer<kvrpcpb::ScanLockResponse> {
        Err(Status::unimplemented("not used by the client"))
    }

    async fn kv_resolve_lock(
        &self,
        _: Request<kvrpcpb::ResolveLockRequest>,
    ) -> Answer<kvrpcpb::ResolveLockResponse> {
        Err(Status::unimplemented("not used by the client"))
    }

    async fn raw_get_key_ttl(
        &self,
        r: Request<kvrpcpb::RawGetKeyTtlRequest>,
    ) -> Answer<kvrpcpb::RawGetKeyTtlResponse> {
        let r = r.into_inner();
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        let context = r.context.as_ref().expect("a context");
        let region_error = self.check(&state, context, &r.key, &r.key, &None);
        let ttl = state.ttls.get(&r.key).copied().unwrap_or_default();
        let not_found = !state.rows.contains_key(&r.key);
        let error = String::new();
        Ok(Response::new(kvrpcpb::RawGetKeyTtlResponse { region_error, error, ttl, not_found }))
    }

    async fn raw_compare_and_swap(
        &self,
        r: Request<kvrpcpb::RawCasRequest>,
    ) -> Answer<kvrpcpb::RawCasResponse> {
        let r = r.into_inner();
        let mut response = kvrpcpb::RawCasResponse::default();
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.requests += 1;
            let fault = state.faults.pop_front();
            let context = r.context.as_ref().expect("a context");
            response.region_error = self.check(&state, context, &r.key, &r.key, &fault);
            if response.region_error.is_none() {
                let previous = state.rows.get(&r.key).cloned();
                let expected = (!r.previous_not_exist).then_some(r.previous_value);
                response.succeed = previous == expected;
                response.previous_not_exist = previous.is_none();
                response.previous_value = previous.unwrap_or_default();
                if response.succeed {
                    state.writes += 1;
                    state.ttls.insert(r.key.clone(), r.ttl);
                    match r.delete {
                        true => drop(state.rows.remove(&r.key)),
                        false => drop(state.rows.insert(r.key, r.value)),
                    }
                }
            }
            fault
        };
        match fault {
            Some(Fault::CutOff) => Err(Status::unavailable("cut off after the write")),
            _ => Ok(Response::new(response)),
        }
    }

    async fn split_region(
        &self,
        r: Request<kvrpcpb::SplitRegionRequest>,
    ) -> Answer<kvrpcpb::SplitRegionResponse> {
        let r = r.into_inner();
        assert!(r.is_raw_kv);
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        let fault = state.faults.pop_front();
        let context = r.context.as_ref().expect("a context");
        let (low, high) = (r.split_keys.first().unwrap(), r.split_keys.last().unwrap());
        let region_error = self.check(&state, context, low, high, &fault);
        let regions = match region_error {
            None => state.split_region(context.region_id, &r.split_keys),
            Some(_) => vec![],
        };
        let response = kvrpcpb::SplitRegionResponse { region_error, regions, ..Default::default() };
        Ok(Response::new(response))
    }

    type BatchCommandsStream = Streamed<BatchCommandsResponse>;

    async fn batch_commands(
        &self,
        requests: Request<Streaming<BatchCommandsRequest>>,
    ) -> Answer<Self::BatchCommandsStream> {
        let mut requests = requests.into_inner();
        let (sender, receiver) = mpsc::channel(16);
        let mut store = self.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = requests.message().await {
                store.state.lock().unwrap().messages += 1;
                store.waiting.send_modify(|waiting| *waiting += message.requests.len());
                let released = store.held.wait_for(|held| !held).await.is_ok();
                store.waiting.send_modify(|waiting| *waiting -= message.requests.len());
                let answer = if released { store.batch(message) } else { break };
                let failed = answer.is_err();
                if sender.send(answer).await.is_err() || failed {
                    break;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

impl Store {
    /// Answers in the opposite order: a client that pairs by place instead of id is found out.
    fn batch(&self, message: BatchCommandsRequest) -> Result<BatchCommandsResponse, Status> {
        let mut answer = BatchCommandsResponse::default();
        let requests = message.request_ids.into_iter().zip(message.requests);
        for (id, request) in requests.rev() {
            if let Some(reply) = self.serve(request.cmd.expect("a command"))? {
                answer.request_ids.push(id);
                answer.responses.push(BatchResponse { cmd: Some(reply) });
            }
        }
        Ok(answer)
    }
}
