//! Short time slices for threads with requests on them: low latency on busy cores, without a
//! privilege.
//!
//! A request passes from thread to thread a dozen times. When all cores are busy each of these
//! threads waits for one, until the running thread has used up its slice: with Linux's defaults
//! that is a millisecond and a half, and four where the clock ticks 250 times a second. A thread
//! that has asked for a shorter slice preempts one with a longer slice at once, and gives the core
//! up as soon when its own slice is over. Its share of CPU time stays what it was: this is about
//! when, and not about how much, so it needs no privilege and starves no other thread. Decision 18
//! (`docs/decisions/0018-short-time-slices.md`) has the measurements.
#![expect(unsafe_code, reason = "neither std nor rustix knows these two calls of the system")]

use std::io;
use std::sync::Once;

/// A thread's slice, the shortest that Linux grants. It is used up rarely: a thread here does some
/// ten microseconds of work, and waits.
const SLICE_NANOS: u64 = 100_000;

/// Asks the kernel for short slices for this thread, and those that it starts. Linux has them from
/// 6.12 on; an older kernel accepts the call and ignores it. A scheduling policy other than the
/// default was chosen by an operator, and stays.
///
/// A refusal of the kernel is logged once: requests wait longer there, and are served.
pub fn set_sched_slice() {
    static TOLD: Once = Once::new();
    if let Err(error) = set(SLICE_NANOS) {
        TOLD.call_once(|| tracing::info!("the system grants no short time slices: {error}"));
    }
}

/// Bytes that a thread copies within a slice, or less.
const STINT_BYTES: usize = 128 << 10;

/// Yields the core each 128 KiB of work that copies many bytes.
///
/// Threads with slices of one length do not preempt each other before the slice is over, and Linux
/// looks at that when its clock ticks: every four milliseconds, if 250 times a second. So a thread
/// that works for as long as that without waiting yields by itself. Where no thread waits for the
/// core that is one system call, half a microsecond.
#[derive(Debug)]
pub(crate) struct YieldBudget {
    bytes_left: usize,
}

impl Default for YieldBudget {
    fn default() -> Self {
        Self { bytes_left: STINT_BYTES }
    }
}

impl YieldBudget {
    /// Counts bytes that were copied, and yields the core after enough of them.
    pub(crate) fn spend(&mut self, bytes: usize) {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) if left > 0 => self.bytes_left = left,
            _ => {
                *self = Self::default();
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn set(nanos: u64) -> io::Result<()> {
    let mut attributes = read()?;
    if i64::from(attributes.sched_policy) != i64::from(libc::SCHED_OTHER) {
        return Ok(());
    }
    attributes.sched_runtime = nanos;
    // SAFETY: the pointer is to attributes that live until the call returns, and that say how long
    // they are. The call reads them and changes nothing else of this process's memory.
    let refused = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Only Linux has them.
#[cfg(not(target_os = "linux"))]
fn set(_nanos: u64) -> io::Result<()> {
    Ok(())
}

/// The scheduling attributes of this thread.
#[cfg(target_os = "linux")]
fn read() -> io::Result<libc::sched_attr> {
    let size = u32::try_from(size_of::<libc::sched_attr>()).expect("some tens of bytes");
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the call writes at most `size` bytes to the pointer, and they are there.
    let refused =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if refused == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod stints {
    use super::*;

    #[test]
    fn a_stint_ends_with_its_bytes_and_the_next_is_whole() {
        let mut stint = YieldBudget::default();
        stint.spend(STINT_BYTES - 1);
        assert_eq!(stint.bytes_left, 1);
        stint.spend(1);
        assert_eq!(stint.bytes_left, STINT_BYTES);
        stint.spend(10 * STINT_BYTES);
        assert_eq!(stint.bytes_left, STINT_BYTES);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_and_its_children_have_short_slices_and_nothing_else_changes() {
        let (before, after, child) = thread::spawn(|| {
            let before = read().unwrap();
            set_sched_slice();
            (before, read().unwrap(), thread::spawn(|| read().unwrap()).join().unwrap())
        })
        .join()
        .unwrap();
        // Older kernels say 0 whatever was asked.
        if before.sched_runtime != 0 {
            assert!(before.sched_runtime > SLICE_NANOS);
            assert_eq!(after.sched_runtime, SLICE_NANOS);
            assert_eq!(child.sched_runtime, SLICE_NANOS);
        }
        assert_eq!(after.sched_policy, before.sched_policy);
        assert_eq!(after.sched_nice, before.sched_nice);
        assert_eq!(after.sched_flags, before.sched_flags);
    }

    #[test]
    fn another_policy_stays() {
        let kept = thread::spawn(|| {
            let mut batch = read().unwrap();
            batch.sched_policy = u32::try_from(libc::SCHED_BATCH).unwrap();
            // SAFETY: as in `set`.
            let refused = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const batch, 0) };
            assert_eq!(refused, 0);
            let before = read().unwrap();
            set_sched_slice();
            (before, read().unwrap())
        });
        let (before, after) = kept.join().unwrap();
        assert_eq!(i64::from(after.sched_policy), i64::from(libc::SCHED_BATCH));
        assert_eq!(after.sched_runtime, before.sched_runtime);
    }
}
