//! Numbers in the query of a URL.

/// The number that `name` has in `query`, a URL's part behind the question mark; `None` if it is
/// not there.
///
/// # Errors
///
/// The words for the caller if it is no number.
pub(super) fn number(query: Option<&str>, name: &str) -> Result<Option<u64>, String> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next();
    value
        .map(|value| value.parse().map_err(|_| format!("{name} is no number: {value:?}")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_name() {
        let query = Some("after=12&limit=0&x");
        assert_eq!(number(query, "after"), Ok(Some(12)));
        assert_eq!(number(query, "limit"), Ok(Some(0)));
        assert_eq!((number(query, "x"), number(None, "after")), (Ok(None), Ok(None)));
        for wrong in ["after=", "after=-1", "after=1%30", "after=99999999999999999999"] {
            assert!(number(Some(wrong), "after").is_err(), "{wrong}");
        }
    }
}
