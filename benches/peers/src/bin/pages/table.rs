//! The records as tables for people.

use crate::engines::Contender;
use crate::goals::Goal;
use crate::record::Records;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use peers::figures::figure;

/// Everything measured: a row for each case and figure, a column for each engine.
pub fn results(records: &Records, engines: &[Contender]) -> Table {
    let mut table = plain();
    let mut headings = vec!["case".to_owned(), "figure".to_owned()];
    headings.extend(engines.iter().map(Contender::to_string));
    table.set_header(headings);
    for (case, name) in records.rows() {
        let mut row = vec![Cell::new(case), Cell::new(name)];
        row.extend(engines.iter().map(|e| right(records.median(case, *e, name).map(figure))));
        table.add_row(row);
    }
    table
}

/// Every goal, what was seen, and whether it is met. Of what was not measured it says that, and why
/// if that is known.
pub fn must_show(goals: &[Goal], records: &Records) -> Table {
    let mut table = plain();
    table.set_header(["case", "figure", "pagestore", "best of the others", "", "asked", "is", ""]);
    for goal in goals {
        let value = goal.value(records);
        let best = goal.best(records);
        let verdict = match value {
            None => Cell::new(why(goal, records)),
            Some(value) if goal.bound.is_met(value) => Cell::new("met").fg(Color::Green),
            Some(_) => Cell::new("missed").fg(Color::Red),
        };
        let other = best.map(|(seen, _)| match seen.engine {
            Contender::Pagestore => format!("ours: {}", seen.case),
            engine if seen.case == goal.ours.case => engine.to_string(),
            engine => format!("{engine}: {}", seen.case),
        });
        let unit = if goal.others.is_empty() { "" } else { "x" };
        table.add_row([
            Cell::new(&goal.ours.case),
            Cell::new(goal.ours.figure),
            right(goal.ours.median(records).map(figure)),
            Cell::new(other.unwrap_or_default()),
            right(best.map(|(_, value)| figure(value))),
            Cell::new(format!("{}{unit}", goal.bound)),
            right(value.map(|value| format!("{}{unit}", figure(value)))),
            verdict,
        ]);
    }
    table
}

fn why(goal: &Goal, records: &Records) -> String {
    match records.why_missing(&goal.ours.case, goal.ours.engine) {
        Some(why) => format!("not yet: {why}"),
        None => "not measured".to_owned(),
    }
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
