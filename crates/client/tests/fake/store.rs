//! The command handlers of one store of the fake cluster.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flotilla_proto::kvrpcpb::{self, Context, KvPair};
use flotilla_proto::tikvpb::batch_commands_request::request::Cmd as Command;
use flotilla_proto::tikvpb::batch_commands_response::response::Cmd as Reply;
use flotilla_proto::{errorpb, metapb};
use tokio::sync::watch;
use tonic::Status;

use super::{CLUSTER_ID, Fault, State, peer_of};

#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) store: u64,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) addresses: Arc<Mutex<Vec<SocketAddr>>>,
    pub(crate) held: watch::Receiver<bool>,
    pub(crate) waiting: watch::Sender<usize>,
}

impl Store {
    /// Serves one command; `None` is an answer that gets lost.
    pub(super) fn serve(&self, command: Command) -> Result<Option<Reply>, Status> {
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        let fault = state.faults.pop_front();
        if matches!(fault, Some(Fault::Fail)) {
            return Err(Status::unavailable("told to fail"));
        }
        match fault {
            Some(Fault::LoseAnswer) => {
                self.apply(&mut state, command, None);
                Ok(None)
            }
            Some(Fault::CutOff) => {
                self.apply(&mut state, command, None);
                Err(Status::unavailable("told to cut off"))
            }
            fault => Ok(Some(self.apply(&mut state, command, fault))),
        }
    }

    fn apply(&self, state: &mut State, command: Command, fault: Option<Fault>) -> Reply {
        let refusal = match &fault {
            Some(Fault::Refuse(why)) => (*why).to_owned(),
            _ => String::new(),
        };
        let fault = fault.filter(|_| refusal.is_empty());
        let check = |state: &State, context: &Option<Context>, low: &[u8], high: &[u8]| {
            self.check(state, context.as_ref().expect("a context"), low, high, &fault)
        };
        match command {
            Command::RawGet(_) | Command::RawBatchGet(_) | Command::RawScan(_) => {
                read(state, command, &check)
            }
            _ => write(state, command, &check, refusal),
        }
    }

    /// A store's checks, in its order.
    pub(super) fn check(
        &self,
        state: &State,
        context: &Context,
        low: &[u8],
        high: &[u8],
        fault: &Option<Fault>,
    ) -> Option<errorpb::Error> {
        let mut error = errorpb::Error { message: "fake".to_owned(), ..Default::default() };
        assert_eq!(context.cluster_id, CLUSTER_ID);
        assert_eq!(context.peer.expect("a peer").store_id, self.store, "sent to another store");
        let id = context.region_id;
        let Some((region, leader)) = state.regions.values().find(|(r, _)| r.id == id) else {
            error.region_not_found = Some(errorpb::RegionNotFound { region_id: id });
            return Some(error);
        };
        let not_leader = |leader| errorpb::NotLeader { region_id: id, leader };
        match fault {
            Some(Fault::Busy(backoff_ms)) => {
                let busy = errorpb::ServerIsBusy { backoff_ms: *backoff_ms, ..Default::default() };
                error.server_is_busy = Some(busy);
                return Some(error);
            }
            Some(Fault::NoLeader) => {
                error.not_leader = Some(not_leader(None));
                return Some(error);
            }
            Some(Fault::Stale) => {
                error.stale_command = Some(errorpb::StaleCommand {});
                return Some(error);
            }
            _ => {}
        }
        if *leader != self.store {
            error.not_leader = Some(not_leader(Some(peer_of(id, *leader))));
            return Some(error);
        }
        if region.region_epoch != context.region_epoch {
            let since = context.region_epoch.unwrap_or_default().version;
            let holds = |(r, _): &&(metapb::Region, u64)| {
                let is_newer = r.region_epoch.is_some_and(|epoch| epoch.version > since);
                r.id == id || r.start_key == region.end_key || is_newer
            };
            let current_regions =
                state.regions.values().filter(holds).map(|(r, _)| r.clone()).collect();
            error.epoch_not_match = Some(errorpb::EpochNotMatch { current_regions });
            return Some(error);
        }
        let inside = |key: &[u8]| {
            region.start_key <= key && (region.end_key.is_empty() || key < region.end_key)
        };
        if !inside(low) || !inside(high) {
            error.key_not_in_region = Some(errorpb::KeyNotInRegion::default());
            return Some(error);
        }
        None
    }
}

type Check<'a> = dyn Fn(&State, &Option<Context>, &[u8], &[u8]) -> Option<errorpb::Error> + 'a;

