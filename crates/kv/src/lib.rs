//! Commands of log entries: their meaning for keys and values, without I/O.
//!
//! A region orders and replicates commands and never reads them; the store applies them to rows.
//! Each wire protocol has its commands in a module of its own: [`raw`] those of TiKV's RawKV.

mod column_family;
pub mod raw;

pub use column_family::ColumnFamily;
