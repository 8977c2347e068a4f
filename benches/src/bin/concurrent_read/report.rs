//! Reports the latencies of all runs, as a table or as JSON.

use std::io::Write;

use flotilla_cli::bench::millis;
use flotilla_cli::tool::{Error, ScreenTable, TableCell, number, table};
use serde_json::{Value, json};

use super::args::Args;
use super::pace::Tally;
use super::run::{Half, Run};

/// The report of all runs.
pub(crate) struct Report<'a> {
    pub(crate) args: &'a Args,
    pub(crate) runs: &'a [Run],
}

/// Nanoseconds, of requests of one kind in one half of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    p50: f64,
    p99: f64,
}

/// Where the requests of one kind are.
type Kind = fn(&Half) -> Option<&Tally>;

/// Their names in JSON, and where they are.
const KINDS: [(&str, Kind); 3] = [
    ("scan", |half| Some(&half.scans)),
    ("put", |half| Some(&half.puts)),
    ("large_scan", |half| half.large.as_ref()),
];

impl Figures {
    fn of(tally: &Tally) -> Option<Figures> {
        let at = |percent| tally.latencies.value_at_percentile(percent) as f64;
        (!tally.latencies.is_empty()).then(|| Figures { p50: at(50.0), p99: at(99.0) })
    }

    /// The median of each figure over all runs that have them.
    fn median(of: impl Iterator<Item = Figures> + Clone) -> Option<Figures> {
        Some(Figures {
            p50: median(of.clone().map(|figures| figures.p50))?,
            p99: median(of.map(|figures| figures.p99))?,
        })
    }

    fn ratio(self, without: Figures) -> Figures {
        Figures { p50: self.p50 / without.p50, p99: self.p99 / without.p99 }
    }

    fn to_json(self) -> Value {
        json!({ "p50_us": self.p50 / 1e3, "p99_us": self.p99 / 1e3 })
    }
}

/// The one in the middle, or the mean of the two there.
fn median(of: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = of.collect();
    sorted.sort_by(f64::total_cmp);
    let high = *sorted.get(sorted.len() / 2)?;
    let low = sorted[(sorted.len() - 1) / 2];
    Some(low.midpoint(high))
}

impl Report<'_> {
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<(), Error> {
        if self.args.target.json {
            return Ok(writeln!(out, "{:#}", self.to_json())?);
        }
        writeln!(out, "{}", self.summary())?;
        Ok(writeln!(out, "{}", self.table())?)
    }

    fn summary(&self) -> String {
        let args = self.args;
        format!(
            "{} keys of {} bytes, values of {} to {} bytes; each run {} s without, {} s with \
             large scans\n\
             scan: {} rows, {} a second; put: {} a second; large scan: {} rows in pages of {}, \
             one every {} ms\n\
             latencies in ms from the time at which a request was due\n",
            args.keys,
            args.key_size,
            args.value_bytes_min,
            args.value_bytes_max,
            args.seconds,
            args.seconds,
            args.scan_rows,
            args.scans_per_second,
            args.puts_per_second,
            args.large_scan_rows,
            args.page_rows(),
            args.large_scan_interval_ms,
        )
    }

    fn table(&self) -> ScreenTable {
        let mut table = table(&[
            "request",
            "run",
            "50 %, without",
            "with",
            "ratio",
            "99 %, without",
            "with",
            "ratio",
            "failed",
        ]);
        for (name, kind) in KINDS {
            let name = name.replace('_', " ");
            for (place, run) in self.runs.iter().enumerate() {
                let tallies = [kind(&run.without), kind(&run.with)];
                let [without, with] = tallies.map(|tally| tally.and_then(Figures::of));
                let mut row = vec![TableCell::new(&name), number(place + 1)];
                row.extend(cells(without, with));
                let failed = tallies.into_iter().flatten().map(|tally| tally.failed);
                row.push(number(failed.sum::<u64>()));
                table.add_row(row);
            }
            let (without, with) = self.medians(kind);
            let mut row = vec![TableCell::new(&name), TableCell::new("median")];
            row.extend(cells(without, with));
            table.add_row(row);
        }
        table
    }

    /// Without and with large scans.
    fn medians(&self, kind: Kind) -> (Option<Figures>, Option<Figures>) {
        let of = |half: fn(&Run) -> &Half| {
            Figures::median(self.runs.iter().filter_map(|run| Figures::of(kind(half(run))?)))
        };
        (of(|run| &run.without), of(|run| &run.with))
    }

    fn to_json(&self) -> Value {
        let args = self.args;
        let mut report = json!({
            "keys": args.keys,
            "key_bytes": args.key_size,
            "value_bytes_min": args.value_bytes_min,
            "value_bytes_max": args.value_bytes_max,
            "seconds": args.seconds,
            "scan_rows": args.scan_rows,
            "scans_per_second": args.scans_per_second,
            "puts_per_second": args.puts_per_second,
            "large_scan_rows": args.large_scan_rows,
            "large_scan_page_rows": args.page_rows(),
            "large_scan_interval_ms": args.large_scan_interval_ms,
            "runs": self.runs.iter().map(|run| json!({
                "without": half_to_json(&run.without),
                "with": half_to_json(&run.with),
            })).collect::<Vec<_>>(),
        });
        for (name, kind) in KINDS {
            let (without, with) = self.medians(kind);
            let ratio = with.zip(without).map(|(with, without)| with.ratio(without));
            report["medians"][name] = json!({
                "without": without.map(Figures::to_json),
                "with": with.map(Figures::to_json),
                "ratio": ratio.map(|ratio| json!({ "p50": ratio.p50, "p99": ratio.p99 })),
            });
        }
        report
    }
}

