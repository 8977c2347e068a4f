//! Requests that write: each is one proposal, so it happens wholly or not at all.
//!
//! `for_cas` asks TiKV to keep a write apart from a compare-and-swap that is under way. Here all of
//! them pass through the region's log one by one, so every write is kept apart.

use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawOp};
use flotilla_proto::kvrpcpb::{
    RawBatchDeleteRequest, RawBatchDeleteResponse, RawBatchPutRequest, RawBatchPutResponse,
    RawCasRequest, RawCasResponse, RawDeleteRangeRequest, RawDeleteRangeResponse, RawDeleteRequest,
    RawDeleteResponse, RawPutRequest, RawPutResponse,
};
use flotilla_store::ApplyOutcome;
use tokio::time::timeout;

use super::errors::RequestFailure;
use super::request_context::RequestContext;
use super::service::RawKv;
use super::{range, validate};

impl RawKv {
    pub(super) async fn put(
        &self,
        request: RawPutRequest,
    ) -> Result<RawPutResponse, RequestFailure> {
        let RawPutRequest { context, key, value, cf, ttl, for_cas: _ } = request;
        let rules = self.rules("raw_put");
        let family = rules.family(context.as_ref(), &cf)?;
        rules.key(&key)?;
        let checked = self.check_context(context)?.in_family(family).touching([&key]);
        self.write(checked, &[RawOp::Put { key, value, ttl_s: ttl }]).await?;
        Ok(RawPutResponse::default())
    }

    pub(super) async fn batch_put(
        &self,
        request: RawBatchPutRequest,
    ) -> Result<RawBatchPutResponse, RequestFailure> {
        // Older clients say one time to live for all in a field of its own.
        #[allow(deprecated)]
        let ttl_for_all = request.ttl;
        let RawBatchPutRequest { context, pairs, cf, ttls, .. } = request;
        let rules = self.rules("raw_batch_put");
        let family = rules.family(context.as_ref(), &cf)?;
        pairs.iter().try_for_each(|pair| rules.key(&pair.key))?;
        let ttl_s = validate::ttls(&ttls, ttl_for_all, pairs.len())?;
        let checked = self
            .check_context(context)?
            .in_family(family)
            .touching(pairs.iter().map(|pair| &pair.key));
        let put = pairs.into_iter().enumerate().map(|(place, pair)| RawOp::Put {
            key: pair.key,
            value: pair.value,
            ttl_s: ttl_s(place),
        });
        self.write(checked, &put.collect::<Vec<_>>()).await?;
        Ok(RawBatchPutResponse::default())
    }

    pub(super) async fn delete(
        &self,
        request: RawDeleteRequest,
    ) -> Result<RawDeleteResponse, RequestFailure> {
        let RawDeleteRequest { context, key, cf, for_cas: _ } = request;
        let rules = self.rules("raw_delete");
        let family = rules.family(context.as_ref(), &cf)?;
        rules.key(&key)?;
        let checked = self.check_context(context)?.in_family(family).touching([&key]);
        self.write(checked, &[RawOp::Delete { key }]).await?;
        Ok(RawDeleteResponse::default())
    }

    pub(super) async fn batch_delete(
        &self,
        request: RawBatchDeleteRequest,
    ) -> Result<RawBatchDeleteResponse, RequestFailure> {
        let RawBatchDeleteRequest { context, keys, cf, for_cas: _ } = request;
        let rules = self.rules("raw_batch_delete");
        let family = rules.family(context.as_ref(), &cf)?;
        keys.iter().try_for_each(|key| rules.key(key))?;
        let checked = self.check_context(context)?.in_family(family).touching(&keys);
        let delete = keys.into_iter().map(|key| RawOp::Delete { key });
        self.write(checked, &delete.collect::<Vec<_>>()).await?;
        Ok(RawBatchDeleteResponse::default())
    }

