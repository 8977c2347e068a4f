//! A decoder of the LZ4 block format that stops behind the last wanted byte.
//!
//! A block is a row of sequences: a token, some literals, and a match, which repeats earlier bytes.
//! An entry is most often not the last of its block, and nothing behind it is needed to read it.
//! Bytes are copied in steps of fixed length, which may go beyond the end of a part: the next part
//! overwrites that. `docs/decisions/0010-small-blocks-read-in-part.md` has what each step carries.

use flotilla_base::prefetch;

/// How far a copy may go beyond its end, and the longest step.
const SLACK: usize = 32;
const WRONG: &str = "a block cannot be decompressed";

/// The first `wanted` bytes of a block that has `raw_bytes` in all. If that is all of it, the block
/// is checked to the end. The bytes `ahead` of each read are prefetched.
pub(crate) fn decompress(
    stored: &[u8],
    raw_bytes: usize,
    wanted: usize,
    ahead: usize,
) -> Result<Vec<u8>, &'static str> {
    assert!(wanted <= raw_bytes, "{wanted} bytes of a block of {raw_bytes}");
    let mut raw = vec![0; wanted + SLACK];
    if wanted == raw_bytes {
        fill::<true>(stored, &mut raw, wanted, ahead)?;
    } else {
        fill::<false>(stored, &mut raw, wanted, ahead)?;
    }
    raw.truncate(wanted);
    Ok(raw)
}

/// Decompresses the first `wanted` bytes into `raw`, which has room for the slack too.
fn fill<const IS_WHOLE: bool>(
    stored: &[u8],
    raw: &mut [u8],
    wanted: usize,
    ahead: usize,
) -> Result<(), &'static str> {
    let (mut from, mut to) = (0, 0);
    while to < wanted || IS_WHOLE {
        prefetch::line_at(stored.as_ptr().wrapping_add(from + ahead));
        let token = take_byte(stored, &mut from)?;
        let literals = take_length(stored, &mut from, token >> 4)?;
        let copied = literals.min(wanted - to);
        if IS_WHOLE && copied < literals {
            return Err(WRONG);
        }
        copy_in(raw, to, stored, from, copied)?;
        to += copied;
        if copied < literals {
            break;
        }
        from += literals;
        if IS_WHOLE && from == stored.len() {
            break;
        }
        let low = take_byte(stored, &mut from)?;
        let offset = usize::from(u16::from_le_bytes([low, take_byte(stored, &mut from)?]));
        let len = take_length(stored, &mut from, token & 15)?.saturating_add(4);
        if offset == 0 || offset > to || IS_WHOLE && len > wanted - to {
            return Err(WRONG);
        }
        let len = len.min(wanted - to);
        repeat(raw, to, offset, len);
        to += len;
    }
    if to < wanted || IS_WHOLE && from != stored.len() {
        return Err(WRONG);
    }
    Ok(())
}

fn take_byte(stored: &[u8], from: &mut usize) -> Result<u8, &'static str> {
    let byte = *stored.get(*from).ok_or(WRONG)?;
    *from += 1;
    Ok(byte)
}

/// A length whose first four bits are in the token; if all are set, more bytes follow.
#[inline]
fn take_length(stored: &[u8], from: &mut usize, bits: u8) -> Result<usize, &'static str> {
    let mut length = usize::from(bits);
    let mut is_more = bits == 15;
    while is_more {
        let byte = take_byte(stored, from)?;
        length = length.saturating_add(usize::from(byte));
        is_more = byte == u8::MAX;
    }
    Ok(length)
}

/// Copies literals. There is room for them and the slack.
#[inline]
fn copy_in(
    raw: &mut [u8],
    to: usize,
    stored: &[u8],
    from: usize,
    len: usize,
) -> Result<(), &'static str> {
    let source = stored.get(from..).ok_or(WRONG)?;
    if len <= SLACK
        && let Some(step) = source.first_chunk::<SLACK>()
    {
        raw[to..to + SLACK].copy_from_slice(step);
    } else {
        raw[to..to + len].copy_from_slice(source.get(..len).ok_or(WRONG)?);
    }
    Ok(())
}

/// Copies a match: `len` bytes of the output, from `offset` before `to` on. The two ranges may
/// overlap: then the bytes repeat.
#[inline]
fn repeat(raw: &mut [u8], to: usize, offset: usize, len: usize) {
    let (before, place) = raw.split_at_mut(to);
    if len <= SLACK
        && offset >= SLACK
        && let Some(piece) = before[to - offset..].first_chunk::<SLACK>()
        && let Some(place) = place.first_chunk_mut()
    {
        *place = *piece;
    } else if offset >= SLACK {
        step::<SLACK>(raw, to, offset, len);
    } else if offset >= 8 {
        step::<8>(raw, to, offset, len);
    } else {
        repeat_few(raw, to, offset, len);
    }
}

