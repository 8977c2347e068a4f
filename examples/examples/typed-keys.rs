//! Typed keys over the page store: keys are bytes, and order is that of the bytes. A table gives
//! its keys an encoding that keeps their order, so that ranges of values are ranges of bytes.
//!
//! ```text
//! cargo run --example typed-keys
//! ```

use std::marker::PhantomData;

use flotilla_pagestore::{CommitDurability, Error, PageStore, Snapshot, WriteTxn};

/// A key whose bytes are in the order of its values.
trait OrderedKey: Sized {
    fn to_bytes(&self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// A sensor and a time in seconds, which may lie before 1970.
#[derive(Debug, PartialEq)]
struct SampleKey {
    sensor: u32,
    seconds: i64,
}

impl OrderedKey for SampleKey {
    fn to_bytes(&self) -> Vec<u8> {
        // Big-endian, so that the first byte that differs decides; the sign bit is flipped, or
        // negative numbers would come behind positive ones.
        let seconds = (self.seconds as u64) ^ (1 << 63);
        [&self.sensor.to_be_bytes()[..], &seconds.to_be_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<SampleKey> {
        let (sensor, seconds) = bytes.split_first_chunk()?;
        let seconds = u64::from_be_bytes(seconds.try_into().ok()?) ^ (1 << 63);
        Some(SampleKey { sensor: u32::from_be_bytes(*sensor), seconds: seconds as i64 })
    }
}

/// A tree with typed keys, and numbers as values.
struct Table<K> {
    name: &'static str,
    key: PhantomData<K>,
}

impl<K: OrderedKey> Table<K> {
    const fn new(name: &'static str) -> Table<K> {
        Table { name, key: PhantomData }
    }

    fn put(&self, txn: &mut WriteTxn<'_>, key: &K, value: f64) -> Result<(), Error> {
        txn.tree(self.name)?.put(&key.to_bytes(), &value.to_le_bytes())
    }

    /// The rows from `first` on, and before `end`.
    fn range(&self, at: &Snapshot, first: &K, end: &K) -> Result<Vec<(K, f64)>, Error> {
        let Some(tree) = at.tree(self.name)? else { return Ok(Vec::new()) };
        let (first, end) = (first.to_bytes(), end.to_bytes());
        let mut rows = Vec::new();
        for row in tree.range(&first[..]..&end[..]) {
            let (key, value) = row?;
            let value = value.try_into().map(f64::from_le_bytes).ok();
            rows.extend(K::from_bytes(&key).zip(value));
        }
        Ok(rows)
    }
}

const SAMPLES: Table<SampleKey> = Table::new("samples");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = PageStore::open(dir.path().join("samples.pages"))?;
    let mut txn = store.write()?;
    for sensor in [1, 2] {
        for seconds in [-3600, 0, 3600, 7200] {
            let degrees = f64::from(sensor) + seconds as f64 / 1e4;
            SAMPLES.put(&mut txn, &SampleKey { sensor, seconds }, degrees)?;
        }
    }
    txn.commit(CommitDurability::Sync)?;

    let key = |seconds| SampleKey { sensor: 2, seconds };
    for (sample, degrees) in SAMPLES.range(&store.read(), &key(-7200), &key(3601))? {
        println!("sensor {} at {:5} s: {degrees:.2}", sample.sensor, sample.seconds);
    }
    Ok(())
}
