//! A document that is made by one caller at a time and kept for a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Mutex;

/// A document, which all who ask within a moment share. While it is being made, others wait for it,
/// so that a disk or a store that hangs is asked once, however many ask. Cheap to clone.
#[derive(Clone)]
pub(super) struct CachedDocument {
    kept: Arc<Mutex<Option<KeptDocument>>>,
    age_max: Duration,
}

/// When a document was made, and the document.
type KeptDocument = (Instant, Arc<Value>);

impl CachedDocument {
    pub(super) fn new(age_max: Duration) -> Self {
        Self { kept: Arc::default(), age_max }
    }

    /// The document, made by `make` if the last one is too old.
    ///
    /// # Cancel safety
    ///
    /// A caller that is dropped makes nothing; the next one does.
    pub(super) async fn get(&self, make: impl Future<Output = Value>) -> Arc<Value> {
        let mut kept = self.kept.lock().await;
        if let Some((made, document)) = kept.as_ref()
            && made.elapsed() < self.age_max
        {
            return Arc::clone(document);
        }
        let document = Arc::new(make.await);
        *kept = Some((Instant::now(), Arc::clone(&document)));
        document
    }

    /// The same by a function that may block, on a thread that may. `None` if it panics.
    ///
    /// # Cancel safety
    ///
    /// A caller may be dropped: others wait for what it has begun, and no second thread waits.
    pub(super) async fn get_blocking(
        &self,
        make: impl FnOnce() -> Value + Send + 'static,
    ) -> Option<Arc<Value>> {
        let mut kept = Arc::clone(&self.kept).lock_owned().await;
        if let Some((made, document)) = kept.as_ref()
            && made.elapsed() < self.age_max
        {
            return Some(Arc::clone(document));
        }
        let made = tokio::task::spawn_blocking(move || {
            let document = Arc::new(make());
            *kept = Some((Instant::now(), Arc::clone(&document)));
            document
        });
        made.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_get_one_document() {
        let (made, document) = (Arc::new(AtomicU64::new(0)), CachedDocument::new(Duration::MAX));
        let make = |made: &Arc<AtomicU64>| {
            let made = Arc::clone(made);
            move || Value::from(made.fetch_add(1, Ordering::Relaxed))
        };
        let (one, other) =
            tokio::join!(document.get_blocking(make(&made)), document.get_blocking(make(&made)));
        assert_eq!((one.as_deref(), other.as_deref()), (Some(&0.into()), Some(&0.into())));
        assert_eq!(*document.get(async { unreachable!("there is one") }).await, 0);
        let always_anew = CachedDocument::new(Duration::ZERO);
        for count in [1, 2] {
            assert_eq!(*always_anew.get_blocking(make(&made)).await.unwrap(), count);
        }
    }
}
