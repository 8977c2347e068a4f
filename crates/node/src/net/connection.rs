//! A connection of the server: a place among those that may be open, a deadline for its first
//! request, and a rate of frames without one.
//!
//! The server library accepts connections without end, holds those that say nothing, or half of
//! a preface, for ever, and answers whatever frames come: a client that opens some thousands of
//! them, or fills one with settings, would keep all others out. All of it is mended here, below
//! HTTP.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use flotilla_tls::{MaybeTlsStream, PeerIdentity};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;
use tonic::{Extensions, Status};

use crate::net::caller::Caller;
use crate::net::client_frames::OpeningStage;
use crate::net::frame_turns::FrameTurns;
use crate::net::server_stop::ServerStop;
use crate::net::staged_end::StagedEnd;
use crate::net::unfetched_room::UnfetchedRoom;
use crate::net::unfinished_messages::{ConnectionUnfinished, ListenerUnfinished};
use crate::net::write_turns::WriteTurns;

/// The time in which a client has to open its connection, counted from its accept, and the rate of
/// what it may send. Keepalive begins with the preface, so clients that are gone later are noticed
/// by that.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    /// Until the preface and its settings are here. A client sends both at once, unasked.
    pub(crate) preface: Duration,
    /// Until the first request is. A client may open connections ahead of its need. A connection of
    /// HTTP/1.1, which has no keepalive that would watch it, ends by then altogether.
    pub(crate) first_request: Duration,
    /// Frames without a request in a second, by their weight.
    pub(crate) control_frames_per_s: u32,
    /// Requests of which only a part has come, with those of all connections of the listener.
    pub(crate) unfinished: ListenerUnfinished,
}

impl ConnectionLimits {
    pub(crate) fn new(control_frames_per_s: u32, unfinished: ListenerUnfinished) -> Self {
        Self {
            preface: Duration::from_secs(10),
            first_request: Duration::from_secs(60),
            control_frames_per_s,
            unfinished,
        }
    }
}

/// The receiver of connections that were taken.
pub(crate) type TakenConnections = mpsc::Sender<io::Result<ServerConnection>>;

/// A connection that ends by itself if its first request does not come in time, or when the server
/// breaks off.
pub(crate) struct ServerConnection {
    stream: MaybeTlsStream,
    peer: ConnectionPeer,
    frames: FrameTurns,
    /// Gone once a request has come.
    opening: Option<OpeningWatch>,
    /// Ready when the server breaks off; gone after that.
    broken_off: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    writing: WriteTurns,
    caller: Caller,
    /// Begins when the client is gone.
    end: StagedEnd,
    _place: OwnedSemaphorePermit,
}

/// The stage of a connection that opens, and its deadline.
struct OpeningWatch {
    stage: OpeningStage,
    /// When the first request is due.
    request_due: Instant,
    deadline: Pin<Box<Sleep>>,
}

impl OpeningWatch {
    fn start(limits: &ConnectionLimits) -> Self {
        let now = Instant::now();
        Self {
            stage: OpeningStage::Preface,
            request_due: now + limits.first_request,
            deadline: Box::pin(tokio::time::sleep_until(now + limits.preface)),
        }
    }

    /// Takes how far the client has come.
    fn reach(&mut self, stage: OpeningStage) {
        let is_longer = matches!(stage, OpeningStage::FirstRequest | OpeningStage::Plain);
        if stage != self.stage && is_longer {
            self.deadline.as_mut().reset(self.request_due);
        }
        self.stage = stage;
    }
}

impl ServerConnection {
    /// A connection that has the place of one among those that may be open, with the party at its
    /// other end, if that is known.
    pub(crate) fn new(
        stream: MaybeTlsStream,
        (peer, caller): (Option<Arc<PeerIdentity>>, Caller),
        place: OwnedSemaphorePermit,
        limits: ConnectionLimits,
        mut stop: watch::Receiver<ServerStop>,
    ) -> Self {
        let broken_off = async move {
            // An error means that the server's owner is gone: stop.
            let _ = stop.wait_for(|stop| *stop >= ServerStop::Connections).await;
        };
        Self {
            stream,
            peer: ConnectionPeer::new(peer, &limits.unfinished),
            frames: FrameTurns::new(limits.control_frames_per_s, caller.begins()),
            opening: Some(OpeningWatch::start(&limits)),
            broken_off: Some(Box::pin(broken_off)),
            writing: WriteTurns::default(),
            caller,
            end: StagedEnd::default(),
            _place: place,
        }
    }

