//! A state machine in memory: the data of all entries, one after the other.

use crate::kit::Types;
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};
use std::io::Cursor;
use std::sync::{Arc, Mutex};

type Result<T> = std::result::Result<T, StorageError<u64>>;

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, openraft::BasicNode>,
    data: Vec<String>,
}

#[derive(Clone, Default)]
pub(crate) struct Machine {
    state: Arc<Mutex<State>>,
    snapshot: Arc<Mutex<Option<State>>>,
}

impl Machine {
    pub(crate) fn data(&self) -> Vec<String> {
        self.state.lock().expect("nothing panics with it").data.clone()
    }
}

fn snapshot_of(state: &State) -> Snapshot<Types> {
    let bytes = serde_json::to_vec(state).expect("a state is JSON");
    let meta = SnapshotMeta {
        last_log_id: state.applied,
        last_membership: state.membership.clone(),
        snapshot_id: format!("{:?}", state.applied),
    };
    Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        let state = self.state.lock().expect("nothing panics with it").clone();
        let snapshot = snapshot_of(&state);
        *self.snapshot.lock().expect("nothing panics with it") = Some(state);
        Ok(snapshot)
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, openraft::BasicNode>)> {
        let state = self.state.lock().expect("nothing panics with it");
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<String>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state.lock().expect("nothing panics with it");
        let mut answers = Vec::new();
        for entry in entries {
            state.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => (),
                EntryPayload::Normal(data) => state.data.push(data),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            answers.push(state.data.len().to_string());
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, openraft::BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let state: State = serde_json::from_slice(snapshot.get_ref())
            .map_err(|error| StorageIOError::read_snapshot(Some(meta.signature()), &error))?;
        *self.state.lock().expect("nothing panics with it") = state.clone();
        *self.snapshot.lock().expect("nothing panics with it") = Some(state);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        Ok(self.snapshot.lock().expect("nothing panics with it").as_ref().map(snapshot_of))
    }
}
