//! Finds out whether other users of the machine can read a store's data. A store makes its
//! files for their owner alone; those of an earlier version, or of a copy, may be open.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Permissions of the group and of all others.
const OTHERS: u32 = 0o077;

/// The words of a warning, if other users can enter `dir` and read something in it.
pub(crate) fn warning(dir: &Path) -> Option<String> {
    let mode = |path: &Path| Some(fs::metadata(path).ok()?.permissions().mode() & 0o777);
    let of_dir = mode(dir).filter(|mode| mode & OTHERS != 0)?;
    let entries = fs::read_dir(dir).ok()?.flatten();
    let mut open: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name(), mode(&entry.path())?)))
        .filter(|(_, mode)| mode & OTHERS != 0)
        .collect();
    // Which one is named should not depend on the file system.
    open.sort_unstable();
    let (name, of_entry) = open.first()?;
    let (dir, name) = (dir.display(), name.to_string_lossy());
    Some(format!(
        "other users of this machine can read the data in {dir} (mode {of_dir:o}; {name} has \
         {of_entry:o}): `chmod -R go= {dir}` ends that"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_enter_is_told_with_what_they_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, set) = (dir.path().join("pages"), |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        });
        fs::write(&file, "rows").unwrap();
        set(&file, 0o644);
        set(dir.path(), 0o700);
        assert_eq!(warning(dir.path()), None, "the way to it is closed");
        set(dir.path(), 0o755);
        let words = warning(dir.path()).unwrap();
        assert!(words.contains("(mode 755; pages has 644)") && words.contains("chmod"), "{words}");
        set(&file, 0o600);
        assert_eq!(warning(dir.path()), None, "there is nothing to read");
        assert_eq!(warning(&dir.path().join("nowhere")), None);
    }
}