    /// Whether the connection may go on; wakes the task when it may not any more.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.broken_off.take_if(|broken_off| broken_off.as_mut().poll(context).is_ready());
        if self.broken_off.is_none() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // A connection that has made a request may be silent for ever; keepalive watches it from
        // then on.
        self.opening.take_if(|opening| opening.stage == OpeningStage::Open);
        if let Some(opening) = &mut self.opening
            && opening.deadline.as_mut().poll(context).is_ready()
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Writes by `write`, in turns, and counts the bytes that the client fetches. Those to a
    /// client that is gone are thrown away: the library hears of its end by reading.
    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
        write: impl FnOnce(Pin<&mut MaybeTlsStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.end.has_begun() {
            return Poll::Ready(Ok(bytes));
        }
        ready!(self.writing.poll_ready(context));
        let written = write(Pin::new(&mut self.stream), context);
        self.writing.count(&written);
        match written {
            Poll::Ready(Ok(fetched)) => {
                self.peer.unfetched.grow(fetched);
                self.peer.batches.grow(fetched);
                self.frames.fetch(fetched);
                Poll::Ready(Ok(fetched))
            }
            Poll::Ready(Err(error)) if self.frames.stage() == OpeningStage::Plain => {
                Poll::Ready(Err(error))
            }
            Poll::Ready(Err(error)) => {
                self.end.begin(Some(error), &self.peer.unfetched);
                // Its reader may sleep.
                context.waker().wake_by_ref();
                Poll::Ready(Ok(bytes))
            }
            // A client that reads nothing makes the library wait here, not for its next frame.
            Poll::Pending => match self.poll_limits(context) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }

    /// The library hears of the client's end when no request waits any more.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll(context, &self.peer.unfetched)
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        self.peer.unfetched.end();
        // A connection of HTTP/1.1 ends with its last answer, and one that was said to end does.
        let is_plain = self.frames.stage() == OpeningStage::Plain;
        if !self.end.has_begun() && !is_plain && !self.frames.is_leaving() {
            self.caller.hang_up();
        }
    }
}

