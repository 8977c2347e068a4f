//! The handshakes of a member with the others, and the frames that it sends and takes.

use flotilla_identity::{
    BootstrapRequest, BootstrapResponse, ClusterSettings, Handshake, HelloDecision, StoreHello,
    StoreIdentity, StoreRegistry, StoreRun, StoreUuid, member_answer,
};
use flotilla_region::{DiskUsage, Envelope};
use flotilla_store::{Error, Store};

use crate::layout;
use crate::packet::{Packet, PacketBody};
use crate::task::{Outbox, StopReason};

/// One member's links.
pub(super) struct HandshakeDriver {
    place: usize,
    incarnation: u64,
    identity: StoreIdentity,
    handshake: Handshake,
    /// Later settings of the cluster than those in force.
    kept: Option<ClusterSettings>,
    /// Stores that have accepted a greeting of this start, so that frames may be sent to them.
    linked: Vec<bool>,
}

impl HandshakeDriver {
    pub(super) fn new(
        place: usize,
        incarnation: u64,
        stores: usize,
        store: &Store,
        (registry, settings): (StoreRegistry, ClusterSettings),
    ) -> Result<Self, Error> {
        let identity = store.identity().clone();
        let run = (identity.uuid, identity.run);
        let address = format!("h:{}", place + 1);
        let handshakes =
            Handshake::introduction(store.member_id(), &identity.name, &address, run, settings);
        let (history, known) = (store.history().clone(), store.peer_runs()?);
        let handshake = Handshake::new(handshakes, history, registry, known, false);
        Ok(Self {
            place,
            incarnation,
            identity,
            handshake,
            kept: None,
            linked: vec![false; stores],
        })
    }

    /// The answer of a member to a store that is none.
    pub(super) fn answer(&self, request: &BootstrapRequest) -> BootstrapResponse {
        member_answer(&self.identity, self.handshake.registry(), request)
    }

    /// Greets all stores without a link.
    pub(super) fn greet(&self, out: &mut Outbox) {
        for to in (0..self.linked.len()).filter(|to| *to != self.place && !self.linked[*to]) {
            let hello = Box::new(self.handshake.greet(layout::id(to)));
            let body = PacketBody::Hello { incarnation: self.incarnation, hello };
            out.packets.push(Packet::new(self.place, to, body));
        }
    }

    /// Takes a greeting, durably, and answers it. True if its sender was accepted.
    pub(super) fn hear(
        &mut self,
        store: &Store,
        hello: &StoreHello,
        failed: impl Fn(&Error) -> StopReason,
    ) -> Result<bool, StopReason> {
        match self.handshake.decide(hello, store.log_end()) {
            // The next step takes them up, and the greeting comes again.
            HelloDecision::TakeUp(settings) => {
                self.learn(store, &settings).map_err(|error| failed(&error))?;
                Ok(false)
            }
            HelloDecision::Accept(write) => {
                if let Some(write) = write {
                    // Durable before it is accepted: this memory is what convicts an older copy of
                    // the sender later.
                    store.remember_peer(&write).map_err(|error| failed(&error))?;
                }
                self.handshake.accept(hello);
                Ok(true)
            }
            HelloDecision::Unconfirmed | HelloDecision::Refuse(_) => Ok(false),
            HelloDecision::Learn(registry) => {
                store.keep_registry(&registry).map_err(|error| failed(&error))?;
                // The second time it is no news.
                assert!(self.handshake.learn_registry(*registry), "a later registry is news");
                self.hear(store, hello, failed)
            }
            HelloDecision::Stop(words) => Err(StopReason::Refused(words)),
        }
    }

    /// Keeps settings of the cluster durably, if they are later than the own ones.
    pub(super) fn learn(&mut self, store: &Store, settings: &ClusterSettings) -> Result<(), Error> {
        let known = self.kept.as_ref().unwrap_or(self.handshake.settings());
        if settings.version > known.version {
            store.keep_settings(settings)?;
            self.kept = Some(*settings);
        }
        Ok(())
    }

    /// Settings that are kept and not in force; they are from now on.
    pub(super) fn take_up(&mut self) -> Option<ClusterSettings> {
        let settings = self.kept.take()?;
        self.handshake.learn_settings(settings);
        Some(settings)
    }

    /// The version that is in force.
    pub(super) fn in_force(&self) -> u64 {
        self.handshake.settings().version
    }

    /// Whether later ones are kept already.
    pub(super) fn has_news(&self) -> bool {
        self.kept.is_some()
    }

    /// The answer to a greeting of `to`, which asked in an incarnation of its own.
    pub(super) fn answer_hello(&self, to: usize, incarnation: u64, accepted: bool) -> Packet {
        let hello = Box::new(self.handshake.greet(layout::id(to)));
        Packet::new(self.place, to, PacketBody::HelloAnswer { incarnation, hello, accepted })
    }

    /// A greeting of this start was answered by `from`, which is accepted here as well.
    pub(super) fn link(&mut self, from: usize) {
        self.linked[from] = true;
    }

    /// `from` does not take frames of this start. False if there was no link.
    pub(super) fn unlink(&mut self, from: usize, run: StoreRun) -> bool {
        // A refusal of an earlier start may arrive late.
        run == self.identity.run && std::mem::take(&mut self.linked[from])
    }

    pub(super) fn is_linked(&self, to: usize) -> bool {
        self.linked[to]
    }

    /// A message of raft as it travels.
    pub(super) fn frame(&self, store: &Store, disk: DiskUsage, envelope: Envelope) -> Packet {
        let (uuid, run, log_end) = (self.identity.uuid, self.identity.run, store.log_end());
        let (from, to) = (self.place, layout::place(envelope.to.store));
        let envelope = Box::new(envelope);
        Packet::new(from, to, PacketBody::Frame { uuid, run, log_end, disk, envelope })
    }

    /// The directory of the store, and this start of it.
    pub(super) fn own_run(&self) -> (StoreUuid, StoreRun) {
        (self.identity.uuid, self.identity.run)
    }

    /// Whether streams of this start of `from` are accepted.
    pub(super) fn takes_run(&self, from: usize, uuid: StoreUuid, run: StoreRun) -> bool {
        self.handshake.takes(layout::id(from), uuid, run)
    }

    /// Whether a frame of this start of `from` is accepted; if so, its log position is noted.
    pub(super) fn takes(&mut self, from: usize, body: &PacketBody) -> bool {
        let PacketBody::Frame { uuid, run, log_end, .. } = body else { return false };
        let store = layout::id(from);
        let takes = self.handshake.takes(store, *uuid, *run);
        if takes {
            self.handshake.note_log_end(store, *log_end);
        }
        takes
    }
}
