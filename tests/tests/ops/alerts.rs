//! The alert rules: their table, and the two files that are made of it.

use std::fmt::Write as _;

/// One alert rule, with a case in which it fires and one in which it does not.
pub(crate) struct Alert {
    /// Its name, as operators see it.
    pub(crate) name: &'static str,
    /// The condition, in PromQL.
    pub(crate) condition: &'static str,
    /// How long the condition must hold.
    pub(crate) holds: &'static str,
    /// `critical`: somebody is woken. `warning`: somebody looks during the day.
    pub(crate) severity: &'static str,
    /// One sentence that says what is wrong.
    pub(crate) summary: &'static str,
    /// What to do: the heading in `docs/operations.md`.
    pub(crate) action: &'static str,
    /// Series with which it fires, and their values minute by minute, in promtool's notation.
    pub(crate) fires: &'static [(&'static str, &'static str)],
    /// Series with which it does not.
    pub(crate) rests: &'static [(&'static str, &'static str)],
}

/// The store in the cases.
const INSTANCE: &str = "s1:20160";

/// All rules.
pub(crate) const ALERTS: &[Alert] = &[
    Alert {
        name: "FlotillaStoreDown",
        condition: "up{job=\"flotilla\"} == 0",
        holds: "1m",
        severity: "critical",
        summary: "The store does not answer.",
        action: "a-store-does-not-answer",
        fires: &[("up{job=\"flotilla\",instance=\"s1:20160\"}", "0x10")],
        rests: &[("up{job=\"flotilla\",instance=\"s1:20160\"}", "1x10")],
    },
    Alert {
        name: "FlotillaStoreDisconnected",
        condition: "flotilla_node_stores_connected < flotilla_node_stores_known",
        holds: "2m",
        severity: "warning",
        summary: "The store has no connection to another store of its cluster.",
        action: "a-store-does-not-answer",
        fires: &[
            ("flotilla_node_stores_connected{instance=\"s1:20160\"}", "2x10"),
            ("flotilla_node_stores_known{instance=\"s1:20160\"}", "3x10"),
        ],
        rests: &[
            ("flotilla_node_stores_connected{instance=\"s1:20160\"}", "3x10"),
            ("flotilla_node_stores_known{instance=\"s1:20160\"}", "3x10"),
        ],
    },
    Alert {
        name: "FlotillaStoreRestarts",
        condition: "resets(flotilla_node_uptime_seconds[15m]) > 2",
        holds: "0m",
        severity: "warning",
        summary: "The store has started more than twice in a quarter of an hour.",
        action: "a-store-does-not-answer",
        fires: &[(
            "flotilla_node_uptime_seconds{instance=\"s1:20160\"}",
            "60 120 5 60 5 60 5 60x9",
        )],
        rests: &[("flotilla_node_uptime_seconds{instance=\"s1:20160\"}", "60+60x20")],
    },
    Alert {
        name: "FlotillaRegionsWithoutLeader",
        condition: "flotilla_node_replicas_without_leader > 0",
        holds: "1m",
        severity: "critical",
        summary: "Regions have no leader: their keys can be neither read nor written.",
        action: "regions-have-no-leader",
        fires: &[("flotilla_node_replicas_without_leader{instance=\"s1:20160\"}", "3x10")],
        rests: &[("flotilla_node_replicas_without_leader{instance=\"s1:20160\"}", "0 3 0x10")],
    },
    Alert {
        name: "FlotillaCertificateEnds",
        condition: "flotilla_tls_certificate_expiry_timestamp_seconds > 0 and \
                    flotilla_tls_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        holds: "10m",
        severity: "warning",
        summary: "The store's certificate ends within two weeks.",
        action: "a-certificate-ends",
        fires: &[(
            "flotilla_tls_certificate_expiry_timestamp_seconds{instance=\"s1:20160\"}",
            "1200000x20",
        )],
        rests: &[(
            "flotilla_tls_certificate_expiry_timestamp_seconds{instance=\"s1:20160\"}",
            "1300000x20",
        )],
    },
    Alert {
        name: "FlotillaCertificateEndsSoon",
        condition: "flotilla_tls_certificate_expiry_timestamp_seconds > 0 and \
                    flotilla_tls_certificate_expiry_timestamp_seconds - time() < 86400",
        holds: "1m",
        severity: "critical",
        summary: "The store's certificate ends within a day: then it is refused by all others.",
        action: "a-certificate-ends",
        fires: &[(
            "flotilla_tls_certificate_expiry_timestamp_seconds{instance=\"s1:20160\"}",
            "80000x20",
        )],
        // None: there is no TLS.
        rests: &[(
            "flotilla_tls_certificate_expiry_timestamp_seconds{instance=\"s1:20160\"}",
            "0x20",
        )],
    },
    Alert {
        name: "FlotillaDiskFilling",
        condition: "flotilla_disk_free_bytes / flotilla_disk_bytes < 0.15",
        holds: "10m",
        severity: "warning",
        summary: "Less than 15 % of the disk is free.",
        action: "the-disk-fills-up",
        fires: &[
            ("flotilla_disk_free_bytes{instance=\"s1:20160\"}", "14x20"),
            ("flotilla_disk_bytes{instance=\"s1:20160\"}", "100x20"),
        ],
        rests: &[
            ("flotilla_disk_free_bytes{instance=\"s1:20160\"}", "16x20"),
            ("flotilla_disk_bytes{instance=\"s1:20160\"}", "100x20"),
        ],
    },
    Alert {
        name: "FlotillaDiskAlmostFull",
        condition: "flotilla_disk_free_bytes / flotilla_disk_bytes < 0.05",
        holds: "1m",
        severity: "critical",
        summary: "Less than 5 % of the disk is free: soon the store takes no more writes.",
        action: "the-disk-fills-up",
        fires: &[
            ("flotilla_disk_free_bytes{instance=\"s1:20160\"}", "4x20"),
            ("flotilla_disk_bytes{instance=\"s1:20160\"}", "100x20"),
        ],
        rests: &[
            ("flotilla_disk_free_bytes{instance=\"s1:20160\"}", "6x20"),
            ("flotilla_disk_bytes{instance=\"s1:20160\"}", "100x20"),
        ],
    },
    Alert {
        name: "FlotillaDiskFull",
        condition: "flotilla_disk_usage >= 2",
        holds: "0m",
        severity: "critical",
        summary: "The disk is full: the store leads nothing, and takes no puts.",
        action: "a-disk-is-full",
        fires: &[("flotilla_disk_usage{instance=\"s1:20160\"}", "2x10")],
        rests: &[("flotilla_disk_usage{instance=\"s1:20160\"}", "1x10")],
    },
    Alert {
        name: "FlotillaDiskHangs",
        condition: "flotilla_log_flush_running_seconds > 5",
        holds: "0m",
        severity: "critical",
        summary: "A sync of the log has not ended for more than 5 seconds.",
        action: "the-disk-is-slow",
        fires: &[("flotilla_log_flush_running_seconds{instance=\"s1:20160\"}", "6x20")],
        rests: &[("flotilla_log_flush_running_seconds{instance=\"s1:20160\"}", "0.1x20")],
    },
    Alert {
        name: "FlotillaDiskSlow",
        condition: "rate(flotilla_log_write_duration_seconds_sum[5m]) \
                    / rate(flotilla_log_write_duration_seconds_count[5m]) > 0.1",
        holds: "5m",
        severity: "warning",
        summary: "A write and sync of the log takes more than 100 ms on average.",
        action: "the-disk-is-slow",
        fires: &[
            ("flotilla_log_write_duration_seconds_sum{instance=\"s1:20160\"}", "0+12x20"),
            ("flotilla_log_write_duration_seconds_count{instance=\"s1:20160\"}", "0+60x20"),
        ],
        rests: &[
            ("flotilla_log_write_duration_seconds_sum{instance=\"s1:20160\"}", "0+3x20"),
            ("flotilla_log_write_duration_seconds_count{instance=\"s1:20160\"}", "0+60x20"),
        ],
    },
    Alert {
        name: "FlotillaWritesSlow",
        condition: "histogram_quantile(0.99, sum by (instance, le) \
                    (rate(flotilla_request_duration_seconds_bucket{kind=\"write\"}[5m]))) > 1",
        holds: "5m",
        severity: "warning",
        summary: "One write of a hundred takes longer than a second.",
        action: "requests-are-slow",
        fires: &[
            (
                "flotilla_request_duration_seconds_bucket{instance=\"s1:20160\",kind=\"write\",le=\"1.5\"}",
                "0+90x20",
            ),
            (
                "flotilla_request_duration_seconds_bucket{instance=\"s1:20160\",kind=\"write\",le=\"+Inf\"}",
                "0+100x20",
            ),
        ],
        rests: &[
            (
                "flotilla_request_duration_seconds_bucket{instance=\"s1:20160\",kind=\"write\",le=\"0.5\"}",
                "0+100x20",
            ),
            (
                "flotilla_request_duration_seconds_bucket{instance=\"s1:20160\",kind=\"write\",le=\"+Inf\"}",
                "0+100x20",
            ),
        ],
    },
    Alert {
        name: "FlotillaApplyBacklog",
        condition: "flotilla_queues_apply_backlog_bytes > 32 * 1024 * 1024",
        holds: "1m",
        severity: "warning",
        summary: "Entries are not applied as fast as they come: clients are left waiting.",
        action: "requests-are-slow",
        fires: &[("flotilla_queues_apply_backlog_bytes{instance=\"s1:20160\"}", "4e7x20")],
        rests: &[("flotilla_queues_apply_backlog_bytes{instance=\"s1:20160\"}", "1e6x20")],
    },
    Alert {
        name: "FlotillaReadsFail",
        condition: "increase(flotilla_requests_reads_failed_total[5m]) > 0 \
                    or increase(flotilla_store_log_reads_failed_total[5m]) > 0",
        holds: "0m",
        severity: "critical",
        summary: "The disk refuses reads, or gives back other bytes than were written.",
        action: "a-disk-is-damaged",
        fires: &[("flotilla_requests_reads_failed_total{instance=\"s1:20160\"}", "0x13 1x5")],
        rests: &[("flotilla_requests_reads_failed_total{instance=\"s1:20160\"}", "1x20")],
    },
    Alert {
        name: "FlotillaScrubErrors",
        condition: "increase(flotilla_pages_scrub_errors_total[15m]) > 0",
        holds: "0m",
        severity: "critical",
        summary: "The scrub has found a page that is damaged or cannot be read.",
        action: "a-disk-is-damaged",
        fires: &[("flotilla_pages_scrub_errors_total{instance=\"s1:20160\"}", "0 0 1x20")],
        rests: &[("flotilla_pages_scrub_errors_total{instance=\"s1:20160\"}", "1x20")],
    },
    Alert {
        name: "FlotillaReplicasDiffer",
        condition: "flotilla_store_inconsistent_regions > 0",
        holds: "0m",
        severity: "critical",
        summary: "The replicas of a region do not have the same rows.",
        action: "replicas-differ",
        fires: &[("flotilla_store_inconsistent_regions{instance=\"s1:20160\"}", "0 0 1x20")],
        rests: &[("flotilla_store_inconsistent_regions{instance=\"s1:20160\"}", "1 1 0x20")],
    },
    Alert {
        name: "FlotillaClockDeviates",
        condition: "flotilla_requests_clock_deviation_seconds > 1",
        holds: "1m",
        severity: "warning",
        summary: "The clock is more than a second off those of the other stores.",
        action: "a-clock-is-wrong",
        fires: &[("flotilla_requests_clock_deviation_seconds{instance=\"s1:20160\"}", "2x20")],
        rests: &[("flotilla_requests_clock_deviation_seconds{instance=\"s1:20160\"}", "0.2x20")],
    },
    Alert {
        name: "FlotillaFileDescriptors",
        condition: "process_open_fds{job=\"flotilla\"} / process_max_fds{job=\"flotilla\"} > 0.8",
        holds: "5m",
        severity: "warning",
        summary: "More than 80 % of the file descriptors that the process may have are open.",
        action: "file-descriptors-run-out",
        fires: &[
            ("process_open_fds{job=\"flotilla\",instance=\"s1:20160\"}", "900x20"),
            ("process_max_fds{job=\"flotilla\",instance=\"s1:20160\"}", "1000x20"),
        ],
        rests: &[
            ("process_open_fds{job=\"flotilla\",instance=\"s1:20160\"}", "100x20"),
            ("process_max_fds{job=\"flotilla\",instance=\"s1:20160\"}", "1000x20"),
        ],
    },
    Alert {
        name: "FlotillaLogLinesLost",
        condition: "increase(flotilla_node_log_lines_lost_total[15m]) > 0",
        holds: "0m",
        severity: "warning",
        summary: "Standard error did not take lines of the log.",
        action: "lines-of-the-log-are-lost",
        fires: &[("flotilla_node_log_lines_lost_total{instance=\"s1:20160\"}", "0 0 4x20")],
        rests: &[("flotilla_node_log_lines_lost_total{instance=\"s1:20160\"}", "4x20")],
    },
];

