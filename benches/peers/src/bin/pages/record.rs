//! Measurements: for each case, engine and figure a value for each round.

use crate::engines::Contender;
use crate::load::Outcome;
use peers::figures::median;
use serde::Serialize;

/// The values of one figure in all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The case.
    pub case: String,
    /// By whom.
    pub engine: Contender,
    /// The figure, with its unit.
    pub figure: String,
    /// One value a round.
    pub rounds: Vec<f64>,
}

/// Something that an engine cannot do.
#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    /// The case that was to be measured.
    pub case: String,
    /// By whom.
    pub engine: Contender,
    /// Why it was not.
    pub why: String,
}

/// All records, in the order in which they came.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Records {
    /// The figure.
    pub records: Vec<Record>,
    /// Figures that could not be measured.
    pub missing: Vec<Missing>,
}

impl Records {
    /// Adds what one round has brought.
    pub fn add(&mut self, case: &str, engine: Contender, outcome: &Outcome) {
        for (figure, value) in &outcome.figures {
            self.add_one(case, engine, figure, *value);
        }
        if let Some(why) = &outcome.missing {
            self.add_missing(case, engine, why);
        }
    }

    /// Adds that an engine has no figures of a case, and why; once.
    pub fn add_missing(&mut self, case: &str, engine: Contender, why: &str) {
        if self.why_missing(case, engine).is_none() {
            let (case, why) = (case.to_owned(), why.to_owned());
            self.missing.push(Missing { case, engine, why });
        }
    }

    /// Adds one figure of a round.
    pub fn add_one(&mut self, case: &str, engine: Contender, figure: &str, value: f64) {
        let same = |r: &&mut Record| r.case == case && r.engine == engine && r.figure == figure;
        match self.records.iter_mut().find(same) {
            Some(record) => record.rounds.push(value),
            None => self.records.push(Record {
                case: case.to_owned(),
                engine,
                figure: figure.to_owned(),
                rounds: vec![value],
            }),
        }
    }

    /// The median of what was measured, if it was.
    pub fn median(&self, case: &str, engine: Contender, figure: &str) -> Option<f64> {
        let same = |r: &&Record| r.case == case && r.engine == engine && r.figure == figure;
        self.records.iter().find(same).map(|record| median(&record.rounds))
    }

    /// Whether anything is known of a case.
    pub fn knows(&self, case: &str) -> bool {
        self.records.iter().any(|r| r.case == case) || self.missing.iter().any(|m| m.case == case)
    }

    /// Why an engine has no figures of a case, if it said so.
    pub fn why_missing(&self, case: &str, engine: Contender) -> Option<&str> {
        let same = |m: &&Missing| m.case == case && m.engine == engine;
        self.missing.iter().find(same).map(|m| m.why.as_str())
    }

    /// Cases and their figures, each once, in the order in which they came.
    pub fn rows(&self) -> Vec<(&str, &str)> {
        let mut rows: Vec<(&str, &str)> = Vec::new();
        for record in &self.records {
            let row = (record.case.as_str(), record.figure.as_str());
            if !rows.contains(&row) {
                let after = rows.iter().rposition(|(case, _)| *case == row.0);
                rows.insert(after.map_or(rows.len(), |place| place + 1), row);
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_together_and_cases_stay_together() {
        let mut records = Records::default();
        let mut outcome = Outcome::default();
        for value in [1.0, 3.0] {
            outcome.add("keys/s", value);
            records.add("scan", Contender::Redb, &outcome);
        }
        records.add_one("get", Contender::Redb, "gets/s", 9.0);
        records.add_one("scan", Contender::Pagestore, "more", 5.0);
        assert_eq!(records.median("scan", Contender::Redb, "keys/s"), Some(2.0));
        assert_eq!(records.median("scan", Contender::Pagestore, "keys/s"), None);
        assert_eq!(records.rows(), [("scan", "keys/s"), ("scan", "more"), ("get", "gets/s")]);
    }

    #[test]
    fn what_cannot_be_done_is_said_once() {
        let mut records = Records::default();
        let outcome = Outcome { missing: Some("no".to_owned()), ..Outcome::default() };
        records.add("a", Contender::Redb, &outcome);
        records.add("a", Contender::Redb, &outcome);
        assert_eq!(records.missing.len(), 1);
        assert_eq!(records.why_missing("a", Contender::Redb), Some("no"));
        assert_eq!(records.why_missing("b", Contender::Redb), None);
    }
}
