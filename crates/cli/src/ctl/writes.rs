//! Writes: a value, a compare-and-swap, the deletion of a range.

use std::io::Write;
use std::path::PathBuf;

use bytes::Bytes;
use clap::ArgGroup;
use flotilla_client::CasOutcome;
use serde_json::json;

use super::input::ValueSource;
use super::key_target::KeyTarget;
use super::rows::{after_prefix, done};
use super::text::{ByteFormat, escape, hex};
use crate::screen_table::cut;
use crate::tool::Error;

/// Columns of a message that a value may take.
const SHOWN_WIDTH_MAX: usize = 200;

/// The arguments of `flotilla ctl put`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PutArgs {
    /// Where
    key: String,
    /// The value as it is, or in digits with --hex; `-` for all that standard input has
    #[arg(required_unless_present = "file")]
    value: Option<String>,
    /// Take the bytes of a file as the value; `-` is standard input
    #[arg(long, value_name = "PATH", conflicts_with = "value")]
    file: Option<PathBuf>,
    /// Seconds until the key is gone [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    ttl: Option<u64>,
}

/// The arguments of `flotilla ctl cas`.
#[derive(Clone, Debug, clap::Args)]
#[command(override_usage = "flotilla ctl cas [OPTIONS] <KEY> <NEW|--file <PATH>|--delete> \
                            <--expect <VALUE>|--expect-file <PATH>|--absent>")]
#[command(group = ArgGroup::new("expected").args(["expect", "expect_file", "absent"]).required(true))]
#[command(group = ArgGroup::new("change").args(["new", "file", "delete"]).required(true))]
pub(crate) struct CasArgs {
    /// Where
    key: String,
    /// The new value as it is, or in digits with --hex; `-` for all that standard input has
    new: Option<String>,
    /// Take the bytes of a file as the new value; `-` is standard input
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Delete the key instead
    #[arg(long, conflicts_with_all = ["absent", "ttl"])]
    delete: bool,
    /// Only if the key has this value
    #[arg(long, value_name = "VALUE")]
    expect: Option<String>,
    /// Only if the key has the bytes of this file
    #[arg(long, value_name = "PATH")]
    expect_file: Option<PathBuf>,
    /// Only if the key has no value
    #[arg(long)]
    absent: bool,
    /// Seconds until the new value is gone [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    ttl: Option<u64>,
}

/// The arguments of `flotilla ctl delete-range`.
#[derive(Clone, Debug, clap::Args)]
#[command(override_usage = "flotilla ctl delete-range [OPTIONS] <START> <END|--to-end|--prefix>
       flotilla ctl delete-range [OPTIONS] --all")]
#[command(group = ArgGroup::new("limit").args(["end", "to_end", "prefix", "all"]).required(true))]
pub(crate) struct DeleteRangeArgs {
    /// First key
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    start: Option<String>,
    /// Ends below this key
    end: Option<String>,
    /// From START to the very last key
    #[arg(long)]
    to_end: bool,
    /// All keys that begin with START
    #[arg(long)]
    prefix: bool,
    /// All keys of the cluster
    #[arg(long)]
    all: bool,
}

pub(super) async fn put(
    keys: KeyTarget<'_>,
    args: &PutArgs,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let key = format.key(&args.key)?;
    // Before a connection is made: standard input may take its time.
    let source = ValueSource::of(args.value.as_ref(), args.file.as_ref());
    let value = source.expect("the parser wants one of them").read(format).await?;
    let client = keys.client().await?;
    client.put_with_ttl(key, value, args.ttl.unwrap_or(0)).await?;
    done(format, out)
}

pub(super) async fn cas(
    keys: KeyTarget<'_>,
    args: &CasArgs,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let key = format.key(&args.key)?;
    let new = ValueSource::of(args.new.as_ref(), args.file.as_ref());
    let expected_file = args.expect_file.clone().map(ValueSource::File);
    // The second of them would find nothing, and take that for a value.
    if [&new, &expected_file].iter().all(|it| it.as_ref().is_some_and(ValueSource::is_standard)) {
        return Err(Error::Argument("standard input cannot be both values".to_owned()));
    }
    let expected = match &args.expect {
        Some(value) => Some(format.value(value)?),
        None => read(expected_file, format).await?,
    };
    let new = read(new, format).await?;
    let client = keys.client().await?;
    let ttl_s = args.ttl.unwrap_or(0);
    let outcome = client.compare_and_swap_with_ttl(key.clone(), expected, new, ttl_s).await?;
    tell_outcome(&key, &outcome, format, out)
}

async fn read(source: Option<ValueSource>, format: ByteFormat) -> Result<Option<Bytes>, Error> {
    match source {
        Some(source) => Ok(Some(source.read(format).await?)),
        None => Ok(None),
    }
}

