//! A leader whose region is played by the test: it decides what is granted, carried out, refused.

use std::collections::{BTreeMap, VecDeque};

use flotilla_identity::{
    ClusterSettings, FEATURE_LEVEL, RegisterRefusal, RegisterRequest, SettingChange, StateChange,
    StateRefusal, StoreRecord, StoreState, StoreUuid,
};
use flotilla_placement::{ExitRefusal, RegionInfo, ReplicaInfo, ReplicaRole};
use flotilla_region::{
    Descriptor, Epoch, Event, Index, Peer, PeerId, RegionId, Reject, RemovedPeers, RoleChange,
    Space,
};
use flotilla_vfs::fault::FaultFs;
use tonic::Code;

use super::super::context::{PdConfig, PdContext};
use super::super::registration::NotRegistered;
use super::super::store_changes::NotChanged;
use super::*;
use crate::clock::Clock;
use crate::driver::comparisons::Comparisons;
use crate::driver::context::{NodeContext, WorkQueues};
use crate::driver::joint_changes::JointChanges;
use crate::driver::router::RouterLimits;
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::{Mailboxes, ShardMessage};
use crate::driver::tickets::{TicketAnswer, Tickets};
use crate::failure::NodeFailure;
use crate::test_store;
use crate::transport::PeerConnections;
use crate::wall_clock::WallClock;
use flotilla_dispatch::OpenLanes;

const TERM: Term = Term(5);

/// A store with the system region and no thread that drives it.
struct World {
    context: NodeContext,
    router: Router,
    membership: Membership,
    /// The rows of the region.
    rows: Mutex<BTreeMap<Bytes, Bytes>>,
}

/// How the region answers.
#[derive(Clone, Copy)]
enum Region {
    /// It leads: reads are granted and swaps succeed.
    Leads,
    /// Another replica leads by now.
    Deposed,
    /// Swaps succeed, and then another replica leads.
    DeposedAfterItsWrite,
}

fn peer(store: u64) -> Peer {
    Peer { id: PeerId(100 + store), store: StoreId(store) }
}

impl World {
    fn new() -> Self {
        let region = |id, space| Descriptor {
            removed: RemovedPeers::default(),
            id,
            space,
            start: "".into(),
            end: "".into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![Peer { id: PeerId(id.0 * 100 + 1), store: StoreId(1) }.into()],
        };
        let regions = [region(SYSTEM_REGION, Space::System), region(RegionId(2), Space::Raw)];
        let (store, membership) = test_store::open_member(&FaultFs::new(1), &regions);
        let mailboxes = Mailboxes::new(1, 1 << 20);
        let context = NodeContext {
            disks: test_store::disks(&mailboxes),
            store,
            tickets: Tickets::new(),
            routes: Arc::new(RoutingTable::new(regions.to_vec())),
            comparisons: Arc::new(Comparisons::new()),
            joint_changes: Arc::new(JointChanges::new(&regions, Instant::now())),
            mailboxes,
            queues: WorkQueues::new(),
            latencies: Arc::default(),
            damaged_pages: Arc::default(),
            clock: Clock::start(),
        };
        let failure = NodeFailure::new(|| ());
        let router = Router::new(
            membership.id(),
            context.clone(),
            RouterLimits::default(),
            failure,
            WallClock::new(|| Ok(())),
        );
        Self { context, router, membership, rows: Mutex::default() }
    }

