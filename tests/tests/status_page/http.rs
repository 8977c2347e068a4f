//! Plain HTTP, and waiting for a condition.

use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Duration;

/// How long anything may take on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The answer to a request on a connection of its own.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Asks the store at `addr`.
pub(crate) async fn ask(addr: &str, path: &str) -> HttpAnswer {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("an answer, and the end of the connection").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpAnswer { status, head: head.to_owned(), body: body.to_owned() }
}

/// The document at `path`.
pub(crate) async fn document(addr: &str, path: &str) -> Value {
    let HttpAnswer { status, body, .. } = ask(addr, path).await;
    assert_eq!(status, 200, "{addr}{path}: {body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
}

/// The value of a metric without labels.
pub(crate) async fn metric(addr: &str, name: &str) -> f64 {
    let scrape = ask(addr, "/metrics").await.body;
    let value = scrape.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in {scrape}")).parse().unwrap()
}

/// What `look` finds as soon as it finds anything.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "not in {PATIENCE:?}: {what}");
        tokio::task::yield_now().await;
    }
}
