//! The schema of the page store and of the log groups, byte by byte: trees, keys and rows.
//!
//! Every row begins with a format byte, so that a later version can tell old rows from its own.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_varint};
use flotilla_kv::ColumnFamily;
use flotilla_region::{
    ConsistencyVerdict, Descriptor, HardState, Index, PeerId, RegionId, Space, StoreId, Term,
};

/// The identity of the data directory: one row, and one for each of its last starts.
pub(crate) const IDENT: &str = "ident";
/// The store's own copies of the registry and of the cluster's settings.
pub(crate) const CLUSTER: &str = "cluster";
/// Descriptors, by region.
pub(crate) const REGION: &str = "region";
/// How far each region is applied, and its hard state at the last cut; by region.
pub(crate) const APPLY: &str = "apply";
/// Replicas without data and their hard states at the last cut; by region. A region has a row here
/// or one in [`REGION`]; both only if the replica without data has the greater id: then the other
/// one is about to end (R17).
pub(crate) const UNINITIALISED: &str = "uninitialised";
/// The greatest replica that has ended here; by region.
pub(crate) const TOMB: &str = "tomb";
/// The last verdicts about regions whose replicas were found to differ; by region.
pub(crate) const INCONSISTENT: &str = "inconsistent";

/// The key of the row in [`IDENT`].
pub(crate) const IDENTITY_KEY: &[u8] = b"identity";
/// The keys of the rows in [`CLUSTER`].
pub(crate) const REGISTRY_KEY: &[u8] = b"registry";
pub(crate) const SETTINGS_KEY: &[u8] = b"settings";
/// The log group of the store itself; those of replicas have their peer ids, which are never 0.
pub(crate) const STORE_GROUP: u64 = 0;
/// The key of the identity's half in that group.
pub(crate) const LOG_IDENTITY_KEY: &[u8] = b"ident";
/// The key of the settings of the cluster in that group, if they have changed since the store
/// became a member.
pub(crate) const LOG_SETTINGS_KEY: &[u8] = b"settings";
/// The key of the transaction whose root the log relies on: what it has given up is in there.
pub(crate) const RELIED_ROOT_KEY: &[u8] = b"root";
/// The first bytes of the keys of other stores' starts in that group.
const PEER_RUN_PREFIX: &[u8] = b"run/";
/// The first bytes of the keys of own starts in [`IDENT`].
const START_PREFIX: &[u8] = b"start/";
/// The key of a replica's hard state in its log group.
pub(crate) const HARD_STATE_KEY: &[u8] = b"hs";

/// The key of a replica's birth in its log group: there while no durable root has its rows.
pub(crate) const BIRTH_KEY: &[u8] = b"b";

/// The first byte of apply rows, start records and the mark.
const FORMAT: u8 = 1;
/// The first byte of an apply row with a watermark.
const FORMAT_WITH_WATERMARK: u8 = 2;
/// The first byte of an apply row with a watermark, of a damaged replica.
const FORMAT_DAMAGED: u8 = 3;
/// The first byte of a data row: its flags.
const NO_FLAGS: u8 = 0;
/// The flag of a row with the time at which it expires.
const EXPIRES: u8 = 1;
/// Bytes of a time in a row.
const TIME_BYTES: usize = 8;

const APPLY_HEAD_BYTES: usize = 1 + 8 + 8;
/// Room for most apply rows, so that they seldom grow while they are encoded.
const APPLY_BYTES: usize = 64;
const UNINITIALISED_HEAD_BYTES: usize = 1 + 8;
const START_BYTES: usize = 1 + 8 + 8;

/// Bytes of a row that are not what this schema says; the text says which.
#[derive(Debug)]
pub(crate) struct MalformedRow(pub(crate) String);

/// The apply row of a region: its applied index and its hard state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApplyState {
    /// The last entry whose effects are in this root, and its term.
    pub(crate) applied: Index,
    pub(crate) term: Term,
    /// The latest time that an entry has named for what expires; 0 before there is one.
    pub(crate) watermark_ms: u64,
    /// Whether rows of the region are lost here: nothing is served from them, and no entry applied.
    pub(crate) is_damaged: bool,
    /// The hard state when the last cut was made. The log may hold a newer one.
    pub(crate) hard_state: HardState,
}

