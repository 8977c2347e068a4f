//! A memory limit for processes of a run: a cgroup of version 1 or 2.

use crate::Result;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup that limits the memory of its processes, page cache included. Removed when it is
/// dropped, by when its processes must have ended.
#[derive(Debug)]
pub struct MemoryCgroup {
    dir: PathBuf,
}

/// How one version of cgroups calls things.
struct Version {
    /// Where its tree is mounted.
    root: &'static str,
    /// The file with the limit.
    limit: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes" },
    Version { root: "/sys/fs/cgroup", limit: "memory.max" },
];

impl MemoryCgroup {
    /// Makes a cgroup with this limit: below the one of this process, or at the root of the tree.
    ///
    /// # Errors
    ///
    /// Why none can be made here: mostly for lack of rights.
    pub fn new(limit_bytes: u64) -> Result<MemoryCgroup> {
        let mut why = "no memory controller is mounted".to_owned();
        for version in VERSIONS {
            for parent in [own_cgroup(&version), PathBuf::from(version.root)] {
                match make(&version, &parent, limit_bytes) {
                    Ok(made) => return Ok(made),
                    Err(error) => why = format!("{}: {error}", parent.display()),
                }
            }
        }
        Err(why.into())
    }

    /// A command that enters the cgroup and then becomes `program`.
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("sh");
        let procs = self.dir.join("cgroup.procs");
        command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(procs).arg(program);
        command
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // What a process leaves behind, such as page cache, goes to the parent.
        let _ = fs::remove_dir(&self.dir);
    }
}

fn make(version: &Version, parent: &Path, limit_bytes: u64) -> Result<MemoryCgroup> {
    let dir = parent.join(format!("pages-{}", std::process::id()));
    fs::create_dir(&dir)?;
    let made = MemoryCgroup { dir };
    let limit = made.dir.join(version.limit);
    // In a directory that is no cgroup of this version the file would be made.
    if !limit.exists() {
        return Err(format!("no {}", version.limit).into());
    }
    fs::write(&limit, limit_bytes.to_string())?;
    Ok(made)
}

/// The cgroup of this process.
fn own_cgroup(version: &Version) -> PathBuf {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let is_of = |controllers: &str| match version.limit {
        "memory.max" => controllers.is_empty(),
        _ => controllers.split(',').any(|one| one == "memory"),
    };
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let own = lines.filter(|(controllers, _)| is_of(controllers)).map(|(_, path)| path).next();
    Path::new(version.root).join(own.unwrap_or_default().trim_start_matches('/'))
}

/// Drops the files of `dir` from the page cache. Else a limited process would use pages that
/// another one has read and pays for.
///
/// # Errors
///
/// Errors of the kernel.
pub fn drop_cached(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_file() {
            let file = fs::File::open(path)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
