//! Fetches the rows of one region from the store that leads it, whichever that is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_backup::{BLOCK_BYTES_MAX, BackupRegion, RegionPoint, RowDigest, RowTotals, rows_of};
use flotilla_client::{Client, ColumnFamily, StoreOperator};
use flotilla_proto::metapb;
use flotilla_proto::peers::backup_region_response::Part;
use flotilla_proto::peers::{BackupEnd, BackupPoint, BackupRegionRequest, RegionRows};

use super::directory::{BackupDirectory, DataFileWriter};
use crate::tool::{ClusterTarget, Error};

/// A region that no store could read for so long ends the backup; it may be gone on with.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Reads regions, one after the other.
pub(super) struct RegionReader<'a> {
    target: &'a ClusterTarget,
    client: Client,
    directory: &'a BackupDirectory,
    bytes_per_s: u64,
    /// Stores that were asked already, by id.
    operators: BTreeMap<u64, StoreOperator>,
}

/// A region that was read.
pub(super) struct ReadRegion {
    pub(super) region: BackupRegion,
    /// Its rows are those of an earlier backup, whose file counts.
    pub(super) is_known: bool,
}

/// Why a try has failed.
enum ReadFailure {
    /// Another may do better.
    Passing(String),
    Final(Error),
}

impl From<Error> for ReadFailure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl From<flotilla_client::Error> for ReadFailure {
    fn from(error: flotilla_client::Error) -> Self {
        use flotilla_client::Error as E;
        match error {
            E::Rejected(_) | E::Unimplemented { .. } | E::Config(_) => Self::Final(error.into()),
            error => Self::Passing(error.to_string()),
        }
    }
}

impl<'a> RegionReader<'a> {
    pub(super) fn new(
        target: &'a ClusterTarget,
        client: Client,
        directory: &'a BackupDirectory,
        bytes_per_s: u64,
    ) -> Self {
        Self { target, client, directory, bytes_per_s, operators: BTreeMap::new() }
    }

