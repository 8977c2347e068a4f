//! The metrics of a store in Prometheus' text format (exposition format 0.0.4).
//!
//! A metric `name` of the group `group` is `flotilla_group_name`, with `_total` behind it if it
//! only grows; times are in seconds. Histograms are `flotilla_name_duration_seconds`.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_base::metric::{HistogramMetric, Metric, MetricKind, MetricUnit};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric as Sample, MetricFamily, MetricType,
};
use prometheus::{Encoder as _, TextEncoder};

use super::process_stats;
use super::reader::{StatusReader, StoreStops};

/// The type of the format's content.
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// The metrics of the store, now. They are read on a thread that may block.
///
/// # Errors
///
/// The store stops.
pub(crate) async fn metrics(reader: &StatusReader) -> Result<String, StoreStops> {
    let raft_stats = reader.raft_stats().await?;
    let reader = reader.clone();
    let text = tokio::task::spawn_blocking(move || {
        let mut exposition = Exposition::default();
        exposition.add_info(&reader);
        reader.facts().visit(&mut |metric| exposition.add(&metric));
        reader.stats.read().visit(&mut |metric| exposition.add(&metric));
        // Each shard counts for itself, and a store is the sum of them.
        for shard in &raft_stats {
            shard.visit(&mut |metric| exposition.add(&metric));
        }
        reader.stats.visit_histograms(&mut |metric| exposition.add_histogram(&metric));
        exposition.add_disk(&reader.data_dir);
        for metric in process_stats::read() {
            exposition.add_value(metric.kind, metric.name.to_owned(), metric.help, metric.value);
        }
        exposition.text()
    });
    text.await.map_err(|_| StoreStops)
}

/// Families of metrics, by name.
#[derive(Default)]
struct Exposition {
    families: BTreeMap<String, MetricFamily>,
}

impl Exposition {
    /// Adds a metric. One that is there already gets the sum of both.
    fn add(&mut self, metric: &Metric) {
        let (name, unit) = match metric.unit {
            MetricUnit::Milliseconds => {
                (metric.name.replace("_milliseconds", "_seconds"), 1.0 / 1000.0)
            }
            MetricUnit::None | MetricUnit::Bytes => (metric.name.to_owned(), 1.0),
        };
        let name = format!("flotilla_{}_{name}", metric.group);
        let value = metric.value as f64 * unit;
        match metric.kind {
            MetricKind::Counter => {
                self.add_value(MetricType::COUNTER, format!("{name}_total"), metric.help, value);
            }
            MetricKind::Gauge => self.add_value(MetricType::GAUGE, name, metric.help, value),
        }
    }

    /// Adds a number of its own name. Numbers of one name are added up.
    fn add_value(&mut self, kind: MetricType, name: String, help: &str, value: f64) {
        let family = self.family(kind, name, help);
        if family.get_metric().is_empty() {
            family.mut_metric().push(Sample::default());
        }
        let Some(sample) = family.mut_metric().first_mut() else { return };
        match kind {
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(sample.get_counter().get_value() + value);
                sample.set_counter(counter);
            }
            _ => {
                let mut gauge = Gauge::default();
                gauge.set_value(sample.get_gauge().get_value() + value);
                sample.set_gauge(gauge);
            }
        }
    }

    /// The identity of the store: a constant with labels, for joins.
    fn add_info(&mut self, reader: &StatusReader) {
        let id = reader.membership.id();
        let labels = [
            ("version", crate::VERSION.to_owned()),
            ("cluster", id.cluster_id.to_string()),
            ("store", id.store.to_string()),
            ("name", reader.membership.name().to_owned()),
        ];
        let mut sample = Sample::from_label(labels.map(|(name, value)| label(name, value)).into());
        let mut gauge = Gauge::default();
        gauge.set_value(1.0);
        sample.set_gauge(gauge);
        let help = "The store, its cluster and the version of its binary.";
        let family = self.family(MetricType::GAUGE, "flotilla_store_info".to_owned(), help);
        family.mut_metric().push(sample);
    }

    /// The space of the file system that the data directory is on.
    fn add_disk(&mut self, data_dir: &std::path::Path) {
        // A directory that cannot be looked at has other alarms: these two are left out.
        let Ok(disk) = rustix::fs::statvfs(data_dir) else { return };
        for (name, help, blocks) in [
            ("flotilla_disk_bytes", "Size of the file system with the data.", disk.f_blocks),
            (
                "flotilla_disk_free_bytes",
                "Space that the file system with the data has left for this process.",
                disk.f_bavail,
            ),
        ] {
            let bytes = blocks.saturating_mul(disk.f_frsize) as f64;
            self.add_value(MetricType::GAUGE, name.to_owned(), help, bytes);
        }
    }

    fn add_histogram(&mut self, metric: &HistogramMetric<'_>) {
        let reading = metric.histogram.read();
        let seconds = |duration: Duration| duration.as_secs_f64();
        let mut histogram = Histogram::default();
        histogram.set_sample_count(reading.count());
        histogram.set_sample_sum(seconds(reading.sum()));
        let buckets = reading.buckets().map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(seconds(bound));
            bucket.set_cumulative_count(count);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        let labels = metric.labels.iter().map(|(name, value)| label(name, (*value).to_owned()));
        let mut sample = Sample::from_label(labels.collect());
        sample.set_histogram(histogram);
        let name = format!("flotilla_{}_duration_seconds", metric.name);
        self.family(MetricType::HISTOGRAM, name, metric.help).mut_metric().push(sample);
    }

    fn family(&mut self, kind: MetricType, name: String, help: &str) -> &mut MetricFamily {
        self.families.entry(name).or_insert_with_key(|name| {
            let mut family = MetricFamily::default();
            family.set_name(name.clone());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family
        })
    }

    /// The text that a scrape gets.
    fn text(self) -> String {
        let families: Vec<_> = self.families.into_values().collect();
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&families, &mut text)
            .expect("each family has a name and a sample, and memory takes every write");
        String::from_utf8(text).expect("the encoder writes text")
    }
}

