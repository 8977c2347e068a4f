//! A directory with segments whose bytes were changed in any way, under the tools: check, dump and
//! salvage come to an end, and a log that is found sound opens if only bytes were changed in it.
//!
//! Some changes are sealed again, with the checksums of frames, segments and footers that belong to
//! them: what is behind the checksums must not trust it either.
#![no_main]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use crc32c::{crc32c, crc32c_append};
use flotilla_raftlog::{
    Config, DumpOptions, DumpRecord, Durability, Entry, LogBatch, LogEngine, VerifyLevel,
};
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::{FileSystem, OpenMode};
use libfuzzer_sys::fuzz_target;

const DIR: &str = "/log";
const HEADER_BYTES: usize = 64;
const FRAME_HEADER_BYTES: usize = 40;
const TRAILER_BYTES: usize = 32;

fn config() -> Config {
    Config::default()
        .segment_bytes(4 << 10)
        .purge_above_bytes(12 << 10)
        .move_live_ratio_max(0.9)
        .compress_above_bytes(512)
        .cache_bytes_max(1 << 20)
        .recovery_threads(1)
        .salt(Some(7))
}

/// A segment's name, bytes, and where its frames begin.
#[derive(Clone)]
struct Segment {
    path: PathBuf,
    bytes: Vec<u8>,
    frames: Vec<usize>,
}

