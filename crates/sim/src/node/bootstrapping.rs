//! A store that is no member yet: it asks the others and answers them, as the node does.

use fastrand::Rng;
use flotilla_identity::{
    Bootstrap, BootstrapRequest, BootstrapResponse, BootstrapSchedule, BootstrapWrite,
    ClusterSettings, ClusterSpec, IdentityState, InitialStore, QuestionToken,
};
use flotilla_region::{Descriptor, Time};
use flotilla_store::{Error, StoreDirectory};

use crate::packet::{Packet, PacketBody};
use crate::task::{Outbox, StopReason};

/// The flags that the operator gave to a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperatorFlags {
    /// The same as all others.
    #[default]
    Right,
    /// Another value of a setting of the cluster.
    OtherSetting,
    /// The list of stores in another order.
    OtherOrder,
}

impl OperatorFlags {
    /// The cluster specification of a store with these flags.
    pub(super) fn spec(self, stores: usize) -> ClusterSpec {
        let store = |place: usize| InitialStore {
            name: format!("s{}", place + 1),
            address: format!("h:{}", place + 1),
        };
        let mut settings = ClusterSettings::default();
        let mut stores: Vec<_> = (0..stores).map(store).collect();
        match self {
            Self::Right => {}
            Self::OtherSetting => settings.replicas += 1,
            Self::OtherOrder => stores.rotate_left(1),
        }
        ClusterSpec { stores, settings, regions: 1, split_keys: vec![], cluster_id: 0 }
    }
}

/// A store whose directory is not that of a member.
pub(super) struct BootstrappingStore {
    place: usize,
    incarnation: u64,
    directory: StoreDirectory,
    bootstrap: Bootstrap,
    schedule: BootstrapSchedule,
    /// Whether it was about to become a member: the disk may say so though it refused the write.
    has_tried: bool,
    /// Whether it may keep a plan, and have said so.
    has_plan: bool,
    /// By place of the list: the number of the store that has this name.
    numbers: Vec<usize>,
}

impl BootstrappingStore {
    pub(super) fn new(
        place: usize,
        incarnation: u64,
        directory: StoreDirectory,
        (flags, stores): (OperatorFlags, usize),
        regions: &[Descriptor],
        now: Time,
    ) -> Self {
        let spec = flags.spec(stores);
        let number = |store: &InitialStore| {
            let number: usize = store.name[1..].parse().expect("names are numbers");
            number - 1
        };
        let numbers: Vec<usize> = spec.stores.iter().map(number).collect();
        let listed = numbers.iter().position(|number| *number == place).expect("all are listed");
        let identity = directory.identity().clone();
        // A store that restarts may have told the founder before that it keeps the plan.
        let has_plan = identity.state != IdentityState::New;
        let bootstrap = Bootstrap::new(identity, spec, listed, regions.to_vec());
        let schedule = BootstrapSchedule::new(now, &bootstrap, false);
        Self {
            place,
            incarnation,
            directory,
            bootstrap,
            schedule,
            has_tried: false,
            has_plan,
            numbers,
        }
    }

    pub(super) fn is_member(&self) -> bool {
        self.bootstrap.is_member()
    }

    /// Whether the directory may be that of a member by now.
    pub(super) fn has_tried(&self) -> bool {
        self.has_tried
    }

    /// Whether the directory may keep a plan.
    pub(super) fn has_plan(&self) -> bool {
        self.has_plan
    }

    /// The member's directory.
    pub(super) fn into_directory(self) -> StoreDirectory {
        self.directory
    }

    /// The announcement that a founder sends once.
    pub(super) fn announce(&self, out: &mut Outbox) {
        if self.numbers[0] == self.place {
            let begin = self.bootstrap.announcement();
            for to in self.numbers.iter().copied().filter(|to| *to != self.place) {
                self.ask(to, self.bootstrap.token(), begin.clone(), out);
            }
        }
    }

    /// Goes on as far as it can.
    pub(super) fn step(&mut self, now: Time, rng: &mut Rng, out: &mut Outbox) -> Result<(), Error> {
        if let Some(write) = self.bootstrap.advance(rng.u64(1..1 << 62)) {
            self.carry_out(&write)?;
        }
        for (listed, token, request) in self.schedule.due(now, &mut self.bootstrap) {
            self.ask(self.numbers[listed], token, request, out);
        }
        Ok(())
    }

    fn ask(&self, to: usize, token: QuestionToken, request: BootstrapRequest, out: &mut Outbox) {
        let body = PacketBody::Question { incarnation: self.incarnation, token, request };
        out.packets.push(Packet::new(self.place, to, body));
    }

    /// The answer to a question, durable.
    pub(super) fn answer(
        &mut self,
        request: &BootstrapRequest,
    ) -> Result<Option<BootstrapResponse>, Error> {
        if self.is_member() {
            return Ok(None);
        }
        let (write, response) = self.bootstrap.answer(request);
        if let Some(write) = write {
            self.carry_out(&write)?;
        }
        Ok(Some(response))
    }

    /// An answer has come.
    pub(super) fn hear(
        &mut self,
        from: usize,
        token: QuestionToken,
        response: &BootstrapResponse,
    ) -> Result<(), BootstrapEnd> {
        let listed = self.numbers.iter().position(|number| *number == from);
        let listed = listed.expect("all are listed");
        self.schedule.answered(listed);
        let heard = self.bootstrap.hear(listed, token, response);
        match heard.map_err(|refusal| BootstrapEnd::Refused(refusal.to_string()))? {
            Some(write) => self.carry_out(&write).map_err(BootstrapEnd::Failed),
            None => Ok(()),
        }
    }

    fn carry_out(&mut self, write: &BootstrapWrite) -> Result<(), Error> {
        // Before the write: it may reach the disk though it is reported as failed.
        self.has_tried |= matches!(write, BootstrapWrite::Member);
        self.has_plan |= matches!(write, BootstrapWrite::Form { .. });
        self.directory.write(write)?;
        // After the write: an error leaves the machine where the directory is known to be.
        self.bootstrap.written(write);
        Ok(())
    }
}

/// Why a store does not go on.
pub(super) enum BootstrapEnd {
    Refused(String),
    Failed(Error),
}

impl BootstrapEnd {
    pub(super) fn into_stop(self, failed: impl FnOnce(&Error) -> StopReason) -> StopReason {
        match self {
            Self::Refused(words) => StopReason::Refused(words),
            Self::Failed(error) => failed(&error),
        }
    }
}
