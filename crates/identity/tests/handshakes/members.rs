//! Three members with directories that can be copied, and greetings under way between them.

use std::collections::BTreeMap;

use flotilla_identity::{
    ClusterSettings, Handshake, HelloDecision, KnownRun, MemberId, PeerWrite, RunHistory,
    StoreHello, StoreRecord, StoreRegistry, StoreRun, StoreUuid,
};
use flotilla_region::StoreId;

/// The members' cluster.
pub(crate) const CLUSTER: u64 = 7;

/// A registry with the members `ids`, each with its own directory.
pub(crate) fn registry(ids: impl IntoIterator<Item = u64>) -> StoreRegistry {
    let record = |id| StoreRecord {
        id: StoreId(id),
        name: format!("s{id}"),
        address: format!("h:{id}"),
        uuid: uuid(id),
        level: 1,
        schema: 1,
        ..StoreRecord::default()
    };
    StoreRegistry { version: 1, level: 1, stores: ids.into_iter().map(record).collect() }
}

/// The directory of a store.
pub(crate) fn uuid(id: u64) -> StoreUuid {
    StoreUuid(u128::from(id) * 100)
}

/// The identity of a store in a start.
pub(crate) fn introduction(id: u64, run: StoreRun) -> StoreHello {
    let own = MemberId { cluster_id: CLUSTER, store: StoreId(id) };
    let identity = (uuid(id), run);
    let (name, address) = (format!("s{id}"), format!("h:{id}"));
    Handshake::introduction(own, &name, &address, identity, ClusterSettings::default())
}

/// The durable state of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberDirectory {
    history: RunHistory,
    /// The starts of others whose messages it took.
    known: BTreeMap<StoreId, StoreRun>,
    /// The writes in its log, by number; positions count from 1.
    log: Vec<u64>,
}

/// A member that runs.
#[derive(Clone, Debug)]
struct MemberProcess {
    handshake: Handshake,
    run: StoreRun,
    /// For each other store, the last write that was heard to be in its log, and in which start.
    heard: BTreeMap<usize, (StoreRun, u64)>,
}

/// One member.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelMember {
    directory: MemberDirectory,
    process: Option<MemberProcess>,
    /// Whether its directory is the one that it always had.
    pub(crate) is_sound: bool,
}

/// A greeting under way.
#[derive(Clone, Debug)]
pub(crate) struct SentHello {
    pub(crate) from: usize,
    pub(crate) to: usize,
    hello: StoreHello,
}

/// Three members.
#[derive(Clone, Debug)]
pub(crate) struct MemberTrio {
    pub(crate) members: Vec<ModelMember>,
    pub(crate) under_way: Vec<SentHello>,
    /// Whether greetings outlive the process that they were sent to.
    pub(crate) are_greetings_late: bool,
    nonces: u64,
    writes: u64,
}

impl MemberTrio {
    pub(crate) fn new(are_greetings_late: bool) -> Self {
        let member = ModelMember { is_sound: true, ..ModelMember::default() };
        let members = vec![member; 3];
        Self { members, under_way: Vec::new(), are_greetings_late, nonces: 0, writes: 0 }
    }

    pub(crate) fn is_running(&self, at: usize) -> bool {
        self.members[at].process.is_some()
    }

    /// Starts a member: the new start is durable before its first word.
    pub(crate) fn start(&mut self, at: usize) {
        self.nonces += 1;
        let directory = &mut self.members[at].directory;
        let starts = directory.history.runs.keys().next_back().copied().unwrap_or_default() + 1;
        let run = StoreRun { starts, nonce: self.nonces };
        directory.history.runs.insert(starts, (run.nonce, directory.log.len() as u64));
        let (history, known) = (directory.history.clone(), directory.known.clone());
        let id = at as u64 + 1;
        let handshake = Handshake::new(
            introduction(id, run),
            history,
            registry(1..=3),
            remembered(known),
            false,
        );
        self.members[at].process = Some(MemberProcess { handshake, run, heard: BTreeMap::new() });
    }

    pub(crate) fn crash(&mut self, at: usize) {
        self.members[at].process = None;
        if !self.are_greetings_late {
            self.under_way.retain(|sent| sent.to != at);
        }
    }

    pub(crate) fn copy(&self, at: usize) -> MemberDirectory {
        self.members[at].directory.clone()
    }

    /// Puts a copy back at a member that is down.
    pub(crate) fn put_back(&mut self, at: usize, copy: MemberDirectory) {
        assert!(!self.is_running(at), "a directory is replaced while it is in use");
        let member = &mut self.members[at];
        member.is_sound &= copy == member.directory;
        member.directory = copy;
    }

    /// Puts a greeting under way.
    pub(crate) fn greet(&mut self, from: usize, to: usize) {
        if let Some(process) = &self.members[from].process {
            let hello = process.handshake.greet(StoreId(to as u64 + 1));
            self.under_way.push(SentHello { from, to, hello });
        }
    }

