//! Bounds the bytes of messages of which only a part has come.
//!
//! The server library takes the parts of a message as they come and opens the window of HTTP/2 for
//! more of them, so a client that begins a thousand messages of the largest size, and ends none,
//! would have gigabytes of a store. Here a message that does not come at once counts with the
//! length that it announces, and one for which there is no room is refused before more of it is
//! taken. Refused, not kept waiting: messages that wait would fill the window of their connection,
//! and those that have room would not get their next part. Decision 62
//! (`docs/decisions/0062-unfinished-messages-are-bounded.md`) has what was seen without.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame};
use tokio::time::Sleep;
use tonic::Status;
use tonic::codegen::StdError;

use crate::net::connection_counts::ConnectionCounts;

/// Bytes before each message: whether it is compressed (1), its length (4).
const PREFIX_BYTES: usize = 5;
/// Nothing longer is a message; what is refuses it at its length.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes that each connection may have whatever others have: a client with many small messages
/// under way does not feel those with large ones.
const OWN_BYTES: usize = 1 << 20;
/// The part of all bytes that one connection may have.
const CONNECTION_PARTS: usize = 4;
/// Within this a message has to come: 16 MiB at 4.5 Mbit/s.
const DUE: Duration = Duration::from_secs(30);

/// Those of all connections of a listener.
#[derive(Debug)]
pub(crate) struct UnfinishedBytes {
    taken: AtomicUsize,
    max: usize,
    counts: Arc<ConnectionCounts>,
}

/// Those of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionUnfinished {
    all: Arc<UnfinishedBytes>,
    taken: AtomicUsize,
}

/// The bytes of one message, which are given back when this is dropped.
#[derive(Debug)]
struct UnfinishedMessage {
    of: Arc<ConnectionUnfinished>,
    bytes: usize,
}

impl UnfinishedBytes {
    /// Room for so many bytes; refused messages are counted.
    pub(crate) fn new(max: usize, counts: &Arc<ConnectionCounts>) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), max, counts: Arc::clone(counts) })
    }
}

impl ConnectionUnfinished {
    /// None so far.
    pub(crate) fn of(all: &Arc<UnfinishedBytes>) -> Arc<Self> {
        Arc::new(Self { all: Arc::clone(all), taken: AtomicUsize::new(0) })
    }

    /// Counts a message; none if there is no room.
    fn begin(self: &Arc<Self>, bytes: usize) -> Option<UnfinishedMessage> {
        let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
        let message = UnfinishedMessage { of: Arc::clone(self), bytes };
        let more = beyond_own(before + bytes) - beyond_own(before);
        let all_before = self.all.taken.fetch_add(more, Ordering::Relaxed);
        let has_room = more == 0
            || (before + bytes <= self.all.max / CONNECTION_PARTS
                && all_before + more <= self.all.max);
        has_room.then_some(message)
    }
}

impl Drop for UnfinishedMessage {
    fn drop(&mut self) {
        let before = self.of.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        let fewer = beyond_own(before) - beyond_own(before - self.bytes);
        self.of.all.taken.fetch_sub(fewer, Ordering::Relaxed);
    }
}

/// Those of a connection's bytes that count for all.
fn beyond_own(bytes: usize) -> usize {
    bytes.saturating_sub(OWN_BYTES)
}

/// The messages of a request, whose bytes count while they are unfinished.
pub(crate) struct BoundedMessages<B> {
    body: B,
    cut: MessageCut,
    room: Arc<ConnectionUnfinished>,
    unfinished: Option<Unfinished>,
}

/// The message that is under way, and when it is due.
struct Unfinished {
    number: u64,
    due: Pin<Box<Sleep>>,
    _counted: UnfinishedMessage,
}

impl<B> BoundedMessages<B> {
    /// Those of `body`, which came on the connection with this room.
    pub(crate) fn new(body: B, room: Arc<ConnectionUnfinished>) -> Self {
        Self { body, cut: MessageCut::default(), room, unfinished: None }
    }

