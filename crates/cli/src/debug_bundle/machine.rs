//! Facts of this machine and of the stores that run on it, as the kernel tells them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use super::evidence::Evidence;

/// Bytes of one file at most; the rest of a longer one is left out.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Processes of stores that are looked at, at most.
const PROCESSES_MAX: usize = 16;

/// Facts of the machine.
const FACTS: [&str; 18] = [
    "/etc/os-release",
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/mounts",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/sys/fs/file-max",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/swappiness",
    "/proc/uptime",
    "/proc/version",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

/// Facts of a process.
const PROCESS_FACTS: [&str; 4] = ["cgroup", "io", "limits", "status"];

/// Adds them. A kernel that does not have one is noted.
pub(super) fn gather(evidence: &Evidence) {
    for path in FACTS {
        add(evidence, Path::new(path), &format!("machine{path}"));
    }
    for id in store_processes().into_iter().take(PROCESSES_MAX) {
        for name in PROCESS_FACTS {
            let path = format!("/proc/{id}/{name}");
            add(evidence, Path::new(&path), &format!("machine{path}"));
        }
    }
}

fn add(evidence: &Evidence, path: &Path, part: &str) {
    match read(path) {
        Ok(bytes) => evidence.add(part, bytes.into()),
        Err(error) => evidence.note(format!("{part}: {error}")),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The processes of this program, in the order of their ids, this one left out.
fn store_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_store = |id: &u32| {
        let name = fs::read(format!("/proc/{id}/comm")).unwrap_or_default();
        *id != std::process::id() && name.trim_ascii_end() == b"flotilla"
    };
    let mut ids: Vec<u32> = ids.filter(is_store).collect();
    ids.sort_unstable();
    ids
}
