//! `flotilla log dump`: prints the records of a log in the order in which they were written.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use flotilla_raftlog::{DumpLine, DumpOptions, DumpRecord, dump as read};
use serde_json::{Value, json};

use super::access::refused;
use crate::ctl::{escape, hex};
use crate::offline::disk;
use crate::tool::Error;

/// The arguments of `flotilla log dump`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LogDumpArgs {
    /// The log, such as the `log` directory of a store
    dir: PathBuf,
    /// Only what concerns this group
    #[arg(long, value_name = "ID")]
    group: Option<u64>,
    /// Also each entry: index, term, kind, length
    #[arg(long)]
    entries: bool,
    /// Also the data of entries and the values of keys; entries are printed as well
    #[arg(long)]
    data: bool,
    /// Lines at most [default: all]
    #[arg(long)]
    limit: Option<u64>,
}

/// Prints a line for each thing, not a table: a log may have millions, and a reader wants the first
/// ones at once. With JSON each line is an object.
pub(super) fn dump(args: &LogDumpArgs, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    let options = DumpOptions { group: args.group, entries: args.entries || args.data };
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut written = Ok(());
    let mut take = |dumped: DumpLine<'_>| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        written = if is_json {
            writeln!(out, "{}", object(&dumped, args.data))
        } else {
            writeln!(out, "{}", line(&dumped, args.data))
        };
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    read(disk(), &args.dir, options, &mut take).map_err(refused)?;
    Ok(written?)
}

fn line(dumped: &DumpLine<'_>, has_data: bool) -> String {
    let DumpLine { segment, offset, lsn, record } = dumped;
    let data = |bytes: &[u8]| if has_data { format!(" {}", escape(bytes)) } else { String::new() };
    let what = match record {
        DumpRecord::Batch { bytes, synced_lsn } => {
            return format!(
                "{segment}:{offset} batch {lsn}, {bytes} bytes, synced up to {synced_lsn}"
            );
        }
        DumpRecord::Append { group, first, count, bytes } => {
            format!("group {group}: append {first} to {}, {bytes} bytes", first + count - 1)
        }
        DumpRecord::Move { group, first, count, bytes } => {
            format!("group {group}: move {first} to {}, {bytes} bytes", first + count - 1)
        }
        DumpRecord::Entry { group, index, term, kind, data: Ok(bytes) } => {
            let len = bytes.len();
            format!(
                "  group {group}: entry {index}, term {term}, kind {kind}, {len} bytes{}",
                data(bytes)
            )
        }
        DumpRecord::Entry { group, index, term, kind, data: Err(what) } => {
            format!("  group {group}: entry {index}, term {term}, kind {kind}: {what}")
        }
        DumpRecord::Truncate { group, from } => format!("group {group}: truncate from {from}"),
        DumpRecord::Compact { group, first, term_before } => {
            format!("group {group}: compact to {first}, term before {term_before}")
        }
        DumpRecord::Put { group, key, value } => {
            let (key, len) = (escape(key), value.len());
            format!("group {group}: put {key}, {len} bytes{}", data(value))
        }
        DumpRecord::Delete { group, key } => format!("group {group}: delete {}", escape(key)),
        DumpRecord::Remove { group } => format!("group {group}: remove"),
        DumpRecord::Discard { below_segment } => format!("discard segments below {below_segment}"),
        DumpRecord::Stale => "a compaction that came too late".to_owned(),
        DumpRecord::Footer { bytes, frames, entries } => {
            return format!(
                "{segment}:{offset} footer, {bytes} bytes: {frames} batches, {entries} entries"
            );
        }
        DumpRecord::Damaged { bytes, what } => {
            return format!("{segment}:{offset} DAMAGED, {bytes} bytes: {what}");
        }
    };
    format!("  {segment}:{offset} {what}")
}

fn object(dumped: &DumpLine<'_>, has_data: bool) -> Value {
    let data = |bytes: &[u8]| if has_data { Value::from(hex(bytes)) } else { Value::Null };
    let mut object = match dumped.record {
        DumpRecord::Batch { bytes, synced_lsn } => {
            json!({ "what": "batch", "bytes": bytes, "synced_lsn": synced_lsn })
        }
        DumpRecord::Append { first, count, bytes, .. } => {
            json!({ "what": "append", "first": first, "count": count, "bytes": bytes })
        }
        DumpRecord::Move { first, count, bytes, .. } => {
            json!({ "what": "move", "first": first, "count": count, "bytes": bytes })
        }
        DumpRecord::Entry { index, term, kind, data: Ok(bytes), .. } => json!({
            "what": "entry", "index": index, "term": term, "kind": kind,
            "bytes": bytes.len(), "data_hex": data(bytes),
        }),
        DumpRecord::Entry { index, term, kind, data: Err(error), .. } => {
            json!({ "what": "entry", "index": index, "term": term, "kind": kind, "error": error })
        }
        DumpRecord::Truncate { from, .. } => json!({ "what": "truncate", "from": from }),
        DumpRecord::Compact { first, term_before, .. } => {
            json!({ "what": "compact", "first": first, "term_before": term_before })
        }
        DumpRecord::Put { key, value, .. } => json!({
            "what": "put", "key": escape(key), "key_hex": hex(key),
            "bytes": value.len(), "value_hex": data(value),
        }),
        DumpRecord::Delete { key, .. } => {
            json!({ "what": "delete", "key": escape(key), "key_hex": hex(key) })
        }
        DumpRecord::Remove { .. } => json!({ "what": "remove" }),
        DumpRecord::Discard { below_segment } => {
            json!({ "what": "discard", "below_segment": below_segment })
        }
        DumpRecord::Stale => json!({ "what": "stale" }),
        DumpRecord::Footer { bytes, frames, entries } => {
            json!({ "what": "footer", "bytes": bytes, "batches": frames, "entries": entries })
        }
        DumpRecord::Damaged { bytes, what } => {
            json!({ "what": "damaged", "bytes": bytes, "error": what })
        }
    };
    object["segment"] = dumped.segment.into();
    object["offset"] = dumped.offset.into();
    object["lsn"] = dumped.lsn.into();
    if let Some(group) = dumped.record.group() {
        object["group"] = group.into();
    }
    object
}
