//! Throttles an address that opens connections faster than clients do, or on which the server hangs
//! up again and again.
//!
//! A client that makes mistakes until the server hangs up, and connects anew at once, would else
//! have a share of the thread with each connection: those limits that belong to one connection
//! begin anew as well. No client is refused, and no connection waits for long, for many clients may
//! have one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Connections of one address in a second.
const PER_SECOND: u32 = 50;
/// The time whose connections may come at once.
const BURST: Duration = Duration::from_secs(2);
/// A connection on which the server hangs up counts as so many: the next one is read at once, that
/// after another one waits.
const HANG_UP_WEIGHT: u32 = 100;
/// The longest time that a connection waits.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Addresses that are counted at the same time.
const ADDRESSES_MAX: usize = 4096;
/// The part of an address of IPv6 that its network gives: the rest is the host's to choose.
const NETWORK_BITS: u128 = !0 << 64;

/// The connections of all addresses, by the generic cell rate algorithm: of each address, only the
/// time is kept at which all its connections so far were due.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectThrottle(Arc<Mutex<HashMap<IpAddr, Instant>>>);

impl ConnectThrottle {
    /// Counts a new connection. When it may be read; none if that is now.
    pub(crate) fn connect(&self, addr: IpAddr, now: Instant) -> Option<Instant> {
        let from = self.count(addr, 1, now)?.checked_sub(BURST)?;
        (from > now).then_some(from)
    }

    /// Counts a connection that the server has ended.
    pub(crate) fn hang_up(&self, addr: IpAddr, now: Instant) {
        self.count(addr, HANG_UP_WEIGHT, now);
    }

    /// When all connections of the address are due; none if it is not counted.
    fn count(&self, addr: IpAddr, weight: u32, now: Instant) -> Option<Instant> {
        let addr = network(addr);
        let mut dues = self.0.lock();
        if dues.len() >= ADDRESSES_MAX {
            dues.retain(|_, due| *due > now);
            if dues.len() >= ADDRESSES_MAX && !dues.contains_key(&addr) {
                return None;
            }
        }
        let due = dues.entry(addr).or_insert(now);
        let next = (*due).max(now) + Duration::from_secs(1) / PER_SECOND * weight;
        *due = next.min(now + BURST + WAIT_MAX);
        Some(*due)
    }
}

fn network(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() & NETWORK_BITS).into(),
        addr @ IpAddr::V4(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn addr(host: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(host).into()
    }

    /// How long each of some connections waits that come at the same time.
    fn waits(throttle: &ConnectThrottle, count: u32, now: Instant) -> Vec<Duration> {
        let wait = |_| throttle.connect(addr(1), now).map_or(Duration::ZERO, |from| from - now);
        (0..count).map(wait).collect()
    }

    #[test]
    fn a_burst_comes_at_once_then_the_rate_counts_and_none_waits_for_long() {
        let (throttle, now) = (ConnectThrottle::default(), Instant::now());
        assert!(waits(&throttle, 100, now).iter().all(Duration::is_zero));
        let later = waits(&throttle, 1000, now);
        assert_eq!(later[49], SECOND);
        assert_eq!(later[999], WAIT_MAX);
        assert_eq!(throttle.connect(addr(2), now), None);
        // The surplus is not counted for ever.
        let rested = now + BURST + WAIT_MAX;
        assert!(waits(&throttle, 100, rested).iter().all(Duration::is_zero));
    }

    #[test]
    fn where_the_server_hangs_up_the_next_ones_wait() {
        let (throttle, now) = (ConnectThrottle::default(), Instant::now());
        throttle.hang_up(addr(1), now);
        assert_eq!(waits(&throttle, 1, now), [SECOND / PER_SECOND]);
        throttle.hang_up(addr(1), now);
        assert_eq!(waits(&throttle, 1, now), [WAIT_MAX]);
        let rested = now + BURST + WAIT_MAX;
        assert_eq!(waits(&throttle, 1, rested), [Duration::ZERO]);
    }

    #[test]
    fn hosts_of_one_network_count_as_one_and_no_more_are_counted_than_have_room() {
        let (throttle, now) = (ConnectThrottle::default(), Instant::now());
        for host in 0..3 {
            let addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host);
            throttle.hang_up(addr.into(), now);
        }
        let of_network = |network| Ipv6Addr::new(0x2001, 0xdb8, 0, network, 1, 1, 1, 1).into();
        assert!(throttle.connect(of_network(7), now).is_some());
        assert_eq!(throttle.connect(of_network(8), now), None);
        for host in 0..2 * ADDRESSES_MAX as u32 {
            throttle.hang_up(addr(host), now);
        }
        assert_eq!(throttle.0.lock().len(), ADDRESSES_MAX);
        throttle.hang_up(addr(u32::MAX), now + 2 * SECOND);
        assert!(throttle.0.lock().len() < 3);
    }
}
