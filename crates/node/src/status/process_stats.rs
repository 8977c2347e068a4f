//! The process in numbers, by the names that Prometheus' own libraries give them. A number that the
//! kernel does not tell is left out.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike as _;
use prometheus::proto::MetricType;

/// One number.
pub(super) struct ProcessMetric {
    pub(super) kind: MetricType,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) value: f64,
}

/// The numbers now.
pub(super) fn read() -> impl Iterator<Item = ProcessMetric> {
    let numbers = [
        (
            MetricType::COUNTER,
            "process_cpu_seconds_total",
            "CPU time of the process in user and system mode.",
            cpu_seconds(),
        ),
        (
            MetricType::GAUGE,
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM, mapped files included.",
            resident_bytes().map(|bytes| bytes as f64),
        ),
        (
            MetricType::GAUGE,
            "process_open_fds",
            "Open file descriptors.",
            // The directory that is listed is open as well.
            fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as f64 - 1.0),
        ),
        (
            MetricType::GAUGE,
            "process_max_fds",
            "File descriptors that the process may have open.",
            getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64),
        ),
    ];
    numbers.into_iter().filter_map(|(kind, name, help, value)| {
        value.map(|value| ProcessMetric { kind, name, help, value })
    })
}

fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    Some((usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6)
}

/// The second number of `statm` (proc(5)) counts pages.
fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}
