//! Bounds the bytes of requests of which only a part has come.
//!
//! The server library takes the parts of a message as they come and opens the window of HTTP/2 for
//! more of them, so a client that begins a thousand messages of the largest size, and ends none,
//! would have gigabytes of a store. So would one that sends them whole and does not end the calls,
//! which wait for it with the messages in memory. Here a message that has to be waited for counts
//! with the length that it announces, and one for which there is no room is refused before more of
//! it is taken. Refused, not kept waiting: messages that wait would fill the window of their
//! connection, and those that have room would not get their next part. Decision 62
//! (`docs/decisions/0062-unfinished-messages-are-bounded.md`) has what was seen without.

use std::future::poll_fn;
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
/// Bytes of all messages between stores.
const STORES_BYTES_MAX: usize = 1 << 30;
/// The part of all bytes that one connection may have.
const CONNECTION_PARTS: usize = 4;
/// Within this a message has to come: 16 MiB at 4.5 Mbit/s.
const DUE: Duration = Duration::from_secs(30);

/// Those of all connections of a listener, of clients or of stores.
#[derive(Debug)]
pub(crate) struct UnfinishedBytes {
    taken: AtomicUsize,
    max: usize,
    /// The name of the bound, for refusals.
    bound: &'static str,
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
    fn new(max: usize, bound: &'static str, counts: &Arc<ConnectionCounts>) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), max, bound, counts: Arc::clone(counts) })
    }
}

/// Those of a listener. Messages between stores are as few as their streams, and those of clients
/// must not keep them out.
#[derive(Clone, Debug)]
pub(crate) struct ListenerUnfinished {
    pub(crate) of_clients: Arc<UnfinishedBytes>,
    pub(crate) of_stores: Arc<UnfinishedBytes>,
}

impl ListenerUnfinished {
    /// Room for so many bytes of clients; refused messages are counted.
    pub(crate) fn new(of_clients: usize, counts: &Arc<ConnectionCounts>) -> Self {
        Self {
            of_clients: UnfinishedBytes::new(of_clients, "limits.unfinished_bytes_max", counts),
            of_stores: UnfinishedBytes::new(STORES_BYTES_MAX, "1 GiB between stores", counts),
        }
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

/// Methods by the number of messages that a call sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MethodKind {
    /// One: it is unfinished until the client has ended the request.
    Unary,
    /// Any number: each is unfinished until it is whole. Between two of them, hours may go by.
    Stream,
}

/// The messages of a request, whose bytes count while they are unfinished.
pub(crate) struct BoundedMessages<B> {
    /// None once a message was refused.
    body: Option<B>,
    kind: MethodKind,
    cut: MessageCut,
    /// The last part of a unary request, until its end has come: without it the message is neither
    /// inflated nor decoded, and what is held is not longer than what counts.
    last_part: Option<Bytes>,
    room: Arc<ConnectionUnfinished>,
    unfinished: Option<Unfinished>,
}

/// The message that is waited for, and when it is due.
struct Unfinished {
    due: Pin<Box<Sleep>>,
    _counted: UnfinishedMessage,
}

impl<B> BoundedMessages<B> {
    /// Those of `body`, which came on the connection with this room.
    pub(crate) fn new(body: B, kind: MethodKind, room: Arc<ConnectionUnfinished>) -> Self {
        let body = Some(body);
        Self { body, kind, cut: MessageCut::default(), last_part: None, room, unfinished: None }
    }

    /// Takes the next part; gives it back unless the end of the request has to come first.
    fn take(&mut self, part: Bytes) -> Result<Option<Bytes>, Status> {
        let finished = self.cut.finished;
        self.cut.advance(&part);
        let is_whole = self.cut.finished > finished;
        if self.kind == MethodKind::Stream {
            if is_whole {
                self.unfinished = None;
            }
            return Ok(Some(part));
        }
        if self.cut.messages() > 1 {
            return Err(Status::unimplemented("more than one message in a unary call"));
        }
        if is_whole {
            self.last_part = Some(part);
            return Ok(None);
        }
        Ok(Some(part))
    }

    /// Counts the message that is held while more is waited for. Fails if there is no room, or if
    /// it is late; wakes the task when it is.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        if !self.cut.is_under_way() && self.last_part.is_none() {
            return Ok(());
        }
        let length = self.cut.length;
        let unfinished = match &mut self.unfinished {
            Some(unfinished) => unfinished,
            none => {
                let counted = self.room.begin(length.min(MESSAGE_BYTES_MAX)).ok_or_else(|| {
                    Status::resource_exhausted(format!(
                        "a message of {length} bytes is not here to its end, and more of those \
                         have no room: {}",
                        self.room.all.bound
                    ))
                })?;
                let due = Box::pin(tokio::time::sleep(DUE));
                none.insert(Unfinished { due, _counted: counted })
            }
        };
        if unfinished.due.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let within = DUE.as_secs();
        Err(Status::deadline_exceeded(format!("a message has not come to its end in {within} s")))
    }
}

