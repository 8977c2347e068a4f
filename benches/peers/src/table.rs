//! The records as tables for people.

use crate::bench::Bench;
use crate::engines::Contender;
use crate::goals::goals;
use crate::record::{Metric, Records};
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use peers::figures::{figure, ratio};

/// Everything measured: a row for each case and metric, a column for each engine, and our ratio to
/// each peer.
pub fn results(records: &Records, engines: &[Contender]) -> Table {
    let mut table = plain();
    let peers = engines.iter().filter(|e| **e != Contender::Raftlog);
    let mut headings = vec!["workload".to_owned(), "case".to_owned(), "metric".to_owned()];
    headings.extend(engines.iter().map(Contender::to_string));
    headings.extend(peers.clone().map(|e| format!("to {e}")));
    table.set_header(headings);
    for (workload, case) in records.cases() {
        for metric in metrics(records, workload, case) {
            let median = |engine: Contender| records.median(workload, case, engine, metric);
            let mut row = vec![Cell::new(workload), Cell::new(case), Cell::new(metric.name())];
            row.extend(engines.iter().map(|e| right(median(*e).map(figure))));
            let ours = median(Contender::Raftlog);
            let to = |peer: &Contender| ratio(ours, median(*peer)).map(|r| format!("{r:.2}x"));
            row.extend(peers.clone().map(|e| right(to(e))));
            table.add_row(row);
        }
    }
    table
}

/// Every goal, the ratio seen, and whether it is met. A goal about something that was not measured
/// says so.
pub fn must_show(bench: &Bench) -> Table {
    let mut table = plain();
    table.set_header(["workload", "case", "metric", "raftlog", "peer", "", "goal", "ratio", ""]);
    for goal in goals(bench) {
        let median = |engine| bench.records.median(goal.workload, &goal.case, engine, goal.metric);
        let ratio = goal.ratio(&bench.records);
        let verdict = match ratio {
            None => Cell::new("not measured"),
            Some(ratio) if goal.bound.is_met(ratio) => Cell::new("met").fg(Color::Green),
            Some(_) => Cell::new("missed").fg(Color::Red),
        };
        table.add_row([
            Cell::new(goal.workload),
            Cell::new(&goal.case),
            Cell::new(goal.metric.name()),
            right(median(Contender::Raftlog).map(figure)),
            Cell::new(goal.peer),
            right(median(goal.peer).map(figure)),
            Cell::new(goal.bound),
            right(ratio.map(|r| format!("{r:.2}x"))),
            verdict,
        ]);
    }
    table
}

/// The metrics of a case, in the order of their definition.
pub fn metrics(records: &Records, workload: &str, case: &str) -> Vec<Metric> {
    let of_case = records.records.iter().filter(|r| r.workload == workload && r.case == case);
    let mut metrics: Vec<Metric> = of_case.map(|r| r.metric).collect();
    metrics.sort();
    metrics.dedup();
    metrics
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn right(text: Option<String>) -> Cell {
    Cell::new(text.unwrap_or_else(|| "-".to_owned())).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_was_not_measured_leaves_a_dash() {
        let mut records = Records::default();
        records.add("append", "a", Contender::Raftlog, Metric::P50Us, 3.0);
        records.add("append", "a", Contender::RaftEngine, Metric::P50Us, 2.0);
        let engines = [Contender::Raftlog, Contender::RaftEngine, Contender::Rocksdb];
        let text = results(&records, &engines).to_string();
        let row = text.lines().last().expect("a row");
        let cells: Vec<&str> = row.split('|').map(str::trim).filter(|c| !c.is_empty()).collect();
        assert_eq!(cells, ["append", "a", "p50 us", "3.00", "2.00", "-", "1.50x", "-"]);
    }
}
