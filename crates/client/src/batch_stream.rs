//! One `BatchCommands` stream: many callers, one message for all that wait.
//!
//! A caller registers its id, queues its command and waits. The same permits bound both the queue
//! of commands and the table of callers. No command waits for a batch to fill: all commands that
//! are queued when the connection can take a message go into it.
//!
//! Invariants:
//! - A caller that gives up takes its entry out of the table; an answer without an entry is
//!   dropped.
//! - Once the stream is broken, no entry is in the table and none can be added: no caller waits for
//!   an answer that cannot come.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use flotilla_proto::tikvpb::batch_commands_request::{Request, request::Cmd as Command};
use flotilla_proto::tikvpb::batch_commands_response::response::Cmd as Reply;
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use flotilla_proto::tikvpb::{BatchCommandsRequest, BatchCommandsResponse};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::transport::Channel;

use crate::config::Config;

/// A stream that is open, or was.
#[derive(Debug)]
pub(crate) struct BatchStream {
    room: Semaphore,
    next_id: AtomicU64,
    callers: Arc<Callers>,
    outbox: mpsc::Sender<(u64, Command)>,
    reader: AbortHandle,
}

impl BatchStream {
    /// Starts a task that opens the stream on `channel` and reads its answers until it breaks.
    pub(crate) fn open(client: TikvClient<Channel>, config: &Config) -> BatchStream {
        let (outbox, queue) = mpsc::channel(config.in_flight_max);
        let callers = Arc::new(Callers::default());
        let requests =
            BatchedRequests { queue, batch_max: config.stream_batch_max, batch: Vec::new() };
        let reader = tokio::spawn(read(client, requests, Arc::clone(&callers)));
        BatchStream {
            room: Semaphore::new(config.in_flight_max),
            next_id: AtomicU64::new(1),
            callers,
            outbox,
            reader: reader.abort_handle(),
        }
    }

    /// Whether calls can only fail.
    pub(crate) fn is_broken(&self) -> bool {
        self.callers.lock().broken.is_some()
    }

    /// Sends the command and waits for the answer that bears its id.
    ///
    /// # Cancel safety
    ///
    /// Giving up frees the caller's place; the command may have been sent.
    pub(crate) async fn call(&self, command: Command) -> Result<Reply, Status> {
        let _permit = self.room.acquire().await.expect("the semaphore is never closed");
        // Ids only have to differ, so no order is needed.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        // Before the command is sent: an answer that comes at once must find its caller.
        let _entry = self.callers.enter(id, sender)?;
        // If the queue is gone, the reader is about to tell every caller why.
        let _ = self.outbox.send((id, command)).await;
        match receiver.await {
            Ok(answer) => answer,
            Err(_) => Err(Status::unavailable("the batch stream ended")),
        }
    }
}

impl Drop for BatchStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

type Waiting = oneshot::Sender<Result<Reply, Status>>;

/// The callers that wait, by request id.
#[derive(Debug, Default)]
struct Callers {
    table: Mutex<CallerTable>,
}

#[derive(Debug, Default)]
struct CallerTable {
    waiting: HashMap<u64, Waiting>,
    broken: Option<Status>,
}

impl Callers {
    fn enter(&self, id: u64, sender: Waiting) -> Result<CallerEntry<'_>, Status> {
        let mut table = self.lock();
        match &table.broken {
            Some(status) => Err(status.clone()),
            None => {
                table.waiting.insert(id, sender);
                Ok(CallerEntry { callers: self, id })
            }
        }
    }

    fn answer(&self, id: u64, answer: Result<Reply, Status>) {
        let sender = self.lock().waiting.remove(&id);
        if let Some(sender) = sender {
            // A caller that is just giving up does not mind.
            let _ = sender.send(answer);
        }
    }

    fn break_off(&self, status: &Status) {
        let waiting = {
            let mut table = self.lock();
            table.broken = Some(status.clone());
            std::mem::take(&mut table.waiting)
        };
        // Outside of the lock, which each caller takes as it leaves the table.
        for sender in waiting.into_values() {
            let _ = sender.send(Err(status.clone()));
        }
    }

    // Each change of the table is one insertion or removal: whole, even if a thread panicked.
    fn lock(&self) -> MutexGuard<'_, CallerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller's entry in the table; taken out when it is dropped.
