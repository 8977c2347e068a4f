//! Requests to the store that leads placement, whichever that is.

use std::time::{Duration, Instant};

use flotilla_client::StoreOperator;
use flotilla_proto::peers::KnownStore;

use crate::diagnosis::reason;
use crate::tool::{ClusterTarget, Error, is_gone};

/// Between two looks at what is waited for, and for the leader of placement.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// Within this a new leader of placement is mostly found.
const ELECTION: Duration = Duration::from_secs(3);

/// An answer, and the store that gave it, for messages.
pub(crate) struct Answered<T> {
    pub(crate) answer: T,
    pub(super) store: String,
}

impl<T> Answered<T> {
    /// The error of a refusal in this answer.
    pub(crate) fn refused(&self, refusal: &str) -> Error {
        Error::Refused(format!("{}: {refusal}", self.store))
    }
}

/// The answer of the store that leads placement. `request` gives none at all others.
pub(crate) async fn ask<T>(
    target: &ClusterTarget,
    stores: &[KnownStore],
    until: Instant,
    request: impl AsyncFn(StoreOperator) -> Result<Option<T>, flotilla_client::Error>,
) -> Result<Answered<T>, Error> {
    let mut older_since = None;
    loop {
        let (mut silent, mut older) = (vec![], vec![]);
        // The address of one that is gone may be its successor's.
        for store in stores.iter().filter(|store| !is_gone(store)) {
            let address = store.store.clone().unwrap_or_default().address;
            match request(StoreOperator::new(&address, &target.bounded_config())?).await {
                Ok(Some(answer)) => {
                    return Ok(Answered { answer, store: format!("{} at {address}", store.name) });
                }
                Ok(None) => {}
                // The next one would refuse it as well.
                Err(error @ flotilla_client::Error::Rejected(_)) => return Err(error.into()),
                Err(flotilla_client::Error::Unimplemented { .. }) => older.push(&store.name[..]),
                Err(error) => {
                    silent.push(format!("{} at {address}: {}", store.name, reason(&error)))
                }
            }
        }
        // One of them may lead, and then no answer comes until it is upgraded.
        match older.is_empty() {
            true => older_since = None,
            false if older_since.get_or_insert_with(Instant::now).elapsed() >= ELECTION => {
                return Err(Error::Refused(older_words(&older)));
            }
            false => {}
        }
        if Instant::now() >= until {
            let silent =
                if silent.is_empty() { String::new() } else { format!(" ({})", silent.join("; ")) };
            return Err(Error::NoQuorum(format!("no store leads placement{silent}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn older_words(names: &[&str]) -> String {
    let (run, them) = if names.len() == 1 { ("runs", "it") } else { ("run", "them") };
    let names = names.join(", ");
    format!(
        "no store that knows this request leads placement: {names} {run} an older version, upgrade \
         {them} first"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_an_older_version_are_named() {
        let one = older_words(&["s2"]);
        assert!(one.ends_with("s2 runs an older version, upgrade it first"), "{one}");
        let two = older_words(&["s2", "s3"]);
        assert!(two.ends_with("s2, s3 run an older version, upgrade them first"), "{two}");
    }
}
