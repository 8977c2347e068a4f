//! Maps errors to region errors of TiKV's protocol. No other file knows `errorpb`.
//!
//! Clients act on the kind of a region error, so each error here has the kind whose treatment fits:
//! retry elsewhere, look the region up anew, or hand the message to the caller.

use bytes::Bytes;
use flotilla_pagestore::Error as PagesError;
use flotilla_proto::{errorpb, kvrpcpb};
use flotilla_region::{Descriptor, Peer, RegionId, Reject, StoreId};
use flotilla_store::{ApplyReject, ReadError};
use tonic::Status;

use crate::border_codec::BorderCodec;
use crate::descriptor_proto::{peer_to_proto, region_to_proto};
use crate::driver::router::RequestError;

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// The caller is of another cluster, or the message makes no sense. Ends the call or the
    /// stream.
    Call(Status),
    /// The region did not serve it. The client's library acts on the kind.
    Region(Box<errorpb::Error>),
    /// The request itself is wrong and will never be right; the message is for the caller.
    Refused(String),
}

impl RequestFailure {
    /// `max_execution_duration_ms` has passed before anything was done. TiKV's clients know this
    /// message.
    pub(crate) fn late() -> Self {
        region("Deadline is exceeded", |_| ())
    }

    /// The outcome of a write is not known: it may have happened, or may still happen.
    pub(crate) fn undecided() -> Self {
        let message = "the outcome of the write is not known".to_owned();
        region("undetermined result", |error| {
            error.undetermined_result = Some(errorpb::UndeterminedResult { message });
        })
    }

    /// The message is for another store; the client's store addresses are old.
    pub(crate) fn wrong_store(request: u64, here: StoreId) -> Self {
        region(&format!("to store id {request}, mine {here}"), |error| {
            error.store_not_match =
                Some(errorpb::StoreNotMatch { request_store_id: request, actual_store_id: here.0 });
        })
    }

    /// There is no such region here, or none that clients may see.
    pub(crate) fn region_not_found(id: RegionId) -> Self {
        region(&format!("region {id} not found"), |error| {
            error.region_not_found = Some(errorpb::RegionNotFound { region_id: id.0 });
        })
    }

    /// The request does not say which version of its region it means. TiKV's message, and no kind.
    pub(crate) fn missing_epoch() -> Self {
        region("missing epoch!", |_| ())
    }

    /// An answer would have more than `limit_bytes`. Of all kinds, "entry too large" is the one
    /// that every client hands to its caller at once, with the message; a shorter answer would
    /// silently lose rows, for clients take it for the end of the region.
    pub(crate) fn answer_too_large(id: RegionId, limit_bytes: u64) -> Self {
        let message = format!(
            "the answer has more than {limit_bytes} bytes: ask for fewer rows or a smaller range"
        );
        region(&message, |error| {
            error.raft_entry_too_large =
                Some(errorpb::RaftEntryTooLarge { region_id: id.0, entry_size: limit_bytes });
        })
    }

    /// Too much is going on. A client backs off for seconds then, so this is the last resort after
    /// queueing.
    pub(crate) fn busy(reason: &str) -> Self {
        region(&format!("server is busy: {reason}"), |error| {
            error.server_is_busy =
                Some(errorpb::ServerIsBusy { reason: reason.to_owned(), ..Default::default() });
        })
    }

    /// The error of the router or of the region about a request to region `id`.
    pub(crate) fn from_router(id: RegionId, error: RequestError) -> Self {
        match error {
            RequestError::Rejected(reject) => Self::from_reject(id, reject),
            RequestError::Undecided => Self::undecided(),
            // Without a kind: the client goes on to the next replica at once.
            RequestError::Stopping => region("the store is stopping", |_| ()),
        }
    }

    /// The error of the snapshot: the region changed after the read was granted.
    pub(crate) fn from_read(id: RegionId, error: ReadError) -> Self {
        match error {
            ReadError::RegionNotFound => Self::region_not_found(id),
            ReadError::EpochNotMatch(current) => epoch_not_match(id, &[*current]),
            ReadError::KeyNotInRegion { key, descriptor } => key_not_in_region(key, &descriptor),
            ReadError::TooLarge { bytes_max } => Self::answer_too_large(id, bytes_max),
            // The replica hands the lead over.
            ReadError::Damaged => not_leader(id, None),
            ReadError::Pages(PagesError::SnapshotTooOld { .. }) => {
                Self::busy("the snapshot of the read is too old")
            }
            // The engine cannot read its own disk; another replica may do better.
            error => region(&format!("region {id} cannot be read here: {error}"), |_| ()),
        }
    }

