//! `flotilla pages dump`: entries of trees, or one page.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use flotilla_pagestore::tools::{CellContent, DumpEntry, EntryValue, PageDump};
use serde_json::{Value, json};

use super::access::{open, refused};
use crate::ctl::{escape, hex};
use crate::tool::Error;

/// The arguments of `flotilla pages dump`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PageDumpArgs {
    /// The page file, such as the file `pages` of a store
    file: PathBuf,
    /// Only this tree
    #[arg(long, value_name = "NAME", conflicts_with = "page")]
    tree: Option<String>,
    /// This page instead, whether or not a tree names it
    #[arg(long, value_name = "NUMBER")]
    page: Option<u64>,
    /// Also the values
    #[arg(long)]
    values: bool,
    /// Lines at most [default: all]
    #[arg(long)]
    limit: Option<u64>,
}

/// Prints a line for each entry, not a table: a tree may have millions, and a reader wants the
/// first ones at once. With JSON each line is an object.
pub(super) fn dump(args: &PageDumpArgs, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    let file = open(&args.file)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    if let Some(page) = args.page {
        let page = file.page(page).map_err(|error| refused(&args.file, error))?;
        return one(&page, args.values, is_json, left, out);
    }
    let mut written = Ok(());
    let mut take = |entry: DumpEntry<'_>| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        written = match is_json {
            true => writeln!(out, "{}", object(&entry, args.values)),
            false => writeln!(out, "{}", line(&entry, args.values)),
        };
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let problems = file
        .dump(args.tree.as_deref(), args.values, &mut take)
        .map_err(|error| refused(&args.file, error))?;
    written?;
    out.flush()?;
    match problems.len() as u64 {
        0 => Ok(()),
        count => Err(Error::Unsound(count)),
    }
}

fn line(entry: &DumpEntry<'_>, has_values: bool) -> String {
    let (tree, key) = (escape(entry.tree.as_bytes()), escape(entry.key));
    match entry.value {
        EntryValue::Bytes(value) if has_values => {
            format!("{tree} {key}, {} bytes {}", value.len(), escape(value))
        }
        EntryValue::Bytes(value) => format!("{tree} {key}, {} bytes", value.len()),
        EntryValue::Long { page, len } => format!("{tree} {key}, {len} bytes at page {page}"),
        EntryValue::Lost { page, len } => {
            format!("{tree} {key}, {len} bytes at page {page} DAMAGED")
        }
    }
}

fn object(entry: &DumpEntry<'_>, has_values: bool) -> Value {
    let mut object = json!({
        "tree": entry.tree,
        "key": escape(entry.key),
        "key_hex": hex(entry.key),
    });
    match entry.value {
        EntryValue::Bytes(value) => {
            object["bytes"] = value.len().into();
            if has_values {
                object["value_hex"] = hex(value).into();
            }
        }
        EntryValue::Long { page, len } | EntryValue::Lost { page, len } => {
            object["bytes"] = len.into();
            object["page"] = page.into();
        }
    }
    if let EntryValue::Lost { .. } = entry.value {
        object["damaged"] = true.into();
    }
    object
}

fn one(
    page: &PageDump,
    has_values: bool,
    is_json: bool,
    limit: u64,
    out: &mut impl Write,
) -> Result<(), Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let cells = page.cells.iter().take(limit);
    if is_json {
        let cells: Vec<Value> = cells
            .map(|cell| {
                let mut object = content_json(&cell.content, has_values);
                object["key"] = escape(&cell.key).into();
                object["key_hex"] = hex(&cell.key).into();
                object
            })
            .collect();
        let answer = json!({
            "page": page.page, "units": page.units, "kind": page.kind, "level": page.level,
            "birth": page.created_txid, "damage": page.damage, "prefix_hex": hex(&page.prefix),
            "cells": cells,
        });
        writeln!(out, "{answer:#}")?;
    } else {
        let PageDump { page: id, units, kind, level, created_txid, .. } = page;
        let prefix = escape(&page.prefix);
        writeln!(
            out,
            "page {id}: {kind}, level {level}, {units} units, written by transaction {created_txid}, prefix {prefix:?}"
        )?;
        for cell in cells {
            writeln!(out, "  {}: {}", escape(&cell.key), content(&cell.content, has_values))?;
        }
        if let Some(what) = page.damage {
            writeln!(out, "DAMAGED: {what}")?;
        }
    }
    out.flush()?;
    if page.damage.is_some() { Err(Error::Unsound(1)) } else { Ok(()) }
}

fn content(content: &CellContent, has_values: bool) -> String {
    match content {
        CellContent::Value(value) if has_values => {
            format!("{} bytes {}", value.len(), escape(value))
        }
        CellContent::Value(value) => format!("{} bytes", value.len()),
        CellContent::Long { page, len, created_txid } => {
            format!("{len} bytes at page {page}, written by transaction {created_txid}")
        }
        CellContent::Child { page, units, keys, total_units } => {
            format!("page {page} of {units} units; below it {keys} keys in {total_units} units")
        }
    }
}

fn content_json(content: &CellContent, has_values: bool) -> Value {
    match content {
        CellContent::Value(value) if has_values => {
            json!({ "bytes": value.len(), "value_hex": hex(value) })
        }
        CellContent::Value(value) => json!({ "bytes": value.len() }),
        CellContent::Long { page, len, created_txid } => {
            json!({ "bytes": len, "page": page, "birth": created_txid })
        }
        CellContent::Child { page, units, keys, total_units } => {
            json!({ "child": page, "units": units, "keys": keys, "total_units": total_units })
        }
    }
}
