//! A store that is larger than memory: gets, scans and puts of random keys by a process in a cgroup
//! whose limit is a fraction of the file.

use crate::bench::Bench;
use crate::engines::Contender;
use crate::load::Load;
use peers::Result;
use peers::cgroup::{MemoryCgroup, drop_cached};

const VALUE_BYTES: usize = 1000;
/// Keys of a scan.
const SCAN: u64 = 1000;
/// Gets of a batch.
const BATCH: u64 = 100;
/// Puts of a commit.
const PUTS: u64 = 100;
/// One measurement takes so many times as long as others: the disk has its own pace.
const LONGER: u64 = 40;

/// Gets of random keys.
pub const GETS: &str = "larger than memory: random gets, 1 thread";
/// Gets of random keys in batches.
pub const BATCHES: &str = "larger than memory: random gets in batches of 100";
/// Scans from random keys on.
pub const SCANS: &str = "larger than memory: scans of 1 k keys";
/// Puts of random keys.
pub const COMMITS: &str = "larger than memory: commits of 100 random puts, no sync";
/// The same, where an engine that has a use for it hears of the keys before the first put.
pub const COMMITS_AHEAD: &str =
    "larger than memory: commits of 100 random puts, told ahead, no sync";

/// Fills a store without a limit, and then measures it with one. Each engine may use a part of the
/// limit for itself: its file's page cache has to fit as well.
///
/// # Errors
///
/// Errors of an engine or the disk.
pub fn cold(bench: &mut Bench) -> Result<()> {
    use Contender::{Lmdb, Pagestore, Redb};
    let (keys, limit_mib) = (bench.sizes.cold_keys, bench.sizes.cold_mib);
    let engines = bench.of(&[Pagestore, Redb, Lmdb]);
    let cgroup = match MemoryCgroup::new(limit_mib << 20) {
        Ok(cgroup) => cgroup,
        Err(why) => {
            println!("larger than memory: skipped: no cgroup can be made here: {why}");
            for case in [GETS, BATCHES, SCANS, COMMITS, COMMITS_AHEAD] {
                engines.iter().for_each(|one| bench.records.add_missing(case, *one, "no cgroup"));
            }
            return Ok(());
        }
    };
    for engine in engines.iter().copied() {
        bench.say("filling", engine);
        let mut session = bench.fresh(engine)?;
        let value_bytes = VALUE_BYTES;
        session.ask(&Load::Fill { first: 0, keys, value_bytes, in_order: false })?;
        session.ask(&Load::Prove { keys })?;
        let status = session.ask(&Load::Status)?;
        bench.records.add(GETS, engine, &status);
        session.close()?;
    }
    let ms = LONGER * bench.sizes.ms;
    for round in 0..bench.rounds {
        for place in 0..engines.len() {
            let engine = engines[(place + round) % engines.len()];
            let dir = bench.dir_of(engine);
            drop_cached(&dir)?;
            let mut session = bench.open_limited(engine, &dir, (&cgroup, limit_mib))?;
            let seed = round as u64 + 1;
            bench.measure(GETS, &mut session, &Load::Gets { keys, threads: 1, ms, seed })?;
            let load = Load::GetBatches { keys, length: BATCH, ms, seed };
            bench.measure(BATCHES, &mut session, &load)?;
            bench.measure(SCANS, &mut session, &Load::Scans { keys, length: SCAN, ms, seed })?;
            for (case, reads_ahead) in [(COMMITS, false), (COMMITS_AHEAD, true)] {
                let load = Load::Commits {
                    keys,
                    value_bytes: VALUE_BYTES,
                    commits: u64::MAX,
                    puts: PUTS,
                    reads_ahead,
                    // Of other keys than the case before.
                    seed: seed << 1 | u64::from(reads_ahead),
                    ms,
                };
                bench.measure(case, &mut session, &load)?;
            }
            session.close()?;
        }
    }
    engines.iter().try_for_each(|engine| bench.remove(&bench.dir_of(*engine)))
}