impl ApplyState {
    /// Regions in which nothing has expired have the row that they had in versions without expiry.
    /// A version that knows no damaged replicas refuses the row of one.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let format = match (self.is_damaged, self.watermark_ms) {
            (true, _) => FORMAT_DAMAGED,
            (false, 0) => FORMAT,
            (false, _) => FORMAT_WITH_WATERMARK,
        };
        let has_watermark = format != FORMAT;
        let mut out = Vec::with_capacity(APPLY_BYTES);
        out.push(format);
        out.extend_from_slice(&self.applied.0.to_le_bytes());
        out.extend_from_slice(&self.term.0.to_le_bytes());
        if has_watermark {
            out.extend_from_slice(&self.watermark_ms.to_le_bytes());
        }
        out.extend_from_slice(&self.hard_state.encode());
        out
    }

    pub(crate) fn decode(region: RegionId, row: Option<&[u8]>) -> Result<Self, MalformedRow> {
        let row = row.ok_or_else(|| MalformedRow(format!("region {region} has no apply row")))?;
        let bad = || MalformedRow(format!("the apply row of region {region} is malformed"));
        let head_bytes = match row.first() {
            Some(&FORMAT) => APPLY_HEAD_BYTES,
            Some(&(FORMAT_WITH_WATERMARK | FORMAT_DAMAGED)) => APPLY_HEAD_BYTES + TIME_BYTES,
            _ => return Err(bad()),
        };
        let (head, hard_state) = row.split_at_checked(head_bytes).ok_or_else(bad)?;
        let hard_state =
            HardState::decode(Bytes::copy_from_slice(hard_state)).map_err(|_| bad())?;
        let watermark_ms =
            if head_bytes > APPLY_HEAD_BYTES { number(head, APPLY_HEAD_BYTES) } else { 0 };
        let (applied, term) = (Index(number(head, 1)), Term(number(head, 9)));
        let is_damaged = head[0] == FORMAT_DAMAGED;
        Ok(Self { applied, term, watermark_ms, is_damaged, hard_state })
    }
}

/// The mark of a root: every hard state that the log held up to this place is in the root's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointLsn {
    pub(crate) lsn: u64,
}

impl CheckpointLsn {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend_from_slice(&self.lsn.to_le_bytes());
        out
    }

    pub(crate) fn decode(mark: &[u8]) -> Result<Self, MalformedRow> {
        match mark {
            [FORMAT, rest @ ..] if rest.len() == 8 => Ok(Self { lsn: number(rest, 0) }),
            _ => Err(MalformedRow("the mark of the page file is malformed".to_owned())),
        }
    }
}

/// The key of the record of an own start. Big-endian, so that starts lie in order.
pub(crate) fn start_key(starts: u64) -> Vec<u8> {
    [START_PREFIX, &starts.to_be_bytes()].concat()
}

/// The bounds of all such keys.
pub(crate) fn start_keys() -> (Vec<u8>, Vec<u8>) {
    // One byte longer than a key, so that the greatest count lies below.
    (START_PREFIX.to_vec(), [START_PREFIX, &[0xff; 9]].concat())
}

/// The count of starts that a key of a start names.
pub(crate) fn starts_of_key(key: &[u8]) -> Result<u64, MalformedRow> {
    let number = key.strip_prefix(START_PREFIX).and_then(|number| number.try_into().ok());
    number
        .map(u64::from_be_bytes)
        .ok_or_else(|| MalformedRow(format!("{key:?} is no key of a start")))
}

/// An own start: its nonce, and where the log ended when it was opened.
pub(crate) fn encode_start((nonce, log_end): (u64, u64)) -> Vec<u8> {
    let mut out = vec![FORMAT];
    out.extend_from_slice(&nonce.to_le_bytes());
    out.extend_from_slice(&log_end.to_le_bytes());
    out
}

/// Decodes the row of [`encode_start`].
pub(crate) fn decode_start(row: &[u8]) -> Result<(u64, u64), MalformedRow> {
    match row {
        [FORMAT, rest @ ..] if rest.len() == 16 => Ok((number(rest, 0), number(rest, 8))),
        _ => Err(MalformedRow("the record of a start is malformed".to_owned())),
    }
}

/// A start of another store, and its address then.
pub(crate) fn encode_peer_run(run: (u64, u64), address: &str) -> Vec<u8> {
    let mut out = encode_start(run);
    out.extend_from_slice(address.as_bytes());
    out
}

