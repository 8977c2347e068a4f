//! The request generator: random requests. Every value that is written is unique.

use std::collections::BTreeMap;

use bytes::Bytes;
use fastrand::Rng;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, Ticket};

use crate::checker::RegisterValue;
use crate::reference_model::RowKey;
use crate::request::RequestBody;

/// Draws the request of a client that knows these keys, and last saw these values. The padding of
/// values is `weight` times as long as in light runs.
pub(crate) fn draw(
    rng: &mut Rng,
    keys: &[Bytes],
    seen: &BTreeMap<RowKey, RegisterValue>,
    ticket: Ticket,
    weight: usize,
) -> RequestBody {
    let put = |rng: &mut Rng, key: &Bytes, nth| RawOp::Put {
        key: key.clone(),
        value: value(rng, ticket, nth, weight),
        ttl_s: ttl_s(ticket.0 + nth as u64),
    };
    let key = &keys[rng.usize(..keys.len())];
    match rng.u8(..32) {
        0..10 => RequestBody::Get(key.clone()),
        10 => RequestBody::Scan,
        11..21 => RequestBody::Write(vec![put(rng, key, 0)]),
        21..24 => RequestBody::Write(vec![RawOp::Delete { key: key.clone() }]),
        24..29 => {
            let expected = seen.get(&(family(ticket), key.clone())).cloned().flatten();
            let value = (rng.u8(..8) > 0).then(|| value(rng, ticket, 0, weight));
            RequestBody::Write(vec![RawOp::CompareAndSwap {
                key: key.clone(),
                expected,
                value,
                ttl_s: ttl_s(ticket.0),
            }])
        }
        29..31 => {
            // Each key once: within a batch the order of two writes on one key is hidden.
            let ops = keys.iter().enumerate().map(|(nth, key)| match rng.u8(..4) {
                0 => RawOp::Delete { key: key.clone() },
                _ => put(rng, key, nth),
            });
            RequestBody::Write(ops.collect())
        }
        _ => {
            let end = &keys[rng.usize(..keys.len())];
            let (start, end) = if key <= end { (key, end) } else { (end, key) };
            RequestBody::Write(vec![RawOp::DeleteRange {
                start: start.clone(),
                end: Some(end.clone()),
            }])
        }
    }
}

/// The column family of the keys of a request: mostly the default one. Not drawn, so that old seeds
/// draw the rest as ever.
pub(crate) fn family(ticket: Ticket) -> ColumnFamily {
    match ticket.0 % 8 {
        3 => ColumnFamily::Lock,
        5 => ColumnFamily::Write,
        _ => ColumnFamily::Default,
    }
}

/// The key that decides which region the request goes to, if its keys are in several.
pub(crate) fn chosen_key<'a>(
    body: &'a RequestBody,
    keys: &'a [Bytes],
    ticket: Ticket,
) -> &'a Bytes {
    let nth = |count: usize| ticket.0 as usize % count;
    match body {
        RequestBody::Get(key) => key,
        RequestBody::Scan
        | RequestBody::Split(_)
        | RequestBody::Compare
        | RequestBody::Transfer(_)
        | RequestBody::Membership(_) => &keys[nth(keys.len())],
        RequestBody::Write(ops) => match &ops[nth(ops.len())] {
            RawOp::Put { key, .. } | RawOp::Delete { key } | RawOp::CompareAndSwap { key, .. } => {
                key
            }
            RawOp::DeleteRange { start, .. } => start,
            op => unreachable!("no client asks for {op:?}"),
        },
    }
}

/// The part of a request that concerns one region: clients divide their requests.
pub(crate) fn cut(body: RequestBody, region: &Descriptor) -> RequestBody {
    let RequestBody::Write(ops) = body else { return body };
    let part = ops.into_iter().filter_map(|op| match op {
        RawOp::DeleteRange { start, end } => {
            let is_beyond = |end: &Bytes| !region.end.is_empty() && *end > region.end;
            let end = end.map(|end| if is_beyond(&end) { region.end.clone() } else { end });
            Some(RawOp::DeleteRange { start, end })
        }
        op => {
            let (RawOp::Put { key, .. }
            | RawOp::Delete { key }
            | RawOp::CompareAndSwap { key, .. }
            | RawOp::DeleteRange { start: key, .. }) = &op
            else {
                unreachable!("no client asks for {op:?}")
            };
            region.contains(key).then_some(op)
        }
    });
    RequestBody::Write(part.collect())
}

/// Mostly none. Not drawn, so that old seeds draw the rest as ever.
fn ttl_s(number: u64) -> u64 {
    if number % 8 < 3 { 1 + number % 4 } else { 0 }
}

/// Mostly short; some values do not fit into a leaf, some into no page at all.
fn value(rng: &mut Rng, ticket: Ticket, nth: usize, weight: usize) -> Bytes {
    let mut value = format!("{ticket}.{nth};").into_bytes();
    let padding = match rng.u8(..32) {
        0..6 => rng.usize(200..3_000),
        6 => rng.usize(3_000..20_000),
        _ => 0,
    };
    value.resize(value.len() + padding * weight, b'.');
    value.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn values_are_unique() {
        let mut rng = Rng::with_seed(1);
        let keys = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let mut written = BTreeSet::new();
        let mut count = 0;
        for ticket in 1..2_000 {
            let RequestBody::Write(ops) =
                draw(&mut rng, &keys, &BTreeMap::new(), Ticket(ticket), 1)
            else {
                continue;
            };
            for op in ops {
                if let RawOp::Put { value, .. } | RawOp::CompareAndSwap { value: Some(value), .. } =
                    op
                {
                    count += 1;
                    written.insert(value);
                }
            }
        }
        assert!(count > 1_000);
        assert_eq!(written.len(), count);
    }
}
