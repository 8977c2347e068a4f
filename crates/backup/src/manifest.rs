//! The manifest: which data files are a backup, and the point of each region.
//!
//! | bytes | manifest |
//! |---|---|
//! | 8 | `flbkmani` |
//! | 1 | the version, 1 |
//! | varint | number of the backup in its directory |
//! | varint | id of the cluster |
//! | 1 | API version of the cluster, 1 or 2 |
//! | varint, varint | when it was begun and ended, in milliseconds since 1970 |
//! | string | the version of the program |
//! | varint, varint | the first id and the first millisecond of timestamps that were not given |
//! | varint | number of keyspaces; of each: varint id, string name, varint seconds since 1970 |
//! | varint | number of regions; of each, by their keys, a string with the fields below |
//! | 4, little-endian | CRC-32C of all before |
//!
//! | bytes | region |
//! |---|---|
//! | varint | id |
//! | varint, varint | its epoch: version, version of the configuration |
//! | string, string | first key, first key beyond; empty for none |
//! | varint, varint | index and term of the last entry that is in the rows |
//! | varint | when they were read, in milliseconds since 1970 by the clock of the leader |
//! | varint, varint, varint | number of rows, their bytes before compression, their digest |
//! | varint | length of the data file |

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, put_bytes, put_varint};

use crate::data_file::RowTotals;
use crate::error::BackupError;
use crate::names::data_file_name;

const MAGIC: &[u8; 8] = b"flbkmani";
const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;

/// The bytes of a region in a manifest are fewer: keys are bounded.
pub const REGION_BYTES_MAX: usize = 1 << 20;

/// One backup of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupManifest {
    /// Its number in its directory, from 1.
    pub number: u64,
    /// The cluster.
    pub cluster_id: u64,
    /// The API version of the cluster: 1 or 2.
    pub api_version: u8,
    /// When it was begun, in milliseconds since 1970.
    pub begun_ms: u64,
    /// When its last region was read.
    pub ended_ms: u64,
    /// The version of the program that made it.
    pub program: String,
    /// All that placement has handed out. Read behind the last region: so it is above all ids,
    /// timestamps and keyspaces that rows can name.
    pub placement: PlacementPoint,
    /// All regions, in the order of their keys.
    pub regions: Vec<BackupRegion>,
}

/// All that placement has handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementPoint {
    /// Ids from here on were never given.
    pub ids_end: u64,
    /// Timestamps from this millisecond on were never given.
    pub tso_end_ms: u64,
    /// Keyspaces, by id, without the one that each cluster has.
    pub keyspaces: Vec<BackupKeyspace>,
}

/// A keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupKeyspace {
    /// Its id, which is in each of its keys.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
}

/// A region at one moment: all entries of its log up to the index, and none behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionPoint {
    /// Its id.
    pub region: u64,
    /// Its version, which grows with splits.
    pub version: u64,
    /// The version of its configuration, which grows with changes of replicas.
    pub conf_version: u64,
    /// The first key.
    pub start: Bytes,
    /// The first key beyond; empty for none.
    pub end: Bytes,
    /// The last entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// When it was read, in milliseconds since 1970, by the clock of the leader.
    pub time_ms: u64,
}

/// A region of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupRegion {
    /// The moment that the rows are of.
    pub point: RegionPoint,
    /// The rows.
    pub totals: RowTotals,
    /// The length of the data file.
    pub file_bytes: u64,
}

impl BackupRegion {
    /// The name of the data file. Each region has one, also without rows.
    #[must_use]
    pub fn file_name(&self) -> String {
        data_file_name(self.point.region, self.totals.digest)
    }

