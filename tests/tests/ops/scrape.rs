//! A scrape, and what promtool says of it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long anything may take on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The body of an answer to a plain request.
pub(crate) async fn ask(addr: &str, path: &str) -> String {
    let answer = answer(addr, path).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{path}: {head}");
    body.to_owned()
}

/// Whether the Prometheus at `addr` answers questions by now.
pub(crate) async fn is_ready(addr: &str) -> bool {
    answer(addr, "/-/ready").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

async fn answer(addr: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer in time")?;
    Ok(answer)
}

/// The metrics of the store at `addr`.
pub(crate) async fn metrics(addr: &str) -> String {
    ask(addr, "/metrics").await
}

/// Has promtool judge names, help texts and types.
pub(crate) fn check_metrics(scraped: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut promtool = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(scraped.as_bytes()).unwrap();
    let judged = promtool.wait_with_output().unwrap();
    assert!(judged.status.success(), "{judged:?}");
    // It reports what it dislikes and may still end well.
    assert!(judged.stderr.is_empty() && judged.stdout.is_empty(), "{judged:?}");
}

/// Has promtool parse the queries of the dashboard, as rules.
pub(crate) fn check_queries(dir: &Path, queries: &[&str]) {
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    for (at, query) in queries.iter().enumerate() {
        let query = query.replace("$__rate_interval", "1m").replace("$instance", ".*");
        let query = serde_json::Value::from(query);
        writeln!(rules, "      - record: query:{at}\n        expr: {query}").unwrap();
    }
    let path = dir.join("queries.yml");
    std::fs::write(&path, rules).unwrap();
    let parsed = Command::new("promtool").args(["check", "rules"]).arg(&path).output().unwrap();
    assert!(parsed.status.success(), "{parsed:?}");
}
