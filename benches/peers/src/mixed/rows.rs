//! The rows of the load: TPC-C's tables as keys and values, one warehouse's in one region.
//!
//! A key is the region's prefix, the table, and the numbers of warehouse, district, row and line.
//! A value begins with a tag that the numbers of its key determine, so that a row can be told from
//! another's; the rest is filler of the length that TPC-C's rows have, 50 to 600 bytes.

use crate::data::{Data, Kind};
use bytes::Bytes;
use flotilla_kv::raw::RawOp;

/// A table, with the bytes of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// One row a warehouse.
    Warehouse,
    /// Ten a warehouse.
    District,
    /// [`CUSTOMERS`] a district.
    Customer,
    /// [`ITEMS`] a warehouse.
    Stock,
    /// One an order.
    Order,
    /// One an order that is not delivered.
    NewOrder,
    /// 5 to 15 an order.
    OrderLine,
    /// One a payment.
    History,
}

impl Table {
    fn value_bytes(self) -> usize {
        match self {
            Table::Warehouse => 95,
            Table::District => 110,
            Table::Customer => 600,
            Table::Stock => 306,
            Table::Order => 60,
            Table::NewOrder => 50,
            Table::OrderLine => 64,
            Table::History => 60,
        }
    }
}

/// Districts of a warehouse.
pub const DISTRICTS: u32 = 10;
/// Customers of a district.
pub const CUSTOMERS: u64 = 30;
/// Rows of a warehouse's stock.
pub const ITEMS: u64 = 500;
/// Bytes of a tag.
const TAG_BYTES: usize = 8;
const FILLER_BYTES: usize = 64 << 10;

/// The numbers that name a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowId {
    /// The warehouse, from 0.
    pub warehouse: u32,
    /// The table.
    pub table: Table,
    /// The district, or a thread of clients.
    pub district: u32,
    /// The row's number.
    pub number: u64,
    /// The line of an order.
    pub line: u8,
}

impl RowId {
    /// A row.
    pub fn new(table: Table, warehouse: u32, district: u32, number: u64) -> RowId {
        RowId { warehouse, table, district, number, line: 0 }
    }

    /// The first bytes of the row's value.
    pub fn tag(&self) -> [u8; TAG_BYTES] {
        let place = u64::from(self.warehouse) << 32 | u64::from(self.district) << 8;
        let sum = (place | u64::from(self.line)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (sum ^ self.number ^ (self.table as u64) << 56).to_le_bytes()
    }
}

/// Lines of an order: 5 to 15, the same whenever it is asked for.
pub fn lines(order: &RowId) -> u8 {
    5 + (u64::from_le_bytes(order.tag()) >> 40) as u8 % 11
}

/// Makes keys and values.
pub struct Rows {
    regions: u64,
    filler: Data,
    rng: fastrand::Rng,
}

impl Rows {
    /// Rows over this many regions.
    pub fn new(regions: u64, kind: Kind, seed: u64) -> Rows {
        let filler = Data::new(kind, FILLER_BYTES);
        Rows { regions, filler, rng: fastrand::Rng::with_seed(seed) }
    }

    /// The place of a row's region.
    pub fn place(&self, row: &RowId) -> usize {
        (u64::from(row.warehouse) % self.regions) as usize
    }

    /// The key of a row.
    pub fn key(&self, row: &RowId) -> Bytes {
        key(self.regions, row)
    }

    /// Sets a row to another value.
    pub fn put(&mut self, row: &RowId) -> RawOp {
        let bytes = row.table.value_bytes();
        let mut value = Vec::with_capacity(bytes);
        value.extend_from_slice(&row.tag());
        // From any place, so that rows of one write do not repeat each other.
        let from = self.rng.usize(..FILLER_BYTES - bytes);
        let blob = &self.filler.entries(self.rng.u64(..1 << 32), 1)[0];
        value.extend_from_slice(&blob[from..from + bytes - TAG_BYTES]);
        RawOp::put(self.key(row), value.into())
    }

    /// Removes a row.
    pub fn delete(&self, row: &RowId) -> RawOp {
        RawOp::Delete { key: self.key(row) }
    }
}

/// The key of a row where clients' keys are split into `regions`.
pub fn key(regions: u64, row: &RowId) -> Bytes {
    let mut key = Vec::with_capacity(20);
    let prefix = ((u64::from(row.warehouse) % regions) << 16) / regions;
    key.extend_from_slice(&(prefix as u16).to_be_bytes());
    key.push(row.table as u8);
    key.extend_from_slice(&row.warehouse.to_be_bytes());
    key.extend_from_slice(&row.district.to_be_bytes());
    key.extend_from_slice(&row.number.to_be_bytes());
    key.push(row.line);
    key.into()
}

/// All rows of a warehouse at the beginning, some of them a write.
pub fn first_rows(warehouse: u32) -> Vec<Vec<RowId>> {
    let row = |table, district, number| RowId::new(table, warehouse, district, number);
    let mut rows = vec![row(Table::Warehouse, 0, 0)];
    for district in 0..DISTRICTS {
        rows.push(row(Table::District, district, 0));
        rows.extend((0..CUSTOMERS).map(|number| row(Table::Customer, district, number)));
    }
    rows.extend((0..ITEMS).map(|number| row(Table::Stock, 0, number)));
    rows.chunks(100).map(<[RowId]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tags_are_as_different_as_rows_and_values_begin_with_the_tag() {
        let mut rows = Rows::new(128, Kind::Half, 1);
        let all: Vec<RowId> = (0..300).flat_map(|w| first_rows(w).concat()).collect();
        let mut keys: Vec<Bytes> = all.iter().map(|row| rows.key(row)).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all.len());
        for row in &all[..100] {
            let RawOp::Put { key, value, .. } = rows.put(row) else { panic!("a put") };
            assert_eq!((key, &value[..TAG_BYTES]), (rows.key(row), &row.tag()[..]));
            assert_eq!(value.len(), row.table.value_bytes());
        }
        let order = RowId::new(Table::Order, 1, 2, 3);
        assert!((5..=15).contains(&lines(&order)));
    }
}
