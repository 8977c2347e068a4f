//! The heartbeat streams of the stores, and pings that prove a store alive.
//!
//! Lookups are numbered. A store that has echoed a number, or a later one, was alive after that
//! lookup came. Only the latest number is pinged, so that any number of lookups at the same time
//! cost one ping.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_proto::peers::ReportResponse;
use flotilla_region::StoreId;
use tokio::sync::mpsc;
use tonic::Status;

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
        self.by_store.insert(store, StoreSession { number, pings, wanted: 0, echoed: 0 });
        number
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
