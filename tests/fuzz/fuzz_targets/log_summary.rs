//! Any bytes, read as the summary of a segment.
//!
//! Nothing panics or takes much more memory than there are bytes; what can be read is written and
//! read back the same, takes no more bytes than they had, and is merged or refused.
//!
//! Summaries are no part of the interface of the crate, so its folders are compiled in here.
#![no_main]
#![allow(dead_code, unused_imports, missing_docs, unreachable_pub)]

use index::groups::Groups;
use index::segment_usage::SegmentUsage;
use index::summary::SegmentSummary;
use libfuzzer_sys::fuzz_target;

#[path = "../../../crates/raftlog/src/batch/mod.rs"]
mod batch;
#[path = "../../../crates/raftlog/src/config.rs"]
mod config;
#[path = "../../../crates/raftlog/src/error.rs"]
mod error;
#[path = "../../../crates/raftlog/src/format/mod.rs"]
mod format;
#[path = "../../../crates/raftlog/src/index/mod.rs"]
mod index;

fuzz_target!(|data: &[u8]| {
    let Ok(summary) = SegmentSummary::decode(data) else { return };
    let mut bytes = Vec::new();
    summary.encode(&mut bytes);
    assert!(bytes.len() <= data.len(), "{} bytes became {}", data.len(), bytes.len());
    let again = SegmentSummary::decode(&bytes).expect("it was written so");
    let mut twice = Vec::new();
    again.encode(&mut twice);
    assert_eq!(twice, bytes);

    // Twice the same segment: the second finds something of all groups there.
    let (groups, mut usage) = (Groups::default(), SegmentUsage::default());
    for (segment, summary) in [(1, summary), (2, again)] {
        if groups.merge(summary, segment, &mut usage).is_err() {
            return;
        }
    }
    let _ = groups.check_replayed();
    let mut held = 0;
    for segment in [1, 2] {
        groups.groups_in(segment).iter().for_each(|(_, live)| held += live.bytes);
    }
    assert_eq!(held, usage.live_bytes());
    // A group holds about 400 bytes; what is in the data cannot make it hold much more.
    let most = 4096 + 64 * data.len() as u64 + 64 * 700;
    assert!(groups.memory_bytes() <= most, "{} bytes", groups.memory_bytes());
});
