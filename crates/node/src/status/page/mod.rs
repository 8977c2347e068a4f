//! The status page: one HTML page about the cluster and this store, and the documents that it shows
//! (decision 48, `docs/decisions/0048-a-status-page-on-every-store.md`).
//!
//! `assets` are the page's files. `stores` and `regions` tell of the cluster, for which
//! `store_relay` asks other stores; `load`, `log_segments` and `page_file` tell of this store.
//! `load_history` and `link_times` keep what `load_sampler` reads each second; `cached_document`
//! keeps an answer for a moment, so that many viewers cost as much as one. `query` reads the
//! numbers of a URL, and `state` puts all that together.

mod assets;
mod cached_document;
mod link_times;
mod load;
mod load_history;
mod load_sampler;
mod log_segments;
mod page_file;
mod query;
mod regions;
mod state;
mod store_relay;
mod stores;

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY};
use axum::http::header::{HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::middleware::map_response;
use axum::response::Response;

pub(crate) use state::PageState;

/// The page may load files and documents of the store that it is from, and nothing else: no other
/// site, no inline script or style, no frame around it.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                              connect-src 'self'; img-src 'self'; base-uri 'none'; \
                              form-action 'none'; frame-ancestors 'none'";

/// The routes.
pub(crate) fn routes(state: PageState) -> Router {
    Router::new()
        .merge(assets::routes())
        .merge(stores::routes())
        .merge(regions::routes())
        .merge(load::routes())
        .merge(log_segments::routes())
        .merge(page_file::routes())
        .layer(map_response(with_page_headers))
        .with_state(state)
}

async fn with_page_headers(mut response: Response) -> Response {
    let fixed: [(HeaderName, &'static str); 4] = [
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // A page of an older version must not ask a newer store.
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
