//! The stream `BatchCommands`: many requests on one stream, answered in any order.
//!
//! One task reads frames and starts a task for each request; another gathers answers into frames.
//! An error in one request does not end the stream. It ends with a frame that makes no sense, with
//! a client of another cluster, with its deadline, and when the client leaves.
//!
//! Backpressure: answers keep their share of the stream's budget until they are sent, and requests
//! wait for the budget. So a stream whose client does not fetch its answers stops, and
//! the client's own window fills up. The bytes are those of its connection, so other streams of the
//! same client wait too: each of a thousand streams could else fill a budget of its own.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_proto::tikvpb::batch_commands_request::{Request, request};
use flotilla_proto::tikvpb::batch_commands_response::{Response, response};
use flotilla_proto::tikvpb::{BatchCommandsEmptyResponse, BatchCommandsRequest};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::chunked_body::{BatchReply, ChunkedBody};
use super::errors::{RequestFailure, RpcResponse};
use super::refused;
use super::row_encoder::RowEncoder;
use super::rpc_durations::timed;
use super::service::RawKv;
use crate::net::call_deadline::CallDeadline;
use crate::net::connection::ConnectionPeer;
use crate::net::unfetched_room::UnfetchedRoom;

/// Answers that one frame holds at most.
const FRAME_ANSWERS_MAX: usize = 256;
/// A frame of this many bytes is sent, even if more answers are ready.
const FRAME_BYTES: usize = 1 << 20;
/// Frames of one stream that wait for the connection.
const FRAMES_MAX: usize = 2;
/// Bytes that a request counts for in addition to its own.
const REQUEST_OVERHEAD_BYTES: usize = 512;
/// The fields of an answer in a batch that has rows.
const BATCH_GET_FIELD: u32 = 14;
const SCAN_FIELD: u32 = 19;
const BATCH_SCAN_FIELD: u32 = 21;
/// The longest delay that an empty request may ask for.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// The answers of one stream.
pub(super) struct BatchAnswers {
    frames: mpsc::Receiver<Result<ChunkedBody, Status>>,
}

/// A request's share of the stream's budget, and then its answer's.
struct BudgetShare {
    place: OwnedSemaphorePermit,
    bytes: OwnedSemaphorePermit,
}

type Answered = Result<(u64, BatchReply, BudgetShare), Status>;

impl Stream for BatchAnswers {
    type Item = Result<ChunkedBody, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.frames.poll_recv(context)
    }
}

/// Serves a stream until its client ends it or sends something that makes no sense, or until its
/// deadline.
pub(super) fn serve(
    service: RawKv,
    requests: Streaming<BatchCommandsRequest>,
    peer: &ConnectionPeer,
    deadline: CallDeadline,
) -> BatchAnswers {
    let budget = StreamBudget::new(&service, peer);
    let (frames_in, frames) = mpsc::channel(FRAMES_MAX);
    let (answers_in, answers) = mpsc::channel(FRAME_ANSWERS_MAX);
    tokio::spawn(gather(answers, frames_in));
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = read(service, budget, requests, &answers_in) => ended,
            status = deadline.passed() => Err(status),
        };
        if let Err(status) = ended {
            // An error means that the client has gone.
            let _ = answers_in.send(Err(status)).await;
        }
    });
    BatchAnswers { frames }
}

/// Takes frames apart and starts their requests.
async fn read(
    service: RawKv,
    budget: StreamBudget,
    mut requests: Streaming<BatchCommandsRequest>,
    answers: &mpsc::Sender<Answered>,
) -> Result<(), Status> {
    loop {
        let frame = tokio::select! {
            frame = requests.message() => frame?,
            () = answers.closed() => return Ok(()),
        };
        let Some(frame) = frame else { return Ok(()) };
        let (requests, ids) = (frame.requests, frame.request_ids);
        if requests.len() != ids.len() {
            return Err(Status::invalid_argument(format!(
                "a batch of {} requests came with {} ids",
                requests.len(),
                ids.len()
            )));
        }
        for (request, id) in requests.into_iter().zip(ids) {
            // Admitted before the next frame is read: the stream stops here when its budget is
            // spent.
            let share = budget.admit(request.encoded_len()).await?;
            let (service, budget, answers) = (service.clone(), budget.clone(), answers.clone());
            tokio::spawn(async move {
                let answered = tokio::select! {
                    answered = respond(&service, &budget, request, share) => answered,
                    // The client is gone: a request that has not entered a log yet is dropped.
                    () = answers.closed() => return,
                };
                let answered = answered.map(|(response, share)| (id, response, share));
                let _ = answers.send(answered).await;
            });
        }
    }
}

