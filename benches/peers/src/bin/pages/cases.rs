//! The cases: what is done with which stores, in which order.

use crate::bench::Bench;
use crate::engines::Contender;
use crate::load::{Beside, Load};
use crate::session::Session;
use peers::Result;

/// Bytes of a value where nothing else is said.
const VALUE_BYTES: usize = 150;
/// Keys of a scan.
const SCAN: u64 = 20_000;
/// Keys of the file that grows.
const GROWING_KEYS: u64 = 100_000;
/// Scans in one read transaction while it grows: for a second or so.
const GROWING_SCANS: u64 = 500;
/// So few that they are not yet too many to be kept in memory, or in the page cache.
const LARGE_PUTS: u64 = 12_000;
const LARGE_BYTES: usize = 16 << 10;
const KILLED_BYTES: usize = 1000;
const HALVED_BYTES: usize = 4000;

/// Random puts, a hundred a commit.
pub const COMMITS: &str = "commits of 100 random puts, no sync";
/// Scans alone.
pub const SCANS: &str = "scans of 20 k keys";
/// A file whose process was killed.
pub const KILLED: &str = "open after kill -9";
/// Paced reads and writes while the file is defragmented.
pub const DEFRAGMENTED: &str = "half deleted, while it is defragmented";
/// The same before that.
pub const HALVED: &str = "half deleted, as it is";

/// Random gets by some threads.
pub fn gets(threads: u64) -> String {
    format!("random gets, {}", counted(threads))
}

/// Durable commits by some threads.
pub fn durable(threads: u64) -> String {
    format!("durable commits of one put, {}", counted(threads))
}

/// The same through an engine's call for several callers.
pub fn batched(threads: u64) -> String {
    format!("{}, put together by the engine", durable(threads))
}

/// Paced reads and writes beside scans.
pub fn beside(scanners: u64) -> String {
    format!("paced writes and reads beside {}", scanning(scanners))
}

/// The same in a file that grows.
pub fn growing(scanners: u64) -> String {
    format!("the same while the file grows, beside {}", scanning(scanners))
}

fn counted(threads: u64) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

fn scanning(scanners: u64) -> String {
    match scanners {
        0 => "nobody".to_owned(),
        1 => "1 thread that scans".to_owned(),
        _ => format!("{scanners} threads that scan"),
    }
}

/// Large values into a file with so many free pages.
pub fn large(pages: u64) -> String {
    format!("16 KiB values, one a commit, {} free pages", thousands(pages))
}

/// As many again, by the same process: in memory that it has touched before.
pub fn large_again(pages: u64) -> String {
    format!("16 KiB values again, one a commit, {} free pages", thousands(pages))
}

/// Spans of all sizes taken and given back in such a file.
pub fn churned(pages: u64) -> String {
    format!("values of 1 to 8 pages replaced, {} free pages", thousands(pages))
}

/// Opening it.
pub fn opened(pages: u64) -> String {
    format!("open, {} free pages", thousands(pages))
}

/// Bytes written for its free space.
pub fn free_space(pages: u64) -> String {
    format!("commits of 50 puts, {} free pages", thousands(pages))
}

fn thousands(pages: u64) -> String {
    if pages >= 1_000_000 {
        format!("{} M", pages / 1_000_000)
    } else {
        format!("{} k", pages / 1000)
    }
}

/// A store of small values: reads, reads and writes beside scans, commits; then durable commits.
///
/// # Errors
///
/// Errors of an engine or the disk, and if a value is not as it was put.
pub fn warm(bench: &mut Bench) -> Result<()> {
    use Contender::{BboltArray, BboltSynced};
    let engines: Vec<_> = bench.engines.clone().into_iter().filter(|e| *e != BboltArray).collect();
    let (keys, ms, commits) = (bench.sizes.keys, bench.sizes.ms, bench.sizes.commits);
    let mut sessions = Vec::new();
    for engine in engines.iter().copied() {
        bench.say("filling", engine);
        let mut session = bench.fresh(engine)?;
        session.ask(&Load::Fill { first: 0, keys, value_bytes: VALUE_BYTES, in_order: false })?;
        session.ask(&Load::Prove { keys })?;
        sessions.push(session);
    }
    // How the freelist is written makes no difference to who reads.
    let is_reader = |session: &Session| session.contender != BboltSynced;
    let mut synced: Vec<_> = sessions.extract_if(.., |session| !is_reader(session)).collect();
    for threads in [1, 2] {
        bench.rounds(&gets(threads), &mut sessions, |seed| Load::Gets {
            keys,
            threads,
            ms,
            seed,
        })?;
    }
    bench.rounds(SCANS, &mut sessions, |seed| Load::Scans { keys, length: SCAN, ms, seed })?;
    for scanners in [0, 1, 2] {
        bench.rounds(&beside(scanners), &mut sessions, |seed| {
            let value_bytes = VALUE_BYTES;
            let load = Beside { keys, scanners, value_bytes, ms: 2 * ms, seed, ..paced() };
            Load::Beside(load)
        })?;
    }
    sessions.append(&mut synced);
    bench.rounds(COMMITS, &mut sessions, |seed| Load::Commits {
        keys,
        value_bytes: VALUE_BYTES,
        commits,
        puts: 100,
        reads_ahead: false,
        seed,
        ms: 0,
    })?;
    for mut session in sessions {
        session.ask(&Load::Prove { keys })?;
        session.close()?;
    }
    sync(bench, &engines)
}

