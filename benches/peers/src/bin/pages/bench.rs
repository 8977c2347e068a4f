//! One run: who is measured, how large everything is, how often; and the cases in their order.

use crate::engines::Contender;
use crate::load::{Load, Outcome};
use crate::record::Records;
use crate::session::Session;
use indicatif::{ProgressBar, ProgressStyle};
use peers::cgroup::MemoryCgroup;
use peers::{Result, measure};
use std::fs;
use std::path::{Path, PathBuf};

/// How large and how long everything is.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Keys of the store that is read and written.
    pub keys: u64,
    /// How long one measurement lasts.
    pub ms: u64,
    /// Commits of a hundred puts.
    pub commits: u64,
    /// Free pages that lie apart; the first is what the others are compared with.
    pub scattered: Vec<u64>,
    /// Keys of 1000 bytes in the file that is opened after a kill.
    pub killed_keys: u64,
    /// Keys of 4000 bytes of which half are deleted.
    pub halved_keys: u64,
    /// Keys of 1000 bytes in the store that is larger than memory.
    pub cold_keys: u64,
    /// The memory that its process may use.
    pub cold_mib: u64,
}

impl Sizes {
    /// Cases that have a goal; without `largest` not more than a million free pages.
    pub fn full(largest: bool, ms: u64) -> Sizes {
        let mut scattered = vec![1_000, 1_000_000];
        if largest {
            scattered.push(4_000_000);
        }
        Sizes {
            keys: 1_000_000,
            ms,
            commits: 3_000,
            scattered,
            killed_keys: (4 << 30) / 1024,
            halved_keys: 1 << 20,
            cold_keys: 1_300_000,
            cold_mib: 256,
        }
    }

    /// So little that all of it takes two minutes.
    pub fn quick(ms: u64) -> Sizes {
        Sizes {
            keys: 100_000,
            ms,
            commits: 500,
            scattered: vec![1_000, 50_000],
            killed_keys: (256 << 20) / 1024,
            halved_keys: (256 << 20) / 4096,
            cold_keys: 325_000,
            cold_mib: 64,
        }
    }
}

/// One run of this program.
pub struct Bench {
    /// The engines that are measured.
    pub engines: Vec<Contender>,
    /// How often, each engine once a round.
    pub rounds: usize,
    /// How large everything is.
    pub sizes: Sizes,
    /// Where stores are made, and removed again.
    pub dir: PathBuf,
    /// The program that has bbolt, if it could be built.
    pub bbolt: Option<PathBuf>,
    /// Measurements so far.
    pub records: Records,
    /// Tells on the terminal what is done at the moment.
    pub progress: ProgressBar,
}

/// A line on the terminal that says what is done, and for how long the program runs.
pub fn spinner() -> ProgressBar {
    let progress = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{elapsed_precise} {msg}");
    progress.set_style(style.expect("the template is valid"));
    progress
}

impl Bench {
    /// Those of the engines that are measured in this run.
    pub fn of(&self, engines: &[Contender]) -> Vec<Contender> {
        self.engines.iter().copied().filter(|one| engines.contains(one)).collect()
    }

    /// An engine's directory.
    pub fn dir_of(&self, engine: Contender) -> PathBuf {
        self.dir.join(engine.to_string())
    }

    /// Opens a store in an empty directory, without a sync in commits.
    ///
    /// # Errors
    ///
    /// Errors of the kernel or the engine.
    pub fn fresh(&self, engine: Contender) -> Result<Session> {
        let dir = self.dir_of(engine);
        self.remove(&dir)?;
        fs::create_dir_all(&dir)?;
        self.open(engine, &dir, false)
    }

    /// Opens a store that is there.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    pub fn open(&self, engine: Contender, dir: &Path, durable: bool) -> Result<Session> {
        Session::open(engine, dir, durable, self.bbolt.as_deref())
    }

    /// Opens a store that is there, by a process in a cgroup with a limit of so many MiB.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    pub fn open_limited(
        &self,
        engine: Contender,
        dir: &Path,
        limit: (&MemoryCgroup, u64),
    ) -> Result<Session> {
        Session::open_limited(engine, dir, limit)
    }

    /// Removes a store.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn remove(&self, dir: &Path) -> Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Lets each open store do the same in turn, in each round; each round begins with another.
    ///
    /// # Errors
    ///
    /// Errors of an engine.
    pub fn rounds(
        &mut self,
        case: &str,
        sessions: &mut [Session],
        load: impl Fn(u64) -> Load,
    ) -> Result<()> {
        for round in 0..self.rounds {
            let count = sessions.len();
            for place in 0..count {
                let session = &mut sessions[(place + round) % count];
                self.measure(case, session, &load(round as u64 + 1))?;
            }
        }
        Ok(())
    }

    /// Has one open store do something, on a disk that has nothing left to write.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    pub fn measure(&mut self, case: &str, session: &mut Session, load: &Load) -> Result<Outcome> {
        self.say(case, session.contender);
        measure::settle(&self.dir)?;
        let outcome = session.ask(load).map_err(|error| format!("{case}: {error}"))?;
        self.records.add(case, session.contender, &outcome);
        Ok(outcome)
    }

    /// Says what is done now.
    pub fn say(&self, case: &str, engine: Contender) {
        self.progress.set_message(format!("{case}: {engine}"));
        self.progress.tick();
    }
}
