//! Costs of a put, a get and a scan in the page store, with 16-byte keys and 128-byte values.
//!
//! `random` and `sequential` put into a tree that grows to 200,000 keys, one put or a hundred a
//! transaction; every 64 MiB of dirty pages a checkpoint is made, whose time is part of the figure.
//! Times are per put, per get and per 20,000 keys.

use std::path::Path;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flotilla_pagestore::{Options, PageStore};
use flotilla_vfs::os::OsFs;
use tempfile::TempDir;

const KEYS: u64 = 200_000;
const VALUE: [u8; 128] = [7; 128];
const DIRTY_BYTES_MAX: u64 = 64 << 20;

/// A store on the real disk, gone with the directory.
fn store() -> (PageStore, TempDir) {
    let dir = tempfile::tempdir().expect("the system's temporary directory can be written");
    let path = Path::new(dir.path()).join("pages");
    let store = PageStore::open_with(Arc::new(OsFs::new()), &path, Options::default())
        .expect("a new store in an empty directory");
    (store, dir)
}

/// The n-th key, in rising order or scattered evenly.
fn key(n: u64, scattered: bool) -> [u8; 16] {
    let first = if scattered { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { 0 };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&first.to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

fn put(store: &PageStore, keys: impl Iterator<Item = [u8; 16]>) {
    let mut txn = store.write().expect("no checkpoint has failed");
    let mut tree = txn.tree("bench").expect("the catalogue can be read");
    for key in keys {
        tree.put(&key, &VALUE).expect("pages can be read");
    }
    txn.publish().expect("nothing went wrong before");
    if store.dirty_bytes() > DIRTY_BYTES_MAX {
        store.checkpoint().expect("the disk has room");
    }
}

fn puts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("page_insert");
    for (name, scattered) in [("random", true), ("sequential", false)] {
        for batch in [1, 100] {
            let (store, _dir) = store();
            let mut next = 0;
            group.throughput(Throughput::Elements(batch));
            group.bench_function(BenchmarkId::new(name, batch), |bencher| {
                bencher.iter(|| {
                    put(&store, (next..next + batch).map(|n| key(n % KEYS, scattered)));
                    next += batch;
                });
            });
        }
    }
    group.finish();
}

fn reads(criterion: &mut Criterion) {
    let (store, _dir) = store();
    for first in (0..KEYS).step_by(1000) {
        put(&store, (first..first + 1000).map(|n| key(n, true)));
    }
    store.checkpoint().expect("the disk has room");
    let tree = store.read().tree("bench").expect("pages can be read").expect("it was filled");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut group = criterion.benchmark_group("page_read");
    group.throughput(Throughput::Elements(1));
    group.bench_function("get", |bencher| {
        bencher.iter(|| {
            let value = tree.get(&key(rng.u64(..KEYS), true)).expect("pages can be read");
            value.is_some()
        });
    });
    group.throughput(Throughput::Elements(20_000));
    group.bench_function("scan", |bencher| {
        bencher.iter(|| {
            let mut range = tree.range(..);
            let mut bytes = 0;
            for _ in 0..20_000 {
                let entry = range.next().expect("pages can be read");
                bytes += entry.map_or(0, |(key, value)| key.len() + value.len());
            }
            bytes
        });
    });
    group.finish();
}

criterion_group!(benches, puts, reads);
criterion_main!(benches);
