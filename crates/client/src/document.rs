//! A document that a store serves by plain HTTP, over the connection that its gRPC uses.

use std::future::poll_fn;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::transport::Channel;

/// The outcome of a request for a document.
pub(crate) enum Document {
    /// It is there, whole.
    Found(Bytes),
    /// The store answered with something else; in words.
    Refused(String),
    /// There was no answer; the reason in words.
    Silent(String),
}

/// Asks for the document at `path`, of `bytes_max` bytes at most. Has no limit of time.
pub(crate) async fn get(mut channel: Channel, path: &str, bytes_max: usize) -> Document {
    let request = match Request::get(path).body(Body::empty()) {
        Ok(request) => request,
        Err(error) => return Document::Refused(format!("{path:?} is no path: {error}")),
    };
    let ready = poll_fn(|context| GrpcService::<Body>::poll_ready(&mut channel, context)).await;
    if let Err(error) = ready {
        return Document::Silent(cause(&error));
    }
    let response = match GrpcService::<Body>::call(&mut channel, request).await {
        Ok(response) => response,
        Err(error) => return Document::Silent(cause(&error)),
    };
    let status = response.status();
    match read(response, bytes_max).await {
        Ok(body) if status == StatusCode::OK => Document::Found(body),
        Ok(body) => {
            let words = String::from_utf8_lossy(&body).trim().to_owned();
            Document::Refused(format!("it answered {status}: {words}"))
        }
        Err(words) => Document::Refused(words),
    }
}

/// The body of an answer. It is given up where it becomes too large, so that no store can fill the
/// memory of the one who asks.
async fn read(response: Response<Body>, bytes_max: usize) -> Result<Bytes, String> {
    let mut body = pin!(response.into_body());
    let mut bytes = BytesMut::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame = frame.map_err(|error| format!("its answer broke off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bytes_max {
            return Err(format!("its answer has more than {bytes_max} bytes"));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// The words of the innermost error: "connection refused", and not "transport error".
fn cause(error: &tonic::transport::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