/// Decodes the row of [`encode_peer_run`].
pub(crate) fn decode_peer_run(row: &[u8]) -> Result<((u64, u64), String), MalformedRow> {
    let bad = || MalformedRow("the start of another store is malformed".to_owned());
    let (run, address) = row.split_at_checked(START_BYTES).ok_or_else(bad)?;
    let address = String::from_utf8(address.to_vec()).map_err(|_| bad())?;
    Ok((decode_start(run)?, address))
}

/// The key of another store's last known start in the log.
pub(crate) fn peer_run_key(store: StoreId) -> Vec<u8> {
    [PEER_RUN_PREFIX, &store.0.to_be_bytes()].concat()
}

/// The store that a key of the store's log group names, if it is one of a start.
pub(crate) fn store_of_run_key(key: &[u8]) -> Option<StoreId> {
    let number = key.strip_prefix(PEER_RUN_PREFIX)?.try_into().ok()?;
    Some(StoreId(u64::from_be_bytes(number)))
}

/// The record of a replica's birth: which region it is of, and what has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BirthRecord {
    /// The split of a region here.
    Split {
        region: RegionId,
        /// The region that was split.
        parent: RegionId,
        /// The entry of the split in the parent's log.
        index: Index,
    },
    /// A message of another replica; it has no data.
    Message { region: RegionId },
}

/// The second byte of a record of a birth.
const BORN_BY_SPLIT: u8 = 1;
const BORN_BY_MESSAGE: u8 = 2;

impl BirthRecord {
    pub(crate) fn region(self) -> RegionId {
        match self {
            Self::Split { region, .. } | Self::Message { region } => region,
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let (kind, numbers) = match self {
            Self::Split { region, parent, index } => {
                (BORN_BY_SPLIT, &[region.0, parent.0, index.0][..])
            }
            Self::Message { region } => (BORN_BY_MESSAGE, &[region.0][..]),
        };
        let mut out = vec![FORMAT, kind];
        for number in numbers {
            put_varint(&mut out, *number);
        }
        out
    }

    pub(crate) fn decode(row: Bytes) -> Result<Self, Malformed> {
        let mut reader = FieldReader::new(row, "birth of a replica");
        let kind = (reader.byte()?, reader.byte()?);
        let region = RegionId(reader.varint()?);
        let record = match kind {
            (FORMAT, BORN_BY_SPLIT) => {
                let (parent, index) = (RegionId(reader.varint()?), Index(reader.varint()?));
                Self::Split { region, parent, index }
            }
            (FORMAT, BORN_BY_MESSAGE) => Self::Message { region },
            _ => return Err(reader.malformed()),
        };
        reader.finish()?;
        Ok(record)
    }
}

/// The row of a replica without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UninitialisedRow {
    pub(crate) peer: PeerId,
    /// The hard state when the last cut was made. The log may hold a newer one.
    pub(crate) hard_state: HardState,
}

impl UninitialisedRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend_from_slice(&self.peer.0.to_le_bytes());
        out.extend_from_slice(&self.hard_state.encode());
        out
    }

    pub(crate) fn decode(region: RegionId, row: &[u8]) -> Result<Self, MalformedRow> {
        let bad =
            || MalformedRow(format!("the row of region {region}, which has no data, is malformed"));
        if row.len() < UNINITIALISED_HEAD_BYTES || row[0] != FORMAT {
            return Err(bad());
        }
        let hard_state = Bytes::copy_from_slice(&row[UNINITIALISED_HEAD_BYTES..]);
        let hard_state = HardState::decode(hard_state).map_err(|_| bad())?;
        Ok(Self { peer: PeerId(number(row, 1)), hard_state })
    }
}

/// The row of a region of which a replica has ended here, or must never be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// No replica with this id or a lower one is made here again.
    pub(crate) peer: PeerId,
    /// Ended replicas whose groups the log may still have: nothing else says which region those
    /// groups are of, once the rows are gone.
    pub(crate) groups: Vec<PeerId>,
}

impl Tombstone {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.peer.0);
        put_varint(&mut out, self.groups.len() as u64);
        self.groups.iter().for_each(|group| put_varint(&mut out, group.0));
        out
    }

    pub(crate) fn decode(region: RegionId, row: &[u8]) -> Result<Self, MalformedRow> {
        Self::read(Bytes::copy_from_slice(row))
            .map_err(|_| MalformedRow(format!("the tombstone of region {region} is malformed")))
    }

    fn read(row: Bytes) -> Result<Self, Malformed> {
        let mut reader = FieldReader::new(row, "tombstone");
        if reader.byte()? != FORMAT {
            return Err(reader.malformed());
        }
        let peer = PeerId(reader.varint()?);
        // Without room reserved: a damaged count may be anything.
        let mut groups = vec![];
        for _ in 0..reader.varint()? {
            groups.push(PeerId(reader.varint()?));
        }
        reader.finish()?;
        // The log group of the store itself has the number 0.
        let is_ended = |group: &PeerId| *group > PeerId(0) && *group <= peer;
        if groups.iter().all(is_ended) {
            return Ok(Self { peer, groups });
        }
        Err(Malformed { what: "tombstone" })
    }
}

