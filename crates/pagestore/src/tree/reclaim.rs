//! Freeing of subtrees that were cut off, at once or deferred, a few pages at a time.
//!
//! A branch page says of each child how much lies below it, so a leaf without long values is freed
//! without being read: its parent knows its place, and nearly its creating transaction.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::page::branch::{self, Child};
use crate::page::catalogue::TreeEntry;
use crate::page::deferred_free::DeferredFree;
use crate::page::leaf::{self, LeafValue, ValueExtent};
use crate::page::slotted::{CHILD_BYTES, SlottedPage};
use crate::page::{self, CREATED_TXID_BITS, Span};
use crate::tree::insert::put;
use crate::tree::range::Range;
use crate::tree::rank::last;
use crate::tree::remove::remove;
use crate::tree::txn_pages::TxnPages;

/// The transaction that cut a subtree off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// This transaction: if a page cannot be freed, the transaction is refused.
    Draft,
    /// An earlier one: it is verified that its pages can be freed, so that no unrelated transaction
    /// is refused.
    DeferredFree,
}

/// Frees a subtree that was just cut off, as much as is freed at once; the rest stays detached in
/// the transaction.
pub(crate) fn free_subtree(pages: &mut TxnPages, child: Child) {
    let mut subtrees = vec![child];
    // A page that cannot be read stays, and its error is met again by `reclaim`: that garbage is
    // damaged is no reason to refuse the operation that made it garbage.
    let immediate = pages.immediate_free_units();
    let _ = free_pages(pages, &mut subtrees, immediate, Origin::Draft);
    for subtree in subtrees {
        pages.detach(subtree, None);
    }
}

/// Frees about `units` units of the deferred ones, and defers the subtrees that the transaction has
/// detached. Returns how many were freed.
///
/// An error of the garbage itself is returned apart: that it cannot be read, or that it names units
/// that are not in use. All that is left stays deferred then.
pub(crate) fn free_deferred(
    pages: &mut TxnPages,
    deferred_free: &mut DeferredFree,
    units: u64,
) -> Result<(u64, Result<()>)> {
    let mut subtrees = pages.take_all_detached();
    let mut freed = 0;
    let mut met = Ok(());
    let mut origin = Origin::Draft;
    while freed < units && met.is_ok() {
        // The subtrees of this transaction first: their pages are in memory.
        if subtrees.is_empty() {
            match last_subtree(pages, deferred_free) {
                Err(error) => met = Err(error),
                Ok(None) => break,
                Ok(Some((key, child))) => {
                    take(pages, deferred_free, &key, child)?;
                    subtrees.push(child);
                    origin = Origin::DeferredFree;
                }
            }
        }
        if met.is_ok() {
            let given = free_pages(pages, &mut subtrees, units - freed, origin);
            freed += given.0;
            met = given.1;
        }
    }
    for child in subtrees {
        add(pages, deferred_free, child)?;
    }
    Ok((freed, met))
}

/// Frees the deferred subtrees that hold a damaged page, which begins at one of these units, as far
/// as they can be read. The space of the rest is lost. Returns whether there was one.
pub(crate) fn drop_deferred(
    pages: &mut TxnPages,
    deferred_free: &mut DeferredFree,
    units: &BTreeSet<u64>,
) -> Result<bool> {
    let mut holders = vec![];
    let mut all = Range::new(pages, deferred_free.list.root, ..);
    while let Some((key, value)) = all.next()? {
        let (key, child) = decode_entry(deferred_free, key, value)?;
        if holds(pages, child, units)? {
            holders.push((key, child));
        }
    }
    for (key, child) in &holders {
        take(pages, deferred_free, key, *child)?;
        let mut subtrees = vec![*child];
        while !subtrees.is_empty() {
            match free_pages(pages, &mut subtrees, u64::MAX, Origin::DeferredFree).1 {
                // Its children are not known.
                Err(Error::Corrupt { .. }) => drop(subtrees.pop()),
                done => done?,
            }
        }
    }
    Ok(!holders.is_empty())
}

