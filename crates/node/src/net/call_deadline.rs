//! The deadline of a call: how long its client waits, as the header `grpc-timeout` says.
//!
//! The library drops such a call by itself, but ends it as cancelled, by which clients mean a wish
//! of their own; and it looks first whether the call goes on. Here a call whose time is over ends
//! with `DEADLINE_EXCEEDED`, and none is begun too late. A write that is under way by then may
//! still happen.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, Request, Response};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// Digits that the header has at most.
const DIGITS_MAX: usize = 8;

/// The deadline of one call; none if its client did not say how long it waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDeadline(Option<Instant>);

impl CallDeadline {
    /// The deadline of a call that comes now. A header that makes no sense is none.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let time = headers.get("grpc-timeout").and_then(|it| parse(it.to_str().ok()?));
        Self(time.map(|time| Instant::now() + time))
    }

    /// Fails once the deadline has passed: the work that comes next is not begun.
    ///
    /// # Errors
    ///
    /// `DEADLINE_EXCEEDED`.
    pub(crate) fn check(self) -> Result<(), Status> {
        match self.0 {
            Some(deadline) if Instant::now() >= deadline => Err(exceeded()),
            _ => Ok(()),
        }
    }

    /// Carries out `work`, up to the deadline. It is pinned by the caller, so that the future of a
    /// request is not twice as large.
    ///
    /// # Errors
    ///
    /// Those of the work, and as [`CallDeadline::check`].
    pub(crate) async fn bound<T>(
        self,
        work: Pin<&mut impl Future<Output = Result<T, Status>>>,
    ) -> Result<T, Status> {
        self.check()?;
        match self.0 {
            Some(deadline) => timeout_at(deadline, work).await.map_err(|_| exceeded())?,
            None => work.await,
        }
    }

    /// Waits for the deadline, for ever if there is none. The status to end with.
    pub(crate) async fn passed(self) -> Status {
        match self.0 {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
        exceeded()
    }
}

fn exceeded() -> Status {
    Status::deadline_exceeded("the time in grpc-timeout is over")
}

/// A number and its unit.
fn parse(header: &str) -> Option<Duration> {
    let (number, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || number.len() > DIGITS_MAX {
        return None;
    }
    let number = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// A service whose calls keep their deadlines.
#[derive(Clone)]
pub(crate) struct TimedCalls<S>(pub(crate) S);

impl<S: NamedService> NamedService for TimedCalls<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for TimedCalls<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let deadline = CallDeadline::of(request.headers());
        let answering = self.0.call(request);
        Box::pin(async move {
            let answer = pin!(async {
                let Ok(answer) = answering.await;
                Ok(answer)
            });
            Ok(deadline.bound(answer).await.unwrap_or_else(|status| status.into_http()))
        })
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn deadline(header: &'static str) -> CallDeadline {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", header.parse().unwrap());
        CallDeadline::of(&headers)
    }

    #[test]
    fn the_header_is_a_number_and_a_unit() {
        assert_eq!(parse("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parse("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse("20m"), Some(Duration::from_millis(20)));
        assert_eq!(parse("20u"), Some(Duration::from_micros(20)));
        assert_eq!(parse("20n"), Some(Duration::from_nanos(20)));
        for wrong in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "100000000S", "1\u{fc}"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_with_its_time_and_none_begins_after_it() {
        let never = pin!(std::future::pending::<Result<(), Status>>());
        let late = deadline("50m").bound(never).await;
        assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
        assert_eq!(deadline("50m").passed().await.code(), Code::DeadlineExceeded);
        let mut is_begun = false;
        let over = deadline("0m");
        let begin = pin!(async {
            is_begun = true;
            Ok(())
        });
        assert_eq!(over.bound(begin).await.unwrap_err().code(), Code::DeadlineExceeded);
        assert!(!is_begun);
        assert!(deadline("nonsense").check().is_ok());
        assert!(deadline("1H").bound(pin!(async { Ok(()) })).await.is_ok());
    }
}
