//! The files of a backup of a cluster: their bytes, and the decisions about them, without I/O.
//!
//! A backup is a manifest and the data files that it names, each with the rows of one region behind
//! one entry of its log. Data files are named by region and digest, are written once, and are
//! shared by later backups of the same directory in which the region is unchanged
//! (decision 55, `docs/decisions/0055-a-backup-is-a-manifest-and-files-by-digest.md`). Every byte
//! is described in `docs/backup-format.md`.
//!
//! | module | what it owns | never |
//! |---|---|---|
//! | `rows` | rows as they are in blocks, and their digest | knows a file |
//! | `data_file` | blocks, compressed and with checksums, and the end of a file | opens a file |
//! | `manifest` | regions with their points; ids, timestamps and keyspaces | reads a clock |
//! | `journal` | the regions that a backup under way has finished | decides what is left |
//! | `coverage` | which region is next, and whether all keys are covered | asks a cluster |
//! | `names` | the names of files | lists a directory |

mod coverage;
mod data_file;
mod error;
mod journal;
mod manifest;
mod names;
mod rows;

pub use coverage::{CoverageGap, CoveragePlan, NextRegion, borders, check_coverage};
pub use data_file::{
    BLOCK_BYTES_MAX, DataFileReader, RowBlock, RowTotals, encode_block, encode_end, file_header,
};
pub use error::BackupError;
pub use journal::{JournalHead, encode_head, encode_record, read_journal};
pub use manifest::{
    BackupKeyspace, BackupManifest, BackupRegion, PlacementPoint, REGION_BYTES_MAX, RegionPoint,
};
pub use names::{DATA_DIR, JOURNAL, data_file_name, manifest_name, manifest_number};
pub use rows::{BackupRow, RowDigest, put_row, rows_of};