/// The same stores, opened so that commits are durable.
fn sync(bench: &mut Bench, engines: &[Contender]) -> Result<()> {
    let (keys, ms) = (bench.sizes.keys, bench.sizes.ms);
    let opened = engines.iter().map(|engine| bench.open(*engine, &bench.dir_of(*engine), true));
    let mut sessions: Vec<Session> = opened.collect::<Result<_>>()?;
    for threads in [1, 8] {
        bench.rounds(&durable(threads), &mut sessions, |seed| Load::Durable {
            keys,
            value_bytes: VALUE_BYTES,
            threads,
            ms,
            seed,
            batch: false,
        })?;
    }
    // Only bbolt can do this; others' commits wait for one another, or share a sync by themselves.
    let is_bbolt = |session: &mut Session| session.contender.is_bbolt();
    let mut bbolts: Vec<_> = sessions.extract_if(.., is_bbolt).collect();
    bench.rounds(&batched(8), &mut bbolts, |seed| Load::Durable {
        keys,
        value_bytes: VALUE_BYTES,
        threads: 8,
        ms,
        seed,
        batch: true,
    })?;
    sessions.append(&mut bbolts);
    for mut session in sessions {
        session.ask(&Load::Prove { keys })?;
        let dir = bench.dir_of(session.contender);
        session.close()?;
        bench.remove(&dir)?;
    }
    Ok(())
}

fn paced() -> Beside {
    Beside {
        keys: 0,
        scanners: 0,
        length: SCAN,
        scans_each: 1,
        value_bytes: VALUE_BYTES,
        grow: false,
        first: 0,
        writes_per_second: 500,
        reads_per_second: 1000,
        defragment: false,
        ms: 0,
        seed: 1,
    }
}

/// A small file that grows many times over while it is read, in transactions that scan five hundred
/// times.
///
/// # Errors
///
/// As [`warm`].
pub fn grow(bench: &mut Bench) -> Result<()> {
    use Contender::{Bbolt, Lmdb, Pagestore, Redb};
    let ms = bench.sizes.ms;
    let keys = GROWING_KEYS;
    for round in 0..bench.rounds as u64 {
        for engine in bench.of(&[Pagestore, Redb, Lmdb, Bbolt]) {
            for scanners in [0, 1] {
                let mut session = bench.fresh(engine)?;
                let value_bytes = VALUE_BYTES;
                session.ask(&Load::Fill { first: 0, keys, value_bytes, in_order: false })?;
                let load = Beside {
                    keys,
                    scanners,
                    scans_each: GROWING_SCANS,
                    value_bytes: LARGE_BYTES,
                    grow: true,
                    first: 1 << 40,
                    writes_per_second: 2000,
                    ms: 2 * ms,
                    seed: round + 1,
                    ..paced()
                };
                bench.measure(&growing(scanners), &mut session, &Load::Beside(load))?;
                session.close()?;
            }
            bench.remove(&bench.dir_of(engine))?;
        }
    }
    Ok(())
}

/// Files with many free pages that lie apart. Each is made once for a family of engines.
///
/// # Errors
///
/// As [`warm`].
pub fn scattered(bench: &mut Bench) -> Result<()> {
    use Contender::{Bbolt, BboltArray, BboltSynced, Pagestore};
    for pages in bench.sizes.scattered.clone() {
        for family in [vec![Pagestore], vec![Bbolt, BboltSynced, BboltArray]] {
            let family = bench.of(&family);
            let Some(first) = family.first().copied() else { continue };
            bench.say(&format!("making {} free pages", thousands(pages)), first);
            let mut session = bench.fresh(first)?;
            session.ask(&Load::Scatter { pages })?;
            session.close()?;
            scattered_in(bench, pages, &family)?;
            bench.remove(&bench.dir_of(first))?;
        }
    }
    Ok(())
}

