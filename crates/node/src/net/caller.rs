//! The address that a connection comes from, and what is counted of it.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::net::connect_throttle::ConnectThrottle;
use crate::net::connection_counts::ConnectionCounts;
use crate::net::server_stop::ServerStop;

/// All addresses that connect to one listener.
#[derive(Clone)]
pub(crate) struct ListenerCallers {
    throttle: ConnectThrottle,
    counts: Arc<ConnectionCounts>,
    stop: watch::Receiver<ServerStop>,
}

impl ListenerCallers {
    /// Those of a server that runs until `stop` says otherwise.
    pub(crate) fn new(counts: Arc<ConnectionCounts>, stop: watch::Receiver<ServerStop>) -> Self {
        Self { throttle: ConnectThrottle::default(), counts, stop }
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> crate::net::connection_counts::ConnectionStats {
        self.counts.read()
    }

    /// Counts a connection that was taken.
    pub(crate) fn connect(&self, addr: IpAddr) -> Caller {
        let begins = self.throttle.connect(addr, Instant::now());
        self.counts.note_taken(addr, begins.is_some());
        Caller { addr, begins, is_throttled: false, is_flood: false, all: self.clone() }
    }
}

/// The other end of one connection.
pub(crate) struct Caller {
    addr: IpAddr,
    begins: Option<Instant>,
    is_throttled: bool,
    is_flood: bool,
    all: ListenerCallers,
}

impl Caller {
    /// When the connection may be read, if not at once.
    pub(crate) fn begins(&self) -> Option<Instant> {
        self.begins
    }

    /// All that connect to the same listener.
    #[cfg(test)]
    pub(crate) fn others(&self) -> ListenerCallers {
        self.all.clone()
    }

    /// Its frames wait.
    pub(crate) fn throttle(&mut self) {
        if !std::mem::replace(&mut self.is_throttled, true) {
            self.all.counts.note_throttled(self.addr);
        }
    }

    /// Its frames went on for too long.
    pub(crate) fn flood(&mut self) {
        self.is_flood = true;
    }

    /// The connection has ended, and not by its client: that counts unless the server is to stop.
    pub(crate) fn hang_up(&self) {
        if *self.all.stop.borrow() == ServerStop::Not {
            self.all.throttle.hang_up(self.addr, Instant::now());
            self.all.counts.note_ended(self.addr, self.is_flood);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::connection_counts::ConnectionStats;

    fn addr() -> IpAddr {
        std::net::Ipv4Addr::LOCALHOST.into()
    }

    #[test]
    fn each_case_is_counted_and_a_stop_is_none() {
        let (stop, stopped) = watch::channel(ServerStop::Not);
        let callers = ListenerCallers::new(Arc::default(), stopped);
        let mut caller = callers.connect(addr());
        assert_eq!(caller.begins(), None);
        caller.throttle();
        caller.throttle();
        caller.hang_up();
        let second = callers.connect(addr());
        assert!(second.begins().is_some());
        second.hang_up();
        let counted = ConnectionStats {
            taken: 2,
            delayed: 1,
            throttled: 1,
            ended_by_server: 2,
            ..Default::default()
        };
        assert_eq!(callers.counts(), counted);
        for stop_is in [ServerStop::Listening, ServerStop::Connections] {
            stop.send_replace(stop_is);
            caller.hang_up();
        }
        assert_eq!(callers.counts(), counted);
    }
}
