//! Real nodes of openraft, one a group, on one log that loses power.

use crate::kit::{Types, group, open};
use crate::machine::Machine;
use flotilla_vfs::fault::FaultFs;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Config, Raft, ServerState};
use std::sync::Arc;
use std::time::Duration;

const GROUPS: u64 = 8;
/// A bound for the test, not a rest.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// There is no other node.
struct Alone;

fn nobody<E: std::error::Error>() -> RPCError<u64, BasicNode, E> {
    RPCError::Unreachable(Unreachable::new(&std::io::Error::other("there is nobody else")))
}

impl RaftNetworkFactory<Types> for Alone {
    type Network = Alone;

    async fn new_client(&mut self, _: u64, _: &BasicNode) -> Alone {
        Alone
    }
}

impl RaftNetwork<Types> for Alone {
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        Err(nobody())
    }

    async fn install_snapshot(
        &mut self,
        _: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<
        InstallSnapshotResponse<u64>,
        RPCError<u64, BasicNode, RaftError<u64, InstallSnapshotError>>,
    > {
        Err(nobody())
    }

    async fn vote(
        &mut self,
        _: VoteRequest<u64>,
        _: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        Err(nobody())
    }
}

async fn start(
    disk: &FaultFs,
) -> (flotilla_raftlog_openraft::Flusher, Vec<(Raft<Types>, Machine)>) {
    let flusher = open(disk);
    let config = Config {
        heartbeat_interval: 20,
        election_timeout_min: 60,
        election_timeout_max: 90,
        ..Config::default()
    };
    let config = Arc::new(config.validate().expect("it is sound"));
    let mut nodes = Vec::new();
    for id in 0..GROUPS {
        let machine = Machine::default();
        let node = Raft::new(1, config.clone(), Alone, group(&flusher, id), machine.clone()).await;
        nodes.push((node.expect("it starts"), machine));
    }
    (flusher, nodes)
}

#[tokio::test]
async fn nodes_answer_for_what_they_wrote_before_the_power_went() {
    let disk = FaultFs::new(1);
    let mut expected: Vec<Vec<String>> = vec![Vec::new(); GROUPS as usize];
    for life in 0..3 {
        let (flusher, nodes) = start(&disk).await;
        for (id, (node, machine)) in nodes.iter().enumerate() {
            if life == 0 {
                let members = [(1, BasicNode::new("here"))];
                node.initialize(std::collections::BTreeMap::from(members))
                    .await
                    .expect("it is new");
            }
            node.wait(PATIENCE).state(ServerState::Leader, "elected").await.expect("it is alone");
            for number in 0..10 {
                let data = format!("{number} of life {life} of group {id}");
                node.client_write(data.clone()).await.expect("it leads");
                expected[id].push(data);
            }
            assert_eq!(machine.data(), expected[id], "applied again from the log, then the new");
        }
        disk.power_loss(life);
        for (node, _) in nodes {
            // It may have met the dead disk by now; it ends in any case.
            let _ = node.shutdown().await;
        }
        drop(flusher);
    }
}
