//! Retry actions: how the client reacts to a region error.

use std::time::Duration;

use flotilla_proto::{errorpb, metapb};

/// Between two tries of a put where one disk is full.
const DISK_FULL_PAUSE: Duration = Duration::from_millis(100);

/// The reaction to a region error.
#[derive(Debug, PartialEq)]
pub(crate) enum RetryAction {
    /// This replica leads now.
    Leader(metapb::Peer),
    /// Another replica may know better.
    Rotate,
    /// These regions are there now.
    Regions(Vec<metapb::Region>),
    /// The region's entry is wrong; ask placement.
    Reload,
    /// The store's entry is wrong as well: it moved, or another one has its address.
    ReloadStore,
    /// Right, but not now.
    After(Duration),
    /// It is not known whether the request had its effect.
    Undetermined,
    /// Not in this form, ever.
    Refuse(String),
}

/// Reads a region error.
pub(crate) fn classify(error: &errorpb::Error) -> RetryAction {
    if let Some(not_leader) = &error.not_leader {
        return match &not_leader.leader {
            Some(leader) => RetryAction::Leader(*leader),
            None => RetryAction::Rotate,
        };
    }
    if let Some(epoch) = &error.epoch_not_match {
        return if epoch.current_regions.is_empty() {
            RetryAction::Reload
        } else {
            RetryAction::Regions(epoch.current_regions.clone())
        };
    }
    if let Some(busy) = &error.server_is_busy {
        let wait = busy.backoff_ms.max(u64::from(busy.estimated_wait_ms));
        // A store that names no time is asked again after the client's own backoff; one that names
        // an hour is not believed.
        return RetryAction::After(Duration::from_millis(wait.min(2_000)));
    }
    if let Some(full) = &error.disk_full {
        // Leaders leave a full disk as long as another one has room.
        if full.store_id.len() == 1 {
            return RetryAction::After(DISK_FULL_PAUSE);
        }
        return RetryAction::Refuse(format!(
            "disk full on stores {:?}: {}",
            full.store_id, full.reason
        ));
    }
    if let Some(large) = &error.raft_entry_too_large {
        let (bytes, region) = (large.entry_size, large.region_id);
        let too_large = || format!("a write of {bytes} bytes is too large for region {region}");
        // The message knows more: an answer may be meant, and not a write.
        return RetryAction::Refuse(match &error.message {
            message if message.is_empty() => too_large(),
            message => message.clone(),
        });
    }
    if error.undetermined_result.is_some() {
        return RetryAction::Undetermined;
    }
    if error.store_not_match.is_some() {
        return RetryAction::ReloadStore;
    }
    if error.stale_command.is_some() {
        return RetryAction::Rotate;
    }
    let reload = error.region_not_found.is_some()
        || error.mismatch_peer_id.is_some()
        || error.key_not_in_region.is_some();
    if reload {
        return RetryAction::Reload;
    }
    // Stopping, starting, merging, catching up, rows that cannot be read, or something that this
    // client has never heard of: the store cannot serve it, another one may.
    RetryAction::Rotate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_followed_and_its_absence_noticed() {
        let peer = metapb::Peer { id: 7, store_id: 3, ..Default::default() };
        let mut error = errorpb::Error {
            not_leader: Some(errorpb::NotLeader { region_id: 1, leader: Some(peer) }),
            ..Default::default()
        };
        assert_eq!(classify(&error), RetryAction::Leader(peer));
        error.not_leader = Some(errorpb::NotLeader::default());
        assert_eq!(classify(&error), RetryAction::Rotate);
    }

    #[test]
    fn a_busy_store_is_believed_within_reason() {
        let busy = |backoff_ms| errorpb::Error {
            server_is_busy: Some(errorpb::ServerIsBusy { backoff_ms, ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(classify(&busy(30)), RetryAction::After(Duration::from_millis(30)));
        assert_eq!(classify(&busy(u64::MAX)), RetryAction::After(Duration::from_secs(2)));
    }

    #[test]
    fn a_full_disk_is_left_by_its_leaders_and_several_are_told_at_once() {
        let full = |store_id: &[u64]| {
            let (store_id, reason) = (store_id.to_vec(), "no room".to_owned());
            let disk_full = Some(errorpb::DiskFull { store_id, reason });
            classify(&errorpb::Error { disk_full, ..Default::default() })
        };
        assert_eq!(full(&[2]), RetryAction::After(DISK_FULL_PAUSE));
        let words = "disk full on stores [1, 2]: no room".to_owned();
        assert_eq!(full(&[1, 2]), RetryAction::Refuse(words));
    }

    #[test]
    fn what_is_too_large_is_said_in_the_words_of_the_store() {
        let large = errorpb::RaftEntryTooLarge { region_id: 2, entry_size: 9 };
        let mut error = errorpb::Error { raft_entry_too_large: Some(large), ..Default::default() };
        let without = "a write of 9 bytes is too large for region 2".to_owned();
        assert_eq!(classify(&error), RetryAction::Refuse(without));
        error.message = "ask for fewer rows".to_owned();
        assert_eq!(classify(&error), RetryAction::Refuse("ask for fewer rows".to_owned()));
    }

    #[test]
    fn what_is_unknown_is_tried_at_another_replica() {
        let error = errorpb::Error { message: "hm".to_owned(), ..Default::default() };
        assert_eq!(classify(&error), RetryAction::Rotate);
    }
}
