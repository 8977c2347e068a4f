//! The embedded placement driver (PD).
//!
//! It lives on the store that leads the system region: `election` follows that leadership, `leader`
//! is the state of one term, `heartbeat_sender` on every store reports the regions that the store
//! leads, and `id_lender` fetches ids for regions that it splits. `service` answers clients: by
//! `lookup`, by `split_regions`, which has regions split where they are led, and by
//! `scatter_regions`, which has their leaders spread. `heartbeat_receiver` takes in the heartbeats,
//! `heartbeat_sessions` knows their streams, `leader_balancer` evens out what stores lead, and
//! `replica_repair` brings replicas to the stores that should have them: `repair_loop` looks now
//! and then, `step_runner` carries out its steps where regions are led, and `repair_requests`
//! answers operators. `registration` changes the `registry_row`, and takes stores that join;
//! `store_changes` drains stores and lets them leave. `setting_changes` changes the `settings_row`,
//! and rolls settings out. `keyspaces` serves the keyspaces of API V2, `backups` is placement's
//! share of backups, `stubs` are small services that clients expect of a PD. `http` is the part of
//! PD's HTTP API that is read, and `cluster_regions` are the regions for the status page. `context`
//! is their shared state, `placement_driver` puts them together.

mod backups;
mod cluster_regions;
mod context;
mod convert;
mod election;
mod errors;
mod heartbeat_receiver;
mod heartbeat_sender;
mod heartbeat_sessions;
mod http;
mod id_lender;
mod keyspaces;
mod leader;
mod leader_balancer;
mod lookup;
mod placement_driver;
mod registration;
mod registry_row;
mod repair_loop;
mod repair_requests;
mod replica_repair;
mod scatter_regions;
mod service;
mod setting_changes;
mod settings_row;
mod split_regions;
mod step_runner;
mod store_changes;
mod stubs;

pub(crate) use backups::BackupRequests;
pub(crate) use cluster_regions::{ClusterRegions, NoSuchRegion, RegionPage, RegionView};
pub use context::PdConfig;
pub(crate) use keyspaces::KeyspaceRequests;
pub use placement_driver::PlacementDriver;
pub(crate) use repair_requests::RepairRequests;
pub(crate) use setting_changes::SettingRequests;
