//! The context of a step: the time, the limits, the disks, the effects and the counters.

use crate::config::Config;
use crate::disk_usage::ShardDisks;
use crate::effects::Effects;
use crate::error::Reject;
use crate::ids::{Ticket, Time};
use crate::status::Stats;

/// The time, the limits, and where to put what comes of the step.
pub(crate) struct StepContext<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    pub(crate) effects: &'a mut Effects,
    pub(crate) stats: &'a mut Stats,
    pub(crate) disks: &'a mut ShardDisks,
}

impl StepContext<'_> {
    pub(crate) fn reject(&mut self, ticket: Ticket, why: Reject) {
        self.effects.answers.rejected.push((ticket, why));
    }
}