impl<B> BoundedMessages<B>
where
    B: HttpBody + Send + Unpin + 'static,
{
    /// The refusal, which goes out at once, while its client may go on to send. The bytes that
    /// come until it has seen the refusal are taken and thrown away: the transport would reset a
    /// stream without a reader, and ends connections that go on to send on many of those.
    fn refuse(&mut self, why: Status) -> StdError {
        self.room.all.counts.note_refused_message(why.message());
        if let Some(body) = self.body.take() {
            tokio::spawn(tokio::time::timeout(DUE, discard(body)));
        }
        why.into()
    }
}

/// Takes a request to its end.
async fn discard(mut body: impl HttpBody + Unpin) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {}
}

impl<B> HttpBody for BoundedMessages<B>
where
    B: HttpBody + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let frame = match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(frame)) => frame.map_err(Into::into)?,
                Poll::Ready(None) => {
                    // The work of the request may keep its body; admission counts it then.
                    self.unfinished = None;
                    return Poll::Ready(self.last_part.take().map(|part| Ok(Frame::data(part))));
                }
                Poll::Pending => {
                    return match self.poll_waiting(context) {
                        Ok(()) => Poll::Pending,
                        Err(refused) => Poll::Ready(Some(Err(self.refuse(refused)))),
                    };
                }
            };
            // No request has trailers in gRPC.
            let Ok(mut data) = frame.into_data() else { continue };
            match self.take(data.copy_to_bytes(data.remaining())) {
                Ok(Some(part)) => return Poll::Ready(Some(Ok(Frame::data(part)))),
                Ok(None) => {}
                Err(refused) => return Poll::Ready(Some(Err(self.refuse(refused)))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.last_part.is_none() && self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }
}

/// The ends of messages in the bytes of a request.
#[derive(Debug, Default)]
struct MessageCut {
    /// Messages that are whole.
    finished: u64,
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Of the last message whose prefix is whole.
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

    /// Whether a part of a message has come, and so its length.
    fn is_under_way(&self) -> bool {
        self.prefix_bytes == PREFIX_BYTES
    }

    /// Messages that are whole, and the one of which something has come.
    fn messages(&self) -> u64 {
        self.finished + u64::from(self.prefix_bytes > 0)
    }
}

