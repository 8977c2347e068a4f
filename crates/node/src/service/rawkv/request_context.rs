//! The claims of a request about its region, taken from TiKV's `Context`.
//!
//! A claim that a client does not make is not checked, but for the region and its epoch, which
//! every client names: without an epoch it is not said which keys the client takes to be in the
//! region. The order of checks is TiKV's: the cluster and the store here, then everything else in
//! the region itself.

use std::time::Duration;

use bytes::Bytes;
use flotilla_identity::MemberId;
use flotilla_kv::ColumnFamily;
use flotilla_proto::kvrpcpb::Context;
use flotilla_region::{Descriptor, KeySpan, PeerId, RegionId, RequestPrecondition, Space, Term};
use tokio::time::Instant;
use tonic::Status;

use super::errors::RequestFailure;
use crate::driver::reroute::Rerouting;

/// A request's claims, checked as far as that is possible without its region.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    /// The region as this store knows it; the region's own checks decide.
    pub(crate) descriptor: Descriptor,
    /// The column family of the keys.
    pub(crate) family: ColumnFamily,
    /// The claims that the region has to check.
    pub(crate) guard: RequestPrecondition,
    /// Whether a replica that does not lead may answer.
    pub(crate) follower: bool,
    /// Whether another region may answer, if a split comes before the answer.
    pub(crate) rerouting: Rerouting,
    /// How long the client waits for the answer, if it said so.
    pub(crate) time_limit: Option<Duration>,
}

impl RequestContext {
    /// Reads the context of a request that reached the store `here`. `find` knows its regions.
    pub(crate) fn check(
        context: Option<Context>,
        here: &MemberId,
        find: impl FnOnce(RegionId) -> Option<Descriptor>,
    ) -> Result<Self, RequestFailure> {
        let context = context.unwrap_or_default();
        check_cluster(context.cluster_id, here)?;
        let peer = context.peer.unwrap_or_default();
        if peer.store_id != 0 && peer.store_id != here.store.0 {
            return Err(RequestFailure::wrong_store(peer.store_id, here.store));
        }
        let id = RegionId(context.region_id);
        // The system region is no part of the clients' key space: for them it does not exist.
        let descriptor = find(id)
            .filter(|descriptor| descriptor.space == Space::Raw)
            .ok_or_else(|| RequestFailure::region_not_found(id))?;
        let epoch = context.region_epoch.ok_or_else(RequestFailure::missing_epoch)?;
        let guard = RequestPrecondition {
            peer: (peer.id != 0).then_some(PeerId(peer.id)),
            term: (context.term != 0).then_some(Term(context.term)),
            version: Some(epoch.version),
            conf_version: Some(epoch.conf_ver),
            span: None,
            needs_room: false,
        };
        let time_limit_ms = context.max_execution_duration_ms;
        let time_limit = (time_limit_ms != 0).then(|| Duration::from_millis(time_limit_ms));
        let follower = context.replica_read || context.stale_read;
        // A client that is behind already must hear of it, or it would be rerouted for ever.
        let is_current = epoch.version == descriptor.epoch.version;
        let rerouting = if is_current { Rerouting::ByKeys } else { Rerouting::Never };
        let family = ColumnFamily::Default;
        Ok(Self { descriptor, family, guard, follower, rerouting, time_limit })
    }

    /// The same for keys of a column family.
    pub(crate) fn in_family(self, family: ColumnFamily) -> Self {
        Self { family, ..self }
    }

    /// When the client no longer waits, if it said how long it does and the request has just come.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.time_limit.map(|time_limit| Instant::now() + time_limit)
    }

    /// The id of the region.
    pub(crate) fn region(&self) -> RegionId {
        self.descriptor.id
    }

    /// Adds that all of `keys` are touched.
    pub(crate) fn touching<'a>(mut self, keys: impl IntoIterator<Item = &'a Bytes>) -> Self {
        let mut span = self.guard.span.take();
        for key in keys {
            match &mut span {
                None => span = Some(KeySpan { first: key.clone(), last: key.clone() }),
                Some(span) if *key < span.first => span.first = key.clone(),
                Some(span) if *key > span.last => span.last = key.clone(),
                Some(_) => {}
            }
        }
        self.guard.span = span;
        self
    }

    /// Pins the request to the version of the region that its client has named. For requests whose
    /// meaning depends on the region's borders: the client takes the answer for that of the whole
    /// range that it knows.
    pub(crate) fn at_known_version(mut self) -> Self {
        self.rerouting = Rerouting::Never;
        self
    }
}

