//! Bytes of pages and values as readers get them: borrowed, or reference-counted.

use std::fmt;
use std::ops::{Deref, Range};

use bytes::Bytes;

use crate::page::Frame;

/// The bytes of one page.
pub(crate) enum PageBytes<'a> {
    /// Borrowed from memory or the map: they stay as long as the snapshot or the transaction from
    /// which they come.
    Borrowed(&'a [u8]),
    /// Reference-counted: they may be evicted from the cache meanwhile.
    Counted(Frame),
}

impl Deref for PageBytes<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            PageBytes::Borrowed(bytes) => bytes,
            PageBytes::Counted(frame) => frame,
        }
    }
}

impl<'a> PageBytes<'a> {
    /// The value that lies at `range` of the page.
    #[inline]
    pub(crate) fn into_value(self, range: Range<usize>) -> ValueRef<'a> {
        match self {
            PageBytes::Borrowed(bytes) => ValueRef(ValueBytes::Borrowed(&bytes[range])),
            PageBytes::Counted(frame) => ValueRef(ValueBytes::Counted(frame, range)),
        }
    }

    /// The page in memory that is its own; copied if it was borrowed.
    pub(crate) fn into_frame(self) -> Frame {
        match self {
            PageBytes::Borrowed(bytes) => Frame::from(bytes),
            PageBytes::Counted(frame) => frame,
        }
    }
}

/// A value as it lies in the store: derefs to its bytes, and was not copied.
///
/// It borrows from the tree that it was read from. [`ValueRef::into_bytes`] makes it independent.
pub struct ValueRef<'a>(ValueBytes<'a>);

enum ValueBytes<'a> {
    Borrowed(&'a [u8]),
    Counted(Frame, Range<usize>),
    Long(Bytes),
}

impl<'a> ValueRef<'a> {
    pub(crate) fn borrowed(bytes: &'a [u8]) -> ValueRef<'a> {
        ValueRef(ValueBytes::Borrowed(bytes))
    }

    pub(crate) fn long(bytes: Bytes) -> ValueRef<'a> {
        ValueRef(ValueBytes::Long(bytes))
    }

    /// The value in memory of its own: copied, but for a long one that was read into memory just
    /// for this.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            ValueBytes::Long(bytes) => bytes,
            _ => Bytes::copy_from_slice(&self),
        }
    }
}

impl Deref for ValueRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            ValueBytes::Borrowed(bytes) => bytes,
            ValueBytes::Counted(frame, range) => &frame[range.clone()],
            ValueBytes::Long(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for ValueRef<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for ValueRef<'_> {
    fn eq(&self, other: &T) -> bool {
        self[..] == *other.as_ref()
    }
}