impl AsyncRead for ServerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.has_begun() {
            self.poll_limits(context)?;
            return self.poll_end(context);
        }
        let before = buf.filled().len();
        let waiting = self.peer.unfetched.waiting();
        let Self { stream, frames, opening, caller, .. } = &mut *self;
        let polled = frames.poll_read(Pin::new(stream), context, buf, waiting);
        if frames.is_throttled() {
            caller.throttle();
        }
        if let Some(opening) = opening {
            opening.reach(frames.stage());
        }
        // After reading: bytes that are here have come in time, however late the process looks.
        self.poll_limits(context)?;
        let is_plain = self.frames.stage() == OpeningStage::Plain;
        let error = match polled {
            // A client of HTTP/1.1 may end its side, and read on.
            polled if is_plain => return polled,
            Poll::Ready(Ok(())) if buf.filled().len() == before => None,
            // By this error the server hangs up.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::QuotaExceeded => {
                self.caller.flood();
                return Poll::Ready(Err(error));
            }
            Poll::Ready(Err(error)) => Some(error),
            polled => return polled,
        };
        let Self { end, peer, .. } = &mut *self;
        end.begin(error, &peer.unfetched);
        self.poll_end(context)
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(context, buf.len(), |stream, context| stream.poll_write(context, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        self.poll_written(context, bytes, |stream, context| {
            stream.poll_write_vectored(context, bufs)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.end.has_begun() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for ServerConnection {
    type ConnectInfo = ConnectionPeer;

    fn connect_info(&self) -> ConnectionPeer {
        self.peer.clone()
    }
}

/// The other end of a connection, as each of its requests carries it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPeer {
    /// None on a connection without TLS.
    identity: Option<Arc<PeerIdentity>>,
    unfetched: Arc<UnfetchedRoom>,
    unfinished: Arc<ConnectionUnfinished>,
    unfinished_of_stores: Arc<ConnectionUnfinished>,
    batches: Arc<UnfetchedRoom>,
}

impl Default for ConnectionPeer {
    fn default() -> Self {
        // That of a caller in the same process.
        Self::new(None, &ListenerUnfinished::new(usize::MAX, &Arc::default()))
    }
}

impl ConnectionPeer {
    /// That of a new connection, with its party if that is known.
    fn new(identity: Option<Arc<PeerIdentity>>, of_all: &ListenerUnfinished) -> Self {
        Self {
            identity,
            unfetched: Arc::default(),
            unfinished: ConnectionUnfinished::of(&of_all.of_clients),
            unfinished_of_stores: ConnectionUnfinished::of(&of_all.of_stores),
            batches: Arc::new(UnfetchedRoom::of_batches()),
        }
    }

    /// The party of a request.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// The party by its certificate.
    pub(crate) fn identity(&self) -> Option<&PeerIdentity> {
        self.identity.as_deref()
    }

    /// The room for long answers that the connection does not fetch.
    pub(crate) fn unfetched(&self) -> &Arc<UnfetchedRoom> {
        &self.unfetched
    }

    /// The room for requests of clients of which only a part has come.
    pub(crate) fn unfinished(&self) -> &Arc<ConnectionUnfinished> {
        &self.unfinished
    }

    /// The same for messages between stores.
    pub(crate) fn unfinished_of_stores(&self) -> &Arc<ConnectionUnfinished> {
        &self.unfinished_of_stores
    }

    /// The room for requests of its streams of batches that are under way, and for their answers.
    pub(crate) fn batches(&self) -> &Arc<UnfetchedRoom> {
        &self.batches
    }

    /// Refuses a party that is not the store with this name.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED`.
    pub(crate) fn check_store(&self, name: &str) -> Result<(), Status> {
        match self.identity() {
            Some(identity) if !identity.is_store(name) => Err(Status::permission_denied(format!(
                "the sender says that it is store {name}, and its certificate is of {}: compare \
                 tls.store_name and the certificate",
                identity.names()
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::net::accept::accept;
    use crate::net::connection_counts::ConnectionStats;

    async fn listening(
        connections_max: usize,
    ) -> (
        std::net::SocketAddr,
        mpsc::Receiver<io::Result<ServerConnection>>,
        watch::Sender<ServerStop>,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (taken, connections) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(ServerStop::Not);
        let limits =
            ConnectionLimits::new(10_000, ListenerUnfinished::new(64 << 20, &Arc::default()));
        tokio::spawn(accept(
            listener,
            connections_max,
            limits,
            taken,
            (stopped, Arc::default()),
            None,
        ));
        (addr, connections, stop)
    }

    #[tokio::test]
    async fn a_connection_beyond_the_limit_waits_for_another_to_end() {
        let (addr, mut connections, _stop) = listening(1).await;
        let _first = TcpStream::connect(addr).await.unwrap();
        let second = TcpStream::connect(addr).await.unwrap();
        let first_here = connections.recv().await.unwrap().unwrap();
        tokio::task::yield_now().await;
        assert!(connections.try_recv().is_err());
        drop(first_here);
        let second_here = connections.recv().await.unwrap().unwrap();
        assert_eq!(second_here.stream.tcp().peer_addr().unwrap(), second.local_addr().unwrap());
    }

    /// Reads until the connection ends by itself: how, and how many seconds after an instant before
    /// it began, which is no less than its limit. Time is the test's, and passes when nothing else
    /// is to be done.
    async fn given_up(here: &mut ServerConnection, before: Instant) -> (io::ErrorKind, Duration) {
        tokio::time::pause();
        let error = here.read_u8().await.unwrap_err();
        let after = before.elapsed();
        tokio::time::resume();
        (error.kind(), Duration::from_secs(after.as_secs()))
    }

    #[tokio::test]
    async fn a_client_that_owes_something_or_speaks_http_1_is_given_up() {
        let limits =
            ConnectionLimits::new(10_000, ListenerUnfinished::new(64 << 20, &Arc::default()));
        let settings = b"\0\0\0\x04\0\0\0\0\0";
        let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat();
        let half_a_request = [&preface[..], b"\0\0\x05\x01\x04\0\0\0\x01abcd"].concat();
        for (said, limit) in [
            (&b""[..], limits.preface),
            (&preface[..12], limits.preface),
            (&preface[..preface.len() - 1], limits.preface),
            (&preface, limits.first_request),
            (&half_a_request, limits.first_request),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", limits.first_request),
        ] {
            let (addr, mut connections, _stop) = listening(1).await;
            let before = Instant::now();
            let mut client = TcpStream::connect(addr).await.unwrap();
            let mut here = connections.recv().await.unwrap().unwrap();
            client.write_all(said).await.unwrap();
            here.read_exact(&mut vec![0; said.len()]).await.unwrap();
            let given_up = given_up(&mut here, before).await;
            assert_eq!(given_up, (io::ErrorKind::TimedOut, limit), "after {said:?}");
        }
    }

    #[tokio::test]
    async fn a_client_that_made_a_request_may_be_silent_for_ever() {
        let (addr, mut connections, _stop) = listening(1).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        let said =
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01a";
        client.write_all(said).await.unwrap();
        here.read_exact(&mut vec![0; said.len()]).await.unwrap();
        tokio::time::pause();
        let silent = tokio::time::timeout(Duration::from_secs(3600), here.read_u8()).await;
        assert!(silent.is_err(), "{silent:?}");
    }

    #[tokio::test]
    async fn a_flood_of_pings_is_read_at_the_rate() {
        let (addr, mut connections, _stop) = listening(1).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        let opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
            \0\0\x01\x01\x04\0\0\0\x01a";
        let pings = b"\0\0\x08\x06\0\0\0\0\0pingpong".repeat(1000);
        client.write_all(opening).await.unwrap();
        here.read_exact(&mut vec![0; opening.len()]).await.unwrap();
        tokio::time::pause();
        let began = Instant::now();
        for _ in 0..4 {
            client.write_all(&pings).await.unwrap();
            here.read_exact(&mut vec![0; pings.len()]).await.unwrap();
        }
        // A weight of 16,000 at 10,000 in a second; the last ones are paid for by those after them.
        assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up_while_the_library_writes() {
        let (addr, mut connections, _stop) = listening(1).await;
        let _client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        // The kernel's buffers take some; how much, none can say.
        let block = vec![0; 1 << 20];
        tokio::time::pause();
        let error = loop {
            if let Err(error) = here.write_all(&block).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    const OPENING: &[u8] =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01a";
    const GOODBYE: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";

    /// Whether the next connection of an address waits, after three on which `said` came, of which
    /// the client ended its side or did not, before the server was done with them.
    async fn waits_after(said: &[u8], client_ends: bool) -> bool {
        let (addr, mut connections, _stop) = listening(1).await;
        for _ in 0..3 {
            let mut client = TcpStream::connect(addr).await.unwrap();
            let mut here = connections.recv().await.unwrap().unwrap();
            client.write_all(said).await.unwrap();
            here.read_exact(&mut vec![0; said.len()]).await.unwrap();
            if client_ends {
                client.shutdown().await.unwrap();
                assert_eq!(here.read(&mut [0; 10]).await.unwrap(), 0);
            }
        }
        let _client = TcpStream::connect(addr).await.unwrap();
        let here = connections.recv().await.unwrap().unwrap();
        here.caller.begins().is_some()
    }

    #[tokio::test]
    async fn where_the_server_hangs_up_the_next_connection_waits() {
        assert!(waits_after(OPENING, false).await);
        assert!(!waits_after(OPENING, true).await);
        assert!(!waits_after(&[OPENING, GOODBYE].concat(), false).await);
        assert!(!waits_after(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", false).await);
    }

    #[tokio::test]
    async fn a_flood_that_goes_on_is_hung_up_on_and_counts_for_its_address() {
        let (addr, mut connections, _stop) = listening(1).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        let sending = tokio::spawn(async move {
            let pings = b"\0\0\x08\x06\0\0\0\0\0pingpong".repeat(1000);
            let _ = client.write_all(OPENING).await;
            while client.write_all(&pings).await.is_ok() {}
        });
        tokio::time::pause();
        let began = Instant::now();
        let error = loop {
            assert!(began.elapsed() < Duration::from_secs(10), "the flood goes on");
            if let Err(error) = here.read(&mut [0; 8192]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let callers = here.caller.others();
        assert_eq!(callers.connect(addr.ip()).begins(), None);
        drop(here);
        assert!(callers.connect(addr.ip()).begins().is_some());
        let counted = ConnectionStats {
            taken: 3,
            delayed: 1,
            throttled: 1,
            ended_by_server: 1,
            ..Default::default()
        };
        assert_eq!(callers.counts(), counted);
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn the_library_hears_of_a_client_that_left_when_its_requests_wait_no_more() {
        let (addr, mut connections, _stop) = listening(1).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        client.write_all(OPENING).await.unwrap();
        here.read_exact(&mut [0; OPENING.len()]).await.unwrap();
        let room = Arc::clone(here.peer.unfetched());
        let _all = room.try_take(usize::MAX).unwrap();
        let waits = tokio::spawn({
            let room = Arc::clone(&room);
            async move { room.take(1).await }
        });
        while room.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        drop(client);
        assert_eq!(here.read(&mut [0; 10]).await.unwrap(), 0);
        assert_eq!(room.waiting(), 0);
        assert!(waits.await.unwrap().is_err());
        // Answers to a client that is gone are thrown away, not an error of the library's.
        here.write_all(&[0; 1 << 20]).await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_waits_is_read_later() {
        let (addr, mut connections, _stop) = listening(1).await;
        for _ in 0..4 {
            let _client = TcpStream::connect(addr).await.unwrap();
            connections.recv().await.unwrap().unwrap();
        }
        let mut client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        client.write_all(OPENING).await.unwrap();
        tokio::time::pause();
        let taken = Instant::now();
        here.read_exact(&mut [0; OPENING.len()]).await.unwrap();
        assert!(taken.elapsed() > Duration::from_secs(1), "{:?}", taken.elapsed());
    }

    #[tokio::test]
    async fn breaking_off_wakes_a_reader_and_ends_accepting() {
        let (addr, mut connections, stop) = listening(2).await;
        let _client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        let reader = tokio::spawn(async move { here.read_u8().await });
        tokio::task::yield_now().await;
        stop.send_replace(ServerStop::Connections);
        let error = reader.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(connections.recv().await.is_none());
    }
}