/// The replica of a region whose row is here. One that has applied its own removal is not listed
/// any more, and its end is not confirmed before it is gone from here.
pub(crate) fn replica_here(descriptor: &Descriptor, store: StoreId) -> Option<PeerId> {
    let removed = || descriptor.removed.unconfirmed.iter().find(|peer| peer.store == store);
    descriptor.peer_on(store).or_else(|| removed().copied()).map(|peer| peer.id)
}

/// The key of a region's rows. Big-endian, so that regions lie in the order of their ids.
pub(crate) fn region_key(region: RegionId) -> [u8; 8] {
    region.0.to_be_bytes()
}

/// The region that a key of [`REGION`], [`APPLY`], [`UNINITIALISED`] or [`TOMB`] names.
pub(crate) fn region_of_key(key: &[u8]) -> Result<RegionId, MalformedRow> {
    let bytes =
        key.try_into().map_err(|_| MalformedRow(format!("{key:?} is no key of a region")))?;
    Ok(RegionId(u64::from_be_bytes(bytes)))
}

pub(crate) fn decode_descriptor(region: RegionId, row: &[u8]) -> Result<Descriptor, MalformedRow> {
    let descriptor = Descriptor::decode(Bytes::copy_from_slice(row))
        .map_err(|error| MalformedRow(format!("the row of region {region}: {error}")))?;
    // The key names the region as well: a row under another key would give two replicas one log.
    if descriptor.id != region {
        return Err(MalformedRow(format!(
            "the row of region {region} is that of {}",
            descriptor.id
        )));
    }
    Ok(descriptor)
}

/// Reads a row of [`INCONSISTENT`].
pub(crate) fn decode_verdict(
    region: RegionId,
    row: &[u8],
) -> Result<ConsistencyVerdict, MalformedRow> {
    ConsistencyVerdict::decode(Bytes::copy_from_slice(row))
        .map_err(|error| MalformedRow(format!("the verdict about region {region}: {error}")))
}

/// The trees of a column family of a space. All families of a space are cut by the same regions
/// (decision 46, `docs/decisions/0046-column-families-are-trees.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilyTrees {
    pub(crate) family: ColumnFamily,
    /// The tree that holds the data.
    pub(crate) rows: &'static str,
    /// The tree that holds, for each row that expires, a row with the time of that; none if the
    /// rows of the space do not expire. So the rows that have expired are found without a look at
    /// the others, and a region's rows here are those of its range, as there.
    pub(crate) expiries: Option<&'static str>,
}

const SYSTEM_TREES: [FamilyTrees; 1] =
    [FamilyTrees { family: ColumnFamily::Default, rows: "system", expiries: None }];

const RAW_TREES: [FamilyTrees; 3] = [
    FamilyTrees { family: ColumnFamily::Default, rows: "raw", expiries: Some("raw-expiry") },
    FamilyTrees { family: ColumnFamily::Lock, rows: "raw-lock", expiries: Some("raw-lock-expiry") },
    FamilyTrees {
        family: ColumnFamily::Write,
        rows: "raw-write",
        expiries: Some("raw-write-expiry"),
    },
];

/// The trees of all column families of a space, the default one first.
pub(crate) fn trees_of(space: Space) -> &'static [FamilyTrees] {
    match space {
        Space::System => &SYSTEM_TREES,
        Space::Raw => &RAW_TREES,
    }
}

/// The trees of a column family, if the space has it.
pub(crate) fn family_trees(space: Space, family: ColumnFamily) -> Option<&'static FamilyTrees> {
    trees_of(space).iter().find(|trees| trees.family == family)
}

/// The most bytes that a data row has in addition to its value.
pub(crate) const DATA_HEAD_BYTES_MAX: usize = 1 + TIME_BYTES;

/// A row of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRow<'a> {
    /// The time at which it expires, in milliseconds since 1970; 0 for never.
    pub(crate) expires_ms: u64,
    pub(crate) value: &'a [u8],
}

