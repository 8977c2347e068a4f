//! Requests about the locks of transactions, as in a cluster that has none.
//!
//! Programs that remove whole ranges look for locks first, and resolve those they find. So these
//! two are answered, after the checks that every request of a region passes: the claims, the
//! leader, the version of the range.

use flotilla_proto::kvrpcpb::{
    Context, ResolveLockRequest, ResolveLockResponse, ScanLockRequest, ScanLockResponse,
};

use super::errors::RequestFailure;
use super::service::RawKv;

impl RawKv {
    /// The locks in a region: none.
    pub(super) async fn scan_lock(
        &self,
        request: ScanLockRequest,
    ) -> Result<ScanLockResponse, RequestFailure> {
        self.check_region(request.context, "scan_lock").await?;
        Ok(ScanLockResponse::default())
    }

    /// Resolves the locks of transactions in a region, of which there are none.
    pub(super) async fn resolve_lock(
        &self,
        request: ResolveLockRequest,
    ) -> Result<ResolveLockResponse, RequestFailure> {
        self.check_region(request.context, "resolve_lock").await?;
        Ok(ResolveLockResponse::default())
    }

    /// Has the region check a request that touches no key.
    async fn check_region(
        &self,
        context: Option<Context>,
        command: &'static str,
    ) -> Result<(), RequestFailure> {
        self.rules(command).version(context.as_ref())?;
        self.snapshot(self.check_context(context)?.at_known_version()).await?;
        Ok(())
    }
}
