//! A snapshot that comes in, cut off at every single operation of the disk: the replica from before
//! is there, or the one from after, and no vote is forgotten.

use flotilla_region::UninitialisedReplica;

use super::snapshots::{Sent, install_task, offer, reset, send, sender};
use super::uninitialised::born_by_message;
use super::*;
use crate::StageOffer;

/// How far the history came that is cut off.
#[derive(Debug, Default)]
struct Progress {
    /// The vote that others may know of.
    vote: Option<HardState>,
    /// The last entry that was acknowledged, as that of the snapshot's counts.
    acknowledged: u64,
    /// A root has the snapshot.
    is_rooted: bool,
}

/// The regions of the receiver: it has region 2, or hears of it by a message.
fn regions_here(is_new: bool) -> Vec<Descriptor> {
    let mut all = regions();
    all.retain(|region| !is_new || region.id != RegionId(2));
    all
}

fn next_entry(sent: &Sent) -> LogEntry {
    entry(sent.head.index.0 + 1, 4, data(&[(1, &[put("c", "next")])]))
}

/// Receives and installs a snapshot of region 2 and goes on behind it, until the disk fails.
fn work(fs: &FaultFs, sent: &Sent, is_new: bool, at: &mut Progress) -> Result<(), Error> {
    let directory = try_directory(fs, config())?;
    let (store, _) = begin_all(directory, &regions_here(is_new))?;
    let voted = hard_state(2, 202, 0);
    if is_new {
        let birth = born_by_message(2, peer(2), voted);
        store.write_log(&[], &[birth], &[], &[]).wait()?;
    } else {
        let entries = [ops(1, &[put("a", "1")]), ops(2, &[put("gzz", "2")]), ops(3, &[])];
        let state = HardState { commit: Index(2), ..voted };
        store.write_log(&[write(2, state, &entries)], &[], &[], &[]).wait()?;
        at.acknowledged = 3;
        store.apply(&[task(2, &entries[..2])])?;
    }
    at.vote = Some(voted);
    let StageOffer::Go(stage) = offer(&store, sent) else { panic!("no region is in the way") };
    for (index, chunk) in (1..).zip(&sent.chunks) {
        if let Err(error) = store.stage_chunk(stage, chunk.clone()) {
            return Err(Error::Corrupt(error.to_string()));
        }
        if index % 4 == 0 {
            store.checkpoint()?;
        }
    }
    store.finish_stage(stage, sent.end).map_err(|error| Error::Corrupt(error.to_string()))?;
    // Raft has taken it, in the sender's term.
    let taken = hard_state(4, 0, 0);
    store.install(&install_task(sent, stage, taken))?;
    let told = store.checkpoint()?.replicas;
    assert!(told.iter().any(|replica| replica.installed == Some(stage)), "{told:?}");
    at.is_rooted = true;
    store.write_log(&[reset(sent, taken)], &[], &[], &[]).wait()?;
    at.vote = Some(taken);
    at.acknowledged = sent.head.index.0;
    let next = next_entry(sent);
    let state = HardState { commit: next.index, ..hard_state(4, 202, 0) };
    store.write_log(&[write(2, state, std::slice::from_ref(&next))], &[], &[], &[]).wait()?;
    at.vote = Some(state);
    at.acknowledged = next.index.0;
    store.apply(&[task(2, &[next])])?;
    store.checkpoint()?;
    let (first, term_before) = (Index(sent.head.index.0 + 2), Term(4));
    let (region, peer) = (RegionId(2), peer(2));
    let compaction = Compaction { region, peer, first, term_before };
    store.write_log(&[], &[], &[compaction], &[]).wait()?;
    store.purge_log()?;
    Ok(())
}

/// The replica of region 2 that a start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Old,
    New,
}

