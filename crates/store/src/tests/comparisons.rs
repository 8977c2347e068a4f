//! Comparisons: a digest is of exactly the entry that asks for it, one at a time, and a verdict
//! stays until a clean one.

use flotilla_region::{AdminCommand, DigestComparison, EndTask, RegionChange};

use super::*;
use crate::{DIGEST_VERSION, DigestReport, DigestStep, ReadError};

const PART_BYTES: u64 = 3;

fn compute(index: u64, version: u64) -> LogEntry {
    entry(index, 1, AdminCommand::ComputeDigest { version }.encode())
}

/// The entry with these digests of the replicas here and elsewhere.
fn verify(index: u64, here: Option<u64>, elsewhere: Option<u64>) -> LogEntry {
    let digests = [(PeerId(201), here), (PeerId(202), elsewhere)];
    let digests = digests.into_iter().filter_map(|(peer, digest)| Some((peer, digest?)));
    let comparison = DigestComparison { index: Index(1), digests: digests.collect() };
    entry(index, 1, AdminCommand::VerifyDigests(comparison).encode())
}

/// All reports that are there, and how many parts they took.
fn reports(store: &Store) -> (Vec<DigestReport>, usize) {
    let (mut reports, mut parts) = (vec![], 0);
    loop {
        match store.compute_digest(PART_BYTES).unwrap() {
            DigestStep::Idle => return (reports, parts),
            DigestStep::More { .. } => parts += 1,
            DigestStep::Done { report, .. } => reports.push(report),
        }
    }
}

fn report(region: u64, index: u64, digest: Option<u64>) -> DigestReport {
    let peer = PeerId(region * 100 + 1);
    DigestReport { region: RegionId(region), peer, index: Index(index), digest }
}

#[test]
fn a_digest_is_of_the_rows_behind_its_entry_whatever_is_applied_with_it() {
    let (whole, _) = open(&FaultFs::new(0));
    run(&whole, 2, &[ops(1, &[put("a", "1"), put("b", "2")]), compute(2, DIGEST_VERSION)]);
    let (_, expected) = whole.region_digest(RegionId(2)).unwrap();
    assert_eq!(reports(&whole), (vec![report(2, 2, Some(expected))], 2));
    let (store, _) = open(&FaultFs::new(0));
    let entries = [
        ops(1, &[put("a", "1"), put("b", "2")]),
        compute(2, DIGEST_VERSION),
        ops(3, &[put("a", "other")]),
    ];
    let others = [ops(1, &[put("k", "1")]), ops(2, &[put("l", "1")])];
    append(&store, 2, &entries, 3);
    append(&store, 3, &others, 2);
    let tasks = [task(3, &others[..1]), task(2, &entries), task(3, &others[1..])];
    let mut tasks = tasks.to_vec();
    tasks.iter_mut().flat_map(|task| &mut task.entries).for_each(|one| one.tickets.clear());
    let applied = store.apply(&tasks).unwrap();
    assert_eq!(applied.entries, 5);
    let places: Vec<_> = applied.replicas.iter().map(|it| (it.region.0, it.index.0)).collect();
    assert_eq!(places, [(2, 2), (3, 1), (2, 3), (3, 2)], "in order for each region");
    let changes = &applied.replicas[0].changes;
    assert_eq!(changes[..], [RegionChange::DigestDue { index: Index(2) }]);
    assert_eq!(get(&store, 2, "a"), Some("other".into()), "the entry behind it is applied");
    assert_eq!(reports(&store).0, [report(2, 2, Some(expected))]);
    assert!(store.stats().digested_bytes > 0);
}

#[test]
fn one_digest_at_a_time_and_of_a_known_version_only() {
    let (store, _) = open(&FaultFs::new(0));
    run(&store, 2, &[ops(1, &[put("a", "1")]), compute(2, DIGEST_VERSION)]);
    run(&store, 3, &[compute(1, DIGEST_VERSION)]);
    assert_eq!(store.digesting(), Some(RegionId(2)));
    let (told, _) = reports(&store);
    assert_eq!(told[0], report(3, 1, None), "the other one is being computed");
    assert_eq!((told[1].region, told[1].digest.is_some()), (RegionId(2), true));
    run(&store, 3, &[compute(2, DIGEST_VERSION + 1)]);
    assert_eq!(reports(&store).0, [report(3, 2, None)]);
    run(&store, 3, &[compute(3, DIGEST_VERSION)]);
    store.give_up_digest();
    assert_eq!((store.digesting(), reports(&store).0), (None, vec![report(3, 3, None)]));
    // An entry that is applied again after a restart asks for nothing twice.
    let again = ApplyTask {
        region: RegionId(3),
        entries: vec![Committed { entry: compute(3, DIGEST_VERSION), tickets: vec![] }],
    };
    assert_eq!(store.apply(&[again]).unwrap().entries, 0);
    assert_eq!(store.digesting(), None);
}

