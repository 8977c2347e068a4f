//! Which crate may use which. The table here is the one in docs/architecture.md.

use crate::tree;
use std::path::Path;

/// A crate, the crates of ours that it may use, and whether outside packages of the rim are
/// allowed.
struct Allowed {
    name: &'static str,
    ours: &'static [&'static str],
    rim: bool,
}

const TABLE: &[Allowed] = &[
    Allowed { name: "base", ours: &[], rim: false },
    Allowed { name: "vfs", ours: &[], rim: false },
    Allowed { name: "raftlog", ours: &["base", "vfs"], rim: false },
    Allowed { name: "raftlog-openraft", ours: &["raftlog"], rim: false },
    Allowed { name: "raftlog-raft-rs", ours: &["raftlog"], rim: false },
    Allowed { name: "pagestore", ours: &["base", "vfs"], rim: false },
    Allowed { name: "region", ours: &["base"], rim: false },
    Allowed { name: "kv", ours: &["base"], rim: false },
    Allowed { name: "backup", ours: &["base", "kv"], rim: false },
    Allowed { name: "identity", ours: &["base", "region"], rim: false },
    Allowed { name: "placement", ours: &["base"], rim: false },
    Allowed { name: "dispatch", ours: &["kv", "region"], rim: false },
    Allowed {
        name: "store",
        ours: &["base", "identity", "kv", "region", "raftlog", "pagestore", "vfs"],
        rim: false,
    },
    Allowed {
        name: "sim",
        // Of the page store the tools that find the page of a key, whose bit flips.
        ours: &["store", "identity", "kv", "region", "placement", "dispatch", "pagestore", "vfs"],
        rim: false,
    },
    Allowed { name: "proto", ours: &[], rim: true },
    Allowed { name: "tls", ours: &[], rim: true },
    Allowed { name: "client", ours: &["base", "kv", "proto", "tls"], rim: true },
    Allowed {
        name: "node",
        ours: &[
            "backup",
            "base",
            "vfs",
            "raftlog",
            "pagestore",
            "proto",
            "kv",
            "region",
            "identity",
            "placement",
            "dispatch",
            "store",
            "tls",
        ],
        rim: true,
    },
    Allowed {
        name: "cli",
        ours: &[
            "backup",
            "base",
            "vfs",
            "raftlog",
            "pagestore",
            "proto",
            "region",
            "identity",
            "placement",
            "store",
            "tls",
            "client",
            "node",
        ],
        rim: true,
    },
];

/// Packages that only the rim may use: runtimes, wire formats, what asks the machine for chance.
const RIM: &[&str] = &[
    "tokio",
    "tokio-stream",
    "tonic",
    "tonic-prost",
    "prost",
    "futures",
    "hyper",
    "tracing-subscriber",
];

/// Packages that only these crates may use: what hides them, and what is made for them.
const HIDDEN: &[(&str, &[&str])] = &[
    ("raft", &["region", "raftlog-raft-rs"]),
    ("openraft", &["raftlog-openraft"]),
    ("memmap2", &["vfs"]),
    ("rustls", &["tls"]),
    ("tokio-rustls", &["tls"]),
];

/// Every dependency that the tables do not allow.
pub(crate) fn forbidden() -> Vec<String> {
    let mut findings = Vec::new();
    for path in tree::crates() {
        let name =
            path.file_name().expect("a crate's folder has a name").to_string_lossy().into_owned();
        match TABLE.iter().find(|a| a.name == name) {
            None => findings.push(format!("{name}: not in the table of crates")),
            Some(allowed) => check(allowed, &dependencies(&path.join("Cargo.toml")), &mut findings),
        }
    }
    findings
}

fn dependencies(manifest: &Path) -> Vec<String> {
    let manifest: toml::Table = tree::text(manifest).parse().expect("a manifest is TOML");
    manifest
        .get("dependencies")
        .and_then(toml::Value::as_table)
        .map(|table| table.keys().cloned().collect())
        .unwrap_or_default()
}

fn check(allowed: &Allowed, dependencies: &[String], findings: &mut Vec<String>) {
    let name = allowed.name;
    for package in dependencies {
        if let Some(ours) = package.strip_prefix("flotilla-") {
            if !allowed.ours.contains(&ours) {
                findings.push(format!("{name} -> {ours}: no such arrow"));
            }
        } else if !allowed.rim && RIM.contains(&package.as_str()) {
            findings.push(format!("{name} -> {package}: belongs to the rim"));
        }
        if HIDDEN.iter().any(|(hidden, owners)| hidden == package && !owners.contains(&name)) {
            findings.push(format!("{name} -> {package}: another crate hides it"));
        }
    }
}

#[test]
fn a_wrong_arrow_is_found() {
    let region = TABLE.iter().find(|a| a.name == "region").expect("region is in the table");
    let mut findings = Vec::new();
    let packages = ["flotilla-store", "tokio", "memmap2", "bytes"].map(String::from);
    check(region, &packages, &mut findings);
    assert_eq!(findings.len(), 3, "{findings:?}");
}
