//! Prints the results of `flotilla pages`, as tables or as JSON.

use std::io::Write;

use flotilla_pagestore::tools::{
    BackupReport, CompactReport, FileCheckReport, FileInfo, FileProblem, LostKeys, RepairReport,
    RestoreReport, SpaceMap,
};
use serde_json::{Value, json};

use super::draw;
use crate::ctl::{escape, hex};
use crate::offline::verdict;
use crate::tool::{Error, TableCell, number, table};
use crate::units::{self, counted};

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

pub(super) fn info(info: &FileInfo, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    if is_json {
        return Ok(writeln!(out, "{:#}", info_json(info))?);
    }
    problems(&info.problems, 0, out)?;
    let mut rows = table(&["meta page", "checkpoint", "transaction", "whole copies", "mark", ""]);
    for meta in &info.metas {
        rows.add_row([
            number(meta.unit),
            number(meta.checkpoint),
            number(meta.txid),
            number(meta.whole_copies),
            TableCell::new(escape(&meta.commit_metadata)),
            TableCell::new(if meta.is_newest { "counts" } else { "" }),
        ]);
    }
    writeln!(out, "{rows}\n")?;
    let mut rows = table(&["tree", "keys", "size", "page units", "depth", "root"]);
    for tree in &info.trees {
        rows.add_row([
            TableCell::new(escape(tree.name.as_bytes())),
            number(units::count(tree.keys)),
            number(units::bytes(tree.bytes)),
            number(units::count(tree.page_units.into())),
            tree.depth.map_or_else(|| TableCell::new("?"), number),
            number(tree.root),
        ]);
    }
    writeln!(out, "{rows}\n")?;
    if let Some(redo) = &info.redo {
        writeln!(
            out,
            "redo area: {} at page {}, {} in use; {} beyond the checkpoint, in {}",
            units::bytes(redo.bytes),
            redo.unit,
            units::bytes(redo.used_bytes),
            counted(redo.records, "transaction", "transactions"),
            counted(redo.frames, "frame", "frames"),
        )?;
    }
    if info.deferred_free_count > 0 {
        writeln!(
            out,
            "trash: {}, {}",
            counted(info.deferred_free_count, "subtree", "subtrees"),
            units::bytes(info.deferred_free_bytes),
        )?;
    }
    let free = match info.free_bytes {
        Some(free) => {
            format!(
                "{} free in {}, the longest {}",
                units::bytes(free),
                counted(info.free_runs, "run", "runs"),
                units::bytes(info.longest_free_bytes)
            )
        }
        None => "what is free is not known".to_owned(),
    };
    let [file, span, used, reserved] =
        [info.file_bytes, info.span_bytes, info.used_bytes, info.reserved_bytes].map(units::bytes);
    Ok(writeln!(
        out,
        "{file}, {span} given out so far: {used} in use, {reserved} reserved, {free}"
    )?)
}

fn info_json(info: &FileInfo) -> Value {
    let metas = info.metas.iter().map(|meta| {
        json!({
            "page": meta.unit, "checkpoint": meta.checkpoint, "txid": meta.txid,
            "mark_hex": hex(&meta.commit_metadata), "whole_copies": meta.whole_copies,
            "counts": meta.is_newest,
        })
    });
    let trees = info.trees.iter().map(|tree| {
        json!({
            "tree": tree.name, "keys": tree.keys, "bytes": tree.bytes,
            "page_units": tree.page_units, "depth": tree.depth, "root": tree.root,
        })
    });
    let redo = info.redo.as_ref().map(|redo| {
        json!({
            "page": redo.unit, "bytes": redo.bytes, "used_bytes": redo.used_bytes,
            "frames": redo.frames, "transactions": redo.records, "last_txid": redo.last_txid,
        })
    });
    json!({
        "meta_pages": metas.collect::<Vec<_>>(),
        "trees": trees.collect::<Vec<_>>(),
        "redo": redo,
        "trash": { "subtrees": info.deferred_free_count, "bytes": info.deferred_free_bytes },
        "file_bytes": info.file_bytes,
        "span_bytes": info.span_bytes,
        "used_bytes": info.used_bytes,
        "free_bytes": info.free_bytes,
        "free_runs": info.free_runs,
        "longest_free_bytes": info.longest_free_bytes,
        "reserved_bytes": info.reserved_bytes,
        "problems": problems_json(&info.problems),
    })
}

/// Prints what was found; if that is anything wrong it is an error as well.
pub(super) fn checked(
    report: &FileCheckReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let count = report.problems.len() as u64 + report.problems_left_out;
    if is_json {
        let answer = json!({
            "sound": count == 0,
            "txid": report.txid,
            "redo_txid": report.redo_txid,
            "trees": report.tree_count,
            "keys": report.key_count,
            "pages": report.page_count,
            "long_values": report.extent_count,
            "used_bytes": report.used_bytes,
            "free_bytes": report.free_bytes,
            "problems": problems_json(&report.problems),
            "problems_left_out": report.problems_left_out,
        });
        writeln!(out, "{answer:#}")?;
    } else {
        problems(&report.problems, report.problems_left_out, out)?;
        let FileCheckReport { txid, redo_txid, .. } = report;
        writeln!(
            out,
            "{}, {}, {}, {}; {} in use, {} free",
            counted(report.tree_count, "tree", "trees"),
            counted(report.key_count, "key", "keys"),
            counted(report.page_count, "page", "pages"),
            counted(report.extent_count, "long value", "long values"),
            units::bytes(report.used_bytes),
            units::bytes(report.free_bytes),
        )?;
        writeln!(out, "checkpoint up to transaction {txid}, redo area up to {redo_txid}")?;
    }
    verdict(count, is_json, out)
}

