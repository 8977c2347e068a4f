//! The end of a replica and the birth of its successor, cut off at every single operation of the
//! disk: the replica is there whole, or a root has its end and it never comes back.

use super::ends::end_of;
use super::uninitialised::born_by_message;
use super::*;

/// How far the history came that is cut off.
#[derive(Debug, Default)]
struct Progress {
    /// The last entry of region 2 that was acknowledged.
    acknowledged: u64,
    /// The vote of its replica that others may know of.
    voted: Option<HardState>,
    /// A root was said to have the end.
    is_rooted: bool,
    /// The vote of the successor.
    successor: Option<HardState>,
}

const SUCCESSOR: PeerId = PeerId(203);

/// Ends the replica of region 2 and gives it a successor, until the disk fails.
fn work(fs: &FaultFs, at: &mut Progress) -> Result<(), Error> {
    let (store, _) = begin_all(try_directory(fs, config())?, &regions())?;
    let entries = [ops(1, &[put("a", "1")]), ops(2, &[put("g", "2")]), ops(3, &[])];
    let voted = hard_state(2, 202, 2);
    store.write_log(&[write(2, voted, &entries[..2])], &[], &[], &[]).wait()?;
    (at.acknowledged, at.voted) = (2, Some(voted));
    store.apply(&[task(2, &entries[..1])])?;
    store.checkpoint()?;
    store.apply(&[task(2, &entries[1..2])])?;
    let voted = HardState { commit: Index(3), ..voted };
    store.write_log(&[write(2, voted, &entries[2..])], &[], &[], &[]).wait()?;
    (at.acknowledged, at.voted) = (3, Some(voted));
    store.apply(&[task(2, &entries[2..])])?;
    store.end(&end_of(2, 201))?;
    // Another region goes on meanwhile.
    store.write_log(&[write(3, hard_state(1, 0, 1), &[ops(1, &[])])], &[], &[], &[]).wait()?;
    store.apply(&[task(3, &[ops(1, &[])])])?;
    let told = store.checkpoint()?.ended;
    assert_eq!(told, [end_of(2, 201)]);
    at.is_rooted = true;
    // Not synced by itself.
    store.write_log(&[], &[], &[], &[PeerId(201)]).wait()?;
    let voted = hard_state(9, 202, 0);
    let birth = born_by_message(2, SUCCESSOR, voted);
    store.write_log(&[], &[birth], &[], &[]).wait()?;
    at.successor = Some(voted);
    store.checkpoint()?;
    store.purge_log()?;
    Ok(())
}

/// Whether the replica is there.
fn inspect(fs: &FaultFs, progress: &Progress, at: &str) -> bool {
    let directory = try_directory(fs, config()).unwrap_or_else(|error| panic!("{at}: {error}"));
    let (store, found) =
        begin_all(directory, &regions()).unwrap_or_else(|error| panic!("{at}: {error}"));
    store.check().unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(found.unborn, [], "{at}");
    let replica = found.replicas.iter().find(|found| found.descriptor.id == RegionId(2));
    if let Some(replica) = replica {
        assert!(!progress.is_rooted, "{at}: it is back");
        assert_eq!((replica.peer, found.uninitialised.len()), (PeerId(201), 0), "{at}");
        assert!(replica.last.0 >= progress.acknowledged, "{at}: {progress:?}, {:?}", replica.last);
        if let Some(voted) = progress.voted {
            let now = replica.hard_state;
            assert!(now.term == voted.term && now.vote == voted.vote, "{at}: {now:?}");
        }
        let expected: Vec<Row> = [("a", "1"), ("g", "2")][..replica.applied.0.0.min(2) as usize]
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        assert_eq!(rows(&store, 2), expected, "{at}");
    } else {
        let log = store.fetch(&flotilla_region::LogFetch {
            region: RegionId(2),
            peer: PeerId(201),
            context: 0,
            low: Index(2),
            high: Index(3),
            bytes_max: 1,
        });
        assert!(log.is_err(), "{at}: its log is left");
        match (&found.uninitialised[..], progress.successor) {
            ([], None) => {}
            ([successor], expected) => {
                assert_eq!(successor.peer, SUCCESSOR, "{at}");
                let voted = expected.unwrap_or(successor.hard_state);
                assert_eq!(successor.hard_state, voted, "{at}");
            }
            other => panic!("{at}: {other:?}"),
        }
    }
    let is_here = replica.is_some();
    store.checkpoint().unwrap();
    store.purge_log().unwrap();
    store.check().unwrap_or_else(|error| panic!("{at}, after a checkpoint: {error}"));
    is_here
}

#[test]
fn the_power_may_go_at_any_operation_of_an_end() {
    let whole = FaultFs::new(0);
    work(&whole, &mut Progress::default()).unwrap();
    let operations = whole.operations();
    let mut found = [0; 2];
    for cut in 1..=operations {
        for seed in 0..4 {
            let fs = FaultFs::new(0);
            fs.cut_power_after(cut);
            let mut progress = Progress::default();
            assert!(work(&fs, &mut progress).is_err(), "cut at {cut}");
            fs.power_loss(seed * 1000 + cut);
            let at = format!("cut at operation {cut}, seed {seed}");
            // The next start is cut off as well, each time somewhere else.
            fs.cut_power_after(cut % 7 + seed + 1);
            let _ =
                try_directory(&fs, config()).and_then(|directory| begin_all(directory, &regions()));
            fs.power_loss(seed);
            found[usize::from(inspect(&fs, &progress, &at))] += 1;
            fs.power_loss(seed + 1);
            inspect(&fs, &progress, &at);
        }
    }
    assert!(found[0] > 20 && found[1] > 20, "gone and there: {found:?}");
}
