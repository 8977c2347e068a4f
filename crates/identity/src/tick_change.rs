//! The stage of a change of the tick, of which the settings of the cluster keep a word.

use flotilla_base::fields::{FieldReader, Malformed, put_varint};

/// The steps of a change of the tick, on which leases rest. The next is taken once every store of
/// the registry has the one before, durably and in force:
///
/// ```text
/// Settled ──► LeasesOff ──► Spreading ──► Settled
///    ▲            │          (the tick is another one from here on)
///    └────────────┘ (taken back: no store has the other tick yet)
/// ```
///
/// So while any store uses leases, none has another tick than that store
/// (decision 58, `docs/decisions/0058-settings-change-online.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TickChange {
    /// None is under way: all stores that use leases have the same tick.
    #[default]
    Settled,
    /// Stores that have this use no leases. All have the tick from before.
    LeasesOff {
        /// Milliseconds of the tick that is to come.
        next_ms: u64,
    },
    /// No store uses leases. Some have the new tick, and the others the one from before.
    Spreading,
}

/// The numbers of the steps in a row.
const LEASES_OFF: u64 = 1;
const SPREADING: u64 = 2;

impl TickChange {
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        match self {
            // Rows without a change end before.
            Self::Settled => {}
            Self::LeasesOff { next_ms } => {
                put_varint(out, LEASES_OFF);
                put_varint(out, next_ms);
            }
            Self::Spreading => put_varint(out, SPREADING),
        }
    }

    pub(crate) fn decode(reader: &mut FieldReader) -> Result<Self, Malformed> {
        match reader.varint()? {
            LEASES_OFF => Ok(Self::LeasesOff { next_ms: reader.varint()? }),
            SPREADING => Ok(Self::Spreading),
            _ => Err(reader.malformed()),
        }
    }
}