    /// Answers the requests to the region. All of them must be asked in the leader's term.
    fn answer(&self, region: Region) {
        let mut messages = VecDeque::new();
        let open = OpenLanes { appends: true, clients: true };
        let now = Some(std::time::Instant::now());
        self.context.mailboxes.at(0).take(&mut messages, open, now);
        for message in messages {
            let ShardMessage::Event(event) = message else { panic!("nobody looks") };
            let (ticket, precondition, command) = match event {
                Event::Read { ticket, precondition, follower, .. } => {
                    assert!(!follower, "only the leader may confirm itself");
                    (ticket, precondition, None)
                }
                Event::Propose { ticket, precondition, command, .. } => {
                    (ticket, precondition, Some(command))
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(precondition.term, Some(TERM), "asked without a term that could be stale");
            let is_served = match region {
                Region::Leads => true,
                Region::Deposed => false,
                Region::DeposedAfterItsWrite => command.is_some(),
            };
            let refused = TicketAnswer::Rejected(Reject::NotLeader { leader: Some(peer(2)) });
            let answer = match command {
                _ if !is_served => refused,
                Some(command) => TicketAnswer::Applied(self.swap(command)),
                None => TicketAnswer::Granted(Index(0)),
            };
            self.context.tickets.answer(ticket, answer, std::time::Instant::now());
        }
    }

    /// Carries out a compare-and-swap, the only command of a leader.
    fn swap(&self, command: Bytes) -> ApplyOutcome {
        let ops = raw::decode(command).expect("it was encoded here").ops;
        let [RawOp::CompareAndSwap { key, expected, value: Some(value), ttl_s: 0 }] = &ops[..]
        else {
            panic!("{ops:?}");
        };
        let mut rows = self.rows.lock();
        let previous = rows.get(key).cloned();
        let succeeded = previous == *expected;
        if succeeded {
            rows.insert(key.clone(), value.clone());
        }
        ApplyOutcome::Swapped { succeeded, previous }
    }

    /// The number in a row of the region.
    fn row(&self, key: &'static [u8]) -> Option<u64> {
        self.rows.lock().get(key).map(|row| rows::decode(key, row).expect("a leader wrote it"))
    }

    /// Waits for an answer, as long as the region answers.
    async fn told<T>(&self, region: Region, call: impl Future<Output = T>) -> T {
        let mut call = std::pin::pin!(call);
        // Time stands still in these tests until all wait for it.
        let mut looks = tokio::time::interval(Duration::from_millis(1));
        loop {
            tokio::select! {
                biased;
                told = &mut call => return told,
                _ = looks.tick() => self.answer(region),
            }
        }
    }

    fn driver(&self) -> PdContext {
        let (router, membership) = (self.router.clone(), self.membership.clone());
        PdContext::new(router, membership, PeerConnections::default(), PdConfig::default())
    }

    async fn pd_leader(&self) -> Arc<PdLeader> {
        let pd_leader = PdLeader::start_term(self.router.clone(), self.membership.clone(), TERM);
        self.told(Region::Leads, pd_leader).await.expect("the region leads")
    }
}

#[tokio::test(start_paused = true)]
async fn who_leads_hands_out_ids_and_timestamps_once_its_rows_are_written() {
    let world = World::new();
    let pd_leader = world.pd_leader().await;
    let first = world.told(Region::Leads, pd_leader.ids(10)).await.unwrap();
    assert_eq!(world.told(Region::Leads, pd_leader.ids(1)).await.unwrap(), first + 1);
    let one = world.told(Region::Leads, pd_leader.timestamp(1)).await.unwrap();
    assert!(world.told(Region::Leads, pd_leader.timestamp(1)).await.unwrap() > one);
}

#[tokio::test(start_paused = true)]
async fn who_was_deposed_hands_out_nothing_of_what_it_has() {
    let world = World::new();
    let pd_leader = world.pd_leader().await;
    // It has ids and a window of timestamps, and need not write before it takes of them.
    world.told(Region::Leads, pd_leader.ids(1)).await.unwrap();
    world.told(Region::Leads, pd_leader.timestamp(1)).await.unwrap();
    let status = world.told(Region::Deposed, pd_leader.ids(1)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = world.told(Region::Deposed, pd_leader.timestamp(1)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test(start_paused = true)]
async fn who_is_deposed_while_it_writes_or_after_hands_out_nothing() {
    for region in [Region::Deposed, Region::DeposedAfterItsWrite] {
        let world = World::new();
        let pd_leader = world.pd_leader().await;
        let status = world.told(region, pd_leader.ids(1)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let status = world.told(region, pd_leader.timestamp(1)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_refused_reserves_nothing() {
    let world = World::new();
    let pd_leader = world.pd_leader().await;
    world.told(Region::Deposed, pd_leader.ids(1)).await.unwrap_err();
    world.told(Region::Deposed, pd_leader.timestamp(1)).await.unwrap_err();
    assert_eq!((world.row(rows::IDS_KEY), world.row(rows::TSO_KEY)), (None, None));
    // It was no other leader after all, but this one for a moment without a quorum.
    let id = world.told(Region::Leads, pd_leader.ids(1)).await.unwrap();
    assert!(world.row(rows::IDS_KEY).is_some_and(|end| id < end), "{id} was never reserved");
    let stamp = world.told(Region::Leads, pd_leader.timestamp(1)).await.unwrap();
    let reserved = world.row(rows::TSO_KEY).is_some_and(|end| stamp.physical_ms < end);
    assert!(reserved, "{stamp:?} was never reserved");
}

fn request(uuid: u128, name: &str) -> RegisterRequest {
    let (name, address) = (name.to_owned(), format!("{name}:1"));
    let uuid = StoreUuid(uuid);
    RegisterRequest { uuid, name, address, level: FEATURE_LEVEL, ..RegisterRequest::default() }
}

#[tokio::test(start_paused = true)]
async fn a_store_is_registered_once_its_row_is_written() {
    let world = World::new();
    let pd_leader = world.pd_leader().await;
    let row = || StoreRegistry::decode(&world.rows.lock()[rows::STORES_KEY]).unwrap();
    let before = row();
    for region in [Region::Deposed, Region::DeposedAfterItsWrite] {
        let status = world.told(region, pd_leader.register(&request(9, "s9"))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(row(), before);
    }
    let leader = &pd_leader;
    let register = |asked| world.told(Region::Leads, async move { leader.register(&asked).await });
    let (store, registry) = register(request(9, "s9")).await.unwrap().unwrap();
    assert_eq!((row(), registry.store(store).map(|it| it.uuid)), (registry, Some(StoreUuid(9))));
    let (other, _) = register(request(10, "s10")).await.unwrap().unwrap();
    assert!(other > store);
    let (again, _) = register(request(9, "s9")).await.unwrap().unwrap();
    assert_eq!((again, row().version), (store, before.version + 2));
    let refusal = register(request(11, "s10")).await.unwrap().unwrap_err();
    let is_taken = matches!(refusal, NotRegistered::Refused(RegisterRefusal::NameTaken { .. }));
    assert!(is_taken, "{refusal}");
    // It knows the store, and no longer whether that still holds.
    let known = request(9, "s9");
    let status = world.told(Region::Deposed, pd_leader.register(&known)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(pd_leader.see(|cluster| cluster.stores().count()), 3);
}

#[tokio::test(start_paused = true)]
async fn a_store_is_replaced_once_it_may_be_lost() {
    let world = World::new();
    let pd_leader = world.pd_leader().await;
    let leader = &pd_leader;
    let register = |asked| world.told(Region::Leads, async move { leader.register(&asked).await });
    let (old, _) = register(request(9, "s9")).await.unwrap().unwrap();
    let replace = |uuid| {
        let asked = RegisterRequest { is_replacement: true, ..request(uuid, "s9") };
        register(asked)
    };
    let version = pd_leader.registry.lock().registry().version;
    let young = replace(10).await.unwrap().unwrap_err();
    assert!(matches!(young, NotRegistered::NotNow(LossRefusal::YoungLeader(_))), "{young}");
    tokio::time::advance(Duration::from_secs(10)).await;
    let unknown = replace(10).await.unwrap().unwrap_err();
    assert!(matches!(unknown, NotRegistered::NotNow(LossRefusal::UnknownRegion(_))), "{unknown}");
    assert_eq!(pd_leader.registry.lock().registry().version, version, "nothing is written");

    let replica = ReplicaInfo { id: 201, store: 1, role: ReplicaRole::Voter };
    let region = RegionInfo { id: 2, replicas: vec![replica], ..RegionInfo::default() };
    pd_leader.change_view(|view| view.note_system(RegionInfo { id: 1, ..region.clone() }));
    let report = RegionHeartbeat { region, term: 6, leader: Some(replica) };
    pd_leader.hear(StoreId(1), &[report], true, 0);
    let (new, registry) = replace(10).await.unwrap().unwrap();
    assert!(new > old && registry.is_gone(old) && !registry.is_gone(new));
    assert_eq!(registry.named("s9").map(|store| store.id), Some(new));
    let is_lost = |store: StoreId| {
        pd_leader.see(|view| view.store(store.0).is_some_and(|known| known.standing.is_lost))
    };
    assert!(is_lost(old) && !is_lost(new), "repair takes its replicas for missing");
    assert_eq!(replace(10).await.unwrap().unwrap().0, new, "the answer was lost");
    let gone = register(request(9, "s9")).await.unwrap().unwrap_err();
    assert_eq!(gone, NotRegistered::Refused(RegisterRefusal::Gone { store: old }));
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_store_changes_once_its_row_is_written() {
    let world = World::new();
    let pd_leader = world.pd_leader().await;
    let leader = &pd_leader;
    let asked = request(9, "s9");
    let registered = world.told(Region::Leads, leader.register(&asked)).await;
    let (store, _) = registered.unwrap().unwrap();
    let change = async |change| {
        let told = world.told(Region::Leads, leader.change_store(store, change)).await;
        told.map(|written| {
            assert_eq!(written.registry_version, leader.registry.lock().registry().version);
            written.state
        })
    };
    let alone = change(StateChange::Drain).await.unwrap_err();
    assert_eq!(alone, NotChanged::Exit(store, ExitRefusal::NoSuccessor));
    assert!(alone.is_passing(true) && !alone.is_passing(false), "no store has reported");
    leader.hear(StoreId(1), &[], true, 0);
    assert_eq!(change(StateChange::Drain).await, Ok(StoreState::Draining));
    let standing = || leader.see(|view| view.store(store.0).unwrap().standing.clone());
    assert!(standing().is_draining && !standing().is_leaving);
    let version = leader.registry.lock().registry().version;
    assert_eq!(change(StateChange::Drain).await, Ok(StoreState::Draining));
    assert_eq!(leader.registry.lock().registry().version, version, "nothing is written");
    assert_eq!(change(StateChange::Cancel).await, Ok(StoreState::Up));
    assert_eq!(change(StateChange::Leave).await, Ok(StoreState::Leaving));
    assert!(!standing().is_draining && standing().is_leaving);
    let leaves = change(StateChange::Drain).await.unwrap_err();
    assert_eq!(leaves, NotChanged::State(StateRefusal::Leaving(store)));
    let unknown = world.told(Region::Leads, leader.change_store(StoreId(99), StateChange::Leave));
    assert_eq!(unknown.await, Err(NotChanged::State(StateRefusal::Unknown(StoreId(99)))));
    let young = change(StateChange::Lost).await.unwrap_err();
    assert!(matches!(young, NotChanged::Loss(_)) && young.is_passing(false), "{young}");
    // Another store leads by now: it is not known whether the state is still that.
    let deposed = world.told(Region::Deposed, leader.change_store(store, StateChange::Leave)).await;
    assert_eq!(deposed, Err(NotChanged::Unwritten));

    // It has no replica, and all regions are known.
    tokio::time::advance(Duration::from_secs(10)).await;
    let replica = ReplicaInfo { id: 201, store: 1, role: ReplicaRole::Voter };
    let region = RegionInfo { id: 2, replicas: vec![replica], ..RegionInfo::default() };
    leader.change_view(|view| view.note_system(RegionInfo { id: 1, ..region.clone() }));
    leader.hear(StoreId(1), &[RegionHeartbeat { region, term: 6, leader: Some(replica) }], true, 0);
    for (replicas, state) in [(1, StoreState::Leaving), (0, StoreState::Removed)] {
        leader.note_condition(store, false, Some(replicas));
        world.told(Region::Leads, leader.remove_emptied()).await;
        let found = leader.registry.lock().registry().store(store).map(|record| record.state);
        assert_eq!(found, Some(state), "{replicas} replicas");
    }
    assert!(standing().is_lost, "it takes no part any more");
}

#[tokio::test(start_paused = true)]
async fn no_store_is_drained_or_leaves_while_an_older_one_is_not_upgraded() {
    let world = World::new();
    let mut registry = StoreRegistry { version: 9, level: 2, ..world.membership.registry() };
    let newer = registry.stores[0].clone();
    registry.stores[0].level = 2;
    registry.stores.push(StoreRecord { id: StoreId(2), name: "s2".to_owned(), ..newer });
    world.rows.lock().insert(rows::STORES_KEY.into(), registry.encode().into());
    let pd_leader = world.pd_leader().await;
    pd_leader.hear(StoreId(1), &[], true, 0);
    let change = async |change| {
        let told = world.told(Region::Leads, pd_leader.change_store(StoreId(2), change)).await;
        told.map(|written| written.state)
    };
    for refused in [StateChange::Drain, StateChange::Leave] {
        let refusal = change(refused).await.unwrap_err();
        let words = "store 2: the feature level is 2, and 3 is needed: upgrade s1";
        assert_eq!(refusal.to_string(), words, "{refused:?}");
        assert!(!refusal.is_passing(true), "an operator has to act");
    }
    // As is what asks for nothing to be moved.
    assert_eq!(change(StateChange::Cancel).await, Ok(StoreState::Up));
}

#[tokio::test(start_paused = true)]
async fn no_setting_changes_while_an_older_store_is_not_upgraded() {
    let world = World::new();
    let mut registry = StoreRegistry { version: 9, level: 6, ..world.membership.registry() };
    registry.stores[0].level = 6;
    world.rows.lock().insert(rows::STORES_KEY.into(), registry.encode().into());
    let pd_leader = world.pd_leader().await;
    let change = pd_leader.change_setting(SettingChange::TickMs(100));
    let refusal = world.told(Region::Leads, change).await.unwrap_err();
    let words = "the feature level is 6, and 7 is needed: upgrade s1";
    assert_eq!(refusal.to_string(), words);
    assert_eq!(pd_leader.settings.lock().settings().version, 1);
}

/// The row has each step before any store hears of it, and a leader that does not know whether it
/// has written looks before it goes on.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_tick_goes_step_by_step_through_its_row() {
    let world = World::new();
    let leader = world.pd_leader().await;
    let row = || {
        let row = world.rows.lock().get(rows::SETTINGS_KEY).cloned();
        ClusterSettings::decode(&row.expect("the first leader writes it")).unwrap()
    };
    let change = world.told(Region::Leads, leader.change_setting(SettingChange::TickMs(100)));
    let changed = change.await.unwrap();
    assert_eq!((changed, changed.uses_leases(), changed.tick_ms), (row(), false, 50));
    let registry = leader.registry.lock().registry().version;
    let roll_out = async |region, version| {
        let newer = leader.note_settings(StoreId(1), version, registry);
        tokio::time::advance(Duration::from_secs(1)).await;
        world.told(region, leader.roll_out_settings()).await;
        newer
    };
    assert_eq!(roll_out(Region::Leads, 1).await, Some(changed), "it is shown what it lacks");
    assert_eq!(roll_out(Region::Leads, 0).await, None, "an older store is not");
    assert_eq!(row(), changed, "the store has not got it");
    // Once for the time that leases of stores that are gone may have left.
    assert_eq!(roll_out(Region::Leads, 2).await, None);
    assert_eq!(row(), changed);
    // It is written, and another store leads before this one hears of that.
    roll_out(Region::DeposedAfterItsWrite, 2).await;
    assert_eq!((row().version, row().tick_ms, row().uses_leases()), (3, 100, false));
    roll_out(Region::Deposed, 2).await;
    assert_eq!(row().version, 3, "it does not lead");
    assert_eq!(roll_out(Region::Leads, 3).await, None);
    assert_eq!((row().version, row().tick_ms, row().uses_leases()), (4, 100, true));
}

/// The leader's state goes with the term, whether another store leads or none does.
#[tokio::test(start_paused = true)]
async fn a_leader_steps_down_with_its_term() {
    let world = World::new();
    let driver = world.driver();
    let following = tokio::spawn(super::super::election::follow(driver.clone()));
    for (term, leader) in [(TERM, Some(peer(2))), (Term(6), None)] {
        let elected = |term, leader| RoleChange {
            region: SYSTEM_REGION,
            term,
            leader,
            is_leader: leader.is_some_and(|leader: Peer| leader.store == StoreId(1)),
        };
        world.context.routes.note(elected(TERM, Some(peer(1))));
        let pd_leader =
            world.told(Region::Leads, driver.pd_leader()).await.expect("it was elected");
        assert_eq!(pd_leader.term, TERM);
        world.context.routes.note(elected(term, leader));
        let mut held = driver.shared.pd_leader.subscribe();
        let gone = held.wait_for(Option::is_none);
        tokio::time::timeout(Duration::from_secs(1), gone).await.expect("it is laid down").unwrap();
        assert_eq!(
            driver.pd_leader().await.err().map(|status| status.code()),
            Some(Code::Unavailable)
        );
    }
    following.abort();
}
