//! The names of a backup's files, relative to its directory. All are unique for ever: a file of an
//! object store is written once under its name.

/// The folder of the data files.
pub const DATA_DIR: &str = "data";
/// The list of the regions that a backup under way has finished. Not a part of a backup.
pub const JOURNAL: &str = "under-way";

const MANIFEST_PREFIX: &str = "manifest-";

/// The name of the data file with the rows of a region that have this digest, in [`DATA_DIR`].
#[must_use]
pub fn data_file_name(region: u64, digest: u64) -> String {
    format!("{region}-{digest:016x}.rows")
}

/// The name of a manifest. Names lie in the order of their numbers.
#[must_use]
pub fn manifest_name(number: u64) -> String {
    format!("{MANIFEST_PREFIX}{number:010}")
}

/// The number of the manifest of this name, if it is one.
#[must_use]
pub fn manifest_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(MANIFEST_PREFIX)?.parse().ok()?;
    (manifest_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert_eq!(data_file_name(7, 0x1f), "7-000000000000001f.rows");
        assert_eq!(manifest_name(3), "manifest-0000000003");
        assert_eq!(manifest_number(&manifest_name(u64::MAX)), Some(u64::MAX));
        for other in ["manifest-3", "manifest-0000000003.tmp", "data", "under-way", "manifest-"] {
            assert_eq!(manifest_number(other), None, "{other}");
        }
    }
}
