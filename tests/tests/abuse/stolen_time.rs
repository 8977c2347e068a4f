//! Time that a hypervisor gave to other machines while this one had work to do.

use std::fs;
use std::time::Duration;

/// The unit of the kernel's counters: `USER_HZ` of Linux.
const TICK: Duration = Duration::from_millis(10);
/// The place of the stolen time among those of a line: proc(5).
const STOLEN: usize = 8;

/// The sum of all cores since the start of the machine; 0 where the kernel does not tell.
pub(crate) fn stolen_time() -> Duration {
    let times = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all_cores = times.lines().next().unwrap_or_default();
    let ticks = all_cores.split_whitespace().nth(STOLEN).and_then(|ticks| ticks.parse().ok());
    TICK * ticks.unwrap_or(0)
}