impl<'a> DataRow<'a> {
    /// Puts the bytes of the row into `row`, whose memory is used again.
    pub(crate) fn encode(&self, row: &mut Vec<u8>) {
        row.clear();
        if self.expires_ms == 0 {
            row.push(NO_FLAGS);
        } else {
            row.push(EXPIRES);
            row.extend_from_slice(&self.expires_ms.to_le_bytes());
        }
        row.extend_from_slice(self.value);
    }

    /// Whether it is none any more at `now_ms`.
    pub(crate) fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms
    }

    pub(crate) fn decode(row: &'a [u8]) -> Result<Self, MalformedRow> {
        let bad = |what: String| Err(MalformedRow(what));
        match row {
            [NO_FLAGS, value @ ..] => Ok(Self { expires_ms: 0, value }),
            [EXPIRES, rest @ ..] => match rest.split_at_checked(TIME_BYTES) {
                Some((time, value)) if number(time, 0) > 0 => {
                    Ok(Self { expires_ms: number(time, 0), value })
                }
                _ => bad("a value has no time at which it expires".to_owned()),
            },
            // A flag changes how the rest is read, so an unknown one is no value to be guessed.
            [flags, ..] => bad(format!("a value has unknown flags {flags:#x}")),
            [] => bad("a value has no flags".to_owned()),
        }
    }
}

/// The row of [`expiry_tree`].
pub(crate) fn encode_expiry(expires_ms: u64) -> [u8; 1 + TIME_BYTES] {
    let mut row = [FORMAT; 1 + TIME_BYTES];
    row[1..].copy_from_slice(&expires_ms.to_le_bytes());
    row
}

pub(crate) fn decode_expiry(row: &[u8]) -> Result<u64, MalformedRow> {
    match row {
        [FORMAT, time @ ..] if time.len() == TIME_BYTES => Ok(number(time, 0)),
        _ => Err(MalformedRow("the time at which a row expires is malformed".to_owned())),
    }
}

impl From<Malformed> for MalformedRow {
    fn from(malformed: Malformed) -> Self {
        Self(malformed.to_string())
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes make a number"))
}

#[cfg(test)]
mod tests {
    use flotilla_region::PeerId;

    use super::*;