    /// Reads the region that begins with `start`. `known` are the regions of the last backup by id;
    /// `look` sees bytes as they are read.
    pub(super) async fn read(
        &mut self,
        start: &Bytes,
        known: &BTreeMap<u64, BackupRegion>,
        look: &mut impl FnMut(u64),
    ) -> Result<ReadRegion, Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.attempt(start, known, look).await {
                Ok(read) => return Ok(read),
                Err(ReadFailure::Final(error)) => return Err(error),
                Err(ReadFailure::Passing(why)) if Instant::now() >= until => {
                    return Err(Error::Refused(format!(
                        "the region of the key \"{}\" could not be read for {} s: {why}; the same \
                         command goes on with the backup",
                        start.escape_ascii(),
                        PATIENCE.as_secs()
                    )));
                }
                Err(ReadFailure::Passing(_)) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    async fn attempt(
        &mut self,
        start: &Bytes,
        known: &BTreeMap<u64, BackupRegion>,
        look: &mut impl FnMut(u64),
    ) -> Result<ReadRegion, ReadFailure> {
        let located = self.client.region_of(start.clone()).await?;
        let (region, leader) = (located.region, located.leader);
        let leader = leader.ok_or_else(|| ReadFailure::Passing("it has no leader".to_owned()))?;
        let known = known.get(&region.id).filter(|known| known.point.start == *start);
        let request = BackupRegionRequest {
            region_id: region.id,
            start_key: start.clone(),
            bytes_per_s: self.bytes_per_s,
            known: known.map(to_wire),
        };
        let operator = self.operator(leader.store_id).await?;
        let read = self.receive(&operator, request, known, look).await;
        if read.is_err() {
            // Its store may have another address by now.
            self.operators.remove(&leader.store_id);
        }
        read
    }

    async fn operator(&mut self, store: u64) -> Result<StoreOperator, ReadFailure> {
        if let Some(operator) = self.operators.get(&store) {
            return Ok(operator.clone());
        }
        let stores = self.client.stores().await?;
        let found = stores.into_iter().find(|it: &metapb::Store| it.id == store);
        let unknown = || ReadFailure::Passing(format!("store {store} is not known"));
        let address = found.ok_or_else(unknown)?.address;
        let operator = StoreOperator::new(&address, &self.target.config())?;
        self.operators.insert(store, operator.clone());
        Ok(operator)
    }

    async fn receive(
        &self,
        operator: &StoreOperator,
        request: BackupRegionRequest,
        known: Option<&BackupRegion>,
        look: &mut impl FnMut(u64),
    ) -> Result<ReadRegion, ReadFailure> {
        let cut_short = || ReadFailure::Passing("the answer ended too early".to_owned());
        let mut parts = operator.backup_region(request).await?;
        let (mut point, mut receipt) = (None, None);
        loop {
            let part = parts.next().await?.and_then(|response| response.part);
            match part.ok_or_else(cut_short)? {
                Part::Refusal(refusal) if refusal.is_led_elsewhere => {
                    return Err(ReadFailure::Passing("it is led elsewhere".to_owned()));
                }
                Part::Refusal(refusal) if refusal.is_passing => {
                    return Err(ReadFailure::Passing(refusal.words));
                }
                Part::Refusal(refusal) => return Err(Error::Refused(refusal.words).into()),
                Part::PassedBytes(bytes) => look(bytes),
                Part::Point(begun) => {
                    point = Some(to_point(begun).ok_or_else(cut_short)?);
                    receipt = Some(RegionReceipt::new(self.directory)?);
                }
                Part::Rows(rows) => {
                    let receipt = receipt.as_mut().ok_or_else(cut_short)?;
                    look(rows.rows.len() as u64);
                    receipt.take(rows.family, &rows.rows)?;
                }
                Part::End(end) => {
                    let (point, receipt) = point.zip(receipt).ok_or_else(cut_short)?;
                    return self.finish(point, receipt, &end, known);
                }
            }
        }
    }

    fn finish(
        &self,
        point: RegionPoint,
        receipt: RegionReceipt,
        end: &BackupEnd,
        known: Option<&BackupRegion>,
    ) -> Result<ReadRegion, ReadFailure> {
        if let Some(known) = known.filter(|_| end.is_known) {
            let region = BackupRegion { point, ..known.clone() };
            return Ok(ReadRegion { region, is_known: true });
        }
        let totals = receipt.totals();
        let sent = end.all.as_ref().map(|all| (all.rows, all.bytes, all.digest));
        if sent != Some((totals.rows, totals.bytes, totals.digest)) {
            let words = format!("region {}: its rows were changed on their way", point.region);
            return Err(ReadFailure::Passing(words));
        }
        let mut region = BackupRegion { point, totals, file_bytes: 0 };
        region.file_bytes = self.directory.keep_data(receipt.file, &region)?;
        Ok(ReadRegion { region, is_known: false })
    }
}

/// The rows of a region as they come.
struct RegionReceipt {
    file: DataFileWriter,
    digest: RowDigest,
    read: RowTotals,
}

impl RegionReceipt {
    fn new(directory: &BackupDirectory) -> Result<Self, Error> {
        let (digest, read) = (RowDigest::default(), RowTotals::default());
        Ok(Self { file: directory.create_data()?, digest, read })
    }

    fn take(&mut self, family: u32, rows: &Bytes) -> Result<(), ReadFailure> {
        let malformed = || ReadFailure::Passing("rows that are malformed have come".to_owned());
        let family = u8::try_from(family).ok().and_then(ColumnFamily::of_number);
        let family = family.filter(|_| rows.len() <= BLOCK_BYTES_MAX).ok_or_else(malformed)?;
        for row in rows_of(rows.clone()) {
            row.map_err(|_| malformed())?;
            self.read.rows += 1;
        }
        self.read.bytes += rows.len() as u64;
        self.digest.add(family, rows);
        Ok(self.file.block(family, rows)?)
    }

    fn totals(&self) -> RowTotals {
        RowTotals { digest: self.digest.sum(), ..self.read }
    }
}

fn to_wire(known: &BackupRegion) -> RegionRows {
    let BackupRegion { point, totals, .. } = known;
    RegionRows {
        epoch: Some(metapb::RegionEpoch { version: point.version, conf_ver: point.conf_version }),
        index: point.index,
        term: point.term,
        rows: totals.rows,
        bytes: totals.bytes,
        digest: totals.digest,
    }
}

fn to_point(point: BackupPoint) -> Option<RegionPoint> {
    let BackupPoint { region, index, term, time_ms } = point;
    let metapb::Region { id, start_key, end_key, region_epoch, .. } = region?;
    let metapb::RegionEpoch { version, conf_ver } = region_epoch?;
    Some(RegionPoint {
        region: id,
        version,
        conf_version: conf_ver,
        start: start_key,
        end: end_key,
        index,
        term,
        time_ms,
    })
}
