//! The cluster as it begins: its stores, its id, and the regions that every store writes alike.
//!
//! No store coordinates the first start. Each computes the same regions, replicas and ids from the
//! same list of stores, and keeps those that it has a replica of. The list must therefore be equal
//! on all of them; stores that disagree have different cluster ids and refuse each other.

use std::fmt;

use bytes::Bytes;
use flotilla_region::{Descriptor, Epoch, Peer, PeerId, RegionId, Space, StoreId};

/// Initial stores at most: replica ids have two digits for the store.
pub const STORES_MAX: usize = 99;

/// Data regions at most at the first start: replica ids stay below those that are handed out later.
pub const REGIONS_MAX: u64 = 9_998;

/// The region of placement's own rows.
pub const SYSTEM_REGION: RegionId = RegionId(1);

/// Replicas of the system region at most.
const SYSTEM_REPLICAS_MAX: usize = 5;

/// One of the initial stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name that `--name` refers to.
    pub name: String,
    /// Its id, from its place in the list.
    pub store: StoreId,
    /// Where others reach it, as `host:port`.
    pub addr: String,
}

/// What is wrong with a list of initial stores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// An item is not of the form `name=host:port`.
    #[error("`{0}` is not of the form name=host:port")]
    Malformed(String),
    /// Two items share a name or an address.
    #[error("`{0}` is listed twice; every store needs a name and an address of its own")]
    Repeated(String),
    /// There are no items, or too many.
    #[error("{0} stores are listed; between 1 and {STORES_MAX} can begin a cluster")]
    Count(usize),
}

/// Reads `s1=127.0.0.1:20160,s2=127.0.0.1:20161`. Store `i` of the list has id `i + 1`.
///
/// # Errors
///
/// [`ClusterError`] names the item that is wrong.
pub fn parse_members(list: &str) -> Result<Vec<Member>, ClusterError> {
    let mut members: Vec<Member> = Vec::new();
    for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let malformed = || ClusterError::Malformed(item.to_owned());
        let (name, addr) = item.split_once('=').ok_or_else(malformed)?;
        let (name, addr) = (name.trim(), addr.trim());
        let (host, port) = addr.rsplit_once(':').ok_or_else(malformed)?;
        if name.is_empty() || host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(malformed());
        }
        if members.iter().any(|member| member.name == name || member.addr == addr) {
            return Err(ClusterError::Repeated(item.to_owned()));
        }
        let store = StoreId(members.len() as u64 + 1);
        members.push(Member { name: name.to_owned(), store, addr: addr.to_owned() });
    }
    if members.is_empty() || members.len() > STORES_MAX {
        return Err(ClusterError::Count(members.len()));
    }
    Ok(members)
}

/// A cluster id from the list of its initial stores. Never 0.
#[must_use]
pub fn cluster_id(members: &[Member]) -> u64 {
    // FNV-1a, written out, because the id must never change from one version to the next.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in MemberList(members).to_string().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // Clients in other languages keep ids in signed integers.
    (hash >> 1).max(1)
}

/// The regions of a new cluster: the system region, and `regions` that split the clients' keys
/// evenly by their first two bytes.
#[must_use]
pub fn first_regions(members: &[Member], regions: u64, replicas: usize) -> Vec<Descriptor> {
    assert!((1..=REGIONS_MAX).contains(&regions), "{regions} regions cannot begin a cluster");
    let mut all = Vec::with_capacity(regions as usize + 1);
    let system = members.iter().take(SYSTEM_REPLICAS_MAX).map(|member| member.store);
    all.push(region(SYSTEM_REGION, Space::System, Bytes::new(), Bytes::new(), system));
    for place in 0..regions {
        let id = RegionId(SYSTEM_REGION.0 + 1 + place);
        let stores = (0..replicas.min(members.len()))
            .map(|replica| members[(id.0 as usize + replica) % members.len()].store);
        let end = if place + 1 == regions { Bytes::new() } else { border(place + 1, regions) };
        all.push(region(id, Space::Raw, border(place, regions), end, stores));
    }
    all
}

