//! Prefetch hints: the CPU fetches several cache lines at once instead of one after the other.
#![expect(unsafe_code, reason = "the hint is a CPU instruction")]

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Prefetches all of these bytes. A hint: nothing is read, and it never waits.
#[inline]
pub fn bytes(wanted: &[u8]) {
    bytes_at(wanted.as_ptr(), wanted.len());
}

/// Prefetches `len` bytes from an address on, whatever lies there.
#[inline]
pub fn bytes_at(address: *const u8, len: usize) {
    for at in (0..len).step_by(LINE_BYTES) {
        line_at(address.wrapping_add(at));
    }
}

/// Prefetches the line of this address, whatever lies there.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub fn line_at(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: A hint changes nothing but what is in the caches, and cannot fail, whatever lies
    // there.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Prefetches the line of this address. Does nothing on this architecture.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub fn line_at(_address: *const u8) {}
