//! Reports the throughput and latency of a load, as tables or as JSON.

use std::io::Write;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::args::{LoadArgs, Workload};
use super::counts::StoreCounts;
use super::load::LoadOutcome;
use super::windows::Window;
use crate::signals::EndSignal;
use crate::tool::{Error, ScreenTable, TableCell, number, table};
use crate::units::{self, counted};

/// The percentiles of the latency that are shown.
const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// The report of one load.
pub(crate) struct LoadReport<'a> {
    pub(crate) workload: Workload,
    pub(crate) args: &'a LoadArgs,
    pub(crate) outcome: &'a LoadOutcome,
    /// Regions of the clients' keys, before and after the load.
    pub(crate) regions: (usize, usize),
    /// The work of the stores, or why it is not known.
    pub(crate) counts: Result<StoreCounts, &'static str>,
    /// The signal before whose time the load would have ended.
    pub(crate) stopped_by: Option<EndSignal>,
}

impl LoadReport<'_> {
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<(), Error> {
        if self.args.target.json {
            return Ok(writeln!(out, "{:#}", self.to_json())?);
        }
        writeln!(out, "{}", self.summary())?;
        writeln!(out, "{}\n", self.percentiles())?;
        if !self.outcome.windows.is_empty() {
            writeln!(out, "{}\n", self.windows())?;
        }
        match self.counts {
            Ok(counts) => writeln!(out, "{}", self.work(counts))?,
            Err(why) => writeln!(out, "{why}")?,
        }
        Ok(())
    }

    fn succeeded(&self) -> u64 {
        self.outcome.latencies.len()
    }

    fn per_second(&self) -> f64 {
        self.succeeded() as f64 / self.outcome.elapsed.as_secs_f64()
    }

    /// Wall time of the whole load for each request: its reciprocal is the rate.
    fn micros_per_request(&self) -> f64 {
        self.outcome.elapsed.as_secs_f64() * 1e6 / self.succeeded() as f64
    }

    fn transport(&self) -> &'static str {
        if self.args.unary { "unary" } else { "batch" }
    }

    fn regions(&self) -> String {
        match self.regions {
            (before, after) if before == after => units::count(before as u64),
            (before, after) => {
                format!("{} to {}", units::count(before as u64), units::count(after as u64))
            }
        }
    }

    fn summary(&self) -> String {
        let (args, outcome) = (self.args, self.outcome);
        let stopped =
            self.stopped_by.map_or_else(String::new, |signal| format!(", stopped by {signal}"));
        format!(
            "{}: {} in {}, {} failed{stopped}\n\
             {}, clients: {}, connections to each store: {}, regions: {}\n\
             {}, {:.1} us/request\n",
            self.workload.name(),
            counted(self.succeeded() + outcome.failed, "request", "requests"),
            units::time(outcome.elapsed),
            units::count(outcome.failed),
            self.transport(),
            units::count(args.clients.into()),
            args.connections,
            self.regions(),
            units::rate(self.per_second()),
            self.micros_per_request(),
        )
    }

    fn percentiles(&self) -> ScreenTable {
        let mut table =
            table(&["", "mean", "50 %", "90 %", "95 %", "99 %", "99.9 %", "99.99 %", "max"]);
        let latencies = &self.outcome.latencies;
        let mut row = vec![TableCell::new("latency, ms"), millis(latencies.mean())];
        row.extend(PERCENTILES.map(|p| millis(latencies.value_at_percentile(p) as f64)));
        table.add_row(row);
        table
    }

    fn windows(&self) -> ScreenTable {
        let names = ["window", "answers", "failed", "50 %", "99 %", "99.9 %", "max", "gap, ms"];
        let mut table = table(&names);
        for (place, window) in self.outcome.windows.iter().enumerate() {
            let latencies = &window.latencies;
            let counts = [latencies.len(), window.failed].map(units::count).map(number);
            let times = [50.0, 99.0, 99.9, 100.0];
            let times = times.map(|p| millis(latencies.value_at_percentile(p) as f64));
            let gap = millis(window.longest_gap.as_nanos() as f64);
            table.add_row([number(place)].into_iter().chain(counts).chain(times).chain([gap]));
        }
        table
    }

    /// The work of the stores for it, all of them together.
    fn work(&self, counts: StoreCounts) -> ScreenTable {
        let mut table = table(&["all stores", "count", "for each put", "and store"]);
        for (name, key, count) in counts.rows() {
            let is_bytes = key.contains("bytes");
            let share = |of: u64| match of {
                0 => String::new(),
                of if is_bytes => units::bytes(count / of),
                of => format!("{:.4}", count as f64 / of as f64),
            };
            let (puts, stores) = (self.outcome.puts, counts.stores);
            let shown = if is_bytes { units::bytes(count) } else { units::count(count) };
            let cells = [shown, share(puts), share(puts * stores)];
            table.add_row([TableCell::new(name)].into_iter().chain(cells.map(number)));
        }
        table
    }

    fn to_json(&self) -> Value {
        let (args, outcome) = (self.args, self.outcome);
        let latencies = &outcome.latencies;
        let percentiles = percentiles_to_json(latencies);
        let mut report = json!({
            "workload": self.workload.name(),
            "transport": self.transport(),
            "clients": args.clients,
            "connections": args.connections,
            "key_bytes": args.key_size,
            "value_bytes": args.value_size,
            "keys": args.keys,
            "regions_before": self.regions.0,
            "regions": self.regions.1,
            "seconds": outcome.elapsed.as_secs_f64(),
            "succeeded": self.succeeded(),
            "failed": outcome.failed,
            "stopped_by": self.stopped_by.map(|signal| signal.to_string()),
            "first_failure": outcome.first_failure.as_ref().map(ToString::to_string),
            "puts": outcome.puts,
            "rows": outcome.rows,
            "requests_per_second": self.per_second(),
            "us_per_request": self.micros_per_request(),
            "latency_us": { "mean": latencies.mean() / 1e3, "percentiles": percentiles },
        });
        if let Some(rate) = args.pacing.rate {
            report["rate"] = rate.into();
        }
        let windows: Vec<_> = outcome.windows.iter().map(window_to_json).collect();
        if !windows.is_empty() {
            report["windows"] = windows.into();
        }
        if let Ok(counts) = self.counts {
            let mut row = json!({ "stores": counts.stores });
            for (_, key, count) in counts.rows() {
                row[key] = count.into();
            }
            let syncs = row["log_syncs"].as_f64().unwrap_or_default();
            row["log_syncs_per_put"] = (syncs / outcome.puts as f64).into();
            let puts = (outcome.puts * counts.stores) as f64;
            row["log_syncs_per_put_and_store"] = (syncs / puts).into();
            report["all_stores"] = row;
        }
        report
    }
}

fn percentiles_to_json(latencies: &Histogram<u64>) -> serde_json::Map<String, Value> {
    let percentile = |p: &f64| json!(latencies.value_at_percentile(*p) as f64 / 1e3);
    PERCENTILES.iter().map(|p| (format!("p{p}"), percentile(p))).collect()
}

fn window_to_json(window: &Window) -> Value {
    json!({
        "succeeded": window.latencies.len(),
        "failed": window.failed,
        "latency_us": { "percentiles": percentiles_to_json(&window.latencies) },
        "longest_gap_us": window.longest_gap.as_micros() as f64,
    })
}

/// A cell that shows nanoseconds as milliseconds.
#[must_use]
pub fn millis(nanos: f64) -> TableCell {
    number(format!("{:.3}", nanos / 1e6))
}
