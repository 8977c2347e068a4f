//! Answers to requests of plain HTTP.

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

/// An answer, which is in memory as a whole.
pub(crate) type Answer = Response<String>;

/// A document.
pub(crate) fn json(value: &Value) -> Answer {
    with_status(StatusCode::OK, value)
}

/// There is no such thing.
pub(crate) fn not_found() -> Answer {
    with_status(StatusCode::NOT_FOUND, &json!({ "error": "not found" }))
}

/// Not now; the reason.
pub(crate) fn unavailable(why: &str) -> Answer {
    with_status(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": why }))
}

/// Another store has it. The caller repeats its request there.
pub(crate) fn elsewhere(url: &str) -> Answer {
    let mut answer = Response::new(String::new());
    match url.try_into() {
        Ok(url) => {
            *answer.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            answer.headers_mut().insert(LOCATION, url);
            answer
        }
        Err(_) => unavailable(&format!("ask {url}")),
    }
}

/// The request makes no sense; why.
pub(crate) fn bad_request(why: &str) -> Answer {
    with_status(StatusCode::BAD_REQUEST, &json!({ "error": why }))
}

/// The party may not ask this; why.
pub(crate) fn forbidden(why: &str) -> Answer {
    with_status(StatusCode::FORBIDDEN, &json!({ "error": why }))
}

/// A text.
pub(crate) fn text(text: String) -> Answer {
    Response::new(text)
}

/// A text of a type that has a name.
pub(crate) fn text_as(content_type: &'static str, text: String) -> Answer {
    let mut answer = Response::new(text);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn with_status(status: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(format!("{value}\n"));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}
