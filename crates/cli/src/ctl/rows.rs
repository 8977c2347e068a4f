//! Rows: a value, how long it lives, a scan.

use std::io::Write;
use std::path::PathBuf;

use bytes::Bytes;
use flotilla_client::{Client, Pair, RemainingTtl, Scan};
use serde_json::{Value, json};

use super::input::is_standard;
use super::text::{ByteFormat, escape, hex};
use crate::tool::{Error, TableCell, table};
use crate::units;

/// The arguments of `flotilla ctl scan`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ScanArgs {
    /// First key [default: the very first]
    #[arg(default_value = "", hide_default_value = true)]
    start: String,
    /// Ends below this key [default: no end]
    #[arg(long, default_value = "", hide_default_value = true)]
    end: String,
    /// Only keys that begin with START
    #[arg(long, conflicts_with = "end")]
    prefix: bool,
    /// Rows at most
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Begin at the end
    #[arg(long)]
    reverse: bool,
    /// Do not print values
    #[arg(long)]
    keys_only: bool,
}

pub(crate) async fn scan(
    client: &Client,
    args: &ScanArgs,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let start = format.key(&args.start)?;
    let end = if args.prefix { after_prefix(&start).into() } else { format.key(&args.end)? };
    let limit = args.limit;
    let scan = Scan { start, end, limit, reverse: args.reverse, key_only: args.keys_only };
    let rows = client.scan(scan).await?;
    if format.is_json {
        let rows = rows.iter().map(|row| to_json(row, args.keys_only)).collect();
        return Ok(writeln!(out, "{:#}", Value::Array(rows))?);
    }
    let mut table = if args.keys_only { table(&["key"]) } else { table(&["key", "value"]) };
    for (key, value) in &rows {
        let value = (!args.keys_only).then_some(value);
        let shown = [Some(key), value].into_iter().flatten().map(|bytes| format.show(bytes));
        table.add_row(shown.map(TableCell::new));
    }
    writeln!(out, "{}", table.fitted(format.screen_width))?;
    let count = rows.len();
    let more = if count == limit { ", and perhaps more: see --limit" } else { "" };
    Ok(writeln!(out, "\nrows: {}{more}", units::count(count as u64))?)
}

/// The arguments of `flotilla ctl get`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// Which
    key: String,
    /// Write the value's bytes to a file, and nothing else; `-` is standard output
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

pub(crate) async fn get(
    client: &Client,
    args: &GetArgs,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let key = format.key(&args.key)?;
    let Some(found) = client.get(key.clone()).await? else {
        return Err(no_value(&key, format));
    };
    match &args.file {
        Some(path) if is_standard(path) => Ok(out.write_all(&found)?),
        Some(path) => {
            let written = std::fs::write(path, &found);
            written.map_err(|error| Error::Argument(format!("{}: {error}", path.display())))?;
            done(format, out)
        }
        None => value(&key, &found, format, out),
    }
}

/// Says how long a key lives.
pub(crate) async fn ttl(
    client: &Client,
    key: &Bytes,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let remaining = client.ttl(key.clone()).await?.ok_or_else(|| no_value(key, format))?;
    let seconds = match remaining {
        RemainingTtl::Unlimited => None,
        RemainingTtl::Seconds(seconds) => Some(seconds),
    };
    if format.is_json {
        let answer = json!({ "key": escape(key), "key_hex": hex(key), "ttl_s": seconds });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    Ok(writeln!(out, "{}", seconds.map_or("none".to_owned(), |seconds| format!("{seconds} s")))?)
}

fn no_value(key: &[u8], format: ByteFormat) -> Error {
    Error::Absent(format!("{} has no value", format.quote(key)))
}

/// The value's own bytes and a line's end; a script may want them as they are.
fn value(key: &[u8], value: &[u8], format: ByteFormat, out: &mut impl Write) -> Result<(), Error> {
    if format.is_json {
        let row = (key.to_vec().into(), value.to_vec().into());
        writeln!(out, "{:#}", to_json(&row, false))?;
    } else if format.is_hex {
        writeln!(out, "{}", hex(value))?;
    } else {
        out.write_all(value)?;
        writeln!(out)?;
    }
    Ok(())
}

pub(crate) fn done(format: ByteFormat, out: &mut impl Write) -> Result<(), Error> {
    let text = if format.is_json { "{}" } else { "done" };
    Ok(writeln!(out, "{text}")?)
}

/// Both forms, so that a reader need not know whether the bytes are text.
fn to_json((key, value): &Pair, is_key_only: bool) -> Value {
    let mut row = json!({ "key": escape(key), "key_hex": hex(key) });
    if !is_key_only {
        row["value"] = escape(value).into();
        row["value_hex"] = hex(value).into();
    }
    row
}

/// The least key above all that begin with `prefix`; empty if there is none.
pub(super) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_next_one_begins() {
        assert_eq!(after_prefix(b"abc"), b"abd");
        assert_eq!(after_prefix(b"a\xff\xff"), b"b");
        assert_eq!(after_prefix(b"\xff"), b"");
        assert_eq!(after_prefix(b""), b"");
    }

    #[test]
    fn a_value_is_printed_as_it_is_and_as_json_in_two_forms() {
        let mut out = Vec::new();
        let format = |is_hex, is_json| ByteFormat { is_hex, is_json, screen_width: None };
        value(b"k", b"\xff\n", format(false, false), &mut out).unwrap();
        assert_eq!(out, b"\xff\n\n");
        out.clear();
        value(b"k", b"\xff\n", format(false, true), &mut out).unwrap();
        let row: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(row["value"], "\\xff\\x0a");
        assert_eq!(row["value_hex"], "ff0a");
        assert_eq!(row["key"], "k");
    }
}
