//! The mix of transactions, after TPC-C: 45 % new orders, 43 % payments, 4 % each of deliveries,
//! order status and stock level; warehouses by Zipf, so that some regions are hot.
//!
//! A transaction reads rows of its own warehouse and then writes, one proposal for each region that
//! it touches: the interface is RawKV's, so there is no isolation between transactions.

use super::rows::{self, CUSTOMERS, DISTRICTS, ITEMS, RowId, Rows, Table};
use bytes::Bytes;
use flotilla_kv::raw::RawOp;
use std::sync::atomic::{AtomicU64, Ordering};

/// The exponent of YCSB's zipfian.
const ZIPF_EXPONENT: f64 = 0.99;
/// Orders that are delivered lie at least so far back.
const DELIVERY_LAG: u64 = 20;
/// Orders that stock level looks at.
const STOCK_LEVEL_ORDERS: u64 = 20;

/// The state of all districts that clients share.
pub struct Mix {
    regions: u64,
    /// Warehouses by how hot they are, with the chance of each and all before it.
    heat: Vec<(f64, u32)>,
    districts: Vec<District>,
}

#[derive(Default)]
struct District {
    orders: AtomicU64,
    delivered: AtomicU64,
}

/// A transaction before it begins.
pub struct Transaction {
    /// The region that it reads in.
    pub home: usize,
    /// The keys that it reads; some, but for the first rows.
    pub reads: Vec<Bytes>,
    /// What it writes in each region; none if it only reads.
    pub writes: Vec<(usize, Vec<RawOp>)>,
    /// The row that nothing else writes: an order with its lines, or a payment's history.
    pub proof: Option<RowId>,
}

impl Mix {
    /// A mix over so many warehouses in so many regions.
    pub fn new(warehouses: u32, regions: u64) -> Mix {
        let weight = |rank: u32| f64::from(rank + 1).powf(-ZIPF_EXPONENT);
        let sum: f64 = (0..warehouses).map(weight).sum();
        // The hottest shall not lie side by side, nor all on one store.
        let mut order: Vec<u32> = (0..warehouses).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut order);
        let mut total = 0.0;
        let heat = (0..warehouses).zip(order).map(|(rank, warehouse)| {
            total += weight(rank) / sum;
            (total, warehouse)
        });
        let heat = heat.collect();
        let districts = (0..warehouses * DISTRICTS).map(|_| District::default()).collect();
        Mix { regions, heat, districts }
    }

    /// The regions of clients' keys.
    pub fn regions(&self) -> u64 {
        self.regions
    }

    /// How many warehouses there are.
    pub fn warehouses(&self) -> u32 {
        self.heat.len() as u32
    }

    /// The next transaction of a client; `serial` is a number that the thread never gave before.
    pub fn draw(
        &self,
        rows: &mut Rows,
        rng: &mut fastrand::Rng,
        serial: (u32, u64),
    ) -> Transaction {
        let at = rng.f64();
        let rank = self.heat.partition_point(|(chance, _)| *chance < at).min(self.heat.len() - 1);
        let draft = Draft { rows, rng, mix: self, warehouse: self.heat[rank].1 };
        match draft.rng.u32(..100) {
            0..45 => draft.new_order(),
            45..88 => draft.payment(serial),
            88..92 => draft.delivery(),
            92..96 => draft.order_status(),
            _ => draft.stock_level(),
        }
    }

    fn district(&self, warehouse: u32, district: u32) -> &District {
        &self.districts[(warehouse * DISTRICTS + district) as usize]
    }
}

struct Draft<'a> {
    rows: &'a mut Rows,
    rng: &'a mut fastrand::Rng,
    mix: &'a Mix,
    warehouse: u32,
}