fn read(state: &State, command: Command, check: &Check<'_>) -> Reply {
    match command {
        Command::RawGet(r) => {
            let region_error = check(state, &r.context, &r.key, &r.key);
            let value = state.rows.get(&r.key).cloned();
            let (not_found, value) = (value.is_none(), value.unwrap_or_default());
            Reply::RawGet(kvrpcpb::RawGetResponse {
                region_error,
                error: String::new(),
                value,
                not_found,
            })
        }
        Command::RawBatchGet(r) => {
            let (low, high) = (r.keys.iter().min().unwrap(), r.keys.iter().max().unwrap());
            let region_error = check(state, &r.context, low, high);
            let row = |key: &Bytes| Some((key.clone(), state.rows.get(key)?.clone()));
            let pairs = r.keys.iter().filter_map(row);
            let pairs = pairs.map(|(key, value)| KvPair { key, value }).collect();
            Reply::RawBatchGet(kvrpcpb::RawBatchGetResponse { region_error, pairs })
        }
        Command::RawScan(r) => Reply::RawScan(scan(state, r, check)),
        other => panic!("the client sends no {other:?}"),
    }
}

fn write(state: &mut State, command: Command, check: &Check<'_>, error: String) -> Reply {
    match command {
        Command::RawPut(r) => {
            let region_error = check(state, &r.context, &r.key, &r.key);
            if region_error.is_none() && error.is_empty() {
                state.writes += 1;
                state.ttls.insert(r.key.clone(), r.ttl);
                state.rows.insert(r.key, r.value);
            }
            Reply::RawPut(kvrpcpb::RawPutResponse { region_error, error })
        }
        Command::RawDelete(r) => {
            let region_error = check(state, &r.context, &r.key, &r.key);
            if region_error.is_none() {
                state.rows.remove(&r.key);
            }
            Reply::RawDelete(kvrpcpb::RawDeleteResponse { region_error, error })
        }
        Command::RawBatchPut(r) => {
            let mut keys = r.pairs.iter().map(|pair| &pair.key);
            let (low, high) = (keys.clone().min().unwrap(), keys.by_ref().max().unwrap());
            let region_error = check(state, &r.context, low, high);
            if region_error.is_none() {
                state.writes += 1;
                state.rows.extend(r.pairs.into_iter().map(|pair| (pair.key, pair.value)));
            }
            Reply::RawBatchPut(kvrpcpb::RawBatchPutResponse { region_error, error })
        }
        Command::RawBatchDelete(r) => {
            let (low, high) = (r.keys.iter().min().unwrap(), r.keys.iter().max().unwrap());
            let region_error = check(state, &r.context, low, high);
            if region_error.is_none() {
                r.keys.iter().for_each(|key| drop(state.rows.remove(key)));
            }
            Reply::RawBatchDelete(kvrpcpb::RawBatchDeleteResponse { region_error, error })
        }
        Command::RawDeleteRange(r) => {
            let region_error = check(state, &r.context, &r.start_key, &r.start_key)
                .or_else(|| not_clipped(state, &r.start_key, &r.end_key));
            if region_error.is_none() {
                state.rows.retain(|key, _| {
                    *key < r.start_key || (!r.end_key.is_empty() && *key >= r.end_key)
                });
            }
            Reply::RawDeleteRange(kvrpcpb::RawDeleteRangeResponse { region_error, error })
        }
        other => panic!("the client sends no {other:?}"),
    }
}

fn not_clipped(state: &State, start: &[u8], end: &Bytes) -> Option<errorpb::Error> {
    let (region, _) = state.holder(start);
    let inside =
        region.end_key.is_empty() || (!end.is_empty() && end.as_ref() <= region.end_key.as_ref());
    let key_not_in_region = Some(errorpb::KeyNotInRegion::default());
    (!inside).then(|| errorpb::Error { key_not_in_region, ..Default::default() })
}

/// Clips the range to the region, as stores do.
fn scan(state: &State, r: kvrpcpb::RawScanRequest, check: &Check<'_>) -> kvrpcpb::RawScanResponse {
    let id = r.context.as_ref().expect("a context").region_id;
    let region = state.regions.values().find(|(region, _)| region.id == id);
    let region = region.map(|(region, _)| region.clone()).unwrap_or_default();
    // The upper bound of a reverse scan may be the region's end, which is not inside.
    let probe = if r.reverse { &region.start_key } else { &r.start_key };
    if let Some(error) = check(state, &r.context, probe, probe) {
        return kvrpcpb::RawScanResponse { region_error: Some(error), kvs: Vec::new() };
    }
    let (low, high) =
        if r.reverse { (&r.end_key, &r.start_key) } else { (&r.start_key, &r.end_key) };
    let inside = |key: &Bytes| {
        key >= low
            && *key >= region.start_key
            && (high.is_empty() || key < high)
            && (region.end_key.is_empty() || *key < region.end_key)
    };
    let row = |(key, value): (&Bytes, &Bytes)| KvPair {
        key: key.clone(),
        value: if r.key_only { Bytes::new() } else { value.clone() },
    };
    let rows = state.rows.iter().filter(|(key, _)| inside(key));
    let kvs = if r.reverse {
        rows.rev().take(r.limit as usize).map(row).collect()
    } else {
        rows.take(r.limit as usize).map(row).collect()
    };
    kvrpcpb::RawScanResponse { region_error: None, kvs }
}