    /// The rejection of a write when it was applied, on every replica alike: it had no effect.
    pub(crate) fn from_apply(descriptor: &Descriptor, reject: ApplyReject) -> Self {
        match reject {
            ApplyReject::EpochNotMatch { current } => epoch_not_match(descriptor.id, &current),
            ApplyReject::KeyNotInRegion { key } => key_not_in_region(key, descriptor),
            ApplyReject::TooLarge { .. }
            | ApplyReject::InvalidSplit(_)
            | ApplyReject::InvalidMembership(_) => Self::Refused(reject.to_string()),
        }
    }

    fn from_reject(id: RegionId, reject: Reject) -> Self {
        match reject {
            Reject::RegionNotFound(id) => Self::region_not_found(id),
            Reject::MismatchPeer { request, here } => {
                region(&format!("mismatch peer id {request} != {here}"), |error| {
                    error.mismatch_peer_id = Some(errorpb::MismatchPeerId {
                        request_peer_id: request.0,
                        store_peer_id: here.0,
                    });
                })
            }
            Reject::NotLeader { leader } => not_leader(id, leader.as_ref()),
            Reject::StaleCommand => region("stale command", |error| {
                error.stale_command = Some(errorpb::StaleCommand {});
            }),
            Reject::EpochNotMatch { current } => epoch_not_match(id, &current),
            Reject::KeyNotInRegion { key, descriptor } => key_not_in_region(key, &descriptor),
            Reject::Busy { reason } => Self::busy(reason),
            Reject::DiskFull { ref stores } => {
                let reason = reject.to_string();
                let store_id = stores.iter().map(|store| store.0).collect();
                region(&reason.clone(), |error| {
                    error.disk_full = Some(errorpb::DiskFull { store_id, reason });
                })
            }
            Reject::EntryTooLarge { size, .. } => {
                let message = format!("raft entry is too large, region {id}, entry size {size}");
                region(&message, |error| {
                    error.raft_entry_too_large =
                        Some(errorpb::RaftEntryTooLarge { region_id: id.0, entry_size: size });
                })
            }
            Reject::InvalidSplit(error) => Self::Refused(error.to_string()),
            Reject::InvalidMembership(error) => Self::Refused(error.to_string()),
            Reject::InvalidTransfer(error) => Self::Refused(error.to_string()),
            Reject::ReadIndexNotReady => {
                let reason = "no quorum confirmed the read in time".to_owned();
                region("read index not ready", |error| {
                    error.read_index_not_ready =
                        Some(errorpb::ReadIndexNotReady { reason, region_id: id.0 });
                })
            }
        }
    }
}

/// Whether a region error says of which kind it is.
pub(crate) fn has_kind(error: &errorpb::Error) -> bool {
    let message = error.message.clone();
    *error != errorpb::Error { message, ..errorpb::Error::default() }
}

/// Whether the same request gets the same region error again, however often it is sent.
pub(crate) fn is_final(error: &errorpb::Error) -> bool {
    error.raft_entry_too_large.is_some()
}

/// Encodes the borders in an error, and no keys: clients decode those and not these.
fn encode_borders(borders: BorderCodec, error: &mut errorpb::Error) {
    if let Some(changed) = &mut error.epoch_not_match {
        changed.current_regions.iter_mut().for_each(|region| borders.encode_region(region));
    }
    if let Some(foreign) = &mut error.key_not_in_region {
        for border in [&mut foreign.start_key, &mut foreign.end_key] {
            *border = borders.encode(std::mem::take(border));
        }
    }
}

/// A response with fields for errors.
pub(crate) trait RpcResponse: Default {
    /// Sets the region error.
    fn set_region_error(&mut self, error: errorpb::Error);
    /// Sets any other error. Responses without such a field carry it as a region error without a
    /// kind, the only place of theirs that clients look at.
    fn set_error(&mut self, message: String) {
        self.set_region_error(errorpb::Error { message, ..Default::default() });
    }
}

/// Puts a failure into the response, or into the status of the call. Borders in it become what
/// clients take for borders.
pub(crate) fn answer<T: RpcResponse>(
    borders: BorderCodec,
    result: Result<T, RequestFailure>,
) -> Result<T, Status> {
    let mut response = T::default();
    match result {
        Ok(response) => return Ok(response),
        Err(RequestFailure::Call(status)) => return Err(status),
        Err(RequestFailure::Region(mut error)) => {
            encode_borders(borders, &mut error);
            response.set_region_error(*error);
        }
        Err(RequestFailure::Refused(message)) => response.set_error(message),
    }
    Ok(response)
}