/// The store that stands for election of `region` at once when the cluster is new, so that nobody
/// waits for a timeout and leaders are spread.
#[must_use]
pub fn first_leader(region: &Descriptor) -> Option<StoreId> {
    let place = region.id.0 as usize % region.peers.len().max(1);
    match region.space {
        Space::System => region.peers.first().map(|peer| peer.store),
        Space::Raw => region.peers.get(place).map(|peer| peer.store),
    }
}

/// The lower border of the `place`-th of `regions` ranges.
fn border(place: u64, regions: u64) -> Bytes {
    if place == 0 {
        return Bytes::new();
    }
    let prefix = (place << 16) / regions;
    Bytes::copy_from_slice(&u16::try_from(prefix).expect("place < regions").to_be_bytes())
}

fn region(
    id: RegionId,
    space: Space,
    start: Bytes,
    end: Bytes,
    stores: impl Iterator<Item = StoreId>,
) -> Descriptor {
    let mut peers: Vec<Peer> =
        stores.map(|store| Peer { id: PeerId(id.0 * 100 + store.0), store }).collect();
    peers.sort_by_key(|peer| peer.store);
    Descriptor { id, space, start, end, epoch: Epoch { conf_version: 1, version: 1 }, peers }
}

/// The canonical text of a list of stores.
struct MemberList<'a>(&'a [Member]);

impl fmt::Display for MemberList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for member in self.0 {
            write!(f, "{}={},", member.name, member.addr)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Vec<Member> {
        parse_members("s1=127.0.0.1:20160, s2=127.0.0.1:20161,s3=127.0.0.1:20162").unwrap()
    }

    #[test]
    fn a_list_gives_names_ids_and_addresses() {
        let members = three();
        assert_eq!(members.len(), 3);
        assert_eq!(members[1].name, "s2");
        assert_eq!(members[1].store, StoreId(2));
        assert_eq!(members[1].addr, "127.0.0.1:20161");
    }

    #[test]
    fn a_wrong_list_is_refused_by_the_item() {
        for list in ["s1", "s1=", "s1=host", "=host:1", "s1=host:0", "s1=host:x", "s1=:1"] {
            let error = parse_members(list).unwrap_err();
            assert!(matches!(error, ClusterError::Malformed(_)), "{list}: {error}");
        }
        for list in ["a=h:1,a=h:2", "a=h:1,b=h:1"] {
            assert!(matches!(parse_members(list).unwrap_err(), ClusterError::Repeated(_)));
        }
        assert_eq!(parse_members(""), Err(ClusterError::Count(0)));
        let many: Vec<String> = (1..=100).map(|n| format!("s{n}=h:{n}")).collect();
        assert_eq!(parse_members(&many.join(",")), Err(ClusterError::Count(100)));
    }

    #[test]
    fn the_cluster_id_follows_from_the_list_and_stays() {
        assert_eq!(cluster_id(&three()), cluster_id(&three()));
        assert_ne!(cluster_id(&three()), cluster_id(&three()[..2]));
        assert_eq!(cluster_id(&three()), 3_367_380_963_156_026_042);
    }

    #[test]
    fn regions_cover_every_key_once_on_distinct_stores() {
        let members = three();
        for count in [1, 2, 3, 7, 16, 1000, REGIONS_MAX] {
            let regions = first_regions(&members, count, 3);
            assert_eq!(regions[0].space, Space::System);
            let data = &regions[1..];
            assert_eq!(data.len() as u64, count);
            assert!(data[0].start.is_empty() && data[data.len() - 1].end.is_empty());
            for pair in data.windows(2) {
                assert_eq!(pair[0].end, pair[1].start);
                assert!(pair[0].start < pair[1].start, "region {} is empty", pair[0].id);
            }
            for region in &regions {
                let mut stores: Vec<_> = region.peers.iter().map(|peer| peer.store).collect();
                stores.dedup();
                assert_eq!(stores.len(), 3);
                assert!(region.peers.iter().all(|peer| peer.id.0 < 1_000_000));
                assert!(stores.contains(&first_leader(region).unwrap()));
            }
        }
    }

    #[test]
    fn the_first_leaders_are_spread_over_the_stores() {
        let regions = first_regions(&three(), 30, 3);
        for store in 1..=3 {
            let led = regions[1..].iter().filter(|r| first_leader(r) == Some(StoreId(store)));
            assert_eq!(led.count(), 10);
        }
    }
}