struct CallerEntry<'a> {
    callers: &'a Callers,
    id: u64,
}

impl Drop for CallerEntry<'_> {
    fn drop(&mut self) {
        self.callers.lock().waiting.remove(&self.id);
    }
}

/// The queued commands, as messages: the request half of the stream.
struct BatchedRequests {
    queue: mpsc::Receiver<(u64, Command)>,
    batch_max: usize,
    batch: Vec<(u64, Command)>,
}

impl tokio_stream::Stream for BatchedRequests {
    type Item = BatchCommandsRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let BatchedRequests { queue, batch_max, batch } = &mut *self;
        if ready!(queue.poll_recv_many(cx, batch, *batch_max)) == 0 {
            return Poll::Ready(None);
        }
        let (request_ids, requests) =
            batch.drain(..).map(|(id, command)| (id, Request { cmd: Some(command) })).unzip();
        Poll::Ready(Some(BatchCommandsRequest { requests, request_ids, client_send_time_ns: 0 }))
    }
}

/// Breaks the stream off whatever way its reader ends, also if the task is dropped.
struct BreakOff(Arc<Callers>, Status);

impl Drop for BreakOff {
    fn drop(&mut self) {
        self.0.break_off(&self.1);
    }
}

async fn read(mut client: TikvClient<Channel>, requests: BatchedRequests, callers: Arc<Callers>) {
    let ended = Status::unavailable("the batch stream ended");
    let mut end = BreakOff(Arc::clone(&callers), ended);
    let mut responses = match client.batch_commands(requests).await {
        Ok(response) => response.into_inner(),
        Err(status) => {
            end.1 = status;
            return;
        }
    };
    loop {
        match responses.message().await {
            Ok(Some(message)) => deliver(message, &callers),
            Ok(None) => return,
            Err(status) => {
                end.1 = status;
                return;
            }
        }
    }
}

fn deliver(message: BatchCommandsResponse, callers: &Callers) {
    if message.responses.len() != message.request_ids.len() {
        // Answers and ids would be paired wrongly: better no answer than that of another caller.
        let status = Status::data_loss("the batch stream's ids do not match its responses");
        return message.request_ids.iter().for_each(|id| callers.answer(*id, Err(status.clone())));
    }
    for (id, response) in message.request_ids.into_iter().zip(message.responses) {
        let unknown = || Status::internal("a response of an unknown kind");
        callers.answer(id, response.cmd.ok_or_else(unknown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(callers: &Callers) -> usize {
        callers.lock().waiting.len()
    }

    #[test]
    fn an_entry_goes_with_its_caller() {
        let callers = Callers::default();
        let (first, second) = (oneshot::channel(), oneshot::channel());
        let gone = callers.enter(1, first.0).unwrap();
        let _stays = callers.enter(2, second.0).unwrap();
        assert_eq!(waiting(&callers), 2);
        drop(gone);
        assert_eq!(waiting(&callers), 1);
        callers.answer(1, Err(Status::internal("for nobody")));
        assert_eq!(waiting(&callers), 1);
    }

    #[test]
    fn a_broken_stream_tells_all_and_takes_nobody() {
        let callers = Callers::default();
        let (sender, mut receiver) = oneshot::channel();
        let _entry = callers.enter(1, sender).unwrap();
        callers.break_off(&Status::unavailable("cut"));
        let answer = receiver.try_recv().unwrap();
        assert_eq!(answer.unwrap_err().message(), "cut");
        let (sender, _receiver) = oneshot::channel();
        assert_eq!(callers.enter(2, sender).map(drop).unwrap_err().message(), "cut");
        assert_eq!(waiting(&callers), 0);
    }

    #[test]
    fn answers_that_cannot_be_paired_are_nobodys() {
        let callers = Callers::default();
        let (sender, mut receiver) = oneshot::channel();
        let _entry = callers.enter(7, sender).unwrap();
        let message = BatchCommandsResponse { request_ids: vec![7], ..Default::default() };
        deliver(message, &callers);
        assert_eq!(receiver.try_recv().unwrap().unwrap_err().code(), tonic::Code::DataLoss);
    }
}
