//! Diagnoses why a cluster does not serve: which stores answer, and how many it needs.
//!
//! The stores themselves are asked, one by one: placement may be missing.

use std::collections::BTreeSet;

use flotilla_proto::peers::{Space, StatsResponse};
use tokio::task::JoinSet;

use crate::tool::{ClusterTarget, Error};

/// A store of the registry, and its answer.
#[derive(Clone, Debug)]
struct AskedStore {
    id: u64,
    name: String,
    address: String,
    answer: Result<StatsResponse, String>,
}

/// The answers of all stores.
#[derive(Clone, Debug, Default)]
struct ClusterDiagnosis {
    stores: Vec<AskedStore>,
    /// The stores with a replica of the system region, if one of them answers.
    system: BTreeSet<u64>,
}

/// Does what `tool` does. Where it fails for want of a quorum, the error says which stores are
/// missing.
///
/// # Errors
///
/// As `tool`, with [`Error::Client`] explained where the stores that answer show a cause.
pub async fn explained(
    target: &ClusterTarget,
    tool: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    match tool.await {
        Err(error) => Err(cause(target, &error).await.unwrap_or(error)),
        result => result,
    }
}

/// Says of an error that may come of a missing quorum whether it does; `None` if it does not, or if
/// no store answers.
pub(crate) async fn cause(target: &ClusterTarget, error: &Error) -> Option<Error> {
    let Error::Client(error) = error else { return None };
    let is_leaderless = matches!(error, flotilla_client::Error::NoLeader { .. });
    if !is_leaderless && !matches!(error, flotilla_client::Error::Deadline { .. }) {
        return None;
    }
    // Without the list of stores there is nothing to add.
    let words = ask(target).await.ok()?.words(is_leaderless)?;
    Some(Error::NoQuorum(if is_leaderless { words } else { format!("{words} ({error})") }))
}

