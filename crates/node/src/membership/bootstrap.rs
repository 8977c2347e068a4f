//! Drives the bootstrap protocol: asks and answers until the directory is that of a member.

use std::sync::Arc;
use std::time::Duration;

use flotilla_identity::{
    Bootstrap, BootstrapRefusal, BootstrapRequest, BootstrapResponse, BootstrapSchedule,
    BootstrapWrite, QuestionToken, StoreUuid,
};
use flotilla_store::StoreDirectory;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use super::bootstrap_client::ask;
use crate::clock::Clock;
use crate::config::{FirstStart, ResolvedConfig, read_first_borders};
use crate::start::StartError;

/// The longest pause between two looks at what is due.
const STEP: Duration = Duration::from_millis(50);

/// A waiting store logs what it waits for, first after this and then each `WAITING_LOG_INTERVAL`.
const WAITING_LOG_DELAY: Duration = Duration::from_secs(2);
const WAITING_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A bootstrap under way, shared with the server that answers for it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BootstrapDriver {
    shared: Arc<BootstrapShared>,
}

struct BootstrapShared {
    state: Mutex<BootstrapState>,
    /// Rings when a question of another store has changed something.
    changed: Notify,
    clock: Clock,
}

struct BootstrapState {
    /// Gone once the store runs.
    directory: Option<StoreDirectory>,
    machine: Bootstrap,
    schedule: BootstrapSchedule,
    /// Whether another cluster's store that dials this address ends a list of one.
    listens: bool,
    refused: Option<BootstrapRefusal>,
    failed: Option<flotilla_store::Error>,
}

/// A question that was asked, and what came of it.
type Answered = (usize, QuestionToken, Result<BootstrapResponse, Status>);

impl BootstrapDriver {
    pub(super) fn new(
        directory: StoreDirectory,
        resolved: &ResolvedConfig,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let identity = directory.identity().clone();
        let own = resolved.own();
        if !identity.name.is_empty() && identity.name != own.name {
            return Err(StartError::Refused(format!(
                "name = \"{}\", but the data directory {} is that of store {}: correct --name or \
                 --data-dir",
                own.name,
                resolved.config.data_dir.display(),
                identity.name
            )));
        }
        let mut spec = resolved.spec.clone();
        // Read only by a store that begins a cluster: the file of a member may be gone.
        if let Some(path) = resolved.config.split_keys() {
            spec.split_keys = read_first_borders(path, spec.regions, spec.settings.api)?;
        }
        let regions = spec.first_regions();
        let machine = Bootstrap::new(identity, spec, resolved.place, regions);
        let listens = resolved.config.first_start != FirstStart::New;
        let schedule = BootstrapSchedule::new(clock.now(), &machine, listens);
        let state = BootstrapState {
            directory: Some(directory),
            machine,
            schedule,
            listens,
            refused: None,
            failed: None,
        };
        let shared = BootstrapShared { state: Mutex::new(state), changed: Notify::new(), clock };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) async fn run(
        &self,
        channels: &[Channel],
        resolved: &ResolvedConfig,
    ) -> Result<(), StartError> {
        let mut asking: JoinSet<Answered> = JoinSet::new();
        let mut log_due = Instant::now() + WAITING_LOG_DELAY;
        loop {
            let cluster_id = random_cluster_id();
            let (due, ended) = self.on_disk(move |state, now| state.step(now, cluster_id)).await;
            if let Some(ended) = ended {
                return ended.map_err(|error| error.into_start_error(resolved));
            }
            for (place, token, request) in due {
                let channel = channels[place].clone();
                asking.spawn(async move { (place, token, ask(channel, &request).await) });
            }
            if Instant::now() >= log_due {
                log_due = Instant::now() + WAITING_LOG_INTERVAL;
                tracing::warn!("no cluster yet: waiting for {}", self.waiting());
            }
            tokio::select! {
                Some(answered) = asking.join_next() => {
                    let (place, token, response) = answered.expect("asking does not panic");
                    self.on_disk(move |state, _| state.hear(place, token, response)).await;
                }
                () = self.shared.changed.notified() => {}
                () = tokio::time::sleep(STEP) => {}
            }
        }
    }

    /// The directory, once it is a member's.
    pub(super) fn take_directory(&self) -> Option<StoreDirectory> {
        self.shared.state.lock().directory.take()
    }

    /// Answers a question of another listed store.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if the store runs by now, or cannot write.
    pub(crate) async fn answer(
        &self,
        request: BootstrapRequest,
    ) -> Result<BootstrapResponse, Status> {
        let response = self.on_disk(move |state, _| state.answer(&request)).await;
        self.shared.changed.notify_one();
        response.ok_or_else(|| Status::unavailable("the store stops, or starts to serve"))
    }