/// Carries out one request, and finds room for its answer.
///
/// An answer without room is not kept until there is: a client that asks for many large values and
/// fetches none could fill the memory with them. It is thrown away, and the request carried out
/// again when its share is there. That is for reads only; the answers to writes are small.
async fn respond(
    service: &RawKv,
    budget: &StreamBudget,
    request: Request,
    mut share: BudgetShare,
) -> Result<(BatchReply, BudgetShare), Status> {
    let again = is_read(&request).then(|| request.clone());
    let durations = Arc::clone(service.rpc_durations());
    let histogram = request.cmd.as_ref().and_then(|command| durations.of_command(command));
    let mut response = timed(histogram, pin!(carry_out(service, request))).await?;
    if again.is_none() {
        // A client that puts fetches little; its room grows by what it has had done.
        budget.bytes.grow(share.bytes.num_permits());
    }
    loop {
        let bytes = response.encoded_len();
        share = match budget.exchange_now(share, bytes) {
            Ok(share) => return Ok((response, share)),
            Err(share) => share,
        };
        let Some(again) = &again else {
            return Ok((response, budget.exchange(share, bytes).await?));
        };
        drop(response);
        share = budget.exchange(share, bytes).await?;
        response = Box::pin(carry_out(service, again.clone())).await?;
    }
}

fn is_read(request: &Request) -> bool {
    use request::Cmd as Ask;
    matches!(
        request.cmd,
        Some(Ask::RawGet(_) | Ask::RawBatchGet(_) | Ask::RawScan(_) | Ask::RawBatchScan(_))
    )
}

/// The budget of one stream: requests, and bytes of requests and answers, which all streams of its
/// connection have together. Streams that have spent them are not read; nothing is refused, and no
/// other connection waits for it.
#[derive(Clone)]
struct StreamBudget {
    requests: Arc<Semaphore>,
    bytes: Arc<UnfetchedRoom>,
}

impl StreamBudget {
    fn new(service: &RawKv, peer: &ConnectionPeer) -> Self {
        let requests_max = service.limits().stream_requests_max as usize;
        Self { requests: Arc::new(Semaphore::new(requests_max)), bytes: Arc::clone(peer.batches()) }
    }

    /// Waits until there is room for a request.
    async fn admit(&self, request_bytes: usize) -> Result<BudgetShare, Status> {
        let place = self.requests.clone().acquire_owned().await.map_err(|_| stopping())?;
        let bytes = self.bytes.take(request_bytes + REQUEST_OVERHEAD_BYTES).await?;
        Ok(BudgetShare { place, bytes })
    }

    /// Exchanges the share of a request, which is done, for one of `answer_bytes`. The old share is
    /// given back first: two answers that each waited for the other's share would deadlock.
    async fn exchange(
        &self,
        share: BudgetShare,
        answer_bytes: usize,
    ) -> Result<BudgetShare, Status> {
        let BudgetShare { place, bytes } = share;
        drop(bytes);
        let bytes = self.bytes.take(answer_bytes + REQUEST_OVERHEAD_BYTES).await?;
        Ok(BudgetShare { place, bytes })
    }

    /// The same without waiting; the old share if there is no room.
    fn exchange_now(
        &self,
        mut share: BudgetShare,
        answer_bytes: usize,
    ) -> Result<BudgetShare, BudgetShare> {
        let has = share.bytes.num_permits();
        let missing = self.bytes.weight(answer_bytes + REQUEST_OVERHEAD_BYTES).saturating_sub(has);
        match self.bytes.try_take(missing) {
            Some(more) => {
                share.bytes.merge(more);
                Ok(share)
            }
            None => Err(share),
        }
    }
}

fn stopping() -> Status {
    Status::unavailable("the store is stopping")
}

