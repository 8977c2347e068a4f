//! `/status/history`: load and latencies of the last minutes.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::load_history::{HistoryPart, LoadSample, RATES, SAMPLES_MAX};
use super::load_sampler::SAMPLE_INTERVAL;
use super::query;
use super::state::PageState;
use crate::net::answer::{self, Answer};

pub(super) fn routes() -> Router<PageState> {
    Router::new().route("/status/history", get(history))
}

/// From the first sample on that the caller lacks.
async fn history(State(state): State<PageState>, RawQuery(query): RawQuery) -> Answer {
    let from = match query::number(query.as_deref(), "from") {
        Ok(from) => from.unwrap_or(0),
        Err(words) => return answer::bad_request(&words),
    };
    let mut document = part_to_json(&state.history.part(from));
    // The samples of another start are counted anew.
    document["start"] = state.reader.membership.run().1.starts.into();
    answer::json(&document)
}

/// Columns, since each has numbers of one kind.
fn part_to_json(part: &HistoryPart) -> Value {
    let rates = RATES.iter().enumerate().map(|(at, name)| {
        let rate = |sample: &LoadSample| (sample.rates[at] * 10.0).round() / 10.0;
        ((*name).to_owned(), part.samples.iter().map(rate).collect::<Value>())
    });
    let latencies = part.names.iter().enumerate().map(|(at, name)| {
        let quantiles = || part.samples.iter().map(|sample| sample.latencies[at]);
        let document = json!({
            "p50_us": quantiles().map(|it| it.map(|it| it.p50_us)).collect::<Vec<_>>(),
            "p99_us": quantiles().map(|it| it.map(|it| it.p99_us)).collect::<Vec<_>>(),
        });
        (name.clone(), document)
    });
    json!({
        "first": part.first,
        "next": part.first + part.samples.len() as u64,
        "samples_max": SAMPLES_MAX,
        "interval_ms": SAMPLE_INTERVAL.as_millis() as u64,
        "rates": rates.collect::<Map<_, _>>(),
        "latencies": latencies.collect::<Map<_, _>>(),
    })
}

/// The newest sample in short, for the list of stores.
pub(super) fn newest_to_json(part: &HistoryPart) -> Value {
    let Some(sample) = part.samples.last() else { return Value::Null };
    let p99_us = |name: &str| {
        let at = part.names.iter().position(|known| known == name)?;
        sample.latencies[at].map(|latency| latency.p99_us)
    };
    json!({
        "writes": sample.rates[0].round(),
        "reads": sample.rates[1].round(),
        "write_p99_us": p99_us("request.write"),
        "read_p99_us": p99_us("request.read"),
    })
}