    /// A store of another cluster has dialled this address.
    pub(crate) fn dialled(&self, cluster_id: u64, store: u64, by: String) {
        let mut state = self.shared.state.lock();
        if state.machine.spec().stores.len() == 1 && state.listens {
            state.refused = Some(BootstrapRefusal::Dialled { store, cluster_id, by });
            self.shared.changed.notify_one();
        }
    }

    /// The directory's number.
    pub(super) fn uuid(&self) -> StoreUuid {
        self.shared.state.lock().machine.identity().uuid
    }

    /// The stores or settings that the bootstrap waits for, for messages.
    pub(crate) fn waiting(&self) -> String {
        self.shared.state.lock().machine.waiting()
    }

    /// Announces to the other stores that the cluster has begun, if this one founded it. A store
    /// that misses it asks.
    pub(super) fn announce(&self, resolved: &ResolvedConfig, channels: Vec<Channel>) {
        if resolved.place != 0 {
            return;
        }
        let begin = self.shared.state.lock().machine.announcement();
        for channel in channels.into_iter().skip(1) {
            let begin = begin.clone();
            tokio::spawn(async move { ask(channel, &begin).await });
        }
    }

    /// Runs `act` on a thread that may block on the disk.
    async fn on_disk<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut BootstrapState, flotilla_region::Time) -> T + Send + 'static,
    ) -> T {
        let shared = Arc::clone(&self.shared);
        let acted = tokio::task::spawn_blocking(move || {
            let now = shared.clock.now();
            act(&mut shared.state.lock(), now)
        });
        acted.await.expect("the bootstrap does not panic")
    }
}

/// Why a bootstrap ended without a member.
enum BootstrapError {
    Refused(BootstrapRefusal),
    Disk(flotilla_store::Error),
}

impl BootstrapError {
    fn into_start_error(self, resolved: &ResolvedConfig) -> StartError {
        let dir = resolved.config.data_dir.display().to_string();
        match self {
            Self::Refused(refusal) => StartError::Refused(format!("{dir}: {refusal}")),
            Self::Disk(source) => StartError::Store { dir, source },
        }
    }
}

/// Questions that are due.
type Due = Vec<(usize, QuestionToken, BootstrapRequest)>;

impl BootstrapState {
    /// Goes on as far as it can: what to ask now, or how it ended.
    fn step(
        &mut self,
        now: flotilla_region::Time,
        cluster_id: u64,
    ) -> (Due, Option<Result<(), BootstrapError>>) {
        // The rules of rounds and promises are decision 19, `docs/decisions/0019-one-bootstrap.md`.
        if self.schedule.may_begin(now)
            && let Some(write) = self.machine.advance(cluster_id)
        {
            self.carry_out(&write);
        }
        if let Some(error) = self.failed.take() {
            return (Due::new(), Some(Err(BootstrapError::Disk(error))));
        }
        if let Some(refusal) = self.refused.take() {
            return (Due::new(), Some(Err(BootstrapError::Refused(refusal))));
        }
        if self.machine.is_member() {
            return (Due::new(), Some(Ok(())));
        }
        (self.schedule.due(now, &mut self.machine), None)
    }

    fn hear(
        &mut self,
        place: usize,
        token: QuestionToken,
        response: Result<BootstrapResponse, Status>,
    ) {
        self.schedule.answered(place);
        let Ok(response) = response else { return self.machine.note_silence(place) };
        match self.machine.hear(place, token, &response) {
            Ok(Some(write)) => {
                self.carry_out(&write);
            }
            Ok(None) => {}
            Err(refusal) => self.refused = Some(refusal),
        }
    }

    fn answer(&mut self, request: &BootstrapRequest) -> Option<BootstrapResponse> {
        // A member answers with what its registry says, once it serves.
        self.directory.as_ref().filter(|directory| !directory.identity().is_member())?;
        let (write, response) = self.machine.answer(request);
        let is_durable = write.is_none_or(|write| self.carry_out(&write));
        is_durable.then_some(response)
    }

    /// Writes, and reports the write to the state machine. False if the disk refuses.
    fn carry_out(&mut self, write: &BootstrapWrite) -> bool {
        let Some(directory) = &mut self.directory else { return false };
        match directory.write(write) {
            Ok(()) => {
                self.machine.written(write);
                true
            }
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }
}

/// A number that no other cluster has. Clients in other languages keep it in signed integers.
fn random_cluster_id() -> u64 {
    (crate::start::random_u64() >> 1).max(1)
}
