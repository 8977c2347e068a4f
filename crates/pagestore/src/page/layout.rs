//! Layout of the file: meta pages, then allocation groups of equal length.
//!
//! The file is cut into *allocation groups* of as many units as one bitmap page has bits. The first
//! two units of a group are the two places of its bitmap; no span crosses the border of a group.

use crate::page::{HEADER_BYTES, UNIT_BYTES};

/// Units before the first group: the two meta pages.
pub(crate) const META_UNITS: u64 = 2;

/// Units at the head of each group: the two places of its bitmap.
pub(crate) const HEAD_UNITS: u64 = 2;

/// Units of a group, its head included: as many as one bitmap page has bits.
pub(crate) const GROUP_UNITS: u64 = ((UNIT_BYTES - HEADER_BYTES) * 8) as u64;

/// The number of the group in which a unit lies.
pub(crate) fn group_of(unit: u64) -> usize {
    assert!(unit >= META_UNITS, "unit {unit} is a meta page");
    ((unit - META_UNITS) / GROUP_UNITS) as usize
}

/// The first unit of a group.
pub(crate) fn group_start(group: usize) -> u64 {
    META_UNITS + group as u64 * GROUP_UNITS
}

/// The offset of a unit in its group.
pub(crate) fn offset_of(unit: u64) -> u32 {
    assert!(unit >= META_UNITS, "unit {unit} is a meta page");
    ((unit - META_UNITS) % GROUP_UNITS) as u32
}

/// How many groups a file that ends at `end` has.
pub(crate) fn group_count(end: u64) -> usize {
    assert!(end >= META_UNITS, "a file of {end} units has no meta pages");
    (end - META_UNITS).div_ceil(GROUP_UNITS) as usize
}
