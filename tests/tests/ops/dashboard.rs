//! The Grafana dashboard: the table of its panels, and the file that is made of it.

use serde_json::{Value, json};

/// A row of panels.
pub(crate) struct Row {
    /// Its heading.
    pub(crate) title: &'static str,
    /// Its panels, from left to right.
    pub(crate) panels: &'static [Panel],
}

/// One panel: a chart of some queries.
pub(crate) struct Panel {
    /// Its heading.
    pub(crate) title: &'static str,
    /// The unit of its values, by Grafana's names.
    pub(crate) unit: &'static str,
    /// Its queries in PromQL, each with the legend of its series.
    pub(crate) queries: &'static [(&'static str, &'static str)],
}

/// All rows.
pub(crate) const ROWS: &[Row] = &[
    Row {
        title: "Overview",
        panels: &[
            Panel {
                title: "Requests a second",
                unit: "reqps",
                queries: &[(
                    "sum by (instance, rpc) (rate(flotilla_rpc_duration_seconds_count{instance=~\"$instance\"}[$__rate_interval]))",
                    "{{instance}} {{rpc}}",
                )],
            },
            Panel {
                title: "Call, p99",
                unit: "s",
                queries: &[(
                    "histogram_quantile(0.99, sum by (instance, rpc, le) (rate(flotilla_rpc_duration_seconds_bucket{instance=~\"$instance\"}[$__rate_interval])))",
                    "{{instance}} {{rpc}}",
                )],
            },
            Panel {
                title: "Requests refused a second",
                unit: "reqps",
                queries: &[
                    (
                        "rate(flotilla_requests_writes_rejected_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} writes",
                    ),
                    (
                        "rate(flotilla_requests_reads_rejected_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} reads",
                    ),
                ],
            },
            Panel {
                title: "Leaders and replicas",
                unit: "short",
                queries: &[
                    ("flotilla_node_leaders{instance=~\"$instance\"}", "{{instance}} leaders"),
                    ("flotilla_node_replicas{instance=~\"$instance\"}", "{{instance}} replicas"),
                    (
                        "flotilla_node_replicas_without_leader{instance=~\"$instance\"}",
                        "{{instance}} without leader",
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Where a write spends its time",
        panels: &[
            Panel {
                title: "Write, p50, p99, p99.9",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (instance, le) (rate(flotilla_request_duration_seconds_bucket{kind=\"write\",instance=~\"$instance\"}[$__rate_interval])))",
                        "{{instance}} p50",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (instance, le) (rate(flotilla_request_duration_seconds_bucket{kind=\"write\",instance=~\"$instance\"}[$__rate_interval])))",
                        "{{instance}} p99",
                    ),
                    (
                        "histogram_quantile(0.999, sum by (instance, le) (rate(flotilla_request_duration_seconds_bucket{kind=\"write\",instance=~\"$instance\"}[$__rate_interval])))",
                        "{{instance}} p99.9",
                    ),
                ],
            },
            Panel {
                title: "Stages of a write, mean",
                unit: "s",
                queries: &[(
                    "sum by (stage) (rate(flotilla_request_stage_duration_seconds_sum{kind=\"write\",instance=~\"$instance\"}[$__rate_interval])) / sum by (stage) (rate(flotilla_request_stage_duration_seconds_count{kind=\"write\",instance=~\"$instance\"}[$__rate_interval]))",
                    "{{stage}}",
                )],
            },
            Panel {
                title: "Stages of a write, p99",
                unit: "s",
                queries: &[(
                    "histogram_quantile(0.99, sum by (stage, le) (rate(flotilla_request_stage_duration_seconds_bucket{kind=\"write\",instance=~\"$instance\"}[$__rate_interval])))",
                    "{{stage}}",
                )],
            },
            Panel {
                title: "Stages of a read, p99",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.99, sum by (stage, le) (rate(flotilla_request_stage_duration_seconds_bucket{kind=\"read\",instance=~\"$instance\"}[$__rate_interval])))",
                        "{{stage}}",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(flotilla_row_read_duration_seconds_bucket{instance=~\"$instance\"}[$__rate_interval])))",
                        "rows",
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Log and pages",
        panels: &[
            Panel {
                title: "Write and sync of the log, p99",
                unit: "s",
                queries: &[(
                    "histogram_quantile(0.99, sum by (instance, le) (rate(flotilla_log_write_duration_seconds_bucket{instance=~\"$instance\"}[$__rate_interval])))",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Bytes written a second",
                unit: "Bps",
                queries: &[
                    (
                        "rate(flotilla_log_written_bytes_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} log",
                    ),
                    (
                        "rate(flotilla_pages_written_bytes_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} pages",
                    ),
                ],
            },
            Panel {
                title: "Checkpoint, mean",
                unit: "s",
                queries: &[(
                    "rate(flotilla_checkpoint_duration_seconds_sum{instance=~\"$instance\"}[$__rate_interval]) / rate(flotilla_checkpoint_duration_seconds_count{instance=~\"$instance\"}[$__rate_interval])",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Space",
                unit: "bytes",
                queries: &[
                    ("flotilla_log_segment_bytes{instance=~\"$instance\"}", "{{instance}} log"),
                    ("flotilla_pages_file_bytes{instance=~\"$instance\"}", "{{instance}} pages"),
                    ("flotilla_disk_free_bytes{instance=~\"$instance\"}", "{{instance}} free"),
                ],
            },
        ],
    },
    Row {
        title: "Raft",
        panels: &[
            Panel {
                title: "Entries proposed, applied a second",
                unit: "ops",
                queries: &[
                    (
                        "rate(flotilla_raft_entries_proposed_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} proposed",
                    ),
                    (
                        "rate(flotilla_store_entries_applied_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} applied",
                    ),
                ],
            },
            Panel {
                title: "Backlogs",
                unit: "bytes",
                queries: &[
                    (
                        "flotilla_queues_log_backlog_bytes{instance=~\"$instance\"}",
                        "{{instance}} log",
                    ),
                    (
                        "flotilla_queues_apply_backlog_bytes{instance=~\"$instance\"}",
                        "{{instance}} apply",
                    ),
                    ("flotilla_pages_dirty_bytes{instance=~\"$instance\"}", "{{instance}} dirty"),
                ],
            },
            Panel {
                title: "Splits, snapshots, members, transfers a minute",
                unit: "opm",
                queries: &[
                    (
                        "60 * rate(flotilla_raft_splits_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} splits",
                    ),
                    (
                        "60 * rate(flotilla_transport_snapshots_sent_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} snapshots sent",
                    ),
                    (
                        "60 * rate(flotilla_raft_membership_changes_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} changes of members",
                    ),
                    (
                        "60 * rate(flotilla_raft_transfers_done_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} transfers",
                    ),
                ],
            },
            Panel {
                title: "Messages dropped a second",
                unit: "ops",
                queries: &[
                    (
                        "rate(flotilla_transport_messages_dropped_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} on the way out",
                    ),
                    (
                        "rate(flotilla_raft_dropped_lagging_total{instance=~\"$instance\"}[$__rate_interval])",
                        "{{instance}} lagging",
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Process",
        panels: &[
            Panel {
                title: "CPU",
                unit: "percentunit",
                queries: &[(
                    "rate(process_cpu_seconds_total{instance=~\"$instance\"}[$__rate_interval])",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Memory",
                unit: "bytes",
                queries: &[
                    (
                        "process_resident_memory_bytes{instance=~\"$instance\"}",
                        "{{instance}} resident",
                    ),
                    ("flotilla_log_index_bytes{instance=~\"$instance\"}", "{{instance}} log index"),
                    ("flotilla_log_cache_bytes{instance=~\"$instance\"}", "{{instance}} log cache"),
                ],
            },
            Panel {
                title: "Connected stores",
                unit: "short",
                queries: &[(
                    "flotilla_node_stores_connected{instance=~\"$instance\"}",
                    "{{instance}}",
                )],
            },
            Panel {
                title: "Clock, off the other stores'",
                unit: "s",
                queries: &[(
                    "flotilla_requests_clock_deviation_seconds{instance=~\"$instance\"}",
                    "{{instance}}",
                )],
            },
        ],
    },
];

/// Columns of Grafana's grid.
const GRID_COLUMNS: usize = 24;
/// Height of a panel in the grid.
const PANEL_HEIGHT: usize = 8;

/// The dashboard, as Grafana imports it.
pub(crate) fn json() -> String {
    let mut panels = Vec::new();
    let mut y = 0;
    for row in ROWS {
        let id = panels.len() + 1;
        let place = json!({ "h": 1, "w": GRID_COLUMNS, "x": 0, "y": y });
        panels.push(json!({ "type": "row", "id": id, "title": row.title, "gridPos": place }));
        y += 1;
        let width = GRID_COLUMNS / row.panels.len();
        for (at, panel) in row.panels.iter().enumerate() {
            let place = json!({ "h": PANEL_HEIGHT, "w": width, "x": at * width, "y": y });
            panels.push(panel_json(panel, panels.len() + 1, place));
        }
        y += PANEL_HEIGHT;
    }
    let dashboard = json!({
        "title": "Flotilla",
        "uid": "flotilla",
        "tags": ["flotilla"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "type": "datasource", "query": "prometheus" },
            {
                "name": "instance", "type": "query", "label": "Store", "datasource": datasource(),
                "query": "label_values(flotilla_store_info, instance)",
                "multi": true, "includeAll": true, "refresh": 2, "sort": 1,
                "current": { "text": "All", "value": "$__all" },
            },
        ] },
        "panels": panels,
    });
    serde_json::to_string_pretty(&dashboard).expect("it is a document") + "\n"
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn panel_json(panel: &Panel, id: usize, place: Value) -> Value {
    let targets = panel.queries.iter().zip('A'..).map(|((query, legend), name)| {
        json!({
            "refId": name.to_string(), "expr": query, "legendFormat": legend,
            "datasource": datasource(),
        })
    });
    json!({
        "type": "timeseries",
        "id": id,
        "title": panel.title,
        "gridPos": place,
        "datasource": datasource(),
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "options": { "legend": { "displayMode": "list", "placement": "bottom" } },
        "targets": targets.collect::<Vec<_>>(),
    })
}
