//! Size of a subtree in keys and units: kept in its parent, so that counts need no walk
//! (`docs/decisions/0016`).

use crate::page::Span;

/// The size of a tree, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubtreeSize {
    /// Keys.
    pub(crate) keys: u64,
    /// Units of its pages and long values.
    pub(crate) units: u64,
}

/// The change of a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizeChange {
    /// More keys, or fewer.
    pub(crate) keys: i64,
    /// More units, or fewer.
    pub(crate) units: i64,
}

impl SubtreeSize {
    /// This and another part together. Sizes come from a file, so no sum may overflow.
    pub(crate) fn plus(self, other: SubtreeSize) -> SubtreeSize {
        SubtreeSize {
            keys: self.keys.saturating_add(other.keys),
            units: self.units.saturating_add(other.units),
        }
    }

    /// The size after a change.
    pub(crate) fn after(self, change: SizeChange) -> SubtreeSize {
        SubtreeSize {
            keys: self.keys.saturating_add_signed(change.keys),
            units: self.units.saturating_add_signed(change.units),
        }
    }

    /// The change from `before` to this size.
    pub(crate) fn since(self, before: SubtreeSize) -> SizeChange {
        SizeChange {
            keys: self.keys.wrapping_sub(before.keys).cast_signed(),
            units: self.units.wrapping_sub(before.units).cast_signed(),
        }
    }
}

impl From<SubtreeSize> for SizeChange {
    /// A size as a change from nothing.
    fn from(size: SubtreeSize) -> SizeChange {
        size.since(SubtreeSize::default())
    }
}

impl SizeChange {
    /// Whether nothing has changed.
    pub(crate) fn is_none(self) -> bool {
        self == SizeChange::default()
    }

    /// Notes a page or long value that is there now.
    pub(crate) fn add(&mut self, span: Span) {
        self.units += i64::from(span.units);
    }

    /// Notes a page or long value that is gone.
    pub(crate) fn subtract(&mut self, span: Span) {
        self.units -= i64::from(span.units);
    }
}