    /// The bytes that [`BackupRegion::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let BackupRegion { point, totals, file_bytes } = self;
        let mut out = vec![];
        put_varint(&mut out, point.region);
        put_varint(&mut out, point.version);
        put_varint(&mut out, point.conf_version);
        put_bytes(&mut out, &point.start);
        put_bytes(&mut out, &point.end);
        for number in [
            point.index,
            point.term,
            point.time_ms,
            totals.rows,
            totals.bytes,
            totals.digest,
            *file_bytes,
        ] {
            put_varint(&mut out, number);
        }
        out
    }

    /// Reads what [`BackupRegion::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are damaged.
    pub fn decode(bytes: Bytes) -> Result<Self, BackupError> {
        let mut reader = FieldReader::new(bytes, "region of a backup");
        let point = RegionPoint {
            region: reader.varint()?,
            version: reader.varint()?,
            conf_version: reader.varint()?,
            start: reader.bytes()?,
            end: reader.bytes()?,
            index: reader.varint()?,
            term: reader.varint()?,
            time_ms: reader.varint()?,
        };
        let totals =
            RowTotals { rows: reader.varint()?, bytes: reader.varint()?, digest: reader.varint()? };
        let file_bytes = reader.varint()?;
        reader.finish()?;
        Ok(Self { point, totals, file_bytes })
    }
}

impl BackupManifest {
    /// The bytes that [`BackupManifest::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = [&MAGIC[..], &[VERSION]].concat();
        put_varint(&mut out, self.number);
        put_varint(&mut out, self.cluster_id);
        out.push(self.api_version);
        put_varint(&mut out, self.begun_ms);
        put_varint(&mut out, self.ended_ms);
        put_bytes(&mut out, self.program.as_bytes());
        let PlacementPoint { ids_end, tso_end_ms, keyspaces } = &self.placement;
        put_varint(&mut out, *ids_end);
        put_varint(&mut out, *tso_end_ms);
        put_varint(&mut out, keyspaces.len() as u64);
        for keyspace in keyspaces {
            put_varint(&mut out, u64::from(keyspace.id));
            put_bytes(&mut out, keyspace.name.as_bytes());
            put_varint(&mut out, keyspace.created_s);
        }
        put_varint(&mut out, self.regions.len() as u64);
        self.regions.iter().for_each(|region| put_bytes(&mut out, &region.encode()));
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads what [`BackupManifest::encode`] wrote.
    ///
    /// # Errors
    ///
    /// The bytes are damaged, or of another version.
    pub fn decode(bytes: Bytes) -> Result<Self, BackupError> {
        let damaged = |what: &str| BackupError::damaged(format!("the manifest {what}"));
        let Some(version) = bytes.strip_prefix(&MAGIC[..]).and_then(|rest| rest.first()) else {
            return Err(damaged("is none of a backup"));
        };
        if *version != VERSION {
            let (what, version, known) = ("the manifest", *version, VERSION);
            return Err(BackupError::Version { what, version, known });
        }
        let body_bytes = bytes.len().saturating_sub(CRC_BYTES);
        let (body, crc) = (bytes.slice(..body_bytes), &bytes[body_bytes..]);
        if crc32c::crc32c(&body).to_le_bytes()[..] != crc[..] {
            return Err(damaged("does not have its checksum"));
        }
        let head = MAGIC.len() + 1;
        if body.len() < head {
            return Err(damaged("ends too early"));
        }
        Self::read(body.slice(head..))
    }

