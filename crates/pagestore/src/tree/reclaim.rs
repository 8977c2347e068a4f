//! Giving back subtrees that were cut off, a few pages at a time.
//!
//! A branch page says of each child how much lies below it, so a leaf without long values is given
//! back without being read: its parent knows its place, and nearly its birth.

use crate::branch::{self, Child};
use crate::catalogue::Entry;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::leaf::{self, Extent, Value};
use crate::node::{CHILD_BYTES, Node};
use crate::page::{self, BIRTH_BITS, Span};
use crate::trash::Trash;
use crate::tree::insert::put;
use crate::tree::rank::last;
use crate::tree::remove::remove;

/// Who has cut off what is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// This transaction: if it cannot be given back, the transaction is refused.
    Draft,
    /// An earlier one: it is proven that it can be, so that nobody is refused who has nothing to do with
    /// it.
    Trash,
}

/// Gives back a subtree that was just cut off, as much as is given back at once; what is left of it
/// stays cut off in the draft.
pub(crate) fn bury(draft: &mut Draft, child: Child) {
    let mut subtrees = vec![child];
    // What cannot be read stays, and is met again when it is asked for by itself: that garbage is
    // rotten is no reason to refuse the operation that made it garbage.
    let at_once = draft.at_once_units();
    let _ = give_back(draft, &mut subtrees, at_once, Origin::Draft);
    for subtree in subtrees {
        draft.cut_off(subtree, None);
    }
}

/// Gives back about so many units of the trash, and takes what the draft has cut off into it.
/// Returns how many were given back.
///
/// What is wrong with the garbage itself is returned beside: that it cannot be read, or that it names
/// what it cannot have. All that is left is in the trash then, as ever.
pub(crate) fn sweep(draft: &mut Draft, trash: &mut Trash, units: u64) -> Result<(u64, Result<()>)> {
    let mut subtrees = draft.take_all_cut_off();
    let mut freed = 0;
    let mut met = Ok(());
    let mut origin = Origin::Draft;
    while freed < units && met.is_ok() {
        if subtrees.is_empty() {
            match last_subtree(draft, trash) {
                Err(error) => met = Err(error),
                Ok(None) => break,
                Ok(Some((key, child))) => {
                    take(draft, trash, &key, child)?;
                    subtrees.push(child);
                    origin = Origin::Trash;
                }
            }
        }
        if met.is_ok() {
            let given = give_back(draft, &mut subtrees, units - freed, origin);
            freed += given.0;
            met = given.1;
        }
    }
    for child in subtrees {
        add(draft, trash, child)?;
    }
    Ok((freed, met))
}

fn take(draft: &mut Draft, trash: &mut Trash, key: &[u8], child: Child) -> Result<()> {
    let removed =
        remove(draft, trash.list.page_size, trash.list.root, key)?.expect("seen just now");
    trash.list.change(removed);
    trash.units = trash.units.saturating_sub(child.size.units);
    Ok(())
}

fn add(draft: &mut Draft, trash: &mut Trash, child: Child) -> Result<()> {
    let number = match last(draft, trash.list.root)? {
        Some((key, _)) => number(&key, trash)?.saturating_add(1),
        None => 0,
    };
    let bytes = child.encode();
    let Entry { root, page_size, .. } = trash.list;
    let put = put(draft, page_size, root, &number.to_be_bytes(), Value::Inline(&bytes))?;
    trash.list.change(put);
    trash.units += child.size.units;
    Ok(())
}

/// The newest subtree of the trash and the key that it stands under.
fn last_subtree(draft: &Draft, trash: &Trash) -> Result<Option<([u8; 8], Child)>> {
    let root = trash.list.root;
    let Some((key, value)) = last(draft, root)? else { return Ok(None) };
    if value.len() != CHILD_BYTES {
        return Err(Error::Corrupt { page: root.id(), what: "entry of the trash" });
    }
    let key = number(&key, trash)?.to_be_bytes();
    Ok(Some((key, Child::decode(&value))))
}

/// The number that an entry of the trash stands under.
fn number(key: &[u8], trash: &Trash) -> Result<u64> {
    let key = key.try_into().map_err(|_| {
        let page = trash.list.root.id();
        Error::Corrupt { page, what: "entry of the trash" }
    });
    key.map(u64::from_be_bytes)
}

/// Gives back subtrees, last first, until about `units` units are free, none is left, or one cannot
/// be read. What is not free yet is still in the list. Returns how many units are free.
fn give_back(
    draft: &mut Draft,
    subtrees: &mut Vec<Child>,
    units: u64,
    origin: Origin,
) -> (u64, Result<()>) {
    let oldest = draft.oldest_reader();
    let mut freed = 0;
    while freed < units
        && let Some(child) = subtrees.pop()
    {
        match give_back_page(draft, subtrees, child, oldest, origin) {
            Ok(more) => freed += more,
            Err(error) => {
                subtrees.push(child);
                return (freed, Err(error));
            }
        }
    }
    (freed, Ok(()))
}

/// Gives back one page of a subtree, and of what is below it what need not be read; the rest goes on
/// the list. If the page cannot be read, or names what cannot be given back, nothing has happened.
fn give_back_page(
    draft: &mut Draft,
    subtrees: &mut Vec<Child>,
    child: Child,
    oldest: u64,
    origin: Origin,
) -> Result<u64> {
    let frame = draft.held(child.place)?;
    let node = Node(&frame);
    let birth = page::birth(&frame);
    let mut extents: Vec<Extent> = Vec::new();
    let mut leaves = Vec::new();
    let mut rest = Vec::new();
    if node.is_leaf() {
        extents.extend(leaf::extents(node, 0..node.count()));
    } else {
        for below in branch::sized_children(node, 0..branch::child_count(node)) {
            let birth = below.place.latest_birth(birth);
            // With 2^20 transactions in between, an older birth may be meant. That matters only to
            // who reads what is older still.
            if below.size.units == u64::from(below.place.units()) && is_certain(birth, oldest) {
                leaves.push((below.place, birth));
            } else {
                rest.push(below);
            }
        }
    }
    leaves.push((child.place, birth));
    let spans: Vec<Span> = (extents.iter().map(Extent::span))
        .chain(leaves.iter().map(|(place, _)| place.span()))
        .collect();
    if origin == Origin::Trash {
        draft.prove_garbage(child.place, &spans)?;
    }
    for extent in &extents {
        draft.discard_extent(extent);
    }
    for (place, birth) in leaves {
        draft.discard_born(place, birth);
    }
    subtrees.append(&mut rest);
    Ok(spans.iter().map(|span| u64::from(span.units)).sum())
}

/// Whether it makes no difference if the birth was 2^20 transactions earlier, or a multiple of that.
fn is_certain(birth: u64, oldest: u64) -> bool {
    birth <= oldest || birth < 1 << BIRTH_BITS
}