    /// Counts what has come.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.cut.advance(bytes);
        let Some(length) = self.cut.unfinished() else {
            self.unfinished = None;
            return Ok(());
        };
        let number = self.cut.finished;
        if self.unfinished.as_ref().is_some_and(|it| it.number == number) {
            return Ok(());
        }
        self.unfinished = None;
        let counted = self.room.begin(length.min(MESSAGE_BYTES_MAX)).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "a message of {length} bytes comes in parts, and more that are not whole yet have \
                 no room: limits.unfinished_bytes_max"
            ))
        })?;
        let due = Box::pin(tokio::time::sleep(DUE));
        self.unfinished = Some(Unfinished { number, due, _counted: counted });
        Ok(())
    }

    fn refuse(&self, why: Status) -> StdError {
        self.room.all.counts.note_refused_message(why.message());
        why.into()
    }

    /// Fails if the message that is under way is late; wakes the task when it is.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        let Some(unfinished) = &mut self.unfinished else { return Ok(()) };
        if unfinished.due.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let within = DUE.as_secs();
        Err(Status::deadline_exceeded(format!("a message has not come whole within {within} s")))
    }
}

impl<B> HttpBody for BoundedMessages<B>
where
    B: HttpBody + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            return match self.poll_due(context) {
                Ok(()) => Poll::Pending,
                Err(late) => Poll::Ready(Some(Err(self.refuse(late)))),
            };
        };
        let frame = match frame {
            Some(Ok(frame)) => frame.map_data(|mut data| data.copy_to_bytes(data.remaining())),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        if let Some(data) = frame.data_ref()
            && let Err(refused) = self.take(data)
        {
            return Poll::Ready(Some(Err(self.refuse(refused))));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The ends of messages in the bytes of a request.
#[derive(Debug, Default)]
struct MessageCut {
    /// Messages that are whole.
    finished: u64,
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Of the message whose prefix is whole.
    length: usize,
    bytes_left: usize,
}

impl MessageCut {
    /// Takes the next bytes.
    fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.prefix_bytes < PREFIX_BYTES {
                let (now, later) =
                    bytes.split_at(bytes.len().min(PREFIX_BYTES - self.prefix_bytes));
                self.prefix[self.prefix_bytes..][..now.len()].copy_from_slice(now);
                self.prefix_bytes += now.len();
                bytes = later;
                if self.prefix_bytes == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    self.length = u32::from_be_bytes(length) as usize;
                    self.bytes_left = self.length;
                }
            }
            let now = bytes.len().min(self.bytes_left);
            self.bytes_left -= now;
            bytes.advance(now);
            if self.prefix_bytes == PREFIX_BYTES && self.bytes_left == 0 {
                self.finished += 1;
                self.prefix_bytes = 0;
            }
        }
    }

    /// The length of the message that is under way, if one is whose length is known.
    fn unfinished(&self) -> Option<usize> {
        (self.prefix_bytes == PREFIX_BYTES).then_some(self.length)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::mpsc;
    use tonic::Code;

    use super::*;

    /// A body of what is sent.
    struct Sent(mpsc::Receiver<Bytes>);

    impl HttpBody for Sent {
        type Data = Bytes;
        type Error = StdError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
            self.0.poll_recv(context).map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }

    struct Client {
        sender: mpsc::Sender<Bytes>,
        messages: BoundedMessages<Sent>,
    }

    impl Client {
        fn of(connection: &Arc<ConnectionUnfinished>) -> Self {
            let (sender, sent) = mpsc::channel(1);
            Self { sender, messages: BoundedMessages::new(Sent(sent), Arc::clone(connection)) }
        }

        async fn next(&mut self) -> Result<Bytes, Code> {
            let next = poll_fn(|context| Pin::new(&mut self.messages).poll_frame(context)).await;
            match next.unwrap() {
                Ok(frame) => Ok(frame.into_data().unwrap()),
                Err(error) => Err(error.downcast::<Status>().unwrap().code()),
            }
        }

        async fn send(&mut self, bytes: &[u8]) -> Result<(), Code> {
            self.sender.send(Bytes::copy_from_slice(bytes)).await.unwrap();
            assert_eq!(self.next().await?, bytes);
            Ok(())
        }

        /// Begins a message of `length` bytes.
        async fn begin(&mut self, length: usize) -> Result<(), Code> {
            self.send(&prefix(length)).await
        }
    }

    fn prefix(length: usize) -> Vec<u8> {
        [&[0], &u32::try_from(length).unwrap().to_be_bytes()[..]].concat()
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn messages_end_where_their_lengths_say() {
        let sent: Vec<u8> = [3, 0, 1000, 7].map(|n| [prefix(n), vec![9; n]].concat()).concat();
        for part_bytes in 1..20 {
            let (mut cut, mut unfinished) = (MessageCut::default(), vec![]);
            for part in sent.chunks(part_bytes) {
                cut.advance(part);
                unfinished.extend(cut.unfinished());
            }
            assert_eq!((cut.finished, cut.unfinished()), (4, None), "parts of {part_bytes}");
            assert!(unfinished.contains(&1000));
            assert!(unfinished.iter().all(|length| [3, 1000, 7].contains(length)));
        }
        let mut cut = MessageCut::default();
        cut.advance(&sent);
        assert_eq!((cut.finished, cut.unfinished()), (4, None));
    }

    #[tokio::test]
    async fn a_connection_has_a_quarter_and_gets_room_back() {
        let all = UnfinishedBytes::new(64 * MIB, &Arc::default());
        let connection = ConnectionUnfinished::of(&all);
        let (mut first, mut second) = (Client::of(&connection), Client::of(&connection));
        first.begin(16 * MIB).await.unwrap();
        assert_eq!(second.begin(1).await, Err(Code::ResourceExhausted));
        assert_eq!(all.counts.read().messages_refused, 1);
        // Others have room.
        Client::of(&ConnectionUnfinished::of(&all)).begin(16 * MIB).await.unwrap();
        for _ in 0..16 {
            first.send(&vec![7; MIB]).await.unwrap();
        }
        assert_eq!(all.taken.load(Ordering::Relaxed), 0);
        // Whole messages do not count, and the one after the last of them does.
        let mut more = [prefix(3), vec![7; 3], prefix(2), vec![7; 2]].concat();
        first.send(&more).await.unwrap();
        more.extend(prefix(15 * MIB));
        first.send(&more).await.unwrap();
        let mut third = Client::of(&connection);
        assert_eq!(third.begin(2 * MIB).await, Err(Code::ResourceExhausted));
        drop(first);
        Client::of(&connection).begin(16 * MIB).await.unwrap();
        assert_eq!(all.taken.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_has_room_of_its_own_when_all_is_taken() {
        let all = UnfinishedBytes::new(64 * MIB, &Arc::default());
        let flooders: Vec<_> = (0..5).map(|_| ConnectionUnfinished::of(&all)).collect();
        let mut messages = vec![];
        for connection in &flooders {
            let mut message = Client::of(connection);
            // Longer than a message may be: what reads it refuses it.
            message.begin(u32::MAX as usize).await.unwrap_or_else(|_| panic!("no room"));
            messages.push(message);
            if messages.len() == 4 {
                break;
            }
        }
        let mut other = Client::of(&flooders[4]);
        assert!(other.begin(OWN_BYTES).await.is_ok());
        let mut too_much = Client::of(&flooders[4]);
        let rest = all.max - all.taken.load(Ordering::Relaxed);
        assert_eq!(too_much.begin(rest + 1).await, Err(Code::ResourceExhausted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_whole_ends_its_call() {
        let connection = ConnectionUnfinished::of(&UnfinishedBytes::new(64 * MIB, &Arc::default()));
        let mut client = Client::of(&connection);
        client.begin(10).await.unwrap();
        client.send(&[7; 9]).await.unwrap();
        assert_eq!(client.next().await, Err(Code::DeadlineExceeded));
        assert_eq!(connection.all.counts.read().messages_refused, 1);
        // One that sends nothing may wait for ever.
        let mut silent = Client::of(&connection);
        silent.send(&[]).await.unwrap();
        let hour = tokio::time::timeout(Duration::from_secs(3600), silent.next());
        assert!(hour.await.is_err());
    }
}
