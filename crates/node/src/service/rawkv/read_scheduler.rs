//! Schedules reads of many rows: short reads first, long ones interleaved and bounded in number.
//!
//! A read is done in parts of a millisecond or so. Between two parts it gives up its thread, so
//! that no request waits for a read, however long, for more than a part. A read that ends within
//! its first part is *short*; every other is *long*. Few long reads are under way, because each
//! keeps what it has read; and fewer still read at the same time, because there must be cores left
//! for the others. Waiting reads are served first come, first served.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits on concurrent reads.
#[derive(Clone, Copy, Debug)]
pub struct ReadSchedulerConfig {
    /// Reads that are in their first part at the same time. Default 8.
    pub short_max: u32,
    /// Long reads under way, each with up to a whole answer in memory. Default 8.
    pub long_max: u32,
    /// Long reads that read at the same time. Default half of the cores, at least one.
    pub long_at_once_max: u32,
}

impl Default for ReadSchedulerConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let half = u32::try_from(cores / 2).unwrap_or(u32::MAX).max(1);
        Self { short_max: 8, long_max: 8, long_at_once_max: half }
    }
}

/// A read in parts.
pub(super) trait ChunkedRead: Send + 'static {
    type Output: Send + 'static;
    type Error: Send + 'static;
    /// Reads one part more. The answer when it is whole.
    fn read_on(&mut self) -> Result<Option<Self::Output>, Self::Error>;
    /// Forgets what it has read, and begins again.
    fn restart(&mut self);
}

/// Three semaphores: first parts, long reads, and long reads that read at this moment.
pub(super) struct ReadScheduler {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    long_turns: Arc<Semaphore>,
}

impl ReadScheduler {
    pub(super) fn new(config: ReadSchedulerConfig) -> Self {
        let semaphore = |count: u32| Arc::new(Semaphore::new(count.max(1) as usize));
        Self {
            short: semaphore(config.short_max),
            long: semaphore(config.long_max),
            long_turns: semaphore(config.long_at_once_max),
        }
    }

    /// Carries out a read. `None` if the process ends meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it ends with the part that is being read.
    pub(super) async fn read<T: ChunkedRead>(&self, job: T) -> Option<Result<T::Output, T::Error>> {
        let mut job = match part(job, place(&self.short).await?).await? {
            ReadStep::Last(answer) => return Some(answer),
            ReadStep::More(job) => job,
        };
        // The permit is held to the end of the read: its rows are in memory until then.
        let _long = match Arc::clone(&self.long).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                // Any number of reads may wait here, so none may keep its rows.
                job.restart();
                place(&self.long).await?
            }
        };
        self.in_turns(job).await
    }

    /// Carries out a read that is known to be long. Result and cancel safety as
    /// [`ReadScheduler::read`].
    pub(super) async fn read_long<T: ChunkedRead>(
        &self,
        job: T,
    ) -> Option<Result<T::Output, T::Error>> {
        let _long = place(&self.long).await?;
        self.in_turns(job).await
    }

    /// Reads the parts of a long read, taking turns with others.
    async fn in_turns<T: ChunkedRead>(&self, mut job: T) -> Option<Result<T::Output, T::Error>> {
        loop {
            job = match part(job, place(&self.long_turns).await?).await? {
                ReadStep::Last(answer) => return Some(answer),
                ReadStep::More(job) => job,
            };
        }
    }
}

async fn place(of: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(of).acquire_owned().await.ok()
}

/// The outcome of one part.
enum ReadStep<T: ChunkedRead> {
    Last(Result<T::Output, T::Error>),
    More(T),
}

