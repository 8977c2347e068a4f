//! A library to preload, with which the clocks of a process that stand still while a machine is
//! suspended stand still when a test wants them to.
//!
//! The file that the variable `FLOTILLA_STOPPED_CLOCK` names holds nanoseconds, as eight bytes in
//! the machine's order. `clock_gettime` reports `CLOCK_MONOTONIC` and its relatives earlier by
//! that. A test stops the process with SIGSTOP, adds the time that it stood still to the file, and
//! lets it go on: the process then finds the clocks as after a suspension. The clocks that go on in
//! suspend, `CLOCK_BOOTTIME` and `CLOCK_REALTIME`, are left alone.
//!
//! Needs nothing but libc's symbols, so that a test can have it compiled by itself.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "it takes the place of a function of libc")]

use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

const VARIABLE: &str = "FLOTILLA_STOPPED_CLOCK";
const NANOS: i64 = 1_000_000_000;
/// `CLOCK_MONOTONIC`, `_RAW` and `_COARSE`.
const STOPPED: [c_int; 3] = [1, 4, 6];
#[cfg(target_arch = "x86_64")]
const SYS_CLOCK_GETTIME: c_long = 228;
#[cfg(not(target_arch = "x86_64"))]
const SYS_CLOCK_GETTIME: c_long = 113;
const PROT_READ: c_int = 1;
const MAP_SHARED: c_int = 1;

/// The kernel's struct; both fields are of eight bytes where this is run.
#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn mmap(
        at: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
}

/// Takes the place of libc's.
///
/// # Safety
///
/// As libc's: `time` points to where a time may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: the caller passes arguments that the system call accepts.
    let failed = unsafe { syscall(SYS_CLOCK_GETTIME, c_long::from(clock), time) };
    if failed != 0 {
        return -1;
    }
    if STOPPED.contains(&clock) {
        // SAFETY: the kernel has just written there, and there is no other reference.
        let time = unsafe { &mut *time };
        let nanos = time.seconds * NANOS + time.nanos - stopped_nanos();
        (time.seconds, time.nanos) = (nanos.div_euclid(NANOS), nanos.rem_euclid(NANOS));
    }
    0
}

/// How long the clocks have stood still: nothing without the file.
fn stopped_nanos() -> i64 {
    static STOPPED_NANOS: OnceLock<Option<&'static AtomicI64>> = OnceLock::new();
    STOPPED_NANOS.get_or_init(map).map_or(0, |nanos| nanos.load(Ordering::SeqCst))
}

fn map() -> Option<&'static AtomicI64> {
    let file = File::open(std::env::var_os(VARIABLE)?).ok()?;
    let length = size_of::<AtomicI64>();
    if file.metadata().ok()?.len() < length as u64 {
        return None;
    }
    let no_place = std::ptr::null_mut();
    // SAFETY: a new mapping of a file that is long enough.
    let place = unsafe { mmap(no_place, length, PROT_READ, MAP_SHARED, file.as_raw_fd(), 0) };
    if place as isize == -1 {
        return None;
    }
    // SAFETY: it is mapped for as long as the process lives, lies at the beginning of a page, and
    // any eight bytes are a number.
    Some(unsafe { &*place.cast::<AtomicI64>() })
}