#[cfg(test)]
mod tests {
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
        /// None once the request has ended.
        sender: Option<mpsc::Sender<Bytes>>,
        messages: BoundedMessages<Sent>,
    }

    impl Client {
        fn of(kind: MethodKind, connection: &Arc<ConnectionUnfinished>) -> Self {
            let (sender, sent) = mpsc::channel(1);
            let messages = BoundedMessages::new(Sent(sent), kind, Arc::clone(connection));
            Self { sender: Some(sender), messages }
        }

        fn stream(connection: &Arc<ConnectionUnfinished>) -> Self {
            Self::of(MethodKind::Stream, connection)
        }

        /// The bytes that the service has of the request, until it would have to wait for more.
        async fn read(&mut self) -> Result<Vec<u8>, Code> {
            let mut read = vec![];
            let read_all = async {
                while let Some(part) = self.next().await? {
                    read.extend(part);
                }
                Ok::<_, Code>(())
            };
            // The second branch: nothing more has come.
            tokio::select! {
                biased;
                ended = read_all => ended?,
                () = std::future::ready(()) => {}
            }
            Ok(read)
        }

        /// The next part; none at the end of the request.
        async fn next(&mut self) -> Result<Option<Bytes>, Code> {
            let next = poll_fn(|context| Pin::new(&mut self.messages).poll_frame(context)).await;
            match next.transpose() {
                Ok(frame) => Ok(frame.map(|frame| frame.into_data().unwrap())),
                Err(error) => Err(error.downcast::<Status>().unwrap().code()),
            }
        }

        async fn send(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Code> {
            self.sender.as_ref().unwrap().send(Bytes::copy_from_slice(bytes)).await.unwrap();
            self.read().await
        }

        /// Begins a message of `length` bytes.
        async fn begin(&mut self, length: usize) -> Result<Vec<u8>, Code> {
            self.send(&prefix(length)).await
        }

        async fn end(&mut self) -> Result<Vec<u8>, Code> {
            self.sender = None;
            self.read().await
        }
    }

    fn prefix(length: usize) -> Vec<u8> {
        [&[0], &u32::try_from(length).unwrap().to_be_bytes()[..]].concat()
    }

    const MIB: usize = 1 << 20;

    fn room(bytes: usize) -> Arc<UnfinishedBytes> {
        ListenerUnfinished::new(bytes, &Arc::default()).of_clients
    }

    #[test]
    fn messages_end_where_their_lengths_say() {
        let sent: Vec<u8> = [3, 0, 1000, 7].map(|n| [prefix(n), vec![9; n]].concat()).concat();
        for part_bytes in 1..20 {
            let (mut cut, mut lengths) = (MessageCut::default(), vec![]);
            for part in sent.chunks(part_bytes) {
                cut.advance(part);
                lengths.extend(cut.is_under_way().then_some(cut.length));
            }
            assert_eq!((cut.messages(), cut.is_under_way()), (4, false), "{part_bytes} bytes each");
            assert!(lengths.contains(&1000));
            assert!(lengths.iter().all(|length| [3, 1000, 7].contains(length)));
        }
        let mut cut = MessageCut::default();
        cut.advance(&sent);
        assert_eq!((cut.messages(), cut.is_under_way()), (4, false));
        cut.advance(&[0]);
        assert_eq!((cut.messages(), cut.is_under_way()), (5, false));
    }

    #[tokio::test]
    async fn a_connection_has_a_quarter_and_gets_room_back() {
        let all = room(64 * MIB);
        let connection = ConnectionUnfinished::of(&all);
        let (mut first, mut second) = (Client::stream(&connection), Client::stream(&connection));
        first.begin(16 * MIB).await.unwrap();
        assert_eq!(second.begin(1).await, Err(Code::ResourceExhausted));
        assert_eq!(all.counts.read().messages_refused, 1);
        // Others have room.
        Client::stream(&ConnectionUnfinished::of(&all)).begin(16 * MIB).await.unwrap();
        for _ in 0..16 {
            first.send(&vec![7; MIB]).await.unwrap();
        }
        assert_eq!(all.taken.load(Ordering::Relaxed), 0);
        // Whole messages do not count, and the one after the last of them does.
        let mut more = [prefix(3), vec![7; 3], prefix(2), vec![7; 2]].concat();
        assert_eq!(first.send(&more).await.unwrap(), more);
        more.extend(prefix(15 * MIB));
        assert_eq!(first.send(&more).await.unwrap(), more);
        let mut third = Client::stream(&connection);
        assert_eq!(third.begin(2 * MIB).await, Err(Code::ResourceExhausted));
        drop(first);
        Client::stream(&connection).begin(16 * MIB).await.unwrap();
        assert_eq!(all.taken.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_unary_message_counts_until_its_request_ends() {
        let all = room(64 * MIB);
        let connection = ConnectionUnfinished::of(&all);
        let message = [prefix(2 * MIB), vec![7; 2 * MIB]].concat();
        let mut whole = Client::of(MethodKind::Unary, &connection);
        // Its last part is kept back: nothing is decoded, or inflated, before the end.
        let read = whole.send(&message[..MIB]).await.unwrap();
        assert_eq!(read, message[..MIB]);
        assert!(whole.send(&message[MIB..]).await.unwrap().is_empty());
        assert_eq!(all.taken.load(Ordering::Relaxed), 2 * MIB - OWN_BYTES);
        assert!(whole.send(&[]).await.unwrap().is_empty());
        assert_eq!(whole.end().await.unwrap(), message[MIB..]);
        assert_eq!(all.taken.load(Ordering::Relaxed), 0);
        assert_eq!(whole.next().await, Ok(None));
        for surplus in [&[0][..], &prefix(0)] {
            let mut two = Client::of(MethodKind::Unary, &connection);
            let sent = [&message, surplus].concat();
            assert_eq!(two.send(&sent).await, Err(Code::Unimplemented));
        }
    }

    #[tokio::test]
    async fn what_comes_behind_a_refusal_is_taken() {
        let connection = ConnectionUnfinished::of(&room(32 * MIB));
        let mut client = Client::stream(&connection);
        assert_eq!(client.begin(17 * MIB).await, Err(Code::ResourceExhausted));
        assert_eq!(client.next().await, Ok(None));
        let sender = client.sender.unwrap();
        for _ in 0..17 {
            sender.send(vec![7; MIB].into()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_connection_has_room_of_its_own_when_all_is_taken() {
        let all = room(64 * MIB);
        let mut messages: Vec<_> =
            (0..4).map(|_| Client::stream(&ConnectionUnfinished::of(&all))).collect();
        for message in &mut messages {
            // Longer than a message may be: what reads it refuses it.
            message.begin(u32::MAX as usize).await.unwrap();
        }
        let connection = ConnectionUnfinished::of(&all);
        let mut other = Client::stream(&connection);
        assert!(other.begin(OWN_BYTES).await.is_ok());
        let mut too_much = Client::stream(&connection);
        let rest = all.max - all.taken.load(Ordering::Relaxed);
        assert_eq!(too_much.begin(rest + 1).await, Err(Code::ResourceExhausted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_to_its_end_ends_its_call() {
        let connection = ConnectionUnfinished::of(&room(64 * MIB));
        for (kind, bytes) in
            [(MethodKind::Stream, 9), (MethodKind::Unary, 9), (MethodKind::Unary, 10)]
        {
            let mut client = Client::of(kind, &connection);
            client.begin(10).await.unwrap();
            client.send(&vec![7; bytes]).await.unwrap();
            assert_eq!(client.next().await, Err(Code::DeadlineExceeded), "{kind:?} {bytes}");
        }
        assert_eq!(connection.all.counts.read().messages_refused, 3);
        // A stream that sends no more may wait for ever.
        let mut silent = Client::stream(&connection);
        silent.send(&[prefix(2), vec![7; 2]].concat()).await.unwrap();
        let hour = tokio::time::timeout(Duration::from_secs(3600), silent.next());
        assert!(hour.await.is_err());
    }
}
