//! Prints the results of `flotilla log`, as tables or as JSON.

use std::io::Write;
use std::ops::Range;

use flotilla_raftlog::{
    Exported, LogCheckpoint, LogEngine, SalvageReport, SalvagedGroup, SegmentState, VerifyProblem,
    VerifyReport,
};
use serde_json::{Value, json};

use super::access::refused;
use crate::offline::verdict;
use crate::tool::{Error, TableCell, number, table};
use crate::units::{self, counted};

/// Keys of a group that a table names.
const KEYS_SHOWN: usize = 4;

pub(super) fn info(log: &LogEngine, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    let stats = log.stats();
    let segments = log.segments().map_err(refused)?;
    if is_json {
        let segments: Vec<Value> = segments
            .iter()
            .map(|segment| {
                let state = state(segment.state);
                let live = segment.live_bytes;
                json!({ "number": segment.number, "bytes": segment.bytes, "live_bytes": live, "state": state })
            })
            .collect();
        let groups: Vec<Value> =
            log.group_ids().into_iter().filter_map(|id| group_json(log, id)).collect();
        let answer = json!({
            "segments": segments,
            "groups": groups,
            "bytes": stats.segment_bytes,
            "live_bytes": stats.live_bytes,
            "durable_lsn": stats.durable_lsn,
            "index_bytes": stats.index_bytes,
        });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    let mut rows = table(&["segment", "size", "live", "state"]);
    for segment in &segments {
        rows.add_row([
            number(segment.number),
            number(units::bytes(segment.bytes)),
            number(units::bytes(segment.live_bytes)),
            TableCell::new(state(segment.state)),
        ]);
    }
    writeln!(out, "{rows}\n")?;
    let mut rows = table(&["group", "first", "last", "last term", "size", "keys"]);
    for id in log.group_ids() {
        let Some(group) = log.group(id) else { continue };
        let last = group.last_index();
        let keys = group.scan();
        let mut names: Vec<String> =
            keys.iter().take(KEYS_SHOWN).map(|(key, _)| crate::ctl::escape(key)).collect();
        if keys.len() > KEYS_SHOWN {
            names.push(format!("and {} more", keys.len() - KEYS_SHOWN));
        }
        rows.add_row([
            number(id),
            number(group.first_index()),
            number(last),
            group.term(last).map_or_else(|_| TableCell::new(""), number),
            number(units::bytes(group.size())),
            TableCell::new(names.join(", ")),
        ]);
    }
    writeln!(out, "{rows}\n")?;
    let (bytes, live) = (stats.segment_bytes, stats.live_bytes);
    Ok(writeln!(
        out,
        "{}, {}, {} of them live; {}; known to be durable: batch {}",
        counted(segments.len() as u64, "segment", "segments"),
        units::bytes(bytes),
        units::bytes(live),
        counted(stats.groups, "group", "groups"),
        stats.durable_lsn
    )?)
}

fn group_json(log: &LogEngine, id: u64) -> Option<Value> {
    let group = log.group(id)?;
    let (first, last) = (group.first_index(), group.last_index());
    let keys: Vec<Value> = group
        .scan()
        .iter()
        .map(|(key, value)| json!({ "key": crate::ctl::escape(key), "bytes": value.len() }))
        .collect();
    Some(json!({
        "group": id,
        "first": first,
        "last": last,
        "term_before": group.term(first - 1).ok(),
        "last_term": group.term(last).ok(),
        "bytes": group.size(),
        "keys": keys,
    }))
}

fn state(state: SegmentState) -> &'static str {
    match state {
        SegmentState::Active => "active",
        SegmentState::Full => "full",
        SegmentState::Sealed => "sealed",
    }
}

/// Prints what was found; if that is anything it is an error as well.
pub(super) fn verified(
    report: &VerifyReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let count = report.problems.len() as u64 + report.problems_left_out;
    if is_json {
        let answer = json!({
            "sound": count == 0,
            "segments": report.segments,
            "bytes": report.bytes,
            "batches": report.frames,
            "entries": report.entries,
            "last_lsn": report.last_lsn,
            "torn_bytes": report.torn_bytes,
            "problems": problems_json(&report.problems),
            "problems_left_out": report.problems_left_out,
        });
        writeln!(out, "{answer:#}")?;
    } else {
        problems(&report.problems, report.problems_left_out, out)?;
        let torn = match report.torn_bytes {
            0 => String::new(),
            torn => format!("; {} at the end were being written, or are", units::bytes(torn)),
        };
        writeln!(
            out,
            "{}, {}, {} up to {}, {}{torn}",
            counted(report.segments, "segment", "segments"),
            units::bytes(report.bytes),
            counted(report.frames, "batch", "batches"),
            report.last_lsn,
            counted(report.entries, "entry", "entries"),
        )?;
    }
    verdict(count, is_json, out)
}