/// Prints the picture, or the runs; what was found damaged on the way is an error as well.
pub(super) fn map(map: &SpaceMap, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    if is_json {
        let runs = map.runs.iter().map(|run| {
            json!({
                "page": run.units.start, "pages": run.units.end - run.units.start,
                "owner": draw::name(map, run.owner),
                "is_tree": matches!(run.owner, flotilla_pagestore::tools::UnitOwner::Tree(_)),
            })
        });
        let answer = json!({
            "runs": runs.collect::<Vec<_>>(),
            "problems": problems_json(&map.problems),
        });
        writeln!(out, "{answer:#}")?;
    } else {
        problems(&map.problems, 0, out)?;
        draw::text(map, out)?;
        let mut rows = table(&["", "what", "pages", "size", "runs"]);
        for (owner, letter, pages, runs) in draw::owners(map) {
            rows.add_row([
                TableCell::new(letter),
                TableCell::new(escape(draw::name(map, owner).as_bytes())),
                number(units::count(pages)),
                number(units::bytes(pages * PAGE_BYTES)),
                number(units::count(runs)),
            ]);
        }
        writeln!(out, "{rows}")?;
    }
    out.flush()?;
    match map.problems.len() as u64 {
        0 => Ok(()),
        count => Err(Error::Unsound(count)),
    }
}

pub(super) fn compacted(
    made: &CompactReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let CompactReport { trees, keys, txid, bytes_before, bytes, .. } = made;
    if is_json {
        let answer = json!({
            "trees": trees, "keys": keys, "txid": txid, "bytes_before": bytes_before,
            "bytes": bytes,
        });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    let (trees, keys) = (counted(*trees, "tree", "trees"), counted(*keys, "key", "keys"));
    let [bytes, before] = [*bytes, *bytes_before].map(units::bytes);
    Ok(writeln!(out, "{trees}, {keys}, up to transaction {txid}; {bytes}, before {before}")?)
}

pub(super) fn backed_up(
    made: &BackupReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let BackupReport { txid, written, kept, bytes, .. } = made;
    if is_json {
        let answer = json!({ "txid": txid, "written": written, "kept": kept, "bytes": bytes });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    Ok(writeln!(
        out,
        "transaction {txid}: {} pages and long values, {}; {} are in the backups before",
        units::count(*written),
        units::bytes(*bytes),
        units::count(*kept),
    )?)
}

pub(super) fn restored(
    made: &RestoreReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let RestoreReport { txid, bytes, .. } = made;
    if is_json {
        return Ok(writeln!(out, "{:#}", json!({ "txid": txid, "bytes": bytes }))?);
    }
    Ok(writeln!(out, "up to transaction {txid}; {}", units::bytes(*bytes))?)
}

pub(super) fn repaired(
    report: &RepairReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let RepairReport { txid, trees, keys, bytes, rescued_keys, unplaced_leaves, .. } = report;
    if is_json {
        let answer = json!({
            "trees": trees, "keys": keys, "txid": txid, "bytes": bytes,
            "rescued_keys": rescued_keys,
            "unplaced_leaves": unplaced_leaves,
            "whole_older_txid": report.whole_older_txid,
            "problems": problems_json(&report.problems),
            "problems_left_out": report.problems_left_out,
        });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    problems(&report.problems, report.problems_left_out, out)?;
    if *rescued_keys > 0 {
        let rescued = units::count(*rescued_keys);
        writeln!(out, "{rescued} keys of these were found in leaves that nothing names")?;
    }
    if *unplaced_leaves > 0 {
        let unplaced = units::count(*unplaced_leaves);
        writeln!(out, "{unplaced} leaves were found that may belong to several places")?;
    }
    if let Some(older) = report.whole_older_txid {
        writeln!(out, "the state of transaction {older} is whole: `--older` repairs from there")?;
    }
    let (trees, keys) = (counted(*trees, "tree", "trees"), counted(*keys, "key", "keys"));
    Ok(writeln!(out, "{trees}, {keys}, up to transaction {txid}; {}", units::bytes(*bytes))?)
}

pub(super) fn problems(
    problems: &[FileProblem],
    left_out: u64,
    out: &mut impl Write,
) -> Result<(), Error> {
    if problems.is_empty() {
        return Ok(());
    }
    let mut rows = table(&["page", "of", "what", "lost keys", "from", "up to"]);
    for problem in problems {
        let lost = problem.lost.as_ref();
        let key =
            |key: Option<&Vec<u8>>| TableCell::new(key.map(|key| escape(key)).unwrap_or_default());
        rows.add_row([
            number(problem.page),
            TableCell::new(escape(problem.part.to_string().as_bytes())),
            TableCell::new(problem.what),
            lost.map_or_else(|| TableCell::new(""), |lost| number(units::count(lost.count))),
            key(lost.and_then(|lost| lost.start.as_ref())),
            key(lost.and_then(|lost| lost.end.as_ref())),
        ]);
    }
    writeln!(out, "{rows}")?;
    if left_out > 0 {
        writeln!(out, "and {} more", units::count(left_out))?;
    }
    Ok(writeln!(out)?)
}

pub(super) fn problems_json(problems: &[FileProblem]) -> Value {
    let lost = |lost: &LostKeys| {
        json!({
            "keys": lost.count,
            "start_hex": lost.start.as_ref().map(|key| hex(key)),
            "end_hex": lost.end.as_ref().map(|key| hex(key)),
        })
    };
    let row = |problem: &FileProblem| {
        json!({
            "page": problem.page,
            "of": problem.part.to_string(),
            "what": problem.what,
            "lost": problem.lost.as_ref().map(lost),
        })
    };
    problems.iter().map(row).collect()
}
