//! A node's decisions between its regions and its sockets, without IO, a clock or a thread. The
//! node and the simulator drive the same ones.
//!
//! - [`ComparisonSchedule`]: which region's replicas are compared next, and when.
//! - [`DiskMonitor`]: how full the disk is, and when its reserve is given up.
//! - [`ExpirySweep`]: which region is looked at next for rows that have expired, and when.
//! - [`Lane`] and [`OpenLanes`]: the order in which a shard takes its messages, and those that it
//!   leaves alone while its workers are behind.
//! - [`LeaderWaitState`]: a request that waits for its region to have a leader, and is tried again.
//! - [`OutgoingQueue`]: messages that wait for one stream to another store, and the frames made of
//!   them.
//! - [`SplitThrottle`]: when the next split of a store may begin.
//!
//! Nothing here knows a store, a wire format or a runtime.

mod comparison_schedule;
mod disk_monitor;
mod expiry_sweep;
mod lanes;
mod leader_wait;
mod outgoing_queue;
mod split_throttle;

pub use comparison_schedule::ComparisonSchedule;
pub use disk_monitor::{DiskLimits, DiskLook, DiskMonitor, DiskSpace, ReserveAction};
pub use expiry_sweep::{ExpirySweep, SWEEP_EXPIRED_MAX, SWEEP_ROWS_MAX, SweepPlace, SweepStep};
pub use lanes::{Lane, OpenLanes};
pub use leader_wait::{LeaderWaitState, LeaderWaitStep, Leadership};
pub use outgoing_queue::{
    FRAME_MESSAGES_MAX, KEPT_WHILE_DOWN_BYTES, NOTICES_MAX, OutgoingFrame, OutgoingQueue,
    StreamKind, message_weight,
};
pub use split_throttle::SplitThrottle;
