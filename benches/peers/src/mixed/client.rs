//! Clients: terminals that begin the next transaction when one is done (closed loop), or
//! transactions that arrive at a fixed rate, whether or not earlier ones are done (open loop).
//!
//! One thread drives many of them, as a runtime of tasks does. A transaction's time counts from its
//! arrival, so that a stall is in the percentiles by all that came during it.

use super::cluster::{Answer, Cluster, VERSION, region_id};
use super::mix::{Mix, Transaction};
use super::rows::{RowId, Rows};
use crate::load::histogram;
use crate::log::Result;
use bytes::Bytes;
use flotilla_kv::raw;
use flotilla_region::{Event, Reject, RequestPrecondition, Ticket};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After a refusal a request is repeated at the leader of then.
const RETRY: Duration = Duration::from_millis(5);
/// A thread that waits looks at the clock at least this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where transactions come from.
pub enum Source {
    /// Writes that are made before, so many at once.
    Given(Vec<(usize, Bytes)>, usize),
    /// So many terminals.
    Closed(usize),
    /// So many arrivals a second.
    Open(f64),
}

/// The times of a run, in nanoseconds since `begin`; not known yet while they are `u64::MAX`.
pub struct Window {
    begin: Instant,
    first: AtomicU64,
    end: AtomicU64,
}

impl Window {
    /// A window that is not open yet.
    pub fn new() -> Window {
        let never = || AtomicU64::new(u64::MAX);
        Window { begin: Instant::now(), first: never(), end: never() }
    }

    /// From now on transactions count.
    pub fn open(&self) {
        self.first.store(self.now(), Ordering::SeqCst);
    }

    /// From now on none begins.
    pub fn close(&self) {
        self.end.store(self.now(), Ordering::SeqCst);
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn is_closed(&self) -> bool {
        self.end.load(Ordering::SeqCst) != u64::MAX
    }

    fn contains(&self, at: Instant) -> bool {
        let at = at.saturating_duration_since(self.begin).as_nanos() as u64;
        at >= self.first.load(Ordering::SeqCst) && at < self.end.load(Ordering::SeqCst)
    }
}

/// What a thread of clients has seen.
pub struct Seen {
    /// Times of the transactions that wrote, in ns.
    pub writes: Histogram<u64>,
    /// Times of those that only read.
    pub reads: Histogram<u64>,
    /// Rows of acknowledged transactions that nothing else writes.
    pub proofs: Vec<RowId>,
    /// Requests that were refused and repeated.
    pub refused: u64,
}

/// One transaction under way.
struct Flight {
    arrived: Instant,
    transaction: Transaction,
    /// The commands that are under way, by their place in `writes`.
    commands: Vec<(usize, Bytes)>,
    unanswered: usize,
    /// The store that was asked for the read.
    reader: usize,
}

/// One thread of clients.
pub struct Client<'a> {
    cluster: &'a Cluster,
    thread: usize,
    mix: &'a Mix,
    rows: Rows,
    rng: fastrand::Rng,
    serial: u64,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    retries: VecDeque<(Instant, Ticket)>,
    seen: Seen,
}

const READ: u64 = u8::MAX as u64;

fn ticket(thread: usize, part: u64, slot: usize) -> Ticket {
    Ticket((thread as u64) << 56 | part << 48 | slot as u64)
}

/// The thread that waits for a ticket.
pub fn thread_of(ticket: Ticket) -> usize {
    (ticket.0 >> 56) as usize
}

fn part_and_slot(ticket: Ticket) -> (u64, usize) {
    (ticket.0 >> 48 & 0xFF, (ticket.0 & 0xFFFF_FFFF) as usize)
}