async fn ask(target: &ClusterTarget) -> Result<ClusterDiagnosis, Error> {
    let mut asking = JoinSet::new();
    for known in target.stores().await? {
        let store = known.store.unwrap_or_default();
        let observer = target.observer(&store.address)?;
        asking.spawn(async move {
            let stats = observer.stats().await;
            let regions = match &stats {
                Ok(_) => observer.regions().await.unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            let system = regions.into_iter().filter(|region| region.space() == Space::System);
            let system = system.flat_map(|region| region.region.unwrap_or_default().peers);
            let system: BTreeSet<u64> = system.map(|peer| peer.store_id).collect();
            let (id, address) = (store.id, store.address);
            let answer = stats.map_err(|error| reason(&error));
            (AskedStore { id, name: known.name, address, answer }, system)
        });
    }
    let mut diagnosis = ClusterDiagnosis::default();
    for (store, system) in asking.join_all().await {
        diagnosis.stores.push(store);
        diagnosis.system.extend(system);
    }
    diagnosis.stores.sort_by_key(|store| store.id);
    Ok(diagnosis)
}

/// Why a store that was asked has no answer, without its address.
pub(crate) fn reason(error: &flotilla_client::Error) -> String {
    match error {
        flotilla_client::Error::Unreachable { reason, .. }
        | flotilla_client::Error::NotServing { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

impl ClusterDiagnosis {
    /// The cause that keeps the cluster from serving, if the answers show it. `is_leaderless`:
    /// placement has no leader, so there is one.
    fn words(&self, is_leaderless: bool) -> Option<String> {
        let (count, answering) = (self.stores.len(), self.answering().count());
        let (needed, voters) = self.need();
        let has_quorum = voters.iter().filter(|voter| voter.answer.is_ok()).count() >= needed;
        let silent: Vec<_> = self.stores.iter().filter_map(AskedStore::silence).collect();
        if silent.is_empty() {
            let apart = self.apart();
            if !apart.is_empty() {
                return Some(format!(
                    "all {count} stores answer, but do not reach each other: {}; the log of each \
                     says why",
                    apart.join(", ")
                ));
            }
            let election = "the system region has no leader; an election may be under way, try \
                            again";
            return is_leaderless.then(|| format!("all {count} stores answer, but {election}"));
        }
        let (answers, do_not) = (verb(answering, "answers", "answer"), silent.join(", "));
        let negation = verb(silent.len(), "does", "do");
        let whole = match voters.len() == count {
            true => format!("the cluster needs {needed}"),
            false => {
                let names: Vec<_> = voters.iter().map(|voter| voter.name.as_str()).collect();
                format!("the system region needs {needed} of {}", names.join(", "))
            }
        };
        let election = match has_quorum && is_leaderless {
            true => ", so an election may be under way: try again",
            false => "",
        };
        Some(format!(
            "{answering} of {count} stores {answers}: {do_not} {negation} not; {whole}{election}"
        ))
    }

    fn answering(&self) -> impl Iterator<Item = (&AskedStore, &StatsResponse)> {
        self.stores.iter().filter_map(|store| Some((store, store.answer.as_ref().ok()?)))
    }

    /// How many of which stores placement needs.
    fn need(&self) -> (usize, Vec<&AskedStore>) {
        let is_voter = |store: &AskedStore| self.system.contains(&store.id);
        let voters: Vec<_> = match self.system.is_empty() {
            true => self.stores.iter().collect(),
            false => self.stores.iter().filter(|store| is_voter(store)).collect(),
        };
        (voters.len() / 2 + 1, voters)
    }

    /// Stores that answer, but lack connections to others.
    fn apart(&self) -> Vec<String> {
        let lacking = |stats: &StatsResponse| stats.stores_connected < stats.stores_known;
        let apart = self.answering().filter(|(_, stats)| lacking(stats));
        apart
            .map(|(store, stats)| {
                let StatsResponse { stores_connected: connected, stores_known: known, .. } = stats;
                format!("{} is connected to {connected} of {known}", store.name)
            })
            .collect()
    }
}

impl AskedStore {
    fn silence(&self) -> Option<String> {
        let reason = self.answer.as_ref().err()?;
        Some(format!("{} at {} ({reason})", self.name, self.address))
    }
}

fn verb(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores of which some answer, each with so many connections.
    fn diagnosis(connected: &[Option<u64>], system: &[u64]) -> ClusterDiagnosis {
        let stores = connected.iter().enumerate().map(|(at, connected)| AskedStore {
            id: at as u64 + 1,
            name: format!("s{}", at + 1),
            address: format!("h:{}", at + 1),
            answer: connected.ok_or_else(|| "refused".to_owned()).map(|stores_connected| {
                let stores_known = system.len() as u64;
                StatsResponse { stores_connected, stores_known, ..StatsResponse::default() }
            }),
        });
        ClusterDiagnosis { stores: stores.collect(), system: system.iter().copied().collect() }
    }

    #[test]
    fn stores_that_do_not_answer_are_named_with_what_the_cluster_needs() {
        let alone = diagnosis(&[Some(1), None, None], &[1, 2, 3]);
        let words = "1 of 3 stores answers: s2 at h:2 (refused), s3 at h:3 (refused) do not; the \
                     cluster needs 2";
        assert_eq!(alone.words(true).unwrap(), words);
        assert_eq!(alone.words(false).unwrap(), words);
        let two = diagnosis(&[Some(2), Some(2), None], &[1, 2, 3]).words(true).unwrap();
        let words = "2 of 3 stores answer: s3 at h:3 (refused) does not; the cluster needs 2, so an \
                     election may be under way: try again";
        assert_eq!(two, words);
    }

    #[test]
    fn a_large_cluster_needs_those_that_hold_the_system_region() {
        let most = [Some(4), Some(4), None, None, None, Some(4), Some(4)];
        let words = diagnosis(&most, &[1, 2, 3, 4, 5]).words(true).unwrap();
        assert!(words.starts_with("4 of 7 stores answer: s3 at h:3"), "{words}");
        assert!(words.ends_with("the system region needs 3 of s1, s2, s3, s4, s5"), "{words}");
    }

    #[test]
    fn stores_that_all_answer_may_not_reach_each_other() {
        let apart = diagnosis(&[Some(1), Some(3), Some(2)], &[1, 2, 3]).words(true).unwrap();
        assert!(apart.contains("s1 is connected to 1 of 3, s3 is connected to 2 of 3"), "{apart}");
        let sound = diagnosis(&[Some(3), Some(3), Some(3)], &[1, 2, 3]);
        assert!(sound.words(true).unwrap().contains("an election may be under way"));
        assert_eq!(sound.words(false), None, "nothing explains a slow request");
    }
}
