//! Power loss at every single operation on the disk.

use super::model::{Maps, Taste, assert_same, change};
use super::{disk, open, try_open};
use crate::{Error, PageStore};

/// A state that was published, and the number that its mark bears.
#[derive(Clone, Default)]
struct State {
    number: u64,
    maps: Maps,
}

/// The view from outside: the state that must be there after a crash, and the ones that may be.
#[derive(Default)]
struct Known {
    durable: State,
    /// The state whose checkpoint was under way.
    attempted: Option<State>,
}

/// Publishes and checkpoints until something fails or the script is done.
fn run(store: &PageStore, known: &mut Known, taste: Taste, rng: &mut fastrand::Rng) -> bool {
    let mut state = known.durable.clone();
    let mut held = Vec::new();
    for round in 0..5 {
        for _ in 0..rng.u32(1..4) {
            let mut txn = store.write().expect("no checkpoint has failed yet");
            for _ in 0..rng.u32(1..3) {
                let name = ["a", "b"][rng.usize(..2)];
                let map = state.maps.entry(name.to_owned()).or_default();
                let mut tree = txn.tree(name).unwrap();
                for _ in 0..rng.u32(1..40) {
                    change(&mut tree, map, taste, rng);
                }
            }
            state.number += 1;
            txn.set_commit_metadata(&state.number.to_be_bytes());
            txn.publish().unwrap();
        }
        if round == 2 {
            held.push(store.read());
        }
        known.attempted = Some(state.clone());
        match store.checkpoint() {
            Ok(checkpoint) => assert_eq!(checkpoint.commit_metadata, state.number.to_be_bytes()),
            Err(Error::Io(_)) => return false,
            Err(error) => panic!("{error}"),
        }
        known.durable = state.clone();
        known.attempted = None;
    }
    true
}

/// Opens the store after a crash and proves that it is what it may be.
fn recover(store: &PageStore, known: &mut Known) {
    let commit_metadata = store.durable().commit_metadata;
    let number = commit_metadata.try_into().map_or(0, u64::from_be_bytes);
    let attempted = known.attempted.take();
    let states = [Some(std::mem::take(&mut known.durable)), attempted];
    let found = states.into_iter().flatten().find(|state| state.number == number);
    known.durable = found.expect("neither the durable state nor the one that was being written");
    assert_same(&store.read(), &known.durable.maps);
    store.check().unwrap();
}

#[test]
fn power_goes_at_every_operation() {
    for seed in [0, 4, 7] {
        let taste = Taste::of(seed);
        for cut in 1.. {
            let mut rng = fastrand::Rng::with_seed(seed);
            let fs = disk(seed);
            fs.cut_power_after(cut);
            let mut known = Known::default();
            let done = match try_open(&fs) {
                Ok(store) => run(&store, &mut known, taste, &mut rng),
                Err(_) => false,
            };
            // A second and a third life, each cut off at another place, show what the first left
            // behind in pages and bitmaps that do not count.
            for life in 0..2 {
                fs.power_loss(seed << 32 | cut << 8 | life);
                let store = open(&fs);
                recover(&store, &mut known);
                fs.cut_power_after(rng.u64(1..60));
                run(&store, &mut known, taste, &mut rng);
            }
            fs.power_loss(cut);
            recover(&open(&fs), &mut known);
            if done {
                break;
            }
        }
    }
}

#[test]
fn failed_sync_poisons_writes_but_not_reads() {
    for seed in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let taste = Taste::of(seed);
        let fs = disk(seed);
        let store = open(&fs);
        let mut known = Known::default();
        assert!(run(&store, &mut known, taste, &mut rng));
        let before = store.read();
        let mut txn = store.write().unwrap();
        txn.tree("a").unwrap().put(b"new", b"value").unwrap();
        txn.set_commit_metadata(&99_u64.to_be_bytes());
        txn.publish().unwrap();
        let mut attempted = known.durable.clone();
        attempted.number = 99;
        attempted
            .maps
            .entry("a".to_owned())
            .or_default()
            .insert(b"new".to_vec(), b"value".to_vec());

        let open_txn = store.write().unwrap();
        if seed % 2 == 0 {
            fs.fail_syncs(true)
        } else {
            fs.fail_writes(true)
        }
        assert!(matches!(store.checkpoint(), Err(Error::Io(_))));
        fs.fail_syncs(false);
        fs.fail_writes(false);
        assert!(matches!(open_txn.publish(), Ok(_) | Err(Error::Poisoned)));
        assert!(matches!(store.checkpoint(), Err(Error::Poisoned)));
        assert!(matches!(store.write().map(|_| ()), Err(Error::Poisoned)));
        assert_same(&before, &known.durable.maps);
        assert_same(&store.read(), &attempted.maps);
        drop((before, store));
        fs.power_loss(seed);
        known.attempted = Some(attempted);
        recover(&open(&fs), &mut known);
    }
}

#[test]
fn full_disk_does_no_harm() {
    let fs = disk(3);
    let store = open(&fs);
    let put = |from: u64| {
        let mut txn = store.write().unwrap();
        for i in from..from + 100 {
            txn.tree("a").unwrap().put(&i.to_be_bytes(), &[7; 5000]).unwrap();
        }
        txn.publish().unwrap();
    };
    put(0);
    let durable = store.checkpoint().unwrap();
    fs.set_capacity(Some(store.stats().file_bytes + 4096));
    put(100);
    let operations = fs.operations();
    assert!(matches!(store.checkpoint(), Err(Error::NoSpace)));
    assert!(fs.operations() > operations, "it has tried to reserve space");
    assert_eq!(store.durable(), durable);
    put(200);
    store.check().unwrap();
    fs.set_capacity(None);
    assert_eq!(store.checkpoint().unwrap().txid, store.read().txid());
    drop(store);
    let tree = open(&fs).read().tree("a").unwrap().unwrap();
    assert_eq!(tree.range(..).copied().count(), 300);
}