/// Reads one part, on a thread that may block. The permit is held as long as the thread reads, even
/// if the caller is gone.
async fn part<T: ChunkedRead>(mut job: T, place: OwnedSemaphorePermit) -> Option<ReadStep<T>> {
    let reading = tokio::task::spawn_blocking(move || {
        let _place = place;
        match job.read_on() {
            Ok(Some(answer)) => ReadStep::Last(Ok(answer)),
            Ok(None) => ReadStep::More(job),
            Err(error) => ReadStep::Last(Err(error)),
        }
    });
    reading.await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    /// The state that the reads of a test share.
    #[derive(Default)]
    struct World {
        may_end: AtomicBool,
        reading: AtomicU32,
        most_reading: AtomicU32,
        restarts: AtomicU32,
        restarted: Notify,
    }

    /// Reads at least `least` parts, and goes on until it may end.
    struct Parts {
        world: Arc<World>,
        least: u32,
        done: u32,
    }

    impl Parts {
        fn new(world: &Arc<World>, least: u32) -> Parts {
            Parts { world: Arc::clone(world), least, done: 0 }
        }
    }

    impl ChunkedRead for Parts {
        type Output = u32;
        type Error = ();

        fn read_on(&mut self) -> Result<Option<u32>, ()> {
            self.done += 1;
            if self.least == 1 {
                return Ok(Some(1));
            }
            if self.done > 1 {
                let reading = self.world.reading.fetch_add(1, Ordering::SeqCst) + 1;
                self.world.most_reading.fetch_max(reading, Ordering::SeqCst);
                std::thread::yield_now();
                self.world.reading.fetch_sub(1, Ordering::SeqCst);
            }
            let ends = self.done >= self.least && self.world.may_end.load(Ordering::SeqCst);
            Ok(ends.then_some(self.done))
        }

        fn restart(&mut self) {
            self.done = 0;
            self.world.restarts.fetch_add(1, Ordering::SeqCst);
            self.world.restarted.notify_one();
        }
    }

    fn read_scheduler(long_max: u32, long_at_once_max: u32) -> Arc<ReadScheduler> {
        Arc::new(ReadScheduler::new(ReadSchedulerConfig {
            short_max: 1,
            long_max,
            long_at_once_max,
        }))
    }

    fn spawn(read_scheduler: &Arc<ReadScheduler>, job: Parts) -> tokio::task::JoinHandle<u32> {
        let read_scheduler = Arc::clone(read_scheduler);
        tokio::spawn(async move { read_scheduler.read(job).await.unwrap().unwrap() })
    }

    /// A hang is a failure and not a test that never ends.
    async fn soon<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(60), what).await.expect("nobody is kept waiting")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn short_reads_pass_long_ones_however_many_there_are() {
        let (world, read_scheduler) = (Arc::new(World::default()), read_scheduler(3, 2));
        let long: Vec<_> = (0..9).map(|_| spawn(&read_scheduler, Parts::new(&world, 5))).collect();
        // All that may be long are, and the others wait for them.
        while world.restarts.load(Ordering::SeqCst) < 6 {
            soon(world.restarted.notified()).await;
        }
        for _ in 0..100 {
            assert_eq!(soon(spawn(&read_scheduler, Parts::new(&world, 1))).await.unwrap(), 1);
        }
        world.may_end.store(true, Ordering::SeqCst);
        for read in long {
            assert!(soon(read).await.unwrap() >= 5);
        }
        let most = world.most_reading.load(Ordering::SeqCst);
        assert!((1..=2).contains(&most), "{most} long reads at once");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_read_that_is_known_to_be_long_takes_no_short_place() {
        let (world, read_scheduler) = (Arc::new(World::default()), read_scheduler(1, 1));
        let first_parts = Arc::clone(&read_scheduler.short).acquire_owned().await.unwrap();
        world.may_end.store(true, Ordering::SeqCst);
        let read = soon(read_scheduler.read_long(Parts::new(&world, 3))).await;
        assert_eq!(read, Some(Ok(3)));
        let long = Arc::clone(&read_scheduler.long).acquire_owned().await.unwrap();
        let waiting = Arc::clone(&read_scheduler);
        let parts = Parts::new(&world, 3);
        let read = tokio::spawn(async move { waiting.read_long(parts).await });
        tokio::task::yield_now().await;
        assert!(!read.is_finished(), "it waits for the place of another long one");
        drop((long, first_parts));
        assert_eq!(soon(read).await.unwrap(), Some(Ok(3)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waits_for_a_long_place_keeps_nothing_and_answers_whole() {
        let (world, read_scheduler) = (Arc::new(World::default()), read_scheduler(1, 1));
        let both = [5, 7].map(|least| spawn(&read_scheduler, Parts::new(&world, least)));
        soon(world.restarted.notified()).await;
        assert!(both.iter().any(|read| !read.is_finished()));
        world.may_end.store(true, Ordering::SeqCst);
        for (read, least) in both.into_iter().zip([5, 7]) {
            assert!(soon(read).await.unwrap() >= least);
        }
        assert_eq!(world.restarts.load(Ordering::SeqCst), 1);
    }
}