/// Carries out one request of a frame. An error ends the stream.
///
/// A future is as large as that of its largest request: those that read many rows are kept apart,
/// for they are few beside the gets and puts.
async fn carry_out(service: &RawKv, request: Request) -> Result<BatchReply, Status> {
    use request::Cmd as Ask;
    use response::Cmd as Told;
    let told = match request.cmd {
        Some(Ask::RawGet(request)) => Told::RawGet(service.answer(service.get(request).await)?),
        Some(Ask::RawBatchGet(request)) => {
            return rows(
                service,
                BATCH_GET_FIELD,
                Box::pin(service.batch_get(request)).await,
                Told::RawBatchGet,
            );
        }
        Some(Ask::RawPut(request)) => Told::RawPut(service.answer(service.put(request).await)?),
        Some(Ask::RawBatchPut(request)) => {
            Told::RawBatchPut(service.answer(service.batch_put(request).await)?)
        }
        Some(Ask::RawDelete(request)) => {
            Told::RawDelete(service.answer(service.delete(request).await)?)
        }
        Some(Ask::RawBatchDelete(request)) => {
            Told::RawBatchDelete(service.answer(service.batch_delete(request).await)?)
        }
        Some(Ask::RawScan(request)) => {
            return rows(service, SCAN_FIELD, Box::pin(service.scan(request)).await, Told::RawScan);
        }
        Some(Ask::RawDeleteRange(request)) => {
            Told::RawDeleteRange(service.answer(service.delete_range(request).await)?)
        }
        Some(Ask::RawBatchScan(request)) => {
            return rows(
                service,
                BATCH_SCAN_FIELD,
                Box::pin(service.batch_scan(request)).await,
                Told::RawBatchScan,
            );
        }
        Some(Ask::Empty(request)) => {
            let delay = Duration::from_millis(request.delay_time).min(DELAY_MAX);
            tokio::time::sleep(delay).await;
            Told::Empty(BatchCommandsEmptyResponse { test_id: request.test_id })
        }
        Some(Ask::ScanLock(request)) => {
            Told::ScanLock(service.answer(service.scan_lock(request).await)?)
        }
        Some(Ask::ResolveLock(request)) => {
            Told::ResolveLock(service.answer(service.resolve_lock(request).await)?)
        }
        Some(Ask::RawCoprocessor(request)) => {
            Told::RawCoprocessor(service.answer(service.raw_coprocessor(request).await)?)
        }
        Some(cmd) => {
            return Ok(BatchReply::Message(Box::new(Response { cmd: refused::told(cmd) })));
        }
        // A kind from the future. Any kind that it could be answered with would be another one than
        // its client waits for; without one, clients take the answer for an error.
        None => return Ok(BatchReply::Message(Box::new(Response { cmd: None }))),
    };
    Ok(BatchReply::Message(Box::new(Response { cmd: Some(told) })))
}

/// Rows in their field of the answer, or the error instead of them.
fn rows<T: RpcResponse>(
    service: &RawKv,
    field: u32,
    result: Result<RowEncoder, RequestFailure>,
    told: fn(T) -> response::Cmd,
) -> Result<BatchReply, Status> {
    match result {
        Ok(rows) => Ok(BatchReply::Rows { field, rows }),
        Err(failure) => {
            let cmd = Some(told(service.answer(Err(failure))?));
            Ok(BatchReply::Message(Box::new(Response { cmd })))
        }
    }
}

/// Makes frames of answers, as large as what is ready.
async fn gather(
    mut answers: mpsc::Receiver<Answered>,
    frames: mpsc::Sender<Result<ChunkedBody, Status>>,
) {
    let mut ready = Vec::with_capacity(FRAME_ANSWERS_MAX);
    loop {
        // Dropping `answers` on return stops the stream's other tasks.
        let count = tokio::select! {
            count = answers.recv_many(&mut ready, FRAME_ANSWERS_MAX) => count,
            () = frames.closed() => return,
        };
        if count == 0 {
            return;
        }
        let mut left = ready.drain(..).peekable();
        while left.peek().is_some() {
            let (frame, end) = fill(&mut left);
            if let Some(frame) = frame
                && frames.send(Ok(frame)).await.is_err()
            {
                return;
            }
            if let Some(status) = end {
                let _ = frames.send(Err(status)).await;
                return;
            }
        }
    }
}

/// The next frame if there are answers for it, and why the stream ends after it, if it does.
fn fill(answers: &mut impl Iterator<Item = Answered>) -> (Option<ChunkedBody>, Option<Status>) {
    let (mut replies, mut ids, mut shares) = (vec![], vec![], vec![]);
    let mut bytes = 0;
    let mut end = None;
    for answered in answers {
        match answered {
            Ok((id, reply, share)) => {
                bytes += reply.encoded_len();
                replies.push(reply);
                ids.push(id);
                shares.push(share);
            }
            Err(status) => end = Some(status),
        }
        if bytes >= FRAME_BYTES || end.is_some() {
            break;
        }
    }
    if replies.is_empty() {
        return (None, end);
    }
    match ChunkedBody::batch(replies, &ids) {
        Ok(pieces) => (Some(pieces.keeping(shares)), end),
        Err(status) => (None, Some(status)),
    }
}

#[cfg(test)]
mod tests {
    use prost::encoding::decode_key;
    use response::Cmd as Told;

    use super::*;

    #[test]
    fn rows_stand_where_the_protocol_has_them() {
        for (field, told) in [
            (BATCH_GET_FIELD, Told::RawBatchGet(Default::default())),
            (SCAN_FIELD, Told::RawScan(Default::default())),
            (BATCH_SCAN_FIELD, Told::RawBatchScan(Default::default())),
        ] {
            let bytes = Response { cmd: Some(told) }.encode_to_vec();
            assert_eq!(decode_key(&mut &bytes[..]).unwrap().0, field);
        }
    }
}