macro_rules! answers {
    ($($response:ident),* $(,)?) => {$(
        impl RpcResponse for kvrpcpb::$response {
            fn set_region_error(&mut self, error: errorpb::Error) {
                self.region_error = Some(error);
            }
        }
    )*};
}

macro_rules! answers_with_error {
    ($($response:ident),* $(,)?) => {$(
        impl RpcResponse for kvrpcpb::$response {
            fn set_region_error(&mut self, error: errorpb::Error) {
                self.region_error = Some(error);
            }

            fn set_error(&mut self, message: String) {
                self.error = message;
            }
        }
    )*};
}

answers!(
    RawBatchGetResponse,
    RawScanResponse,
    RawBatchScanResponse,
    SplitRegionResponse,
    GetHealthFeedbackResponse,
);
answers_with_error!(
    RawGetResponse,
    RawPutResponse,
    RawBatchPutResponse,
    RawDeleteResponse,
    RawBatchDeleteResponse,
    RawDeleteRangeResponse,
    RawGetKeyTtlResponse,
    RawCasResponse,
    RawChecksumResponse,
    RawCoprocessorResponse,
    UnsafeDestroyRangeResponse,
);

macro_rules! answers_with_key_error {
    ($($response:ident),* $(,)?) => {$(
        impl RpcResponse for kvrpcpb::$response {
            fn set_region_error(&mut self, error: errorpb::Error) {
                self.region_error = Some(error);
            }

            fn set_error(&mut self, message: String) {
                self.error = Some(kvrpcpb::KeyError { abort: message });
            }
        }
    )*};
}

answers_with_key_error!(ScanLockResponse, ResolveLockResponse);

fn not_leader(id: RegionId, leader: Option<&Peer>) -> RequestFailure {
    let leader = leader.map(peer_to_proto);
    let known = if leader.is_some() { "another peer is" } else { "no leader is known" };
    region(&format!("peer is not leader for region {id}, {known}"), |error| {
        error.not_leader = Some(errorpb::NotLeader { region_id: id.0, leader });
    })
}

fn epoch_not_match(id: RegionId, current: &[Descriptor]) -> RequestFailure {
    region(&format!("epoch not match: region {id} has changed"), |error| {
        let current_regions = current.iter().map(region_to_proto).collect();
        error.epoch_not_match = Some(errorpb::EpochNotMatch { current_regions });
    })
}

fn key_not_in_region(key: Bytes, descriptor: &Descriptor) -> RequestFailure {
    let id = descriptor.id;
    let message = format!(
        "key {} is not in region key range [{}, {}) for region {id}",
        hex(&key),
        hex(&descriptor.start),
        hex(&descriptor.end),
    );
    region(&message, |error| {
        error.key_not_in_region = Some(errorpb::KeyNotInRegion {
            key,
            region_id: id.0,
            start_key: descriptor.start.clone(),
            end_key: descriptor.end.clone(),
        });
    })
}

fn region(message: &str, kind: impl FnOnce(&mut errorpb::Error)) -> RequestFailure {
    let mut error = errorpb::Error { message: message.to_owned(), ..Default::default() };
    kind(&mut error);
    RequestFailure::Region(Box::new(error))
}