impl<'a> Client<'a> {
    /// A thread that takes the answers of its number.
    pub fn new(cluster: &'a Cluster, mix: &'a Mix, rows: Rows, thread: usize) -> Client<'a> {
        let seen = Seen { writes: histogram(), reads: histogram(), proofs: Vec::new(), refused: 0 };
        Client {
            cluster,
            thread,
            mix,
            rows,
            rng: fastrand::Rng::with_seed(1000 + thread as u64),
            serial: 0,
            flights: Vec::new(),
            free: Vec::new(),
            retries: VecDeque::new(),
            seen,
        }
    }

    /// Runs until the window is closed, or all is written that was given.
    ///
    /// # Errors
    ///
    /// The first error of any thread of the cluster, or of a read.
    pub fn run(mut self, source: Source, window: &Window) -> Result<Seen> {
        super::sched::set_sched_slice();
        let mut source = source;
        let mut next_arrival = Instant::now();
        let mut answers = Vec::new();
        loop {
            let is_over = self.begin_more(&mut source, &mut next_arrival, window);
            if is_over && self.free.len() == self.flights.len() {
                return Ok(self.seen);
            }
            let mut deadline = Instant::now() + LOOK_EVERY;
            if matches!(source, Source::Open(_)) && !is_over {
                deadline = deadline.min(next_arrival);
            }
            if let Some((at, _)) = self.retries.front() {
                deadline = deadline.min(*at);
            }
            self.cluster.inboxes[self.thread].take(&mut answers, deadline);
            if answers.is_empty() {
                self.cluster.check()?;
            }
            for answer in answers.drain(..) {
                self.take(answer, window)?;
            }
            while self.retries.front().is_some_and(|(at, _)| *at <= Instant::now()) {
                let (_, ticket) = self.retries.pop_front().expect("looked at");
                self.send(ticket);
            }
        }
    }

    /// Begins what is due. True if nothing more will be.
    fn begin_more(
        &mut self,
        source: &mut Source,
        next_arrival: &mut Instant,
        window: &Window,
    ) -> bool {
        let under_way = self.flights.len() - self.free.len();
        match source {
            Source::Given(writes, at_once) => {
                for _ in under_way..*at_once {
                    let Some((place, command)) = writes.pop() else { break };
                    let transaction =
                        Transaction { home: place, reads: vec![], writes: vec![], proof: None };
                    self.begin(Instant::now(), transaction, vec![(place, command)]);
                }
                writes.is_empty()
            }
            _ if window.is_closed() => true,
            Source::Closed(terminals) => {
                for _ in under_way..*terminals {
                    let transaction = self.draw();
                    self.begin(Instant::now(), transaction, vec![]);
                }
                false
            }
            Source::Open(rate) => {
                while *next_arrival <= Instant::now() {
                    let arrived = *next_arrival;
                    let wait = -(1.0 - self.rng.f64()).ln() / *rate;
                    *next_arrival += Duration::from_secs_f64(wait);
                    let transaction = self.draw();
                    self.begin(arrived, transaction, vec![]);
                }
                false
            }
        }
    }

    fn draw(&mut self) -> Transaction {
        self.serial += 1;
        let serial = (self.thread as u32, self.serial);
        self.mix.draw(&mut self.rows, &mut self.rng, serial)
    }

    fn begin(&mut self, arrived: Instant, transaction: Transaction, commands: Vec<(usize, Bytes)>) {
        let has_reads = !transaction.reads.is_empty();
        let flight = Flight { arrived, transaction, commands, unanswered: 0, reader: 0 };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[slot] = Some(flight);
        if has_reads {
            self.send(ticket(self.thread, READ, slot));
        } else {
            self.write(slot);
        }
    }

    /// Proposes all commands of a transaction; ends it if there are none.
    fn write(&mut self, slot: usize) -> bool {
        let flight = self.flights[slot].as_mut().expect("under way");
        let writes = std::mem::take(&mut flight.transaction.writes);
        let encoded = writes.iter().map(|(place, ops)| (*place, raw::encode(ops)));
        flight.commands.extend(encoded);
        let count = flight.commands.len();
        flight.unanswered = count;
        for part in 0..count {
            self.send(ticket(self.thread, part as u64, slot));
        }
        count > 0
    }

    /// Sends a request, again if it was refused, to the leader of its region.
    fn send(&mut self, ticket: Ticket) {
        let (part, slot) = part_and_slot(ticket);
        let flight = self.flights[slot].as_mut().expect("under way");
        let precondition =
            RequestPrecondition { version: Some(VERSION), ..RequestPrecondition::default() };
        let (place, event) = if part == READ {
            let place = flight.transaction.home;
            flight.reader = self.cluster.leader(place);
            let region = region_id(place);
            (place, Event::Read { region, ticket, precondition, follower: false })
        } else {
            let (place, command) = &flight.commands[part as usize];
            let (region, command) = (region_id(*place), command.clone());
            (*place, Event::Propose { region, ticket, precondition, command })
        };
        let to = if part == READ { flight.reader } else { self.cluster.leader(place) };
        self.cluster.stores[to].mailbox.request(event);
    }

    fn take(&mut self, answer: Answer, window: &Window) -> Result<()> {
        match answer {
            Answer::Rejected(ticket, reject) => {
                let passes = matches!(
                    reject,
                    Reject::NotLeader { .. }
                        | Reject::StaleCommand
                        | Reject::Busy { .. }
                        | Reject::ReadIndexNotReady
                );
                if !passes {
                    return Err(reject.into());
                }
                self.seen.refused += 1;
                self.retries.push_back((Instant::now() + RETRY, ticket));
            }
            Answer::Granted(ticket) => {
                let (_, slot) = part_and_slot(ticket);
                self.read(slot)?;
                if !self.write(slot) {
                    self.end(slot, false, window);
                }
            }
            Answer::Applied(ticket) => {
                let (_, slot) = part_and_slot(ticket);
                let flight = self.flights[slot].as_mut().expect("under way");
                flight.unanswered -= 1;
                if flight.unanswered == 0 {
                    self.end(slot, true, window);
                }
            }
        }
        Ok(())
    }

    /// Reads the transaction's rows in a snapshot that is taken now.
    fn read(&mut self, slot: usize) -> Result<()> {
        let flight = self.flights[slot].as_ref().expect("under way");
        let region = region_id(flight.transaction.home);
        let snapshot = self.cluster.stores[flight.reader].store.read();
        let mut bytes = 0;
        snapshot
            .region(region, Some(VERSION))?
            .multi_get(&flight.transaction.reads, |_, value| bytes += value.len())?;
        std::hint::black_box(bytes);
        Ok(())
    }

    fn end(&mut self, slot: usize, wrote: bool, window: &Window) {
        let flight = self.flights[slot].take().expect("under way");
        self.free.push(slot);
        if wrote {
            self.seen.proofs.extend(flight.transaction.proof);
        }
        if window.contains(flight.arrived) {
            let time = flight.arrived.elapsed().as_nanos() as u64;
            let seen = if wrote { &mut self.seen.writes } else { &mut self.seen.reads };
            seen.saturating_record(time);
        }
    }
}
