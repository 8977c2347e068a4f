//! Metrics as data: counters and gauges that name, describe and list themselves.
//!
//! A struct of statistics is declared once, with [`metrics!`](crate::metrics). The first line of
//! each field's documentation is the help text of its metric. All consumers (the status service,
//! tools, tests) loop over the metrics, so a new field needs no line anywhere else.

use std::time::Duration;

use crate::histogram::LatencyHistogram;

/// One number that a component reports, with all that a consumer needs to present it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The component that reports it, as `log` or `pages`. Group and name identify a metric.
    pub group: &'static str,
    /// Its name by the conventions of Prometheus, without prefix and without `_total`: snake case,
    /// and the unit, if it has one, is the last word.
    pub name: &'static str,
    /// How the value behaves over time.
    pub kind: MetricKind,
    /// The unit of the value.
    pub unit: MetricUnit,
    /// The value at the moment of the reading.
    pub value: u64,
    /// One sentence that says what is measured.
    pub help: &'static str,
}

/// How a metric behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, and starts from 0 with the process: its rate is of interest.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// A plain number.
    None,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
}

/// One latency histogram that a component reports.
#[derive(Clone, Copy, Debug)]
pub struct HistogramMetric<'a> {
    /// The thing that is timed, in snake case, without prefix and without `_duration_seconds`.
    /// Histograms of one name differ in the values of their labels.
    pub name: &'static str,
    /// Names and values of its labels.
    pub labels: &'a [(&'static str, &'static str)],
    /// One sentence that says what is measured.
    pub help: &'static str,
    /// The counts.
    pub histogram: &'a LatencyHistogram,
}

/// A type of field that can be reported as a metric.
pub trait MetricValue {
    /// The number that is reported.
    fn metric_value(&self) -> u64;
}

impl MetricValue for u64 {
    fn metric_value(&self) -> u64 {
        *self
    }
}

impl MetricValue for usize {
    fn metric_value(&self) -> u64 {
        *self as u64
    }
}

/// In milliseconds; 0 if there is none.
impl MetricValue for Option<Duration> {
    fn metric_value(&self) -> u64 {
        self.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Declares a struct of statistics, and its method `visit`, which reports every field once.
///
/// The name of the group comes first. Behind each field stands its role:
/// `Counter(unit)` or `Gauge(unit)`, with a name of the metric if the field's does not follow the
/// conventions; `Nested()` for another struct that was declared so; `Unreported()` for a field
/// that is not a number. A field without role does not compile, nor does one without
/// documentation.
///
/// ```
/// flotilla_base::metrics! { "pages",
///     /// Statistics of a file.
///     #[derive(Default)]
///     pub struct FileStats {
///         /// Length of the file.
///         pub file_bytes: u64 => Gauge(Bytes),
///         /// Reads from the file.
///         pub read_count: usize => Counter(None, "reads"),
///     }
/// }
/// let mut names = Vec::new();
/// FileStats::default().visit(&mut |metric| names.push(metric.name));
/// assert_eq!(names, ["file_bytes", "reads"]);
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $group:literal,
        $(#[$attribute:meta])*
        $visibility:vis struct $stats:ident {
            $(
                #[doc = $help:literal]
                $(#[doc = $details:literal])*
                $field_visibility:vis $field:ident: $type:ty => $role:ident($($option:tt)*),
            )*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $stats {
            $(
                #[doc = $help]
                $(#[doc = $details])*
                $field_visibility $field: $type,
            )*
        }

        impl $stats {
            /// Calls `visit` once for each metric, in the order of the fields.
            $visibility fn visit(&self, visit: &mut dyn FnMut($crate::metric::Metric)) {
                let Self { $($field),* } = self;
                $($crate::metrics!(@ [$group, $field, $help, visit] $role($($option)*));)*
            }
        }
    };
    (@ [$group:literal, $field:ident, $help:literal, $visit:ident] Unreported()) => {
        // Every field is bound above, and one that is not used would be a warning at each
        // declaration.
        let _ = $field;
    };
    (@ [$group:literal, $field:ident, $help:literal, $visit:ident] Nested()) => {
        $field.visit($visit);
    };
    (@ [$group:literal, $field:ident, $($rest:tt)*] $kind:ident($unit:ident)) => {
        $crate::metrics!(@ [$group, $field, $($rest)*] $kind($unit, stringify!($field)));
    };
    (@ [$group:literal, $field:ident, $help:literal, $visit:ident]
        $kind:ident($unit:ident, $name:expr)
    ) => {
        $visit($crate::metric::Metric {
            group: $group,
            name: $name,
            kind: $crate::metric::MetricKind::$kind,
            unit: $crate::metric::MetricUnit::$unit,
            value: $crate::metric::MetricValue::metric_value($field),
            // The text of a doc comment begins with the space behind its slashes.
            help: $help.trim_ascii(),
        });
    };
}