/// The minute of a case at which the rules are looked at.
const LOOK_MINUTE: u32 = 15;

impl Alert {
    /// The text of the annotation that says what to read.
    fn runbook(&self) -> String {
        format!("docs/operations.md#{}", self.action)
    }
}

/// A text as YAML takes it: JSON's strings are YAML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The rules, as Prometheus reads them.
pub(crate) fn rules() -> String {
    let mut yaml = String::from(
        "# Alert rules for Prometheus. Made by `FLOTILLA_WRITE_OPS=1 cargo test -p tests --test ops`\n\
         # from the table in tests/tests/ops/alerts.rs.\n\
         groups:\n  - name: flotilla\n    rules:\n",
    );
    for alert in ALERTS {
        let Alert { name, holds, severity, .. } = alert;
        let [condition, summary, runbook] =
            [alert.condition, alert.summary, &alert.runbook()].map(quoted);
        // A String takes every write.
        let _ = write!(
            yaml,
            "      - alert: {name}\n        expr: {condition}\n        for: {holds}\n        \
             labels:\n          severity: {severity}\n        annotations:\n          \
             summary: {summary}\n          runbook: {runbook}\n"
        );
    }
    yaml
}

/// The cases of all rules, as `promtool test rules` reads them.
pub(crate) fn cases() -> String {
    let mut yaml = String::from(
        "# Cases of alerts.yml for `promtool test rules`. Made as that file is.\n\
         rule_files:\n  - alerts.yml\nevaluation_interval: 1m\ntests:\n",
    );
    for alert in ALERTS {
        for (series, fires) in [(alert.fires, true), (alert.rests, false)] {
            case(&mut yaml, alert, series, fires);
        }
    }
    yaml
}

fn case(yaml: &mut String, alert: &Alert, series: &[(&str, &str)], fires: bool) {
    let Alert { name, severity, .. } = alert;
    let _ = write!(yaml, "  - interval: 1m\n    input_series:\n");
    for (series, values) in series {
        let [series, values] = [*series, *values].map(quoted);
        let _ = write!(yaml, "      - series: {series}\n        values: {values}\n");
    }
    let _ = write!(
        yaml,
        "    alert_rule_test:\n      - eval_time: {LOOK_MINUTE}m\n        alertname: {name}\n"
    );
    if !fires {
        let _ = writeln!(yaml, "        exp_alerts: []");
        return;
    }
    let [summary, runbook] = [alert.summary, &alert.runbook()].map(quoted);
    // A sum by instance has no other label.
    let job = match series.iter().any(|(series, _)| series.contains("job=")) {
        true => "\n              job: flotilla",
        false => "",
    };
    let _ = write!(
        yaml,
        "        exp_alerts:\n          - exp_labels:\n              severity: {severity}{job}\n              \
         instance: {INSTANCE}\n            exp_annotations:\n              summary: {summary}\n              \
         runbook: {runbook}\n"
    );
}
