//! Reserves a TCP port while no process listens on it.
//!
//! The kernel may give the port of a stopped store away before the store is started again: to a
//! process that asks for any free port, or to a connection that goes out. A socket that is bound
//! and does not listen keeps the port from both. It does not keep it from a process that asks for
//! this very port and shares the address (`SO_REUSEADDR`), as every listener here does.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A port of this machine, reserved until this is dropped. Connections to it are refused while no
/// process listens; one listener at a time may be bound to it, by any process.
#[derive(Debug)]
pub struct ReservedPort(TcpSocket);

impl ReservedPort {
    /// Reserves the port of `addr`; any that is free if that is 0.
    ///
    /// # Errors
    ///
    /// The error of the kernel: most likely another process listens there.
    pub fn reserve(addr: SocketAddr) -> io::Result<Self> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        Ok(Self(socket))
    }

    /// The address to listen on and to connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket has an address")
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_kept_port_refuses_and_takes_one_listener_after_the_other() {
        let port = ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        for _ in 0..2 {
            let refused = TcpStream::connect(port.addr()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let _listener = TcpListener::bind(port.addr()).unwrap();
            TcpStream::connect(port.addr()).unwrap();
            let second = TcpListener::bind(port.addr()).unwrap_err();
            assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
            assert_eq!(
                ReservedPort::reserve(port.addr()).unwrap_err().kind(),
                io::ErrorKind::AddrInUse
            );
        }
    }

    /// Without shared addresses the port is in use, also while no process listens.
    #[test]
    fn a_kept_port_is_not_free() {
        let port = ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let stranger = TcpSocket::new_v4().unwrap();
        let refused = stranger.bind(port.addr()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}
