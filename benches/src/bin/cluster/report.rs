//! The figures of a scenario, with their limits, as a table or as JSON.

use std::io::Write;

use flotilla_cli::tool::{Error, TableCell, number, table};
use serde_json::{Value, json};

/// A bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FigureLimit {
    AtMost(f64),
    AtLeast(f64),
}

impl FigureLimit {
    fn holds(self, value: f64) -> bool {
        match self {
            FigureLimit::AtMost(limit) => value <= limit,
            FigureLimit::AtLeast(limit) => value >= limit,
        }
    }

    fn words(self) -> String {
        match self {
            FigureLimit::AtMost(limit) => format!("<= {}", shown(limit)),
            FigureLimit::AtLeast(limit) => format!(">= {}", shown(limit)),
        }
    }
}

/// One figure.
#[derive(Clone, Debug)]
struct Figure {
    key: String,
    words: String,
    value: f64,
    limit: Option<FigureLimit>,
    /// A slow machine misses it without a fault.
    is_of_time: bool,
}

/// The figures of one scenario.
#[derive(Debug)]
pub(crate) struct ScenarioReport {
    name: &'static str,
    figures: Vec<Figure>,
    details: Value,
}

impl ScenarioReport {
    pub(crate) fn new(name: &'static str) -> ScenarioReport {
        ScenarioReport { name, figures: vec![], details: json!({}) }
    }

    /// A figure without a limit.
    pub(crate) fn tell(&mut self, key: &str, words: &str, value: f64) {
        self.add(key, words, value, None, false);
    }

    /// A figure with a limit that any machine keeps.
    pub(crate) fn count(&mut self, key: &str, words: &str, value: f64, limit: FigureLimit) {
        self.add(key, words, value, Some(limit), false);
    }

    /// A figure of time, whose limit holds on a machine without other load.
    pub(crate) fn time(&mut self, key: &str, words: &str, value: f64, limit: FigureLimit) {
        self.add(key, words, value, Some(limit), true);
    }

    fn add(
        &mut self,
        key: &str,
        words: &str,
        value: f64,
        limit: Option<FigureLimit>,
        is_of_time: bool,
    ) {
        let (key, words) = (key.to_owned(), words.to_owned());
        self.figures.push(Figure { key, words, value, limit, is_of_time });
    }

    /// More for programs.
    pub(crate) fn detail(&mut self, key: &str, value: impl Into<Value>) {
        self.details[key] = value.into();
    }

    pub(crate) fn print(&self, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
        if is_json {
            return Ok(writeln!(out, "{:#}", self.to_json())?);
        }
        let mut table = table(&[self.name, "", "asked", ""]);
        for figure in &self.figures {
            let verdict = match figure.limit.map(|limit| limit.holds(figure.value)) {
                None => "",
                Some(true) => "met",
                Some(false) => "missed",
            };
            let asked = figure.limit.map_or(String::new(), FigureLimit::words);
            let cells = [number(shown(figure.value)), number(asked), TableCell::new(verdict)];
            table.add_row([TableCell::new(&figure.words)].into_iter().chain(cells));
        }
        Ok(writeln!(out, "{table}")?)
    }

    fn to_json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| {
            let mut row = json!({ "value": figure.value, "words": figure.words });
            if let Some(limit) = figure.limit {
                row["asked"] = limit.words().into();
                row["met"] = limit.holds(figure.value).into();
            }
            (figure.key.clone(), row)
        });
        let figures: Value = figures.collect();
        json!({ "scenario": self.name, "figures": figures, "details": self.details })
    }

    /// Fails if a figure misses its limit; figures of time do not count if the run was `quick`.
    pub(crate) fn judge(&self, quick: bool) -> Result<(), Error> {
        let is_missed = |figure: &&Figure| {
            !(quick && figure.is_of_time)
                && figure.limit.is_some_and(|limit| !limit.holds(figure.value))
        };
        let missed: Vec<_> =
            self.figures.iter().filter(is_missed).map(|figure| figure.words.as_str()).collect();
        match missed.is_empty() {
            true => Ok(()),
            false => Err(Error::Refused(format!("{}: missed: {}", self.name, missed.join("; ")))),
        }
    }
}

/// As many digits as a reader can use.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_limit_fails_the_scenario_and_one_of_time_not_if_it_is_quick() {
        let mut report = ScenarioReport::new("grow");
        report.tell("rate", "puts a second", 1234.5);
        report.time("ratio", "p99, changes to calm", 1.7, FigureLimit::AtMost(1.5));
        assert!(report.judge(true).is_ok());
        let missed = report.judge(false).unwrap_err().to_string();
        assert_eq!(missed, "grow: missed: p99, changes to calm");
        report.count("regions", "regions", 7.0, FigureLimit::AtLeast(8.0));
        assert!(report.judge(true).is_err());

        let json = report.to_json();
        assert_eq!(json["figures"]["ratio"]["met"], false);
        assert_eq!(json["figures"]["regions"]["asked"], ">= 8");
        assert_eq!(json["figures"]["rate"]["asked"], Value::Null);
        let mut out = vec![];
        report.print(false, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("1.70") && text.contains("<= 1.50") && text.contains("missed"));
    }

    #[test]
    fn a_figure_that_is_no_number_misses_every_limit() {
        for limit in [FigureLimit::AtMost(1.0), FigureLimit::AtLeast(1.0)] {
            assert!(!limit.holds(f64::NAN));
        }
    }
}
