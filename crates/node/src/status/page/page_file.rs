//! `/status/pages`: the page file of this store as a map, and the trees in it.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use flotilla_store::{SpaceCell, Store, StoreSpaceMap};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::state::PageState;
use crate::net::answer::{self, Answer};
use crate::status::http::ANSWER_TIMEOUT;

/// Cells of the map at most.
const CELLS_MAX: usize = 1024;

pub(super) fn routes() -> Router<PageState> {
    Router::new().route("/status/pages", get(pages))
}

async fn pages(State(state): State<PageState>) -> Answer {
    let context = state.reader.stats.context.clone();
    match timeout(ANSWER_TIMEOUT, state.pages.get_blocking(move || read(&context.store))).await {
        Ok(Some(document)) => answer::json(&document),
        Ok(None) => answer::unavailable("the page file cannot be looked at"),
        Err(_) => answer::unavailable("the page file does not answer: the disk takes long"),
    }
}

fn read(store: &Store) -> Value {
    let StoreSpaceMap { cell_bytes, cells, .. } = store.space_map(CELLS_MAX);
    let trees = match store.tree_sizes() {
        Ok(trees) => trees,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let pages = store.stats().pages;
    let column = |part: fn(&SpaceCell) -> u64| cells.iter().map(part).collect::<Vec<_>>();
    json!({
        "file_bytes": pages.file_bytes,
        "span_bytes": pages.span_bytes,
        "free_bytes": pages.free_bytes,
        "pending_bytes": pages.pending_bytes,
        "deferred_free_bytes": pages.deferred_free_bytes,
        "dirty_bytes": pages.dirty_bytes,
        "hole_bytes": pages.trim_punch.hole_bytes,
        "cell_bytes": cell_bytes,
        "cells": {
            "used_bytes": column(|cell| cell.used_bytes),
            "free_bytes": column(|cell| cell.free_bytes),
            "pending_bytes": column(|cell| cell.pending_bytes),
        },
        "trees": trees.iter().map(|tree| {
            json!({ "name": tree.name, "keys": tree.keys, "bytes": tree.bytes })
        }).collect::<Vec<_>>(),
    })
}
