//! Clips ranges of requests to the borders of a region.
//!
//! Clients do not clip: a scan goes on to its own end, and the store stops at the region's. The
//! start of a scan must lie in the region; for a reverse scan that is its upper bound, which may be
//! the region's end.

use bytes::Bytes;
use flotilla_region::Descriptor;

/// `[start, end)` in one region; an empty `end` is no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyBounds {
    pub(crate) start: Bytes,
    pub(crate) end: Bytes,
}

/// A range, clipped to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClippedRange {
    /// The keys that it covers there; `None` if there are none.
    pub(crate) range: Option<KeyBounds>,
    /// A key that must be in the region, or the range is not one for this region.
    pub(crate) probe: Option<Bytes>,
}

/// A scan upwards from `start`, up to `end`.
pub(crate) fn forward(region: &Descriptor, start: Bytes, end: Bytes) -> ClippedRange {
    let probe = Some(start.clone());
    ClippedRange {
        range: KeyBounds { start, end: lesser_end(end, &region.end) }.unless_empty(),
        probe,
    }
}

/// A scan downwards from below `upper` to `lower`, `lower` included.
pub(crate) fn reverse(region: &Descriptor, upper: Bytes, lower: Bytes) -> ClippedRange {
    // As an upper bound, the region's end is inside the region, and "" is the end of everything.
    let inside = upper == region.end || upper.is_empty();
    let probe = (!inside).then(|| upper.clone());
    let range =
        KeyBounds { start: lower.max(region.start.clone()), end: lesser_end(upper, &region.end) };
    ClippedRange { range: range.unless_empty(), probe }
}

/// A deletion of `[start, end)`, which the client has clipped already; an empty `end` stands for
/// the region's.
pub(crate) fn delete(
    region: &Descriptor,
    start: Bytes,
    end: Bytes,
) -> (ClippedRange, Option<Bytes>) {
    let beyond = !region.end.is_empty() && end > region.end;
    let probe = Some(start.clone());
    let range = KeyBounds { start, end: lesser_end(end.clone(), &region.end) };
    (ClippedRange { range: range.unless_empty(), probe }, beyond.then_some(end))
}

impl KeyBounds {
    fn unless_empty(self) -> Option<Self> {
        (self.end.is_empty() || self.start < self.end).then_some(self)
    }
}

/// The lower of two ends, of which an empty one is none.
fn lesser_end(one: Bytes, other: &Bytes) -> Bytes {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other.clone(),
        (false, true) => one,
        (false, false) => one.min(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Epoch, RegionId, Space};

    use super::*;
    use flotilla_region::RemovedPeers;

    fn region(start: &'static str, end: &'static str) -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(2),
            space: Space::Raw,
            start: start.into(),
            end: end.into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![],
        }
    }

    fn covers(clipped: &ClippedRange) -> Option<(&[u8], &[u8])> {
        clipped.range.as_ref().map(|range| (&range.start[..], &range.end[..]))
    }

    #[test]
    fn a_scan_ends_with_its_region() {
        let middle = region("g", "p");
        for (start, end, expected) in [
            ("h", "k", Some(("h", "k"))),
            ("h", "z", Some(("h", "p"))),
            ("h", "", Some(("h", "p"))),
            ("h", "h", None),
            ("h", "a", None),
        ] {
            let clipped = forward(&middle, start.into(), end.into());
            let expected = expected.map(|(start, end)| (start.as_bytes(), end.as_bytes()));
            assert_eq!(covers(&clipped), expected, "{start}..{end}");
            assert_eq!(clipped.probe, Some(start.into()));
        }
        let last = region("p", "");
        assert_eq!(covers(&forward(&last, "q".into(), "".into())), Some((&b"q"[..], &b""[..])));
    }

    #[test]
    fn a_reverse_scan_begins_below_its_upper_bound() {
        let middle = region("g", "p");
        let clipped = reverse(&middle, "k".into(), "".into());
        assert_eq!(covers(&clipped), Some((&b"g"[..], &b"k"[..])));
        assert_eq!(clipped.probe, Some("k".into()));
        let clipped = reverse(&middle, "p".into(), "h".into());
        assert_eq!(covers(&clipped), Some((&b"h"[..], &b"p"[..])));
        assert_eq!(clipped.probe, None, "the region's end is a fine upper bound");
        let clipped = reverse(&middle, "".into(), "".into());
        assert_eq!(covers(&clipped), Some((&b"g"[..], &b"p"[..])));
        assert_eq!(reverse(&middle, "z".into(), "".into()).probe, Some("z".into()));
        assert_eq!(covers(&reverse(&middle, "h".into(), "k".into())), None, "inverted");
    }

    #[test]
    fn a_deletion_does_not_reach_beyond_its_region() {
        let middle = region("g", "p");
        let (clipped, beyond) = delete(&middle, "h".into(), "".into());
        assert_eq!((covers(&clipped), beyond), (Some((&b"h"[..], &b"p"[..])), None));
        let (clipped, beyond) = delete(&middle, "h".into(), "p".into());
        assert_eq!((covers(&clipped), beyond), (Some((&b"h"[..], &b"p"[..])), None));
        let (_, beyond) = delete(&middle, "h".into(), "q".into());
        assert_eq!(beyond, Some("q".into()));
        let (clipped, _) = delete(&middle, "k".into(), "h".into());
        assert_eq!(covers(&clipped), None, "inverted");
        let (clipped, beyond) = delete(&region("g", ""), "h".into(), "".into());
        assert_eq!((covers(&clipped), beyond), (Some((&b"h"[..], &b""[..])), None));
    }
}