fn inspect(fs: &FaultFs, sent: &Sent, digest: u64, progress: &Progress, at: &str) -> Found {
    let directory = try_directory(fs, config()).unwrap_or_else(|error| panic!("{at}: {error}"));
    // A directory that was cut off before it was a member's begins as one that has region 2.
    let (store, found) =
        begin_all(directory, &regions_here(true)).unwrap_or_else(|error| panic!("{at}: {error}"));
    let report = store.check().unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!((report.pages.reservation_bytes, report.promised), (0, 0), "{at}");
    let replica = found.replicas.iter().find(|found| found.descriptor.id == RegionId(2));
    let (hard_state, last, outcome) = match (replica, &found.uninitialised[..]) {
        (Some(replica), []) => {
            let (applied, last) = (replica.applied.0.0, replica.last.0);
            let is_new = applied >= sent.head.index.0;
            assert!(last >= replica.hard_state.commit.0, "{at}");
            // No start: the vote of the applied entry's term would be unknown.
            assert!(replica.hard_state.term >= replica.applied.1, "{at}: {:?}", replica.hard_state);
            if is_new {
                let (index, found) = store.region_digest(RegionId(2)).unwrap();
                assert!(index.0 > sent.head.index.0 || found == digest, "{at}: other rows");
            } else {
                let expected: Vec<Row> = [("a", "1"), ("gzz", "2")][..applied as usize]
                    .iter()
                    .map(|(key, value)| ((*key).into(), (*value).into()))
                    .collect();
                assert_eq!(rows(&store, 2), expected, "{at}");
            }
            (replica.hard_state, last, if is_new { Found::New } else { Found::Old })
        }
        (None, [UninitialisedReplica { hard_state, .. }]) => (*hard_state, 0, Found::Old),
        (None, []) => (HardState::default(), 0, Found::Nothing),
        other => panic!("{at}: {other:?}"),
    };
    assert!(outcome == Found::New || !progress.is_rooted, "{at}: {outcome:?}");
    assert!(last >= progress.acknowledged, "{at}: {progress:?}, the log ends at {last}");
    if let Some(vote) = progress.vote {
        let kept = hard_state.term > vote.term
            || hard_state.term == vote.term
                && (vote.vote.is_none() || hard_state.vote == vote.vote);
        assert!(kept, "{at}: {vote:?} is forgotten, there is {hard_state:?}");
    }
    store.checkpoint().unwrap();
    store.purge_log().unwrap();
    store.check().unwrap_or_else(|error| panic!("{at}, after a checkpoint: {error}"));
    outcome
}

#[test]
fn the_power_may_go_at_any_operation_of_a_snapshot() {
    let from = sender(24);
    let mut sent = send(&from, 2, 4 << 10);
    // Of a later term than any that the receiver has heard of.
    sent.head.term = Term(4);
    let (_, digest) = from.region_digest(RegionId(2)).unwrap();
    for is_new in [false, true] {
        let whole = FaultFs::new(0);
        work(&whole, &sent, is_new, &mut Progress::default()).unwrap();
        let operations = whole.operations();
        let mut found = [0; 3];
        for cut in 1..=operations {
            for seed in 0..4 {
                let fs = FaultFs::new(0);
                fs.cut_power_after(cut);
                let mut progress = Progress::default();
                assert!(work(&fs, &sent, is_new, &mut progress).is_err(), "cut at {cut}");
                fs.power_loss(seed * 1000 + cut);
                let at = format!("new {is_new}, cut at operation {cut}, seed {seed}");
                // The next start is cut off as well, each time somewhere else.
                fs.cut_power_after(cut % 7 + seed + 1);
                let _ = try_directory(&fs, config())
                    .and_then(|directory| begin_all(directory, &regions_here(is_new)));
                fs.power_loss(seed);
                found[inspect(&fs, &sent, digest, &progress, &at) as usize] += 1;
                fs.power_loss(seed + 1);
                inspect(&fs, &sent, digest, &progress, &at);
            }
        }
        assert!(found[1] > 20 && found[2] > 20, "old and new: {found:?}");
    }
}
