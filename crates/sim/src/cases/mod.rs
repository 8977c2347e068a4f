//! Named cases: what splits must survive, one script each, from one seed.
//!
//! Chance comes upon most of them as well. A script makes one for certain, says what it is, and
//! looks at more than the audit does.

mod audits;
mod comparisons;
mod crashes;
mod damage;
mod disks;
mod expiry;
mod first_messages;
mod leaders;
mod membership;
mod membership_crashes;
mod requests;
mod scenario;
mod settings;
mod snapshots;
mod split_wishes;
mod transfers;
mod uninitialised;

use scenario::{DATA, Scenario};