pub(super) fn salvaged(
    report: &SalvageReport,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    if is_json {
        let groups: Vec<Value> = report.damaged_groups.iter().map(damaged_json).collect();
        let answer = json!({
            "groups": report.groups,
            "entries": report.entries,
            "keys": report.keys,
            "batches": report.frames,
            "torn_bytes": report.torn_bytes,
            "lost_batches": ranges_json(&report.lost_batches),
            "damaged_groups": groups,
            "problems": problems_json(&report.problems),
            "problems_left_out": report.problems_left_out,
        });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    problems(&report.problems, report.problems_left_out, out)?;
    if !report.damaged_groups.is_empty() {
        let mut rows = table(&["group", "kept", "lost", "left behind", "remark"]);
        for group in &report.damaged_groups {
            let remark = if group.is_joined {
                "joins over lost batches; whether they changed it is not known"
            } else {
                ""
            };
            rows.add_row([
                number(group.group),
                TableCell::new(range(&group.kept)),
                TableCell::new(ranges(&group.lost)),
                TableCell::new(ranges(&group.left_behind)),
                TableCell::new(remark),
            ]);
        }
        writeln!(out, "{rows}\n")?;
    }
    if !report.lost_batches.is_empty() {
        writeln!(out, "lost batches: {}", ranges(&report.lost_batches))?;
    }
    Ok(writeln!(
        out,
        "{}, {}, {} from {}",
        counted(report.groups, "group", "groups"),
        counted(report.entries, "entry", "entries"),
        counted(report.keys, "key", "keys"),
        counted(report.frames, "whole batch", "whole batches"),
    )?)
}

pub(super) fn copied(
    made: &LogCheckpoint,
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let LogCheckpoint { segments, bytes, last_lsn } = made;
    if is_json {
        let answer = json!({ "segments": segments, "bytes": bytes, "last_lsn": last_lsn });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    let (segments, bytes) = (counted(*segments, "segment", "segments"), units::bytes(*bytes));
    Ok(writeln!(out, "{segments}, {bytes}, up to batch {last_lsn}")?)
}

pub(super) fn carried(done: &Exported, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    let Exported { groups, entries, keys, bytes } = done;
    if is_json {
        let answer = json!({ "groups": groups, "entries": entries, "keys": keys, "bytes": bytes });
        return Ok(writeln!(out, "{answer:#}")?);
    }
    Ok(writeln!(
        out,
        "{}, {}, {}, {}",
        counted(*groups, "group", "groups"),
        counted(*entries, "entry", "entries"),
        counted(*keys, "key", "keys"),
        units::bytes(*bytes),
    )?)
}

fn problems(problems: &[VerifyProblem], left_out: u64, out: &mut impl Write) -> Result<(), Error> {
    if problems.is_empty() {
        return Ok(());
    }
    let mut rows = table(&["segment", "byte", "group", "entries", "what"]);
    for problem in problems {
        rows.add_row([
            number(problem.segment),
            number(problem.offset),
            problem.group.map_or_else(|| TableCell::new(""), number),
            TableCell::new(problem.entries.as_ref().map(range).unwrap_or_default()),
            TableCell::new(problem.what),
        ]);
    }
    writeln!(out, "{rows}")?;
    if left_out > 0 {
        writeln!(out, "and {} more", units::count(left_out))?;
    }
    Ok(writeln!(out)?)
}

fn problems_json(problems: &[VerifyProblem]) -> Value {
    let row = |problem: &VerifyProblem| {
        json!({
            "segment": problem.segment,
            "offset": problem.offset,
            "what": problem.what,
            "group": problem.group,
            "entries": problem.entries.as_ref().map(range_json),
        })
    };
    problems.iter().map(row).collect()
}

fn damaged_json(group: &SalvagedGroup) -> Value {
    json!({
        "group": group.group,
        "kept": range_json(&group.kept),
        "lost": ranges_json(&group.lost),
        "left_behind": ranges_json(&group.left_behind),
        "joins_over_lost_batches": group.is_joined,
    })
}

/// First and last, both in it; an empty range has no last.
fn range(range: &Range<u64>) -> String {
    match range.end - range.start {
        0 => format!("none from {}", range.start),
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    }
}

fn ranges(ranges: &[Range<u64>]) -> String {
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// Half open, as everywhere in the code.
fn range_json(range: &Range<u64>) -> Value {
    json!({ "first": range.start, "end": range.end })
}

fn ranges_json(ranges: &[Range<u64>]) -> Value {
    ranges.iter().map(range_json).collect()
}