fn scattered_in(bench: &mut Bench, pages: u64, family: &[Contender]) -> Result<()> {
    let dir = bench.dir_of(family[0]);
    let ms = bench.sizes.ms;
    let mut next = 0;
    for round in 0..bench.rounds as u64 {
        for engine in family.iter().copied() {
            bench.say(&opened(pages), engine);
            let mut session = bench.open(engine, &dir, false)?;
            bench.records.add_one(&opened(pages), engine, "open ms", session.open_ms);
            let status = session.ask(&Load::Status)?;
            bench.records.add(&opened(pages), engine, &status);
            let (value_bytes, puts) = (LARGE_BYTES, LARGE_PUTS);
            for case in [large(pages), large_again(pages)] {
                let load = Load::Large { value_bytes, ms, puts, first: next };
                let outcome = bench.measure(&case, &mut session, &load)?;
                next += outcome.figures.get("puts").copied().unwrap_or_default() as u64;
            }
            if engine == Contender::Pagestore {
                let load = Load::Churn { commits: ms * 4, seed: round + 1 };
                bench.measure(&churned(pages), &mut session, &load)?;
            }
            if matches!(engine, Contender::Pagestore | Contender::BboltSynced) {
                let (keys, value_bytes) = (2 * pages, KILLED_BYTES);
                let load =
                    Load::FreeSpace { keys, value_bytes, commits: 5, puts: 50, seed: round + 1 };
                bench.measure(&free_space(pages), &mut session, &load)?;
            }
            session.close()?;
        }
    }
    Ok(())
}

/// A large file whose process was killed while it wrote.
///
/// # Errors
///
/// As [`warm`].
pub fn kill(bench: &mut Bench) -> Result<()> {
    use Contender::{Bbolt, Lmdb, Pagestore, Redb};
    let keys = bench.sizes.killed_keys;
    let value_bytes = KILLED_BYTES;
    for engine in bench.of(&[Pagestore, Redb, Lmdb, Bbolt]) {
        bench.say("filling", engine);
        let mut session = bench.fresh(engine)?;
        session.ask(&Load::Fill { first: 0, keys, value_bytes, in_order: true })?;
        session.close()?;
        let dir = bench.dir_of(engine);
        for _ in 0..bench.rounds {
            bench.say(KILLED, engine);
            bench.open(engine, &dir, false)?.kill_while_writing(keys, value_bytes)?;
            let mut session = bench.open(engine, &dir, false)?;
            bench.records.add_one(KILLED, engine, "open ms", session.open_ms);
            session.ask(&Load::Prove { keys })?;
            let status = session.ask(&Load::Status)?;
            bench.records.add(KILLED, engine, &status);
            session.close()?;
        }
        bench.remove(&dir)?;
    }
    Ok(())
}

/// Half of a file deleted, and then defragmented while others read and write.
///
/// # Errors
///
/// As [`warm`].
pub fn defragment(bench: &mut Bench) -> Result<()> {
    let keys = bench.sizes.halved_keys;
    for engine in bench.of(&[Contender::Pagestore]) {
        let mut session = bench.fresh(engine)?;
        bench.say("filling", engine);
        session.ask(&Load::Fill { first: 0, keys, value_bytes: HALVED_BYTES, in_order: false })?;
        let full = session.ask(&Load::Status)?.figures["file MiB"];
        session.ask(&Load::DeleteHalf { keys })?;
        let load = Beside {
            keys,
            value_bytes: HALVED_BYTES,
            ms: 2 * bench.sizes.ms,
            first: 1 << 40,
            length: SCAN,
            ..paced()
        };
        bench.measure(HALVED, &mut session, &Load::Beside(load))?;
        let load = Load::Beside(Beside { defragment: true, ..load });
        let outcome = bench.measure(DEFRAGMENTED, &mut session, &load)?;
        if let Some(file) = outcome.figures.get("file MiB") {
            bench.records.add_one(DEFRAGMENTED, engine, "file before it, MiB", full);
            bench.records.add_one(DEFRAGMENTED, engine, "file/live", file / (full / 2.0));
        }
        session.close()?;
        bench.remove(&bench.dir_of(engine))?;
    }
    Ok(())
}
