//! Guard against double frees: deferred frees of a damaged or forged file may name a unit twice.

use crate::error::{Error, Result};
use crate::page::{PageRef, Span};
use flotilla_base::id_hash::IdMap;

/// The units of the spans that the transaction has freed, as far as the list was noted.
#[derive(Default)]
pub(crate) struct DoubleFreeGuard {
    units: IdMap<()>,
    /// How many spans they are of.
    count: usize,
}

impl DoubleFreeGuard {
    /// Notes all that has come to the list since.
    pub(crate) fn note(&mut self, list: &[(Span, u64)]) {
        for (span, _) in &list[self.count..] {
            self.units.extend((span.start..span.end()).map(|unit| (unit, ())));
        }
        self.count = list.len();
    }

    /// Proves that no unit of `spans` is one of them, or there twice.
    pub(crate) fn verify_disjoint(&self, spans: &[Span]) -> Result<()> {
        let mut spans = spans.to_vec();
        spans.sort_unstable();
        let overlap =
            spans.windows(2).find(|pair| pair[0].end() > pair[1].start).map(|pair| pair[1]);
        let is_given =
            |span: &Span| (span.start..span.end()).any(|unit| self.units.contains_key(&unit));
        match overlap.or_else(|| spans.iter().copied().find(is_given)) {
            Some(Span { start, .. }) => {
                Err(Error::Corrupt { page: start, what: "it is given back twice" })
            }
            None => Ok(()),
        }
    }
}

/// A deferred free that was refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedFree {
    /// The page that names it.
    pub(crate) named_by: PageRef,
    /// The page that cannot be freed.
    pub(crate) page: u64,
    pub(crate) what: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_given_once() {
        let span = |start, units| Span { start, units };
        let mut given = DoubleFreeGuard::default();
        let mut list = vec![(span(10, 3), 1)];
        given.note(&list);
        list.push((span(20, 1), 1));
        given.note(&list);
        given.note(&list);
        given.verify_disjoint(&[span(13, 7), span(21, 5), span(9, 1)]).unwrap();
        for (spans, named) in [
            (vec![span(30, 1), span(12, 1)], 12),
            (vec![span(9, 2)], 9),
            (vec![span(20, 1)], 20),
            (vec![span(31, 1), span(30, 2)], 31),
            (vec![span(31, 1), span(31, 1)], 31),
        ] {
            let error = given.verify_disjoint(&spans).unwrap_err();
            assert!(matches!(error, Error::Corrupt { page, .. } if page == named), "{error}");
        }
    }
}