    #[test]
    fn apply_rows_have_these_bytes() {
        let hard_state = HardState { term: Term(6), vote: Some(PeerId(101)), commit: Index(9) };
        let (applied, term, is_damaged) = (Index(8), Term(5), false);
        let state = ApplyState { applied, term, watermark_ms: 0, is_damaged, hard_state };
        let bytes = state.encode();
        assert_eq!(bytes[..17], [1, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[17..], hard_state.encode()[..]);
        assert_eq!(ApplyState::decode(RegionId(2), Some(&bytes)).unwrap(), state);
        for (format, is_damaged, watermark_ms) in [(2, false, 258), (3, true, 258), (3, true, 0)] {
            let state = ApplyState { watermark_ms, is_damaged, ..state };
            let bytes = state.encode();
            assert_eq!((bytes[0], &bytes[17..25]), (format, &watermark_ms.to_le_bytes()[..]));
            assert_eq!(bytes[25..], hard_state.encode()[..]);
            assert_eq!(ApplyState::decode(RegionId(2), Some(&bytes)).unwrap(), state);
        }
    }

    #[test]
    fn rows_have_these_bytes() {
        assert_eq!(start_key(258)[6..], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(starts_of_key(&start_key(258)).unwrap(), 258);
        let start = encode_start((3, 4));
        assert_eq!(start, [1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_start(&start).unwrap(), (3, 4));
        let run = encode_peer_run((3, 4), "h:1");
        assert_eq!(run, [&start[..], b"h:1"].concat());
        assert_eq!(decode_peer_run(&run).unwrap(), ((3, 4), "h:1".to_owned()));
        assert!(decode_peer_run(&run[..16]).is_err());
        assert_eq!(store_of_run_key(&peer_run_key(StoreId(7))), Some(StoreId(7)));
        assert_eq!(store_of_run_key(LOG_IDENTITY_KEY), None);
        assert_eq!(store_of_run_key(LOG_SETTINGS_KEY), None);

        let hard_state = HardState { term: Term(6), vote: Some(PeerId(101)), commit: Index(9) };
        assert_eq!(CheckpointLsn { lsn: 7 }.encode(), [1, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            CheckpointLsn::decode(&CheckpointLsn { lsn: 7 }.encode()).unwrap(),
            CheckpointLsn { lsn: 7 }
        );

        let (region, parent, index) = (RegionId(8), RegionId(7), Index(300));
        let birth = BirthRecord::Split { region, parent, index };
        assert_eq!(birth.encode(), [1, 1, 8, 7, 0xac, 2]);
        assert_eq!(BirthRecord::decode(birth.encode().into()), Ok(birth));
        for wrong in [&[1, 1, 8, 7][..], &[1, 3, 8, 7, 1], &[2, 1, 8, 7, 1], &[1, 1, 8, 7, 1, 0]] {
            assert!(BirthRecord::decode(Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
        }
        let birth = BirthRecord::Message { region: RegionId(300) };
        assert_eq!(birth.encode(), [1, 2, 0xac, 2]);
        assert_eq!(BirthRecord::decode(birth.encode().into()), Ok(birth));
        for wrong in [&[1, 2][..], &[1, 2, 8, 7], &[2, 2, 8], &[1]] {
            assert!(BirthRecord::decode(Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
        }

        let row = UninitialisedRow { peer: PeerId(801), hard_state };
        let bytes = row.encode();
        assert_eq!(bytes[..9], [1, 0x21, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[9..], hard_state.encode()[..]);
        assert_eq!(UninitialisedRow::decode(RegionId(8), &bytes).unwrap(), row);

        let tombstone = Tombstone { peer: PeerId(300), groups: vec![PeerId(300), PeerId(7)] };
        assert_eq!(tombstone.encode(), [1, 0xac, 2, 2, 0xac, 2, 7]);
        assert_eq!(Tombstone::decode(RegionId(8), &tombstone.encode()).unwrap(), tombstone);
        let none = Tombstone { peer: PeerId(7), groups: vec![] };
        assert_eq!(none.encode(), [1, 7, 0]);
        let wrong = [&[][..], &[2, 7, 0], &[1, 7], &[1, 7, 1], &[1, 7, 0, 0], &[1, 7, 1, 8]];
        for wrong in wrong.into_iter().chain([&[1, 7, 1, 0][..]]) {
            assert!(Tombstone::decode(RegionId(8), wrong).is_err(), "{wrong:?}");
        }

        assert_eq!(region_key(RegionId(258)), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(region_of_key(&region_key(RegionId(258))).unwrap(), RegionId(258));

        let mut row = vec![9; 4];
        let data = DataRow { expires_ms: 0, value: b"v" };
        data.encode(&mut row);
        assert_eq!((&row[..], DataRow::decode(&row).unwrap()), (&[0, b'v'][..], data));
        let data = DataRow { expires_ms: 258, value: b"v" };
        data.encode(&mut row);
        assert_eq!(row, [1, 2, 1, 0, 0, 0, 0, 0, 0, b'v']);
        assert_eq!(DataRow::decode(&row).unwrap(), data);
        assert_eq!(encode_expiry(258), [1, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_expiry(&encode_expiry(258)).unwrap(), 258);
    }

    #[test]
    fn damaged_rows_are_an_error() {
        for watermark_ms in [0, 7] {
            let state = ApplyState { watermark_ms, ..ApplyState::default() }.encode();
            for len in 0..state.len() {
                let cut = &state[..len];
                assert!(ApplyState::decode(RegionId(1), Some(cut)).is_err(), "cut at {len}");
            }
        }
        assert!(ApplyState::decode(RegionId(1), None).is_err());
        let row = UninitialisedRow { peer: PeerId(1), hard_state: HardState::default() }.encode();
        for len in 0..row.len() {
            assert!(UninitialisedRow::decode(RegionId(1), &row[..len]).is_err(), "cut at {len}");
        }
        assert!(decode_start(&[1; 16]).is_err());
        assert!(starts_of_key(b"start/1").is_err());
        assert!(CheckpointLsn::decode(b"").is_err());
        assert!(region_of_key(b"short").is_err());
        for wrong in [&[][..], &[128, 1], &[2], &[1, 2, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 5]] {
            assert!(DataRow::decode(wrong).is_err(), "{wrong:?}");
        }
        for wrong in [&[][..], &[1], &[2, 1, 0, 0, 0, 0, 0, 0, 0], &[1; 10]] {
            assert!(decode_expiry(wrong).is_err(), "{wrong:?}");
        }
    }
}