/// Whether a page or long value of a subtree begins at one of these units. The children of a page
/// that cannot be read are not known.
fn holds(pages: &TxnPages, child: Child, units: &BTreeSet<u64>) -> Result<bool> {
    if units.contains(&child.page_ref.id()) {
        return Ok(true);
    }
    if child.size.units == u64::from(child.page_ref.units()) {
        return Ok(false);
    }
    let frame = match pages.owned_frame(child.page_ref) {
        Err(Error::Corrupt { .. }) => return Ok(false),
        frame => frame?,
    };
    let node = SlottedPage(&frame);
    if node.is_leaf() {
        let extents = leaf::extents(node, 0..node.count());
        return Ok(extents.into_iter().any(|extent| units.contains(&extent.span().start)));
    }
    for below in branch::sized_children(node, 0..branch::child_count(node)) {
        if holds(pages, below, units)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn take(
    pages: &mut TxnPages,
    deferred_free: &mut DeferredFree,
    key: &[u8],
    child: Child,
) -> Result<()> {
    let removed = remove(pages, deferred_free.list.page_size, deferred_free.list.root, key)?
        .expect("seen just now");
    deferred_free.list.change(removed);
    deferred_free.units = deferred_free.units.saturating_sub(child.size.units);
    Ok(())
}

fn add(pages: &mut TxnPages, deferred_free: &mut DeferredFree, child: Child) -> Result<()> {
    let number = match last(pages, deferred_free.list.root)? {
        Some((key, _)) => number(&key, deferred_free)?.saturating_add(1),
        None => 0,
    };
    let bytes = child.encode();
    let TreeEntry { root, page_size, .. } = deferred_free.list;
    let put = put(pages, page_size, root, &number.to_be_bytes(), LeafValue::Inline(&bytes))?;
    deferred_free.list.change(put);
    deferred_free.units += child.size.units;
    Ok(())
}

/// The newest deferred subtree and the key that it stands under.
fn last_subtree(
    pages: &TxnPages,
    deferred_free: &DeferredFree,
) -> Result<Option<([u8; 8], Child)>> {
    let Some((key, value)) = last(pages, deferred_free.list.root)? else { return Ok(None) };
    decode_entry(deferred_free, &key, &value).map(Some)
}

fn decode_entry(
    deferred_free: &DeferredFree,
    key: &[u8],
    value: &[u8],
) -> Result<([u8; 8], Child)> {
    if value.len() != CHILD_BYTES {
        let page = deferred_free.list.root.id();
        return Err(Error::Corrupt { page, what: "entry of the trash" });
    }
    Ok((number(key, deferred_free)?.to_be_bytes(), Child::decode(value)))
}

/// The number that a deferred subtree stands under.
fn number(key: &[u8], deferred_free: &DeferredFree) -> Result<u64> {
    let key = key.try_into().map_err(|_| {
        let page = deferred_free.list.root.id();
        Error::Corrupt { page, what: "entry of the trash" }
    });
    key.map(u64::from_be_bytes)
}

/// Frees subtrees, last first, until about `units` units are free, none is left, or one cannot be
/// read. The rest is still in the list. Returns how many units are free.
fn free_pages(
    pages: &mut TxnPages,
    subtrees: &mut Vec<Child>,
    units: u64,
    origin: Origin,
) -> (u64, Result<()>) {
    let oldest = pages.oldest_reader();
    let mut freed = 0;
    while freed < units
        && let Some(child) = subtrees.pop()
    {
        match free_page(pages, subtrees, child, oldest, origin) {
            Ok(more) => freed += more,
            Err(error) => {
                subtrees.push(child);
                return (freed, Err(error));
            }
        }
    }
    (freed, Ok(()))
}

/// Frees one page of a subtree, and those leaves below it that need not be read; the other children
/// go on the list. If the page cannot be read, or names what cannot be freed, nothing has happened.
fn free_page(
    pages: &mut TxnPages,
    subtrees: &mut Vec<Child>,
    child: Child,
    oldest: u64,
    origin: Origin,
) -> Result<u64> {
    let frame = pages.owned_frame(child.page_ref)?;
    let node = SlottedPage(&frame);
    let created_txid = page::created_txid(&frame);
    let mut extents: Vec<ValueExtent> = Vec::new();
    let mut leaves = Vec::new();
    let mut rest = Vec::new();
    if node.is_leaf() {
        extents.extend(leaf::extents(node, 0..node.count()));
    } else {
        for below in branch::sized_children(node, 0..branch::child_count(node)) {
            let created_txid = below.page_ref.latest_created_txid(created_txid);
            // With 2^20 transactions in between, an older creating transaction may be meant. That
            // matters only to a reader that is older still.
            if below.size.units == u64::from(below.page_ref.units())
                && is_certain(created_txid, oldest)
            {
                leaves.push((below.page_ref, created_txid));
            } else {
                rest.push(below);
            }
        }
    }
    leaves.push((child.page_ref, created_txid));
    let spans: Vec<Span> = (extents.iter().map(ValueExtent::span))
        .chain(leaves.iter().map(|(page_ref, _)| page_ref.span()))
        .collect();
    if origin == Origin::DeferredFree {
        pages.verify_deferred(child.page_ref, &spans)?;
    }
    for extent in &extents {
        pages.discard_extent(extent);
    }
    for (page_ref, created_txid) in leaves {
        pages.discard_created(page_ref, created_txid);
    }
    subtrees.append(&mut rest);
    Ok(spans.iter().map(|span| u64::from(span.units)).sum())
}

/// Whether it makes no difference if the page was created 2^20 transactions earlier, or a multiple
/// of that.
fn is_certain(created_txid: u64, oldest: u64) -> bool {
    created_txid <= oldest || created_txid < 1 << CREATED_TXID_BITS
}
