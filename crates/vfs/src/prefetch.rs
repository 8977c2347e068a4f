//! CPU prefetch hints: several cache lines are loaded at once.
#![expect(unsafe_code, reason = "the hint is a processor's instruction")]

/// Bytes that come together.
pub const LINE_BYTES: usize = 64;

/// Wants all of these bytes soon. A hint: nothing is read, and it never waits.
#[inline]
pub fn bytes(wanted: &[u8]) {
    bytes_at(wanted.as_ptr(), wanted.len());
}

/// Prefetches `len` bytes from an address on, valid or not.
#[inline]
pub fn bytes_at(address: *const u8, len: usize) {
    for at in (0..len).step_by(LINE_BYTES) {
        line_at(address.wrapping_add(at));
    }
}

/// Wants the line of this address, whatever lies there.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub fn line_at(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: A hint changes nothing but what is in the caches, and cannot fail, whatever lies
    // there.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Prefetches the cache line of this address, valid or not. Does nothing on this CPU.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub fn line_at(_address: *const u8) {}
