//! A small client of Flotilla's RawKV: routing, retries, batch stream.
//!
//! [`Client`] finds the region of a key through placement, keeps what it learns, follows leaders,
//! and tries again with growing waits until a deadline. Requests travel on one `BatchCommands`
//! stream for each connection, or as calls of their own. It speaks TiKV's protocol, so it works
//! against TiKV as well. [`Observer`] asks one store about itself, and [`StoreOperator`] has one do
//! something; those are Flotilla's own.
//!
//! Everything runs on the caller's tokio runtime. The only task that is started here is the
//! reader of a batch stream; it ends with its connection. Every queue is bounded: see [`Config`].
//!
//! ```no_run
//! # async fn example() -> Result<(), flotilla_client::Error> {
//! use flotilla_client::{Client, Config, Scan};
//!
//! let client = Client::connect(&["127.0.0.1:20160"], Config::default()).await?;
//! client.put("ship", "Vasa").await?;
//! assert_eq!(client.get("ship").await?, Some("Vasa".into()));
//! let last = Scan { limit: 10, reverse: true, ..Scan::default() };
//! for (key, value) in client.scan(last).await? {
//!     println!("{key:?} {value:?}");
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
mod batch_stream;
mod client;
mod config;
mod dial;
mod document;
mod error;
mod operator;
mod placement_client;
mod raw_calls;
mod request_api;
mod request_router;
mod retry_action;
mod retry_budget;
mod route_cache;
mod scan;
mod status;
mod store_links;

pub use client::{CasOutcome, Client, LocatedRegion, Pair, RemainingTtl};
pub use config::{Config, Transport};
pub use error::Error;
pub use flotilla_kv::ColumnFamily;
pub use operator::{RegionPartStream, StoreOperator};
pub use request_api::RequestApi;
pub use scan::Scan;
pub use status::Observer;