    /// A greeting arrives; a receiver that cannot yet take the sender's messages greets it.
    pub(crate) fn arrive(&mut self, sent: &SentHello) {
        let SentHello { from, to, hello } = sent;
        let member = &mut self.members[*to];
        let Some(process) = &mut member.process else { return };
        let log_end = member.directory.log.len() as u64;
        match process.handshake.decide(hello, log_end) {
            HelloDecision::Accept(write) => {
                process.handshake.accept(hello);
                let former =
                    write.and_then(|write| member.directory.known.insert(write.store, write.run));
                self.check_accepted((*to, *from), hello, former);
            }
            HelloDecision::Unconfirmed => self.greet(*to, *from),
            HelloDecision::Refuse(_) => {}
            HelloDecision::Learn(registry) => panic!("none has a later one than {registry:?}"),
            HelloDecision::TakeUp(settings) => panic!("none has later ones than {settings:?}"),
            HelloDecision::Stop(words) => {
                assert!(!self.members[*to].is_sound, "a sound store is told to stop: {words}");
                self.crash(*to);
            }
        }
    }

    /// The start that was just taken is not one of an older copy, as far as `by` heard; `former`
    /// is the start of which it took messages before.
    fn check_accepted(
        &self,
        (by, of): (usize, usize),
        hello: &StoreHello,
        former: Option<StoreRun>,
    ) {
        let heard = self.members[by].process.as_ref().and_then(|process| process.heard.get(&of));
        let speaker = &self.members[of];
        // A greeting of an earlier process gives its successors nothing.
        if speaker.process.as_ref().is_none_or(|process| process.run != hello.run) {
            return;
        }
        let runs = &speaker.directory.history.runs;
        for run in former.into_iter().chain(heard.map(|(run, _)| *run)) {
            let remembers = runs.get(&run.starts).is_some_and(|(nonce, _)| *nonce == run.nonce);
            assert!(remembers, "{} takes a copy of {} without {run}", by + 1, of + 1);
        }
        if let Some((_, write)) = heard {
            let has_write = speaker.directory.log.contains(write);
            assert!(has_write, "{} takes a copy of {} without write {write}", by + 1, of + 1);
        }
    }

    /// Whether two run and each takes the other's messages.
    pub(crate) fn take_each_other(&self, first: usize, second: usize) -> bool {
        let takes = |by: usize, of: usize| {
            let (by, run) = (self.members[by].process.as_ref(), self.members[of].process.as_ref());
            let id = of as u64 + 1;
            by.zip(run).is_some_and(|(by, of)| by.handshake.takes(StoreId(id), uuid(id), of.run))
        };
        takes(first, second) && takes(second, first)
    }

    /// A write is acknowledged by two that take each other. Whether they heard of each other's
    /// logs is left to `is_heard`.
    pub(crate) fn write(&mut self, first: usize, second: usize, is_heard: bool) {
        if !self.take_each_other(first, second) {
            return;
        }
        self.writes += 1;
        for at in [first, second] {
            self.members[at].directory.log.push(self.writes);
        }
        for (by, of) in [(first, second), (second, first)] {
            let log_end = self.members[of].directory.log.len() as u64;
            let run = self.members[of].process.as_ref().map(|process| process.run);
            if let (true, Some(process), Some(run)) =
                (is_heard, self.members[by].process.as_mut(), run)
            {
                process.handshake.note_log_end(StoreId(of as u64 + 1), log_end);
                process.heard.insert(of, (run, self.writes));
            }
        }
    }

    /// Compares the durable knowledge of another member with what must not be forgotten.
    pub(crate) fn check_memory(&self) {
        for (at, member) in self.members.iter().enumerate() {
            let Some(process) = &member.process else { continue };
            for (of, (run, _)) in &process.heard {
                let known = member.directory.known.get(&StoreId(*of as u64 + 1));
                let is_remembered = known.is_some_and(|known| known.starts >= run.starts);
                assert!(is_remembered, "{} wrote with {run} and forgot it", at + 1);
            }
        }
    }

    /// All that is under way is lost; then sound members start and greet each other in turn.
    pub(crate) fn check_calm(&self) {
        let mut calm = self.clone();
        calm.under_way.clear();
        let sound: Vec<usize> = (0..3).filter(|at| calm.members[*at].is_sound).collect();
        for at in &sound {
            if !calm.is_running(*at) {
                calm.start(*at);
            }
        }
        for (first, second) in [(0, 1), (1, 2), (2, 0)] {
            if !sound.contains(&first) || !sound.contains(&second) {
                continue;
            }
            calm.greet(first, second);
            calm.greet(second, first);
            for _ in 0..6 {
                if let Some(sent) = calm.under_way.pop() {
                    calm.arrive(&sent);
                }
            }
            calm.greet(first, second);
            calm.greet(second, first);
            while let Some(sent) = calm.under_way.pop() {
                calm.arrive(&sent);
            }
            let names = (first + 1, second + 1);
            assert!(calm.take_each_other(first, second), "{names:?} never take each other");
        }
    }
}

/// Starts of others as a directory gives them back.
pub(crate) fn remembered(known: BTreeMap<StoreId, StoreRun>) -> Vec<PeerWrite> {
    let write = |(store, run)| PeerWrite { store, run, address: format!("h:{store}") };
    known.into_iter().map(write).collect()
}

/// A known start of a store, as in a greeting.
pub(crate) fn known(starts: u64, nonce: u64, log_end: u64) -> Option<KnownRun> {
    Some(KnownRun { run: StoreRun { starts, nonce }, log_end })
}
