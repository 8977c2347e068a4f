//! Telling the processor which bytes are wanted soon, so that several of them come at once.
#![expect(unsafe_code, reason = "the hint is a processor's instruction")]

/// Bytes that come together.
pub(crate) const LINE_BYTES: usize = 64;

/// Wants what a search in a page looks at first: the header, the first slots, and the prefix.
#[inline]
pub(crate) fn search(page: &[u8]) {
    line(page, 0);
    line(page, LINE_BYTES);
    line(page, 2 * LINE_BYTES);
    line(page, page.len() - 1);
}

/// Wants a whole page.
#[inline]
pub(crate) fn whole(page: &[u8]) {
    for at in (0..page.len()).step_by(LINE_BYTES) {
        line(page, at);
    }
}

/// Wants so many bytes from an address on, whatever lies there.
#[inline]
pub(crate) fn bytes_at(address: *const u8, len: usize) {
    for at in (0..len).step_by(LINE_BYTES) {
        line_at(address.wrapping_add(at));
    }
}

#[inline(always)]
fn line(bytes: &[u8], at: usize) {
    line_at(bytes.as_ptr().wrapping_add(at));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn line_at(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: A hint changes nothing but what is in the caches, and cannot fail, whatever lies
    // there.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn line_at(_address: *const u8) {}