    pub(super) async fn delete_range(
        &self,
        request: RawDeleteRangeRequest,
    ) -> Result<RawDeleteRangeResponse, RequestFailure> {
        let RawDeleteRangeRequest { context, start_key, end_key, cf } = request;
        let rules = self.rules("raw_delete_range");
        let family = rules.family(context.as_ref(), &cf)?;
        rules.range(&start_key, &end_key)?;
        let checked = self.check_context(context)?.in_family(family).at_known_version();
        let (clipped, beyond) = range::delete(&checked.descriptor, start_key, end_key);
        let checked = checked.touching(clipped.probe.iter().chain(&beyond));
        // An empty or inverted range deletes nothing, and costs nothing.
        if let Some(range) = clipped.range {
            let end = (!range.end.is_empty()).then_some(range.end);
            self.write(checked, &[RawOp::DeleteRange { start: range.start, end }]).await?;
        }
        Ok(RawDeleteRangeResponse::default())
    }

    pub(super) async fn compare_and_swap(
        &self,
        request: RawCasRequest,
    ) -> Result<RawCasResponse, RequestFailure> {
        let RawCasRequest { context, key, value, cf, ttl, delete, .. } = request;
        let rules = self.rules("raw_compare_and_swap");
        let family = rules.family(context.as_ref(), &cf)?;
        rules.key(&key)?;
        let expected = (!request.previous_not_exist).then_some(request.previous_value);
        let checked = self.check_context(context)?.in_family(family).touching([&key]);
        let (value, ttl_s) = if delete { (None, 0) } else { (Some(value), ttl) };
        let swap = RawOp::CompareAndSwap { key, expected, value, ttl_s };
        match self.write(checked, &[swap]).await? {
            ApplyOutcome::Swapped { succeeded, previous } => Ok(RawCasResponse {
                succeed: succeeded,
                previous_not_exist: previous.is_none(),
                previous_value: previous.unwrap_or_default(),
                ..RawCasResponse::default()
            }),
            other => unreachable!("a compare-and-swap ended as {other:?}"),
        }
    }

    /// The time that is put into the command of `ops`; 0 for none.
    fn time_of(&self, ops: &[RawOp]) -> Result<u64, RequestFailure> {
        if ops.iter().any(RawOp::needs_time) {
            return self.command_ms();
        }
        match ops {
            // The value that it finds may have expired. Without a time the watermark decides.
            [RawOp::CompareAndSwap { .. }] => Ok(self.command_ms().unwrap_or_default()),
            _ => Ok(0),
        }
    }

    /// Checks that every store knows commands for this column family.
    fn check_family(&self, family: ColumnFamily) -> Result<(), RequestFailure> {
        match (family, self.membership()) {
            (ColumnFamily::Default, _) | (_, None) => Ok(()),
            (_, Some(membership)) => membership
                .check_families()
                .map_err(|refusal| RequestFailure::Refused(refusal.to_string())),
        }
    }

    /// Replicates and applies `ops`, as one.
    async fn write(
        &self,
        mut checked: RequestContext,
        ops: &[RawOp],
    ) -> Result<ApplyOutcome, RequestFailure> {
        if ops.is_empty() {
            return Ok(ApplyOutcome::Done);
        }
        let (id, descriptor) = (checked.region(), checked.descriptor);
        // One command, so that the region's log keeps the batch together.
        self.check_family(checked.family)?;
        let command = raw::encode_in(checked.family, self.time_of(ops)?, ops);
        let rerouting = checked.rerouting;
        checked.guard.needs_room = ops.iter().any(RawOp::needs_room);
        let proposal = self.router().propose_by_keys(id, checked.guard, command, rerouting);
        let result = match checked.time_limit {
            // After a timeout the write may still be on its way.
            Some(time_limit) => {
                timeout(time_limit, proposal).await.map_err(|_| RequestFailure::undecided())?
            }
            None => proposal.await,
        };
        match result.map_err(|error| RequestFailure::from_router(id, error))? {
            ApplyOutcome::Rejected(reject) => Err(RequestFailure::from_apply(&descriptor, reject)),
            outcome => Ok(outcome),
        }
    }
}
