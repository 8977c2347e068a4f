//! Evidence from stores: each is asked for the documents that it serves, all at the same time.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_client::{Error as ClientError, Observer};
use serde_json::Value;
use tokio::task::JoinSet;

use super::evidence::{Evidence, PART_BYTES_MAX};
use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, is_gone};

/// Documents of JSON, and the names of their parts.
const DOCUMENTS: [(&str, &str); 7] = [
    ("/ready", "ready.json"),
    ("/status/store", "store.json"),
    ("/status/stores", "stores.json"),
    ("/status/regions", "regions.json"),
    ("/status/history", "history.json"),
    ("/status/log", "log.json"),
    ("/status/pages", "pages.json"),
];
/// The settings are first: they say whether the log has keys.
const SETTINGS: (&str, &str) = ("/status/settings", "settings.json");
const LOG_LINES: (&str, &str) = ("/log-lines", "log-lines.txt");
/// Texts without keys.
const TEXTS: [(&str, &str); 2] = [("/metrics", "metrics.txt"), ("/log-level", "log-level.txt")];
/// Stores that are asked at most.
const STORES_MAX: usize = 1000;

/// Asks each store of the cluster. If no store says which there are, those at the endpoints.
pub(super) async fn gather(target: &ClusterTarget, evidence: &Arc<Evidence>) {
    let mut stores = BTreeSet::new();
    match target.ask_registry().await {
        Ok(told) => {
            for known in told.stores.iter().filter(|known| !is_gone(known)) {
                let address = known.store.clone().unwrap_or_default().address;
                stores.insert((known.name.clone(), address));
            }
        }
        Err(error) => {
            evidence.note(format!("the list of stores: {error}"));
            let named = |endpoint: &String| (endpoint.replace(':', "-"), endpoint.clone());
            stores.extend(target.endpoints.iter().map(named));
        }
    }
    let mut asked = JoinSet::new();
    for (name, address) in stores.into_iter().take(STORES_MAX) {
        match target.observer(&address) {
            Ok(observer) => {
                let store = StoreEvidence { directory: directory(&name), observer };
                let evidence = Arc::clone(evidence);
                asked.spawn(async move { store.ask(&evidence).await });
            }
            Err(error) => evidence.note(format!("{name} at {address}: {error}")),
        }
    }
    asked.join_all().await;
}

/// The directory of a store in the bundle, whatever its name is.
fn directory(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let plain: String =
        name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    format!("stores/{plain}")
}

/// A store that is asked.
struct StoreEvidence {
    directory: String,
    observer: Observer,
}

impl StoreEvidence {
    async fn ask(self, evidence: &Evidence) {
        let settings = match self.document(SETTINGS.0).await {
            Err(error @ ClientError::Unreachable { .. }) => {
                // It would not answer the others either, and each would take its time.
                evidence.note(format!("{}: no answer: {}", self.directory, reason(&error)));
                return;
            }
            settings => self.add_json(evidence, SETTINGS.1, settings),
        };
        for (path, part) in DOCUMENTS {
            let document = self.document(path).await;
            self.add_json(evidence, part, document);
        }
        for (path, part) in TEXTS {
            self.add_text(evidence, part, self.document(path).await);
        }
        let settings = settings.and_then(|it| serde_json::from_slice::<Value>(&it).ok());
        match settings.is_some_and(|settings| settings["log_redact"] == true) {
            true => self.add_text(evidence, LOG_LINES.1, self.document(LOG_LINES.0).await),
            false => evidence.note(format!(
                "{}/{}: left out: log_redact is not true, so its lines may have keys",
                self.directory, LOG_LINES.1
            )),
        }
    }

    async fn document(&self, path: &str) -> Result<Bytes, ClientError> {
        self.observer.document(path, PART_BYTES_MAX).await
    }

    /// Adds an answer, and gives it back.
    fn add_json(
        &self,
        evidence: &Evidence,
        part: &str,
        answer: Result<Bytes, ClientError>,
    ) -> Option<Bytes> {
        let path = format!("{}/{part}", self.directory);
        match answer {
            Ok(document) => {
                evidence.add_json(&path, &document);
                Some(document)
            }
            Err(error) => {
                evidence.note(format!("{path}: {}", reason(&error)));
                None
            }
        }
    }

    fn add_text(&self, evidence: &Evidence, part: &str, answer: Result<Bytes, ClientError>) {
        let path = format!("{}/{part}", self.directory);
        match answer {
            Ok(text) => evidence.add(&path, text),
            Err(error) => evidence.note(format!("{path}: {}", reason(&error))),
        }
    }
}