    fn read(fields: Bytes) -> Result<Self, BackupError> {
        let mut reader = FieldReader::new(fields, "manifest");
        let text = |bytes: Bytes| {
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| BackupError::damaged("a name in the manifest is no text"))
        };
        let (number, cluster_id) = (reader.varint()?, reader.varint()?);
        let api_version = reader.byte()?;
        let (begun_ms, ended_ms) = (reader.varint()?, reader.varint()?);
        let program = text(reader.bytes()?)?;
        let (ids_end, tso_end_ms) = (reader.varint()?, reader.varint()?);
        // Without room reserved: a count may be anything.
        let mut keyspaces = vec![];
        for _ in 0..reader.varint()? {
            let id = u32::try_from(reader.varint()?).map_err(|_| reader.malformed())?;
            let (name, created_s) = (text(reader.bytes()?)?, reader.varint()?);
            keyspaces.push(BackupKeyspace { id, name, created_s });
        }
        let mut regions = vec![];
        for _ in 0..reader.varint()? {
            regions.push(BackupRegion::decode(reader.bytes()?)?);
        }
        reader.finish()?;
        let placement = PlacementPoint { ids_end, tso_end_ms, keyspaces };
        Ok(Self {
            number,
            cluster_id,
            api_version,
            begun_ms,
            ended_ms,
            program,
            placement,
            regions,
        })
    }

    /// Bytes that name this backup among all: cluster, number and checksum.
    #[must_use]
    pub fn identity(&self) -> Bytes {
        let bytes = self.encode();
        let crc = &bytes[bytes.len() - CRC_BYTES..];
        [&self.cluster_id.to_be_bytes()[..], &self.number.to_be_bytes(), crc].concat().into()
    }

    /// The sum of the rows of all regions; its digest means nothing.
    #[must_use]
    pub fn totals(&self) -> RowTotals {
        self.regions.iter().fold(RowTotals::default(), |sum, region| RowTotals {
            rows: sum.rows + region.totals.rows,
            bytes: sum.bytes + region.totals.bytes,
            digest: 0,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn region(id: u64, start: &'static str, end: &'static str) -> BackupRegion {
        let (start, end) = (start.into(), end.into());
        let (version, conf_version) = (3, 5);
        let (index, term, time_ms) = (300, 6, 1_700_000_000_000);
        let point =
            RegionPoint { region: id, version, conf_version, start, end, index, term, time_ms };
        let totals = RowTotals { rows: 9, bytes: 1000, digest: u64::MAX - id };
        BackupRegion { point, totals, file_bytes: 512 }
    }

    pub(crate) fn manifest() -> BackupManifest {
        let keyspace = BackupKeyspace { id: 1, name: "orders".to_owned(), created_s: 1_700 };
        BackupManifest {
            number: 2,
            cluster_id: u64::MAX,
            api_version: 2,
            begun_ms: 1,
            ended_ms: 2,
            program: "0.1.0".to_owned(),
            placement: PlacementPoint {
                ids_end: 1_010_000,
                tso_end_ms: 3,
                keyspaces: vec![keyspace],
            },
            regions: vec![region(2, "", "m"), region(7, "m", "")],
        }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was_written() {
        let manifest = manifest();
        let bytes = manifest.encode();
        assert_eq!(BackupManifest::decode(bytes.into()).unwrap(), manifest);
        assert_eq!(manifest.totals().rows, 18);
        assert_eq!(manifest.regions[1].file_name(), "7-fffffffffffffff8.rows");
    }

    #[test]
    fn the_first_bytes_are_where_the_table_says() {
        let mut manifest = manifest();
        (manifest.cluster_id, manifest.regions) = (300, vec![region(2, "", "m")]);
        let bytes = manifest.encode();
        assert_eq!(bytes[..15], *b"flbkmani\x01\x02\xac\x02\x02\x01\x02");
        assert_eq!(bytes[15..21], *b"\x050.1.0");
        let region = manifest.regions[0].encode();
        assert_eq!(region[..8], [2, 3, 5, 0, 1, b'm', 0xac, 2]);
        let end = bytes.len() - 4;
        assert_eq!(bytes[end - region.len()..end], region[..]);
        assert_eq!(bytes[end..], crc32c::crc32c(&bytes[..end]).to_le_bytes());
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_found() {
        let good = manifest().encode();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 4;
            assert!(BackupManifest::decode(bytes.into()).is_err(), "byte {at}");
            let cut = Bytes::copy_from_slice(&good[..at]);
            assert!(BackupManifest::decode(cut).is_err(), "cut at {at}");
        }
        let mut later = good;
        later[8] = 2;
        let error = BackupManifest::decode(later.into()).unwrap_err();
        assert!(matches!(error, BackupError::Version { version: 2, .. }), "{error}");
    }

    #[test]
    fn backups_that_differ_have_other_identities() {
        let first = manifest();
        let mut other = first.clone();
        other.regions[0].totals.digest ^= 1;
        assert_ne!(first.identity(), other.identity());
        assert_eq!(first.identity(), manifest().identity());
        assert_eq!(first.identity().len(), 20);
    }
}
