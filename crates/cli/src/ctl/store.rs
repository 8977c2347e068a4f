//! The state of a store: drained for a restart, leaving, lost, or up again.

use std::io::Write;
use std::time::{Duration, Instant};

use flotilla_proto::peers::{
    ChangeStoreRequest, KnownStore, StatsResponse, StoreChange, StoreState, StoresResponse,
};
use serde_json::json;

use super::placement::{self, LOOK};
use super::region::Wait;
use super::stores::state_word;
use super::text::ByteFormat;
use super::transfer::{find, store_id};
use crate::diagnosis::reason;
use crate::tool::{self, ClusterTarget, Error};

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum StoreCommand {
    /// Has a store lead nothing and get no replicas: `flotilla ctl store drain s1`
    ///
    /// For a restart, or work on its machine: it keeps its replicas. Waits until it leads nothing.
    /// `flotilla ctl store cancel s1` when it is back.
    Drain {
        /// Name or number of the store
        store: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Moves all replicas off a store, and takes it out of the cluster: `flotilla ctl store leave
    /// s4`
    ///
    /// Waits until it has left: its process ends then, and its directory is not needed any more.
    /// Refused if the other stores are too few for the replicas of each region.
    Leave {
        /// Name or number of the store
        store: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Declares that a store never comes back: `flotilla ctl store lost s2`
    ///
    /// For a store whose disk is gone, if no new one is at hand; else start the new one with
    /// --replace. The store must have been silent for ten seconds, and each region must have a
    /// majority on the others. Its directory can never be used again.
    Lost {
        /// Name or number of the store
        store: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Ends `drain` or `leave`, and the store takes part again: `flotilla ctl store cancel s1`
    Cancel {
        /// Name or number of the store
        store: String,
        #[command(flatten)]
        wait: Wait,
    },
}

/// Changes the state of a store, and waits for what follows from it.
pub(crate) async fn run(
    target: &ClusterTarget,
    command: &StoreCommand,
    format: ByteFormat,
    out: &mut impl Write,
) -> Result<(), Error> {
    let (name, wait, change) = match command {
        StoreCommand::Drain { store, wait } => (store, wait, StoreChange::Drain),
        StoreCommand::Leave { store, wait } => (store, wait, StoreChange::Leave),
        StoreCommand::Lost { store, wait } => (store, wait, StoreChange::Lost),
        StoreCommand::Cancel { store, wait } => (store, wait, StoreChange::Cancel),
    };
    let stores = target.registered_stores().await?.stores;
    let store = find(&stores, name)?;
    let until = target.end_of_wait(Duration::from_secs(wait.seconds));
    let mut told = String::new();
    let mut known = begin(target, &stores, store, change, until, &mut told).await?;
    let begun = known.state;
    loop {
        let (copy, answer) = look(target, store_id(store)).await?;
        known.learn(copy);
        let now = SeenStore { store, state: known.state, answer };
        if now.is_reached(change) {
            return now.done(change, format, out);
        }
        let (name, words) = (&store.name, now.words());
        if known.state != begun {
            return Err(Error::Refused(format!("{name} was changed by another command: {words}")));
        }
        tell(name, &words, &mut told);
        if Instant::now() >= until {
            return Err(Error::Refused(format!("{name} is not there yet: {words}; it goes on")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The state of a store in a copy of the registry.
#[derive(Clone, Copy)]
struct KnownState {
    state: StoreState,
    /// 0: the copy is that of an older version, which does not tell.
    registry_version: u64,
}

impl KnownState {
    /// Takes in the copy of some store, which may be an older one than that of another store.
    fn learn(&mut self, copy: Self) {
        if copy.registry_version == 0 || copy.registry_version >= self.registry_version {
            *self = copy;
        }
    }
}

/// Has the leader of placement write the change; the state that the store has by it.
async fn begin(
    target: &ClusterTarget,
    stores: &[KnownStore],
    store: &KnownStore,
    change: StoreChange,
    until: Instant,
    told: &mut String,
) -> Result<KnownState, Error> {
    let request = ChangeStoreRequest { store_id: store_id(store), change: change.into() };
    loop {
        let response = placement::ask(target, stores, until, async |operator| {
            let response = operator.change_store(request).await?;
            Ok((!response.is_led_elsewhere).then_some(response))
        });
        let answered = response.await?;
        let response = &answered.answer;
        let registry_version = response.registry_version;
        let known = KnownState { state: response.state(), registry_version };
        match &response.refusal[..] {
            "" => return Ok(known),
            refusal if !response.is_passing || Instant::now() >= until => {
                return Err(answered.refused(refusal));
            }
            refusal => tell(&store.name, refusal, told),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// One line on standard error for each thing that is new.
fn tell(name: &str, words: &str, told: &mut String) {
    if words != told {
        tool::tell(format_args!("{name}: {words}"));
        words.clone_into(told);
    }
}

/// The state of a store in the copy of the registry that some store has, and its own answer.
async fn look(
    target: &ClusterTarget,
    id: u64,
) -> Result<(KnownState, Result<StatsResponse, flotilla_client::Error>), Error> {
    let StoresResponse { stores, registry_version, .. } = target.registered_stores().await?;
    let found = stores.into_iter().find(|store| store_id(store) == id);
    let store = found.ok_or_else(|| Error::Absent(format!("there is no store {id}")))?;
    let known = KnownState { state: store.state(), registry_version };
    let address = store.store.unwrap_or_default().address;
    let answer = target.observer(&address)?.stats().await;
    // Another store may listen there by now.
    let answer = answer.and_then(|stats| match stats.store_id == id {
        true => Ok(stats),
        false => Err(flotilla_client::Error::NotServing {
            endpoint: address,
            reason: format!("store {} listens there", stats.store_id),
        }),
    });
    Ok((known, answer))
}

/// A store as the registry has it, and as it describes itself.
struct SeenStore<'a> {
    store: &'a KnownStore,
    state: StoreState,
    answer: Result<StatsResponse, flotilla_client::Error>,
}

impl SeenStore<'_> {
    fn is_reached(&self, change: StoreChange) -> bool {
        let state = state_word(self.state);
        match change {
            StoreChange::Drain => {
                state == "draining" && self.answer.as_ref().is_ok_and(|stats| stats.leaders == 0)
            }
            StoreChange::Leave => state == "removed",
            StoreChange::Lost => state == "lost",
            StoreChange::Cancel => state == "up",
            StoreChange::None => true,
        }
    }

    fn words(&self) -> String {
        let state = state_word(self.state);
        match &self.answer {
            Ok(StatsResponse { leaders, replicas, .. }) => {
                format!("{state}, {replicas} replicas, {leaders} of them leaders")
            }
            Err(error) => format!("{state}, no answer ({})", reason(error)),
        }
    }

    fn done(
        &self,
        change: StoreChange,
        format: ByteFormat,
        out: &mut impl Write,
    ) -> Result<(), Error> {
        let (name, state) = (&self.store.name, state_word(self.state));
        if format.is_json {
            let stats = self.answer.as_ref().ok();
            let row = json!({
                "store": store_id(self.store),
                "name": name,
                "state": state,
                "replicas": stats.map(|stats| stats.replicas),
                "leaders": stats.map(|stats| stats.leaders),
            });
            return Ok(writeln!(out, "{row:#}")?);
        }
        let words = match change {
            StoreChange::Drain => {
                format!("{name} is drained: it leads nothing, and may be stopped for a while")
            }
            StoreChange::Leave => {
                format!("{name} has left: its process ends, and its directory is not needed")
            }
            StoreChange::Lost => {
                format!("{name} is lost for ever: other stores get the replicas that it had")
            }
            StoreChange::Cancel | StoreChange::None => format!("{name} is {state}"),
        };
        Ok(writeln!(out, "{words}")?)
    }
}

#[cfg(test)]
mod tests {
    use flotilla_proto::metapb;

    use super::*;

    fn store() -> KnownStore {
        let place = metapb::Store { id: 4, ..Default::default() };
        KnownStore { name: "s4".to_owned(), store: Some(place), ..Default::default() }
    }

    fn seen(store: &KnownStore, state: StoreState, leaders: u64) -> SeenStore<'_> {
        let answer = Ok(StatsResponse { store_id: 4, replicas: 7, leaders, ..Default::default() });
        SeenStore { store, state, answer }
    }

    fn silent(store: &KnownStore, state: StoreState) -> SeenStore<'_> {
        let reason = "refused".to_owned();
        let error = flotilla_client::Error::Unreachable { endpoints: "h:4".to_owned(), reason };
        SeenStore { answer: Err(error), ..seen(store, state, 0) }
    }

    #[test]
    fn a_copy_of_the_registry_from_before_the_change_says_nothing() {
        use StoreState::{StoreDraining, StoreLeaving, StoreUp};
        let copy = |state, registry_version| KnownState { state, registry_version };
        let mut known = copy(StoreUp, 7);
        for (seen, state) in [
            (copy(StoreDraining, 5), StoreUp),
            (copy(StoreLeaving, 6), StoreUp),
            (copy(StoreUp, 8), StoreUp),
            // Another command has changed it again.
            (copy(StoreLeaving, 9), StoreLeaving),
            (copy(StoreUp, 8), StoreLeaving),
            // The copy of an older version.
            (copy(StoreUp, 0), StoreUp),
        ] {
            known.learn(seen);
            assert_eq!(known.state, state, "{}", seen.registry_version);
        }
    }

    #[test]
    fn a_change_is_reached_when_its_store_is_where_it_should_be() {
        use StoreState::{StoreDraining, StoreLeaving, StoreLost, StoreRemoved, StoreUp};
        let at = &store();
        for (change, seen, reached) in [
            (StoreChange::Drain, seen(at, StoreDraining, 0), true),
            (StoreChange::Drain, seen(at, StoreDraining, 1), false),
            (StoreChange::Drain, silent(at, StoreDraining), false),
            (StoreChange::Drain, seen(at, StoreUp, 0), false),
            (StoreChange::Leave, seen(at, StoreLeaving, 0), false),
            (StoreChange::Leave, silent(at, StoreRemoved), true),
            (StoreChange::Lost, silent(at, StoreLost), true),
            (StoreChange::Cancel, seen(at, StoreUp, 3), true),
            (StoreChange::Cancel, seen(at, StoreDraining, 3), false),
        ] {
            assert_eq!(seen.is_reached(change), reached, "{change:?} {}", seen.words());
        }
    }

    #[test]
    fn the_progress_and_the_end_are_told() {
        let at = &store();
        let words = seen(at, StoreState::StoreLeaving, 2).words();
        assert_eq!(words, "leaving, 7 replicas, 2 of them leaders");
        assert!(silent(at, StoreState::StoreDraining).words().starts_with("draining, no answer ("));
        let said = |seen: &SeenStore<'_>, change, is_json| {
            let mut out = vec![];
            seen.done(change, ByteFormat { is_hex: false, is_json, screen_width: None }, &mut out)
                .unwrap();
            String::from_utf8(out).unwrap()
        };
        let drained = seen(at, StoreState::StoreDraining, 0);
        assert!(said(&drained, StoreChange::Drain, false).starts_with("s4 is drained"));
        let row: serde_json::Value =
            serde_json::from_str(&said(&drained, StoreChange::Drain, true)).unwrap();
        let expected =
            json!({ "store": 4, "name": "s4", "state": "draining", "replicas": 7, "leaders": 0 });
        assert_eq!(row, expected);
        let left = said(&silent(at, StoreState::StoreRemoved), StoreChange::Leave, false);
        assert!(left.starts_with("s4 has left"), "{left}");
    }
}