/// A program gets the outcome in both cases; a key that held something else is an error besides.
fn tell_outcome(
    key: &Bytes,
    outcome: &CasOutcome,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let previous = outcome.previous.as_ref();
    if format.is_json {
        let answer = json!({
            "succeeded": outcome.succeeded,
            "previous": previous.map(|value| escape(value)),
            "previous_hex": previous.map(|value| hex(value)),
        });
        writeln!(out, "{answer:#}")?;
        out.flush()?;
    } else if outcome.succeeded {
        writeln!(out, "done")?;
    }
    if outcome.succeeded {
        return Ok(());
    }
    let key = format.quote(key);
    Err(Error::Mismatch(match previous {
        Some(value) => format!("{key} has another value: {}", short(&format.quote(value))),
        None => format!("{key} has no value"),
    }))
}

/// A text for the middle of a message, which it must not hide.
fn short(text: &str) -> String {
    cut(text, SHOWN_WIDTH_MAX)
}

pub(super) async fn delete_range(
    keys: KeyTarget<'_>,
    args: &DeleteRangeArgs,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let (start, end) = args.range(format)?;
    let client = keys.client().await?;
    client.delete_range(start, end).await?;
    done(format, out)
}

impl DeleteRangeArgs {
    /// The range, whose end is empty if it has none. A variable of a script that is empty by
    /// mistake must not mean everything, so an empty argument is no bound that could be left out.
    fn range(&self, format: ByteFormat) -> Result<(Bytes, Bytes), Error> {
        let start = format.key(self.start.as_deref().unwrap_or_default())?;
        let wrong = |words: &str| Err(Error::Argument(words.to_owned()));
        if self.all {
            return Ok((Bytes::new(), Bytes::new()));
        }
        if let Some(end) = &self.end {
            let end = format.key(end)?;
            return match end.is_empty() {
                true => wrong("END is empty: --to-end deletes from START to the very last key"),
                false if start >= end => wrong("START is not below END, so no key is between"),
                false => Ok((start, end)),
            };
        }
        if start.is_empty() {
            return wrong("START is empty, so this would delete all keys: --all does that");
        }
        let end = if self.prefix { after_prefix(&start).into() } else { Bytes::new() };
        Ok((start, end))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    const FORMAT: ByteFormat = ByteFormat { is_hex: false, is_json: false, screen_width: None };

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: DeleteRangeArgs,
    }

    fn range(args: &[&str]) -> Result<(Bytes, Bytes), String> {
        let args = Line::try_parse_from([&["delete-range"], args].concat());
        let args = args.map_err(|error| error.to_string())?.args;
        args.range(FORMAT).map_err(|error| error.to_string())
    }

    #[test]
    fn everything_is_deleted_by_no_mistake() {
        let bounds = |start: &'static str, end: &'static str| Ok((start.into(), end.into()));
        assert_eq!(range(&["a", "b"]), bounds("a", "b"));
        assert_eq!(range(&["", "b"]), bounds("", "b"), "the empty key is the first");
        assert_eq!(range(&["a", "--to-end"]), bounds("a", ""));
        assert_eq!(range(&["a", "--prefix"]), bounds("a", "b"));
        assert_eq!(range(&["--all"]), bounds("", ""));
        for (args, words) in [
            (&["a", ""][..], "--to-end"),
            (&["", "--to-end"], "--all"),
            (&["", "--prefix"], "--all"),
            (&["b", "a"], "START is not below END"),
            (&["a", "a"], "START is not below END"),
            (&["a"], "required"),
            (&[], "required"),
            (&["--to-end"], "required"),
            (&["a", "--all"], "cannot be used with"),
            (&["a", "b", "--to-end"], "cannot be used with"),
        ] {
            let refused = range(args).unwrap_err();
            assert!(refused.contains(words), "{args:?}: {refused}");
        }
    }

    #[test]
    fn a_swap_tells_what_it_found() {
        let said = |succeeded, previous: Option<&'static str>, is_json| {
            let outcome = CasOutcome { succeeded, previous: previous.map(Bytes::from) };
            let mut out = vec![];
            let format = ByteFormat { is_json, ..FORMAT };
            let told = tell_outcome(&Bytes::from("k"), &outcome, format, &mut out);
            (String::from_utf8(out).unwrap(), told.map_err(|e| (e.exit_code(), e.to_string())))
        };
        assert_eq!(said(true, Some("v"), false), ("done\n".to_owned(), Ok(())));
        let other = (4, "\"k\" has another value: \"v\"".to_owned());
        assert_eq!(said(false, Some("v"), false), (String::new(), Err(other.clone())));
        let none = (4, "\"k\" has no value".to_owned());
        assert_eq!(said(false, None, false), (String::new(), Err(none)));
        let (out, told) = said(false, Some("v"), true);
        assert_eq!(told, Err(other));
        let row: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(row, json!({ "succeeded": false, "previous": "v", "previous_hex": "76" }));
        assert!(short(&"v".repeat(120 << 10)).ends_with("v…"));
    }
}