/// Hexadecimal digits, as TiKV shows keys.
pub(super) fn hex(key: &[u8]) -> String {
    use std::fmt::Write as _;
    key.iter().fold(String::with_capacity(2 * key.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}

#[cfg(test)]
mod tests {
    use flotilla_identity::ApiVersion;
    use flotilla_region::{Epoch, PeerId, Space};

    use super::*;
    use flotilla_region::RemovedPeers;

    const ID: RegionId = RegionId(2);

    fn descriptor() -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: ID,
            space: Space::Raw,
            start: "b".into(),
            end: "m".into(),
            epoch: Epoch { conf_version: 3, version: 4 },
            peers: vec![Peer { id: PeerId(201), store: StoreId(1) }.into()],
        }
    }

    const V1: BorderCodec = BorderCodec(ApiVersion::V1Ttl);

    fn told_by(borders: BorderCodec, failure: RequestFailure) -> errorpb::Error {
        let response = answer::<kvrpcpb::RawScanResponse>(borders, Err(failure)).unwrap();
        response.region_error.unwrap()
    }

    fn told(failure: RequestFailure) -> errorpb::Error {
        told_by(V1, failure)
    }

    fn rejected(reject: Reject) -> errorpb::Error {
        told(RequestFailure::from_router(ID, RequestError::Rejected(reject)))
    }

    #[test]
    fn each_reason_has_its_kind() {
        let leader = descriptor().peers.pop().map(flotilla_region::RegionPeer::address);
        let error = rejected(Reject::NotLeader { leader }).not_leader.unwrap();
        assert_eq!((error.region_id, error.leader.map(|leader| leader.id)), (2, Some(201)));
        let error = rejected(Reject::NotLeader { leader: None }).not_leader.unwrap();
        assert_eq!(error.leader, None);
        assert!(rejected(Reject::RegionNotFound(ID)).region_not_found.is_some());
        let stores = vec![StoreId(3), StoreId(5)];
        let error = rejected(Reject::DiskFull { stores }).disk_full.unwrap();
        assert_eq!(error.store_id, [3, 5]);
        assert_eq!(error.reason, "the disk is full on store 3, 5");
        let (request, here) = (PeerId(7), PeerId(201));
        let error = rejected(Reject::MismatchPeer { request, here }).mismatch_peer_id.unwrap();
        assert_eq!((error.request_peer_id, error.store_peer_id), (7, 201));
        assert!(rejected(Reject::StaleCommand).stale_command.is_some());
        assert!(rejected(Reject::Busy { reason: "full" }).server_is_busy.is_some());
        assert!(rejected(Reject::ReadIndexNotReady).read_index_not_ready.is_some());
        let error = rejected(Reject::EntryTooLarge { size: 9, limit: 8 });
        assert_eq!(error.message, "raft entry is too large, region 2, entry size 9");
        assert_eq!(error.raft_entry_too_large.unwrap().entry_size, 9);
        assert!(told(RequestFailure::undecided()).undetermined_result.is_some());
        assert_eq!(told(RequestFailure::late()).message, "Deadline is exceeded");
    }

    #[test]
    fn a_change_of_range_comes_with_the_new_one_from_wherever_it_is_noticed() {
        let current = || vec![descriptor()];
        for error in [
            rejected(Reject::EpochNotMatch { current: current() }),
            told(RequestFailure::from_read(ID, ReadError::EpochNotMatch(Box::new(descriptor())))),
            told(RequestFailure::from_apply(
                &descriptor(),
                ApplyReject::EpochNotMatch { current: current() },
            )),
        ] {
            let regions = error.epoch_not_match.unwrap().current_regions;
            assert_eq!(regions, [region_to_proto(&descriptor())]);
            assert_eq!(regions[0].region_epoch.as_ref().unwrap().version, 4);
        }
    }

    #[test]
    fn a_foreign_key_comes_with_the_borders() {
        let (key, descriptor) = (Bytes::from_static(&[0x7a, 0xff]), Box::new(descriptor()));
        let error = rejected(Reject::KeyNotInRegion { key, descriptor });
        assert_eq!(error.message, "key 7AFF is not in region key range [62, 6D) for region 2");
        let error = error.key_not_in_region.unwrap();
        assert_eq!((&error.start_key[..], &error.end_key[..]), (&b"b"[..], &b"m"[..]));
    }

    #[test]
    fn borders_of_v2_are_encoded_and_the_key_is_not() {
        let told = |reject| {
            let failure = RequestFailure::from_router(ID, RequestError::Rejected(reject));
            told_by(BorderCodec(ApiVersion::V2), failure)
        };
        let start = Bytes::from_static(b"b\0\0\0\0\0\0\0\xf8");
        let end = Bytes::from_static(b"m\0\0\0\0\0\0\0\xf8");
        let (key, within) = (Bytes::from_static(b"z"), Box::new(descriptor()));
        let foreign = told(Reject::KeyNotInRegion { key, descriptor: within });
        let foreign = foreign.key_not_in_region.unwrap();
        assert_eq!((foreign.start_key, foreign.end_key), (start.clone(), end.clone()));
        assert_eq!(foreign.key, "z");
        let changed = told(Reject::EpochNotMatch { current: vec![descriptor()] });
        let region = changed.epoch_not_match.unwrap().current_regions.pop().unwrap();
        assert_eq!((region.start_key, region.end_key), (start, end));
    }

    #[test]
    fn what_the_caller_did_wrong_is_in_the_field_for_it_if_there_is_one() {
        let refused = || RequestFailure::Refused("no".to_owned());
        let put = answer::<kvrpcpb::RawPutResponse>(V1, Err(refused())).unwrap();
        assert_eq!((put.error.as_str(), put.region_error), ("no", None));
        assert_eq!(told(refused()).message, "no");
        let call = RequestFailure::Call(Status::invalid_argument("no"));
        assert!(answer::<kvrpcpb::RawPutResponse>(V1, Err(call)).is_err());
    }
}
