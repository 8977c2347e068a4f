//! A page file as it lies on disk: looked at, checked, drawn, copied, rescued.
//!
//! [`PageFile`] reads the state of a file's last checkpoint and changes nothing. While it is held no
//! store can open the file, and it is refused while one has it open. What it meets of damage it
//! names, and goes on behind it.
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

pub use backup::{BackedUp, BackupIndex};
pub use check::FileReport;
pub use compact::Compacted;
pub use dump::{Cell, Content, Dumped, EntryValue, PageDump};
pub use file::PageFile;
pub use info::{FileInfo, MetaInfo, RedoInfo, TreeInfo};
pub use map::{FileMap, MapRun, Owner};
pub use problem::{LostKeys, Part, Problem};
pub use repair::{RepairReport, repair};
pub use restore::{Restored, restore};
pub use walk::Progress;