fn half_to_json(half: &Half) -> Value {
    let mut report = json!({});
    for (name, kind) in KINDS {
        let Some(tally) = kind(half) else { continue };
        report[name] = json!({
            "succeeded": tally.latencies.len(),
            "failed": tally.failed,
            "first_failure": tally.first_failure.as_ref().map(ToString::to_string),
            "rows": tally.rows,
            "latency": Figures::of(tally).map(Figures::to_json),
        });
    }
    report
}

/// Without, with and the ratio, of both percentiles; empty without figures.
fn cells(without: Option<Figures>, with: Option<Figures>) -> [TableCell; 6] {
    let ratio = with.zip(without).map(|(with, without)| with.ratio(without));
    let time = |nanos: Option<f64>| nanos.map_or_else(|| TableCell::new(""), millis);
    let times = |ratio: Option<f64>| number(ratio.map_or(String::new(), |r| format!("{r:.2}")));
    [
        time(without.map(|figures| figures.p50)),
        time(with.map(|figures| figures.p50)),
        times(ratio.map(|figures| figures.p50)),
        time(without.map(|figures| figures.p99)),
        time(with.map(|figures| figures.p99)),
        times(ratio.map(|figures| figures.p99)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parse;
    use super::*;

    fn tally(nanos: u64) -> Tally {
        let mut tally = Tally::new();
        tally.latencies.saturating_record(nanos);
        tally
    }

    fn run(without: u64, with: u64) -> Run {
        let half = |nanos, large| Half { scans: tally(nanos), puts: tally(nanos * 2), large };
        Run { without: half(without, None), with: half(with, Some(tally(9_000_000))) }
    }

    #[test]
    fn the_middle_of_the_runs_and_the_ratio_of_the_middles_are_told() {
        let runs =
            [run(1_000_000, 3_000_000), run(5_000_000, 2_000_000), run(2_000_000, 9_000_000)];
        let args = parse("");
        let report = Report { args: &args, runs: &runs };
        let json = report.to_json();
        let near = |value: &Value, expected: f64| {
            let value = value.as_f64().unwrap();
            assert!((value / expected - 1.0).abs() < 0.01, "{value} instead of {expected}");
        };
        near(&json["medians"]["scan"]["without"]["p99_us"], 2000.0);
        near(&json["medians"]["scan"]["with"]["p99_us"], 3000.0);
        near(&json["medians"]["scan"]["ratio"]["p99"], 1.5);
        near(&json["medians"]["put"]["ratio"]["p50"], 1.5);
        near(&json["medians"]["large_scan"]["with"]["p50_us"], 9000.0);
        assert_eq!(json["medians"]["large_scan"]["ratio"], Value::Null);
        assert_eq!(json["runs"].as_array().unwrap().len(), 3);
        let table = report.table().to_string();
        let medians: Vec<_> = table.lines().filter(|line| line.contains("median")).collect();
        assert_eq!(medians.len(), 3, "{table}");
        assert!(medians[0].contains("1.50"), "{table}");
    }

    #[test]
    fn of_an_even_number_the_mean_of_the_two_in_the_middle_is_taken() {
        assert_eq!(median([4.0, 1.0, 2.0, 9.0].into_iter()), Some(3.0));
        assert_eq!(median([4.0].into_iter()), Some(4.0));
        assert_eq!(median([].into_iter()), None);
    }
}