/// A log with all that there may be in one: moves, blocks, footers, or the last segment without.
fn whole(is_closed: bool) -> Vec<Segment> {
    let fs = Arc::new(FaultFs::new(1));
    let (log, _) = LogEngine::open_with(fs.clone(), Path::new(DIR), config()).unwrap();
    for index in 1..=24_u64 {
        let mut batch = LogBatch::new();
        for group in 1..=2 {
            let data = vec![index as u8; (index * 97 % 900) as usize];
            let term = 1 + index / 6;
            batch.append(group, &[Entry { index, term, kind: 1, data: data.into() }]);
        }
        batch.put(index % 5, b"key", &index.to_be_bytes());
        match index {
            6 => batch.delete(1, b"key"),
            9 => batch.truncate_from(2, 8),
            12 => batch.remove_group(3),
            _ if index % 4 == 0 => batch.compact_to(1, index - 2, 1 + (index - 3) / 6),
            _ => {}
        }
        // Group 2 begins again where it was cut.
        let _ = log.write(batch, Durability::Synced).wait();
        log.purge_expired_files().unwrap();
    }
    if is_closed {
        log.close().unwrap();
    }
    drop(log);
    let mut names = fs.list(Path::new(DIR)).unwrap();
    names.sort();
    names.retain(|name| name.len() == 24);
    let segments = names.into_iter().map(|name| {
        let path = Path::new(DIR).join(name);
        let file = fs.open(&path, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let (mut frames, mut at) = (Vec::new(), HEADER_BYTES);
        while let Some(header) = bytes.get(at..at + FRAME_HEADER_BYTES)
            && header[..2] == [0x0e, 0xf1]
        {
            frames.push(at);
            let body_bytes = u32::from_le_bytes(header[4..8].try_into().unwrap());
            at += FRAME_HEADER_BYTES + body_bytes as usize;
        }
        Segment { path, bytes, frames }
    });
    segments.collect()
}

static WHOLE: LazyLock<[Vec<Segment>; 2]> = LazyLock::new(|| [whole(false), whole(true)]);

impl Segment {
    /// Makes all checksums right, as far as what they are about is there.
    fn seal(&mut self) {
        let Segment { bytes, frames, .. } = self;
        let Some(header) = bytes.get_mut(..HEADER_BYTES) else { return };
        let checksum = crc32c(&header[..60]);
        header[60..].copy_from_slice(&checksum.to_le_bytes());
        let salt: [u8; 8] = header[32..40].try_into().unwrap();
        let salted = |bytes: &[u8]| crc32c_append(crc32c(&salt), bytes).to_le_bytes();
        if let Some(at) = bytes.len().checked_sub(TRAILER_BYTES).filter(|_| frames.len() > 1) {
            let checksum = salted(&bytes[at..at + 28]);
            bytes[at + 28..].copy_from_slice(&checksum);
        }
        for at in frames {
            let Some(frame) = bytes.get_mut(*at..) else { return };
            let Some(header) = frame.get(..FRAME_HEADER_BYTES) else { return };
            let body_bytes = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
            let end = FRAME_HEADER_BYTES.saturating_add(body_bytes);
            if let Some(body) = frame.get(FRAME_HEADER_BYTES..end) {
                let checksum = crc32c(body);
                frame[32..36].copy_from_slice(&checksum.to_le_bytes());
            }
            let checksum = salted(&frame[..36]);
            frame[36..40].copy_from_slice(&checksum);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((mode, changes)) = data.split_first() else { return };
    let mut segments = WHOLE[usize::from(mode & 1)].clone();
    for change in changes.chunks_exact(4) {
        let [which, low, high, value] = [change[0], change[1], change[2], change[3]];
        let count = segments.len();
        let segment = &mut segments[usize::from(which & 31) % count];
        let at = usize::from(u16::from_le_bytes([low, high]));
        match which >> 5 {
            // Gone, cut, or longer.
            7 if count > 1 => drop(segments.remove(usize::from(which & 31) % count)),
            6 => segment.bytes.truncate(at),
            5 => segment.bytes.resize(segment.bytes.len() + at, value),
            // In the header of a frame or right behind it, where most of the meaning is.
            2..5 if !segment.frames.is_empty() => {
                let frame = segment.frames[usize::from(high) % segment.frames.len()];
                if let Some(byte) = segment.bytes.get_mut(frame + usize::from(low)) {
                    *byte ^= value;
                }
            }
            _ => {
                if let Some(byte) = segment.bytes.get_mut(at) {
                    *byte ^= value;
                }
            }
        }
    }
    let is_resealed = mode & 2 != 0;
    if is_resealed {
        segments.iter_mut().for_each(Segment::seal);
    }
    let has_other_files = changes.chunks_exact(4).any(|change| change[0] >> 5 >= 5);

    let fs = Arc::new(FaultFs::new(1));
    let dir = Path::new(DIR);
    fs.create_dir_all(dir).unwrap();
    let mut bytes = 0;
    for segment in &segments {
        let file = fs.open(&segment.path, OpenMode::CreateNew).unwrap();
        file.write_at(&segment.bytes, 0).unwrap();
        bytes += segment.bytes.len();
    }

    let report = LogEngine::verify_directory(fs.clone(), dir, VerifyLevel::Entries, &mut |_| {});
    let mut said = 0;
    let options = DumpOptions { group: None, entries: true };
    let dumped = flotilla_raftlog::dump(fs.clone(), dir, options, &mut |dumped| {
        said += 1;
        if let DumpRecord::Entry { data: Ok(data), .. } = dumped.record {
            assert!(data.len() <= 1 << 30);
        }
        ControlFlow::Continue(())
    });
    assert!(dumped.is_ok(), "{dumped:?}");
    // An entry takes a byte at least where it is stored, or almost nothing where it is compressed.
    assert!(said <= 4096 + 256 * bytes, "{said} lines of {bytes} bytes");

    let sound = report.is_ok_and(|report| report.problems.is_empty());
    let copy = LogEngine::open_read_only(fs.clone(), dir, config());
    let is_rotten_only = !is_resealed && !has_other_files;
    assert!(!sound || !is_rotten_only || copy.is_ok(), "found sound, and does not open: {copy:?}");
    drop(copy);
    // It makes segments of the standard size, which takes longer than all the rest.
    if *mode < 0xfc {
        return;
    }
    let to = Path::new("/saved");
    if flotilla_raftlog::salvage(fs.clone(), dir, to, &mut |_| {}).is_ok() {
        let (log, _) = LogEngine::open_with(fs, to, config()).expect("it was written so");
        let report = log.verify(VerifyLevel::Entries, &mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
});
