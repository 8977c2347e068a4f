//! The streams of snapshots of one start of a store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flotilla_region::{Envelope, Event, PeerId, RegionId, SnapshotSend, StageId};
use flotilla_store::SnapshotReader;

use crate::coverage::SnapshotCoverage;
use crate::packet::{SnapshotPart, StreamId};

/// The streams of one start of a store.
pub(super) struct SnapshotStreams {
    pub(super) place: usize,
    pub(super) incarnation: u64,
    pub(super) chunk_bytes: usize,
    pub(super) begun: u64,
    /// Snapshots that wait for their turn.
    pub(super) waiting: VecDeque<SnapshotSend>,
    pub(super) outgoing: BTreeMap<u64, Outgoing>,
    pub(super) incoming: BTreeMap<StreamId, Incoming>,
    /// Streams that came and have ended: late parts of them change nothing.
    pub(super) ended: BTreeSet<StreamId>,
    pub(super) coverage: SnapshotCoverage,
    /// Streams that have ended behind a spill, and were begun before it.
    pub(super) across_spills: u64,
}

/// A snapshot that is sent.
pub(super) struct Outgoing {
    pub(super) region: RegionId,
    pub(super) from: PeerId,
    pub(super) to: PeerId,
    pub(super) place: usize,
    pub(super) number: u64,
    pub(super) reader: SnapshotReader,
    pub(super) is_begun: bool,
    pub(super) has_ended: bool,
    pub(super) sent: u64,
    pub(super) taken: u64,
    /// Bytes that the store had spilled before it began.
    pub(super) spilled_before: u64,
}

impl Outgoing {
    pub(super) fn report(&self, ok: bool) -> Event {
        let &Self { region, from, to, number, .. } = self;
        Event::SnapshotSent { region, from, to, number, ok }
    }
}

/// A snapshot that comes.
pub(super) struct Incoming {
    pub(super) stage: StageId,
    pub(super) envelope: Envelope,
    /// The number of the next part.
    pub(super) next: u64,
    /// Parts that came before their turn.
    pub(super) early: BTreeMap<u64, SnapshotPart>,
}

impl SnapshotStreams {
    pub(super) fn new(place: usize, incarnation: u64, chunk_bytes: usize) -> Self {
        Self {
            place,
            incarnation,
            chunk_bytes,
            begun: 0,
            waiting: VecDeque::new(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            ended: BTreeSet::new(),
            coverage: SnapshotCoverage::default(),
            across_spills: 0,
        }
    }

    /// How many there are, both ways.
    pub(super) fn count(&self) -> usize {
        self.waiting.len() + self.outgoing.len() + self.incoming.len()
    }
}
