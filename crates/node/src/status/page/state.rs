//! The state that the documents of the page are made from.

use std::sync::Arc;
use std::time::Duration;

use super::cached_document::CachedDocument;
use super::link_times::LinkTimes;
use super::load_history::LoadHistory;
use super::load_sampler::LoadSampler;
use super::store_relay::StoreRelay;
use crate::pd::ClusterRegions;
use crate::status::reader::StatusReader;

/// How old an answer about other stores, or one that is costly, may be.
const DOCUMENT_AGE_MAX: Duration = Duration::from_secs(1);

/// Everything that the page shows is read from here. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PageState {
    pub(super) reader: StatusReader,
    pub(super) regions: ClusterRegions,
    pub(super) history: Arc<LoadHistory>,
    pub(super) links: Arc<LinkTimes>,
    pub(super) relay: Arc<StoreRelay>,
    pub(super) stores: CachedDocument,
    pub(super) log: CachedDocument,
    pub(super) pages: CachedDocument,
}

impl PageState {
    /// Nothing is sampled yet: that is done by the returned sampler.
    pub(crate) fn new(reader: StatusReader, regions: ClusterRegions) -> (Self, LoadSampler) {
        let (history, links) = (Arc::<LoadHistory>::default(), Arc::<LinkTimes>::default());
        let sampler = LoadSampler::new(&reader, Arc::clone(&history), Arc::clone(&links));
        let documents = [(); 3].map(|()| CachedDocument::new(DOCUMENT_AGE_MAX));
        let [stores, log, pages] = documents;
        let relay = Arc::new(StoreRelay::new(reader.membership.dialer().clone()));
        (Self { reader, regions, history, links, relay, stores, log, pages }, sampler)
    }
}