impl Draft<'_> {
    fn row(&self, table: Table, district: u32, number: u64) -> RowId {
        RowId::new(table, self.warehouse, district, number)
    }

    /// One of `count` rows.
    fn any(&mut self, table: Table, district: u32, count: u64) -> RowId {
        let number = self.rng.u64(..count);
        self.row(table, district, number)
    }

    fn transaction(
        self,
        reads: &[RowId],
        writes: Vec<(usize, Vec<RawOp>)>,
        proof: Option<RowId>,
    ) -> Transaction {
        let home = self.rows.place(&self.row(Table::Warehouse, 0, 0));
        let reads = reads.iter().map(|row| self.rows.key(row)).collect();
        Transaction { home, reads, writes, proof }
    }

    fn put(&mut self, writes: &mut Vec<(usize, Vec<RawOp>)>, row: &RowId) {
        let (place, op) = (self.rows.place(row), self.rows.put(row));
        match writes.iter_mut().find(|(of, _)| *of == place) {
            Some((_, ops)) => ops.push(op),
            None => writes.push((place, vec![op])),
        }
    }

    /// Another warehouse once in `one_in` times.
    fn maybe_remote(&mut self, one_in: u32) -> u32 {
        let is_remote = self.rng.u32(..one_in) == 0;
        if is_remote { self.rng.u32(..self.mix.warehouses()) } else { self.warehouse }
    }

    fn new_order(mut self) -> Transaction {
        let district = self.rng.u32(..DISTRICTS);
        let number =
            1 + self.mix.district(self.warehouse, district).orders.fetch_add(1, Ordering::Relaxed);
        let order = self.row(Table::Order, district, number);
        let of_district = self.row(Table::District, district, 0);
        let customer = self.any(Table::Customer, district, CUSTOMERS);
        let mut reads = vec![self.row(Table::Warehouse, 0, 0), of_district, customer];
        let mut writes = Vec::new();
        let own = [of_district, order, RowId { table: Table::NewOrder, ..order }];
        own.iter().for_each(|row| self.put(&mut writes, row));
        for line in 0..rows::lines(&order) {
            let supplier = self.maybe_remote(100);
            let item = self.rng.u64(..ITEMS);
            let stock = RowId::new(Table::Stock, supplier, 0, item);
            if supplier == self.warehouse {
                reads.push(stock);
            }
            self.put(&mut writes, &stock);
            self.put(&mut writes, &RowId { table: Table::OrderLine, line, ..order });
        }
        self.transaction(&reads, writes, Some(order))
    }

    fn payment(mut self, serial: (u32, u64)) -> Transaction {
        let district = self.rng.u32(..DISTRICTS);
        let of_warehouse = self.row(Table::Warehouse, 0, 0);
        let of_district = self.row(Table::District, district, 0);
        let payer = self.maybe_remote(7);
        let customer = RowId::new(Table::Customer, payer, district, self.rng.u64(..CUSTOMERS));
        let history = self.row(Table::History, serial.0, serial.1);
        let mut reads = vec![of_warehouse, of_district];
        if payer == self.warehouse {
            reads.push(customer);
        }
        let mut writes = Vec::new();
        let all = [of_warehouse, of_district, customer, history];
        all.iter().for_each(|row| self.put(&mut writes, row));
        self.transaction(&reads, writes, Some(history))
    }

    fn delivery(mut self) -> Transaction {
        let (mut reads, mut writes) = (vec![self.row(Table::Warehouse, 0, 0)], Vec::new());
        for district in 0..DISTRICTS {
            let state = self.mix.district(self.warehouse, district);
            let made = state.orders.load(Ordering::Relaxed);
            if state.delivered.load(Ordering::Relaxed) + DELIVERY_LAG >= made {
                continue;
            }
            let number = 1 + state.delivered.fetch_add(1, Ordering::Relaxed);
            let order = self.row(Table::Order, district, number);
            let customer = self.any(Table::Customer, district, CUSTOMERS);
            reads.extend([order, customer]);
            self.put(&mut writes, &order);
            self.put(&mut writes, &customer);
            for line in 0..rows::lines(&order) {
                let line = RowId { table: Table::OrderLine, line, ..order };
                reads.push(line);
                self.put(&mut writes, &line);
            }
            let delivered = RowId { table: Table::NewOrder, ..order };
            let op = self.rows.delete(&delivered);
            writes.last_mut().expect("written just now").1.push(op);
        }
        self.transaction(&reads, writes, None)
    }

    fn order_status(mut self) -> Transaction {
        let district = self.rng.u32(..DISTRICTS);
        let made = self.mix.district(self.warehouse, district).orders.load(Ordering::Relaxed);
        let customer = self.any(Table::Customer, district, CUSTOMERS);
        let order = self.row(Table::Order, district, made.max(1));
        let mut reads = vec![customer, order];
        let line = |line| RowId { table: Table::OrderLine, line, ..order };
        reads.extend((0..rows::lines(&order)).map(line));
        self.transaction(&reads, Vec::new(), None)
    }

    fn stock_level(mut self) -> Transaction {
        let district = self.rng.u32(..DISTRICTS);
        let made = self.mix.district(self.warehouse, district).orders.load(Ordering::Relaxed);
        let mut reads = vec![self.row(Table::District, district, 0)];
        for number in made.saturating_sub(STOCK_LEVEL_ORDERS) + 1..=made {
            let order = self.row(Table::Order, district, number);
            for line in 0..rows::lines(&order) {
                reads.push(RowId { table: Table::OrderLine, line, ..order });
                reads.push(self.any(Table::Stock, 0, ITEMS));
            }
        }
        self.transaction(&reads, Vec::new(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Kind;

    #[test]
    fn the_mix_is_tpccs_and_some_warehouses_are_hot() {
        let mix = Mix::new(256, 128);
        let (mut rows, mut rng) = (Rows::new(128, Kind::Half, 1), fastrand::Rng::with_seed(1));
        let mut by_home = [0; 128];
        let (mut orders, mut payments, mut reads) = (0, 0, 0);
        for serial in 0..10_000 {
            let drawn = mix.draw(&mut rows, &mut rng, (0, serial));
            by_home[drawn.home] += 1;
            orders += u32::from(drawn.proof.is_some_and(|row| row.table == Table::Order));
            payments += u32::from(drawn.proof.is_some_and(|row| row.table == Table::History));
            reads += u32::from(drawn.writes.is_empty());
        }
        assert!((4300..4700).contains(&orders), "{orders}");
        assert!((4100..4500).contains(&payments), "{payments}");
        // Deliveries of districts without enough orders write nothing.
        assert!((700..1300).contains(&reads), "{reads}");
        by_home.sort_unstable();
        assert!(by_home[127] > 1000 && by_home[0] > 0, "{by_home:?}");
    }
}
