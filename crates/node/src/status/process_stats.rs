//! The process in numbers, by the names that Prometheus' own libraries give them. What the kernel
//! does not tell is left out.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike as _;
use prometheus::proto::MetricType;

use super::prometheus::Exposition;

/// The numbers at one moment.
pub(super) struct ProcessStats {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
}

impl ProcessStats {
    /// Asks the kernel.
    pub(super) fn read() -> Self {
        let cpu_seconds = getrusage(UsageWho::RUSAGE_SELF).ok().map(|usage| {
            let cpu = usage.user_time() + usage.system_time();
            cpu.num_microseconds() as f64 / 1e6
        });
        Self {
            cpu_seconds,
            resident_bytes: resident_bytes().map(|bytes| bytes as f64),
            // The directory that is listed is open as well.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as f64 - 1.0),
            max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64),
        }
    }

    pub(super) fn add_to(&self, exposition: &mut Exposition) {
        let mut add = |kind, name: &str, help, value: Option<f64>| {
            if let Some(value) = value {
                exposition.add_value(kind, name.to_owned(), help, value);
            }
        };
        let cpu = "CPU time of the process in user and system mode.";
        add(MetricType::COUNTER, "process_cpu_seconds_total", cpu, self.cpu_seconds);
        let resident = "Memory of the process that is in RAM, mapped files included.";
        add(MetricType::GAUGE, "process_resident_memory_bytes", resident, self.resident_bytes);
        add(MetricType::GAUGE, "process_open_fds", "Open file descriptors.", self.open_fds);
        let max = "File descriptors that the process may have open.";
        add(MetricType::GAUGE, "process_max_fds", max, self.max_fds);
    }
}

/// The second number of `statm` (proc(5)) counts pages.
fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}
