//! Durations of calls, by RPC: from the moment when the call is here until its answer is encoded.

use std::pin::Pin;
use std::time::Instant;

use flotilla_base::histogram::LatencyHistogram;
use flotilla_base::metric::HistogramMetric;
use flotilla_proto::tikvpb::batch_commands_request::request::Cmd;

/// Declares a histogram for each handler, and the name of its RPC.
macro_rules! rpc_durations {
    ($($handler:ident: $rpc:literal,)*) => {
        /// A histogram for each RPC that is served, named as its handler.
        #[derive(Debug, Default)]
        pub(crate) struct RpcDurations {
            $(pub(super) $handler: LatencyHistogram,)*
        }

        impl RpcDurations {
            /// Calls `visit` for each RPC that was called.
            pub(crate) fn visit(&self, visit: &mut dyn FnMut(HistogramMetric<'_>)) {
                $(
                    if self.$handler.read().count() > 0 {
                        visit(HistogramMetric {
                            name: "rpc",
                            labels: &[("rpc", $rpc)],
                            help: "Calls of clients, alone or in a batch, by RPC.",
                            histogram: &self.$handler,
                        });
                    }
                )*
            }
        }
    };
}

rpc_durations! {
    get: "RawGet",
    batch_get: "RawBatchGet",
    put: "RawPut",
    batch_put: "RawBatchPut",
    delete: "RawDelete",
    batch_delete: "RawBatchDelete",
    delete_range: "RawDeleteRange",
    scan: "RawScan",
    batch_scan: "RawBatchScan",
    get_key_ttl: "RawGetKeyTTL",
    checksum: "RawChecksum",
    compare_and_swap: "RawCompareAndSwap",
    unsafe_destroy_range: "UnsafeDestroyRange",
    raw_coprocessor: "RawCoprocessor",
    scan_lock: "KvScanLock",
    resolve_lock: "KvResolveLock",
    split_region: "SplitRegion",
}

impl RpcDurations {
    /// The histogram of a request in a batch; none for one that is refused or does nothing.
    pub(super) fn of_command(&self, command: &Cmd) -> Option<&LatencyHistogram> {
        Some(match command {
            Cmd::RawGet(_) => &self.get,
            Cmd::RawBatchGet(_) => &self.batch_get,
            Cmd::RawPut(_) => &self.put,
            Cmd::RawBatchPut(_) => &self.batch_put,
            Cmd::RawDelete(_) => &self.delete,
            Cmd::RawBatchDelete(_) => &self.batch_delete,
            Cmd::RawScan(_) => &self.scan,
            Cmd::RawDeleteRange(_) => &self.delete_range,
            Cmd::RawBatchScan(_) => &self.batch_scan,
            Cmd::RawCoprocessor(_) => &self.raw_coprocessor,
            Cmd::ScanLock(_) => &self.scan_lock,
            Cmd::ResolveLock(_) => &self.resolve_lock,
            _ => return None,
        })
    }
}

/// Counts how long `act` takes. A call that is broken off is not counted.
///
/// It is pinned by the caller: an asynchronous function has room for each argument twice, and the
/// future of a request is some thousand bytes.
pub(super) async fn timed<T>(
    histogram: Option<&LatencyHistogram>,
    act: Pin<&mut impl Future<Output = T>>,
) -> T {
    let began = Instant::now();
    let output = act.await;
    if let Some(histogram) = histogram {
        histogram.observe(began.elapsed());
    }
    output
}