fn label(name: &str, value: String) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value);
    label
}

#[cfg(test)]
mod tests {
    use flotilla_base::histogram::LatencyHistogram;

    use super::*;

    fn metric(name: &'static str, kind: MetricKind, unit: MetricUnit, value: u64) -> Metric {
        Metric { group: "log", name, kind, unit, value, help: "A help." }
    }

    #[test]
    fn numbers_have_the_names_and_units_of_prometheus() {
        let mut exposition = Exposition::default();
        exposition.add(&metric("syncs", MetricKind::Counter, MetricUnit::None, 3));
        exposition.add(&metric("syncs", MetricKind::Counter, MetricUnit::None, 4));
        exposition.add(&metric("live_bytes", MetricKind::Gauge, MetricUnit::Bytes, 5));
        let running = "flush_running_milliseconds";
        exposition.add(&metric(running, MetricKind::Gauge, MetricUnit::Milliseconds, 1500));
        let text = exposition.text();
        assert_eq!(
            text,
            "# HELP flotilla_log_flush_running_seconds A help.\n\
             # TYPE flotilla_log_flush_running_seconds gauge\n\
             flotilla_log_flush_running_seconds 1.5\n\
             # HELP flotilla_log_live_bytes A help.\n\
             # TYPE flotilla_log_live_bytes gauge\n\
             flotilla_log_live_bytes 5\n\
             # HELP flotilla_log_syncs_total A help.\n\
             # TYPE flotilla_log_syncs_total counter\n\
             flotilla_log_syncs_total 7\n"
        );
    }

    #[test]
    fn a_histogram_has_its_bounds_in_seconds_and_all_counts() {
        let histogram = LatencyHistogram::default();
        histogram.observe(Duration::from_millis(2));
        histogram.observe(Duration::from_secs(20));
        let labels: &[_] = &[("kind", "write"), ("stage", "apply")];
        let metric =
            HistogramMetric { name: "stage", labels, help: "A help.", histogram: &histogram };
        let mut exposition = Exposition::default();
        exposition.add_histogram(&metric);
        let text = exposition.text();
        let line = |of: &str, value: &str| {
            let line = format!("flotilla_stage_duration_seconds{of} {value}\n");
            assert!(text.contains(&line), "{line} is not in {text}");
        };
        line("_bucket{kind=\"write\",stage=\"apply\",le=\"0.001536\"}", "0");
        line("_bucket{kind=\"write\",stage=\"apply\",le=\"0.002048\"}", "1");
        line("_bucket{kind=\"write\",stage=\"apply\",le=\"12.582912\"}", "1");
        line("_bucket{kind=\"write\",stage=\"apply\",le=\"+Inf\"}", "2");
        line("_sum{kind=\"write\",stage=\"apply\"}", "20.002");
        line("_count{kind=\"write\",stage=\"apply\"}", "2");
    }
}
