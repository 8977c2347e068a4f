//! The heartbeat streams of the stores, and pings that prove a store alive.
//!
//! Lookups are numbered. A store that has echoed a number, or a later one, was alive after that
//! lookup came. Only the latest number is pinged, so that any number of lookups at the same time
//! cost one ping.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_placement::clock_deviation;
use flotilla_proto::peers::ReportResponse;
use flotilla_region::StoreId;
use tokio::sync::mpsc;
use tonic::Status;

/// A deviation of a clock that has changed by less is no news.
const CLOCK_CHANGE_MS: u64 = 500;

/// The way back to a store that reports. Holds one ping; one that does not fit waits for the echo
/// of the one before.
pub(super) type Pings = mpsc::Sender<Result<ReportResponse, Status>>;

/// The sessions of all stores.
pub(super) struct HeartbeatSessions {
    /// This store itself, which is alive as long as it answers.
    here: StoreId,
    session_count: u64,
    question_count: u64,
    by_store: BTreeMap<StoreId, StoreSession>,
}

struct StoreSession {
    number: u64,
    pings: Pings,
    wanted: u64,
    echoed: u64,
    /// How far its clock is ahead of the one here, and how far it was told to be ahead of all.
    clock_ms: Option<i64>,
    told_ms: Option<i64>,
}

impl HeartbeatSessions {
    /// No store reports yet; `here` is where these sessions are kept.
    pub(super) fn new(here: StoreId) -> Self {
        Self { here, session_count: 0, question_count: 0, by_store: BTreeMap::new() }
    }

    /// A store begins to report; the number of its session.
    pub(super) fn begin(&mut self, store: StoreId, pings: Pings) -> u64 {
        self.session_count += 1;
        let number = self.session_count;
        let session =
            StoreSession { number, pings, wanted: 0, echoed: 0, clock_ms: None, told_ms: None };
        self.by_store.insert(store, session);
        number
    }

    /// A store's clock is ahead of the one here by `ahead_ms`. Tells it how far that is from all
    /// clocks, if it does not know.
    pub(super) fn note_clock(&mut self, store: StoreId, ahead_ms: i64) {
        let Some(session) = self.by_store.get_mut(&store) else { return };
        session.clock_ms = Some(ahead_ms);
        let all: Vec<_> = self.by_store.values().filter_map(|session| session.clock_ms).collect();
        let deviation_ms = clock_deviation(ahead_ms, &all);
        let Some(session) = self.by_store.get_mut(&store) else { return };
        let is_known =
            session.told_ms.is_some_and(|told_ms| told_ms.abs_diff(deviation_ms) < CLOCK_CHANGE_MS);
        if is_known {
            return;
        }
        let clock_deviation_ms = Some(deviation_ms);
        let word = ReportResponse { clock_deviation_ms, ..ReportResponse::default() };
        // Without room it is told with the next report.
        if session.pings.try_send(Ok(word)).is_ok() {
            session.told_ms = Some(deviation_ms);
        }
    }

    /// A session is over. True if it was the store's latest.
    pub(super) fn end(&mut self, store: StoreId, number: u64) -> bool {
        let latest = self.by_store.get(&store).is_some_and(|session| session.number == number);
        if latest {
            self.by_store.remove(&store);
        }
        latest
    }

    /// The number of a question that comes now.
    pub(super) fn number_question(&mut self) -> u64 {
        self.question_count += 1;
        self.question_count
    }

    /// Asks those of `stores` for a word that have given none since question `number`; returns
    /// them.
    pub(super) fn ask(&mut self, stores: &BTreeSet<u64>, number: u64) -> Vec<u64> {
        let here = self.here.0;
        let mut mute = Vec::new();
        for &store in stores.iter().filter(|&&store| store != here) {
            match self.by_store.get_mut(&StoreId(store)) {
                Some(session) if session.echoed >= number => {}
                Some(session) => {
                    session.want(number);
                    mute.push(store);
                }
                None => mute.push(store),
            }
        }
        mute
    }