#[test]
fn old_views_that_hold_much_of_the_disk_get_no_company() {
    let mut config = config();
    config.pages = config.pages.old_version_disk_bytes(0);
    let (store, _) = try_open_with(&FaultFs::new(0), config).unwrap();
    let _old = store.read();
    run(&store, 2, &[ops(1, &[put("a", &"1".repeat(100))])]);
    store.checkpoint().unwrap();
    run(&store, 2, &[ops(2, &[put("a", "2")])]);
    assert!(store.stats().pages.pending_bytes > 0);
    run(&store, 2, &[compute(3, DIGEST_VERSION)]);
    assert_eq!(reports(&store).0, [report(2, 3, None)]);
}

#[test]
fn a_difference_is_known_until_a_clean_comparison_of_all_over_starts() {
    let fs = FaultFs::new(0);
    let (store, _) = open(&fs);
    let known = |store: &Store| {
        let regions = store.inconsistent_regions();
        assert_eq!(store.stats().inconsistent_regions, regions.len() as u64);
        assert_eq!(store.read().inconsistent().unwrap(), regions);
        regions.into_keys().map(|region| region.0).collect::<Vec<_>>()
    };
    run(&store, 2, &[verify(1, Some(5), Some(5))]);
    assert_eq!(known(&store), []);
    run(&store, 2, &[verify(2, Some(5), Some(6))]);
    assert_eq!(known(&store), [2]);
    run(&store, 2, &[verify(3, Some(5), None)]);
    assert_eq!(known(&store), [2], "the other one took no part");
    let stats = store.stats();
    let counts = (stats.comparisons, stats.comparisons_incomplete, stats.comparisons_differing);
    assert_eq!(counts, (2, 1, 1));
    store.check().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let (store, _) = open(&fs);
    assert_eq!(known(&store), [2], "over a start");
    run(&store, 2, &[verify(4, Some(7), Some(7))]);
    assert_eq!(known(&store), []);
    run(&store, 2, &[verify(5, Some(5), Some(6))]);
    store.end(&EndTask { region: RegionId(2), peer: PeerId(201) }).unwrap();
    assert_eq!(known(&store), [], "there is no replica here");
    store.check().unwrap();
}

/// All that the log decides about counts, and nothing else does.
#[test]
fn digests_are_of_the_state_and_not_of_its_pages() {
    let digest = |store: &Store| store.region_digest(RegionId(2)).unwrap().1;
    let expiring = |value: &'static str, time_ms| {
        let put = RawOp::Put { key: "c".into(), value: value.into(), ttl_s: 5 };
        entry(1, 1, data_in(ColumnFamily::Default, time_ms, &[(1, &[put])]))
    };
    let with = |entries: &[LogEntry]| {
        let (store, _) = open(&FaultFs::new(0));
        run(&store, 2, entries);
        digest(&store)
    };
    let usual = with(&[expiring("v", 1_000)]);
    assert_eq!(with(&[expiring("v", 1_000)]), usual);
    assert_ne!(with(&[expiring("w", 1_000)]), usual, "another value");
    assert_ne!(with(&[expiring("v", 2_000)]), usual, "another time");
    let (store, _) = open(&FaultFs::new(3));
    run(&store, 2, &[expiring("v", 1_000)]);
    store.checkpoint().unwrap();
    assert_eq!(digest(&store), usual, "in other pages");
    let raised = RawOp::RaiseWatermark;
    run(&store, 2, &[entry(2, 1, data_in(ColumnFamily::Default, 1_500, &[(1, &[raised])]))]);
    assert_ne!(digest(&store), usual, "another watermark");
    assert!(matches!(
        crate::digest::RegionDigester::open(&store.read(), RegionId(9)),
        Err(ReadError::RegionNotFound)
    ));
}

/// Other bytes need another version: stores of two versions would else differ.
#[test]
fn the_digest_of_this_version_stays() {
    let (store, _) = open(&FaultFs::new(0));
    let put =
        |key: &'static str, ttl_s| RawOp::Put { key: key.into(), value: "value".into(), ttl_s };
    let rows = [put("a", 0), put("b", 5)];
    run(&store, 2, &[entry(1, 1, data_in(ColumnFamily::Default, 1_000, &[(1, &rows)]))]);
    run(&store, 2, &[entry(2, 1, data_in(ColumnFamily::Write, 1_000, &[(1, &rows[..1])]))]);
    assert_eq!(DIGEST_VERSION, 1);
    assert_eq!(store.region_digest(RegionId(2)).unwrap(), (Index(2), 4_481_698_179_033_505_590));
}
