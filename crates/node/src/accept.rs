//! Connections, so many at most, and none that never says anything.
//!
//! The server library takes connections without end and holds silent ones for ever. Both are
//! mended here, below HTTP. A listener that has run out of file descriptors pauses, and recovers.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::slices::Stint;

/// How long a connection may be silent at first.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait after the system has refused a connection, most likely for want of a file
/// descriptor: some other connection must end first.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// How far a server has been told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Not at all.
    #[default]
    Not,
    /// It takes no more connections and asks those that are open to end.
    Listening,
    /// Connections break off.
    Connections,
}

/// Takes connections from `listener` and hands them to `taken` until nobody takes them any more.
/// While `connections_max` are open the next ones wait in the system's backlog.
pub(crate) async fn accept(
    listener: TcpListener,
    connections_max: usize,
    taken: mpsc::Sender<io::Result<Connection>>,
    stop: watch::Receiver<Stop>,
) {
    let places = Arc::new(Semaphore::new(connections_max));
    let mut stopped = stop.clone();
    loop {
        let place =
            Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop >= Stop::Listening) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // Small answers must not wait for company; failing to say so only costs time.
                let _ = stream.set_nodelay(true);
                if taken.send(Ok(Connection::new(stream, place, stop.clone()))).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

/// A connection that ends by itself if its first byte does not come in time, or when the server
/// breaks off.
pub(crate) struct Connection {
    stream: TcpStream,
    patience: Option<Pin<Box<Sleep>>>,
    /// Ready when the server breaks off; gone after that.
    broken_off: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The library writes megabytes without looking up.
    writing: Stint,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(
        stream: TcpStream,
        place: OwnedSemaphorePermit,
        mut stop: watch::Receiver<Stop>,
    ) -> Self {
        let patience = Some(Box::pin(tokio::time::sleep(FIRST_BYTE_TIMEOUT)));
        let broken_off = async move {
            // An error means that whoever could stop the server is gone: stop.
            let _ = stop.wait_for(|stop| *stop >= Stop::Connections).await;
        };
        Self {
            stream,
            patience,
            broken_off: Some(Box::pin(broken_off)),
            writing: Stint::default(),
            _place: place,
        }
    }
}

impl Stint {
    /// Counts what a connection took; one that takes no more ends it.
    fn count(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.spend(*bytes),
            Poll::Ready(Err(_)) | Poll::Pending => *self = Stint::default(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.broken_off.take_if(|broken_off| broken_off.as_mut().poll(context).is_ready());
        if self.broken_off.is_none() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let polled = Pin::new(&mut self.stream).poll_read(context, buf);
        if polled.is_ready() {
            self.patience = None;
        } else if let Some(patience) = &mut self.patience
            && patience.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, buf);
        self.writing.count(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bufs);
        self.writing.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn listening(
        connections_max: usize,
    ) -> (std::net::SocketAddr, mpsc::Receiver<io::Result<Connection>>, watch::Sender<Stop>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (taken, connections) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(Stop::Not);
        tokio::spawn(accept(listener, connections_max, taken, stopped));
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
        assert_eq!(second_here.stream.peer_addr().unwrap(), second.local_addr().unwrap());
    }

    #[tokio::test]
    async fn a_silent_connection_is_given_up_and_one_that_speaks_is_not() {
        let (addr, mut connections, _stop) = listening(2).await;
        let _silent = TcpStream::connect(addr).await.unwrap();
        let mut silent_here = connections.recv().await.unwrap().unwrap();
        let mut speaking = TcpStream::connect(addr).await.unwrap();
        let mut speaking_here = connections.recv().await.unwrap().unwrap();
        speaking.write_all(b"x").await.unwrap();
        assert_eq!(speaking_here.read_u8().await.unwrap(), b'x');
        assert!(speaking_here.patience.is_none());

        tokio::time::pause();
        let error = silent_here.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn breaking_off_wakes_a_reader_and_ends_accepting() {
        let (addr, mut connections, stop) = listening(2).await;
        let _client = TcpStream::connect(addr).await.unwrap();
        let mut here = connections.recv().await.unwrap().unwrap();
        let reader = tokio::spawn(async move { here.read_u8().await });
        tokio::task::yield_now().await;
        stop.send_replace(Stop::Connections);
        let error = reader.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(connections.recv().await.is_none());
    }
}