    /// A store has echoed `ping`. True if that is news.
    pub(super) fn echo(&mut self, store: StoreId, ping: u64) -> bool {
        let Some(session) = self.by_store.get_mut(&store) else { return false };
        let news = ping > session.echoed;
        if news {
            session.echoed = ping;
        }
        // Also if it is none: the last ping may have found the way full.
        session.ping();
        news
    }
}

impl StoreSession {
    fn want(&mut self, number: u64) {
        if number > self.wanted {
            self.wanted = number;
            self.ping();
        }
    }

    /// Sends the latest number that is wanted, if it is not there already.
    fn ping(&self) {
        if self.wanted > self.echoed {
            let ping = ReportResponse { ping: self.wanted, ..ReportResponse::default() };
            // Full: a ping is on its way, and its echo brings us here again.
            let _ = self.pings.try_send(Ok(ping));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinged(pings: &mut mpsc::Receiver<Result<ReportResponse, Status>>) -> Option<u64> {
        pings.try_recv().ok().map(|ping| ping.unwrap().ping)
    }

    #[test]
    fn a_word_counts_for_all_questions_that_came_before_its_ping() {
        let mut sessions = HeartbeatSessions::new(StoreId(1));
        let (sender, mut pings) = mpsc::channel(1);
        sessions.begin(StoreId(2), sender);
        let asked = BTreeSet::from([1, 2]);
        let first = sessions.number_question();
        assert_eq!(sessions.ask(&asked, first), [2], "store 1 is here");
        let second = sessions.number_question();
        assert_eq!(sessions.ask(&asked, second), [2]);
        // The second did not fit; it follows the echo of the first.
        assert_eq!(pinged(&mut pings), Some(first));
        assert_eq!(pinged(&mut pings), None);
        assert!(sessions.echo(StoreId(2), first));
        assert_eq!(sessions.ask(&asked, first), [] as [u64; 0]);
        assert_eq!(sessions.ask(&asked, second), [2]);
        assert_eq!(pinged(&mut pings), Some(second));
        assert!(sessions.echo(StoreId(2), second));
        assert!(!sessions.echo(StoreId(2), first), "an old word is no news");
        assert_eq!(sessions.ask(&asked, second), [] as [u64; 0]);
    }

    #[test]
    fn a_store_is_told_once_how_far_its_clock_is_from_all() {
        let mut sessions = HeartbeatSessions::new(StoreId(1));
        let mut told = vec![];
        for store in 1..=3 {
            let (sender, answers) = mpsc::channel(1);
            sessions.begin(StoreId(store), sender);
            told.push(answers);
        }
        let mut deviations = |sessions: &mut HeartbeatSessions, clocks: [i64; 3]| {
            for (store, ahead_ms) in (1..).zip(clocks) {
                sessions.note_clock(StoreId(store), ahead_ms);
            }
            let word = |answers: &mut mpsc::Receiver<Result<ReportResponse, Status>>| {
                answers.try_recv().ok().map(|it| it.unwrap().clock_deviation_ms.unwrap())
            };
            told.iter_mut().map(word).collect::<Vec<_>>()
        };
        assert_eq!(deviations(&mut sessions, [0, 2, 90_000]), [Some(0), Some(2), Some(89_998)]);
        assert_eq!(deviations(&mut sessions, [0, 3, 90_100]), [None, None, None]);
        assert_eq!(deviations(&mut sessions, [0, 3, 5]), [None, None, Some(2)]);
        sessions.note_clock(StoreId(9), 5);
    }

    #[test]
    fn a_store_without_a_session_is_mute() {
        let mut sessions = HeartbeatSessions::new(StoreId(1));
        let number = sessions.number_question();
        assert_eq!(sessions.ask(&BTreeSet::from([3]), number), [3]);
    }

    #[test]
    fn the_end_of_an_old_session_says_nothing_about_the_new() {
        let mut sessions = HeartbeatSessions::new(StoreId(1));
        let old = sessions.begin(StoreId(2), mpsc::channel(1).0);
        let new = sessions.begin(StoreId(2), mpsc::channel(1).0);
        assert!(!sessions.end(StoreId(2), old));
        assert!(sessions.end(StoreId(2), new));
    }
}
