//! Offline tools for a page file: info, check, dump, map, compact, backup, restore, repair.
//!
//! [`PageFile`] reads the state of a file's last checkpoint and changes nothing. While it is held
//! no store can open the file, and it is refused while one has it open. It names the damage that it
//! meets, and goes on behind it.
//!
//! `flotilla pages` shows all of this at a shell; `docs/page-tools.md` says what for.

mod backup;
mod check;
mod compact;
mod copy;
mod dump;
mod file;
mod info;
mod map;
mod problem;
mod repair;
mod restore;
mod stream;
mod walk;

pub use crate::tree::LostKeys;
pub use backup::{BackupIndex, BackupReport};
pub use check::FileCheckReport;
pub use compact::CompactReport;
pub use dump::{CellContent, CellDump, DumpEntry, EntryValue, PageDump};
pub use file::PageFile;
pub use info::{FileInfo, MetaInfo, RedoInfo, TreeInfo};
pub use map::{MapRun, SpaceMap, UnitOwner};
pub use problem::{FilePart, FileProblem};
pub use repair::{RepairReport, repair};
pub use restore::{RestoreReport, restore};
pub use walk::ScanProgress;