/// Checks that a request is for the cluster of the store `here`, if it says for which it is.
pub(crate) fn check_cluster(cluster_id: u64, here: &MemberId) -> Result<(), RequestFailure> {
    if cluster_id != 0 && cluster_id != here.cluster_id {
        return Err(RequestFailure::Call(Status::invalid_argument(format!(
            "cluster id mismatch, request: {cluster_id}, mine: {}",
            here.cluster_id
        ))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use flotilla_proto::metapb;
    use flotilla_region::{Epoch, StoreId};

    use super::*;
    use flotilla_region::RemovedPeers;

    fn here() -> MemberId {
        MemberId { cluster_id: 7, store: StoreId(2) }
    }

    fn find(id: RegionId) -> Option<Descriptor> {
        let space = match id.0 {
            1 => Space::System,
            2 => Space::Raw,
            _ => return None,
        };
        let epoch = Epoch { conf_version: 1, version: 4 };
        let (start, end) = (Bytes::from("b"), Bytes::from("m"));
        Some(Descriptor {
            removed: RemovedPeers::default(),
            id,
            space,
            start,
            end,
            epoch,
            peers: vec![],
        })
    }

    fn check_context(context: Context) -> Result<RequestContext, RequestFailure> {
        RequestContext::check(Some(context), &here(), find)
    }

    /// A context with all that a client has to say.
    fn least() -> Context {
        let region_epoch = Some(metapb::RegionEpoch { conf_ver: 1, version: 4 });
        Context { region_id: 2, region_epoch, ..Default::default() }
    }

    #[test]
    fn the_region_and_its_epoch_have_to_be_said_and_nothing_else() {
        let checked = check_context(least()).unwrap();
        let (version, conf_version) = (Some(4), Some(1));
        let guard = RequestPrecondition { version, conf_version, ..Default::default() };
        assert_eq!(checked.guard, guard);
        assert!(!checked.follower && checked.time_limit.is_none());
        assert_eq!(checked.rerouting, Rerouting::ByKeys);
        assert_eq!(checked.at_known_version().rerouting, Rerouting::Never);
        let error = region_error(check_context(Context { region_epoch: None, ..least() }));
        let words = flotilla_proto::errorpb::Error {
            message: "missing epoch!".to_owned(),
            ..Default::default()
        };
        assert_eq!(error, words, "without a kind, as TiKV has it");
    }

    #[test]
    fn what_is_said_is_handed_on() {
        let checked = check_context(Context {
            region_id: 2,
            region_epoch: Some(metapb::RegionEpoch { conf_ver: 3, version: 9 }),
            peer: Some(metapb::Peer { id: 202, store_id: 2, ..Default::default() }),
            term: 6,
            cluster_id: 7,
            replica_read: true,
            max_execution_duration_ms: 1_500,
            ..Default::default()
        })
        .unwrap()
        .at_known_version();
        let guard = RequestPrecondition {
            peer: Some(PeerId(202)),
            term: Some(Term(6)),
            version: Some(9),
            conf_version: Some(3),
            span: None,
            needs_room: false,
        };
        assert_eq!(checked.guard, guard);
        assert!(checked.follower);
        assert_eq!(checked.time_limit, Some(Duration::from_millis(1_500)));
    }

    /// Each context is wrong in every later respect as well: the first wrong one is reported.
    #[test]
    fn cluster_then_store_then_region() {
        let wrong_store = Some(metapb::Peer { id: 1, store_id: 3, ..Default::default() });
        let wrong =
            Context { cluster_id: 8, peer: wrong_store, region_id: 99, ..Default::default() };
        let Err(RequestFailure::Call(status)) = check_context(wrong.clone()) else { panic!() };
        assert_eq!(status.code(), tonic::Code::InvalidArgument);

        let error = region_error(check_context(Context { cluster_id: 7, ..wrong.clone() }));
        let told = error.store_not_match.unwrap();
        assert_eq!((told.request_store_id, told.actual_store_id), (3, 2));

        let error = region_error(check_context(Context { cluster_id: 0, peer: None, ..wrong }));
        assert_eq!(error.region_not_found.unwrap().region_id, 99);
    }

    #[test]
    fn a_client_without_region_and_one_that_pries_find_nothing() {
        for region_id in [0, 1] {
            let error = region_error(check_context(Context { region_id, ..Default::default() }));
            assert_eq!(error.region_not_found.unwrap().region_id, region_id);
        }
        assert!(RequestContext::check(None, &here(), find).is_err());
    }

    #[test]
    fn the_span_covers_all_keys() {
        let checked = check_context(least()).unwrap();
        let keys = ["f", "c", "k"].map(Bytes::from);
        let span = checked.touching(&keys).guard.span.unwrap();
        assert_eq!((span.first, span.last), (Bytes::from("c"), Bytes::from("k")));
    }

    fn region_error(
        result: Result<RequestContext, RequestFailure>,
    ) -> flotilla_proto::errorpb::Error {
        match result {
            Err(RequestFailure::Region(error)) => *error,
            other => panic!("{other:?}"),
        }
    }
}