/// As [`repeat`], of less than eight bytes: one multiplication makes sixteen bytes of them, and
/// each step keeps whole repetitions.
#[inline]
fn repeat_few(raw: &mut [u8], to: usize, offset: usize, len: usize) {
    // Of one byte no more is read: the store of the bytes before it would not have left the store
    // buffer yet.
    let few = if offset == 1 {
        u64::from(raw[to - 1])
    } else {
        let Some(before) = raw[to - offset..].first_chunk() else { return };
        u64::from_le_bytes(*before) & !(u64::MAX << (8 * offset))
    };
    let (times, step) = TIMES[offset % 8];
    let sixteen = u128::from(few).wrapping_mul(times).to_le_bytes();
    for place in (to..to + len).step_by(step) {
        raw[place..place + 16].copy_from_slice(&sixteen);
    }
}

/// By offset: the number with a one at the beginning of each repetition in sixteen bytes, and how
/// many bytes are whole repetitions.
const TIMES: [(u128, usize); 8] = {
    let mut times = [(1, 1); 8];
    let mut offset = 1;
    while offset < 8 {
        let mut at = 0;
        let mut number = 0;
        while at < 16 {
            number |= 1 << (8 * at);
            at += offset;
        }
        times[offset] = (number, 16 - 16 % offset);
        offset += 1;
    }
    times
};

/// As [`repeat`], in steps that are no longer than `offset`.
#[inline]
fn step<const N: usize>(raw: &mut [u8], to: usize, offset: usize, len: usize) {
    let part = &mut raw[to - offset..to + len.next_multiple_of(N)];
    let mut at = 0;
    while let Some((before, place)) = part.get_mut(at..at + offset + N).and_then(|part| {
        let (before, place) = part.split_at_mut(offset);
        Some((before.first_chunk::<N>()?, place.first_chunk_mut::<N>()?))
    }) {
        *place = *before;
        at += N;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz4_flex::block::{compress, decompress_into};

    /// Words, runs of one byte and noise, in any order.
    fn data(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < len {
            match rng.u8(..4) {
                0 => data.extend_from_slice(&b"some words, some more words"[rng.usize(..20)..]),
                1 => data.extend(std::iter::repeat_n(rng.u8(..), rng.usize(..300))),
                2 => data.extend((0..rng.usize(..70)).map(|_| rng.u8(..))),
                _ => {
                    let period: Vec<u8> = (0..rng.usize(1..40)).map(|_| rng.u8(..)).collect();
                    data.extend(period.iter().cycle().take(rng.usize(..200)));
                }
            }
        }
        data.truncate(len);
        data
    }

    #[test]
    fn every_beginning_of_a_block_comes_back() {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..300 {
            let raw = data(&mut rng, if round < 20 { round } else { round * 17 });
            let stored = compress(&raw);
            assert_eq!(decompress(&stored, raw.len(), raw.len(), 0).as_ref(), Ok(&raw));
            for _ in 0..20 {
                let wanted = rng.usize(..=raw.len());
                let found = decompress(&stored, raw.len(), wanted, 0).expect("whole");
                assert!(found == raw[..wanted], "{wanted} of {}", raw.len());
            }
        }
    }

    #[test]
    fn of_bytes_whatever_it_makes_what_the_format_says_or_an_error() {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut agreed = 0;
        for _ in 0..20_000 {
            let len = rng.usize(..400);
            let raw = data(&mut rng, len);
            let mut stored = compress(&raw);
            for _ in 0..rng.usize(..3) {
                let at = rng.usize(..stored.len());
                stored[at] = rng.u8(..);
            }
            if rng.u8(..4) == 0 {
                stored.truncate(rng.usize(stored.len() / 2..=stored.len()));
            }
            let raw_bytes = if rng.bool() { raw.len() } else { rng.usize(..500) };
            let mut other = vec![0; raw_bytes];
            let peer = decompress_into(&stored, &mut other);
            let found = decompress(&stored, raw_bytes, raw_bytes, 0);
            if let Ok(found) = found {
                assert!(peer.is_ok_and(|count| count == raw_bytes) && found == other);
                let wanted = rng.usize(..=raw_bytes);
                let part =
                    decompress(&stored, raw_bytes, wanted, 0).expect("a part of what is whole");
                assert!(part == found[..wanted]);
                agreed += 1;
            } else {
                let _ = decompress(&stored, raw_bytes, rng.usize(..=raw_bytes), 0);
            }
        }
        assert!(agreed > 1_000, "{agreed}");
    }
}
