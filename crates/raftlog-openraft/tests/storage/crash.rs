//! Random changes of several groups, with the power cut anywhere: what was acknowledged is there,
//! and a change is there as a whole or not at all.

use crate::kit::{Log, Types, entries, group, open};
use flotilla_raftlog_openraft::Flusher;
use flotilla_vfs::fault::FaultFs;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::log_id;
use openraft::{Entry, LogId, RaftLogReader, StorageError, Vote};

const GROUPS: usize = 3;

/// The contents of a group.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
    entries: Vec<Entry<Types>>,
}

impl Model {
    fn next(&self) -> u64 {
        let purged = self.purged.map_or(0, |purged| purged.index + 1);
        self.entries.last().map_or(purged, |last| last.log_id.index + 1)
    }

    /// Fails only while the power is gone.
    async fn of(log: &mut Log) -> Result<Model, StorageError<u64>> {
        let state = log.get_log_state().await?;
        let entries = log.try_get_log_entries(..).await?;
        let vote = log.read_vote().await?;
        let model = Model { vote, purged: state.last_purged_log_id, entries };
        let last = model.entries.last().map(|last| last.log_id).or(model.purged);
        assert_eq!(state.last_log_id, last);
        Ok(model)
    }
}

struct Run {
    disk: FaultFs,
    flusher: Option<Flusher>,
    logs: Vec<Log>,
    models: Vec<Model>,
    rng: fastrand::Rng,
}

impl Run {
    fn new(seed: u64) -> Run {
        let disk = FaultFs::new(seed);
        let flusher = open(&disk);
        let logs = (0..GROUPS).map(|id| group(&flusher, id as u64)).collect();
        let (models, rng) = (vec![Model::default(); GROUPS], fastrand::Rng::with_seed(seed));
        let flusher = Some(flusher);
        Run { disk, flusher, logs, models, rng }
    }

    /// Changes a group: what it should then hold, and how the change came out.
    async fn change(&mut self, at: usize) -> (Model, Result<(), StorageError<u64>>) {
        let (log, mut model) = (&mut self.logs[at], self.models[at].clone());
        let (next, term) = (model.next(), self.rng.u64(1..5));
        let first = model.entries.first().map_or(next, |first| first.log_id.index);
        let result = match self.rng.u32(..10) {
            0 => {
                let vote = Vote::new(term, self.rng.u64(1..4));
                model.vote = Some(vote);
                log.save_vote(&vote).await
            }
            1..3 => {
                let index = self.rng.u64(first..=next);
                model.entries.retain(|entry| entry.log_id.index < index);
                log.truncate(log_id(term, 1, index)).await
            }
            3 => {
                // Also beyond the last, as after a snapshot.
                let index = self.rng.u64(first..next + 3);
                model.entries.retain(|entry| entry.log_id.index > index);
                model.purged = Some(log_id(term, 1, index));
                log.purge(log_id(term, 1, index)).await
            }
            _ => {
                log.save_committed(Some(log_id(1, 1, first))).await.expect("it costs nothing");
                let more = entries(term, next, self.rng.u64(1..6));
                model.entries.extend(more.iter().cloned());
                log.blocking_append(more).await
            }
        };
        (model, result)
    }

    async fn recover(&mut self) {
        // The threads of a machine without power do nothing: they end before it is back.
        self.logs.clear();
        self.flusher = None;
        self.disk.power_loss(self.rng.u64(..));
        let flusher = self.flusher.insert(open(&self.disk));
        self.logs = (0..GROUPS).map(|id| group(flusher, id as u64)).collect();
    }
}

#[tokio::test]
async fn no_crash_loses_what_was_acknowledged() {
    let (mut crash_count, mut kept_count) = (0, 0);
    for seed in 0..150 {
        // Shown when the test fails.
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..4 {
            run.disk.cut_power_after(run.rng.u64(1..60));
            loop {
                let at = run.rng.usize(..GROUPS);
                let (model, result) = run.change(at).await;
                let is_done = result.is_ok();
                if is_done {
                    run.models[at] = model.clone();
                    // Behind the change the log is maintained, and the power may go there as well.
                    if let Ok(found) = Model::of(&mut run.logs[at]).await {
                        assert_eq!(found, run.models[at]);
                        continue;
                    }
                }
                run.recover().await;
                crash_count += 1;
                let found = Model::of(&mut run.logs[at]).await.expect("there is power");
                if !is_done && found == model && found != run.models[at] {
                    kept_count += 1;
                    run.models[at] = model;
                }
                break;
            }
            for at in 0..GROUPS {
                let found = Model::of(&mut run.logs[at]).await.expect("there is power");
                assert_eq!(found, run.models[at], "group {at}");
            }
        }
    }
    assert!(crash_count == 600 && kept_count > 20, "{crash_count} crashes, {kept_count} kept");
}

#[tokio::test]
async fn the_committed_index_travels_with_the_next_write() {
    let disk = FaultFs::new(1);
    let mut log = group(&open(&disk), 7);
    log.blocking_append(entries(1, 0, 3)).await.expect("it is synced");
    log.save_committed(Some(log_id(1, 1, 1))).await.expect("it costs nothing");
    log.save_vote(&Vote::new(1, 1)).await.expect("it is synced");
    log.save_committed(Some(log_id(1, 1, 2))).await.expect("it costs nothing");
    assert_eq!(log.read_committed().await, Ok(Some(log_id(1, 1, 2))));
    drop(log);
    disk.power_loss(1);
    let mut log = group(&open(&disk), 7);
    assert_eq!(log.read_committed().await, Ok(Some(log_id(1, 1, 1))));
}
