//! Shared by the subcommands: the target cluster, errors with exit codes, tables, the runtime.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use flotilla_client::{Client, Config, Observer, RequestApi};
use flotilla_proto::peers::{self, StatsResponse};
use flotilla_tls::TlsDialer;
use serde_json::json;

use crate::signals::EndSignal;
use crate::time_limit::TimeLimit;
use crate::tls_args::TlsArgs;

pub use crate::screen_table::{ScreenTable, TableCell, number, table};

/// Where the cluster is.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterTarget {
    /// Any stores of the cluster; one that answers is enough
    #[arg(
        long,
        global = true,
        value_delimiter = ',',
        default_value = "127.0.0.1:20160",
        value_name = "HOST:PORT,...",
        env = "FLOTILLA_ENDPOINTS"
    )]
    pub endpoints: Vec<String>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// The time of `ctl` as a whole, stores that start included, and elsewhere of a request:
    /// `1500ms`, `10s`, `2m`; a number alone has seconds [default: 10s for each request]
    #[arg(long, global = true, value_name = "TIME", value_parser = TimeLimit::parse)]
    pub timeout: Option<TimeLimit>,
    /// The certificate to show.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// The way to stores with TLS, once [`ClusterTarget::read_certificates`] has read the files.
    #[arg(skip)]
    pub dialer: Option<TlsDialer>,
}

/// How long a request may take if nothing is said.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a single store is waited for that is asked about itself.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two questions to stores that do not answer yet.
const ASK_PAUSE: Duration = Duration::from_millis(100);

impl ClusterTarget {
    /// The cluster at these addresses.
    pub(crate) fn at(endpoints: &[String]) -> Self {
        let (tls, dialer) = (TlsArgs::default(), None);
        Self { endpoints: endpoints.to_vec(), json: false, timeout: None, tls, dialer }
    }

    /// Reads the certificates that are named, if there are some. To be called before all else.
    ///
    /// # Errors
    ///
    /// As [`TlsArgs::dialer`].
    pub fn read_certificates(&mut self) -> Result<(), Error> {
        self.dialer = self.tls.dialer().map_err(Error::Argument)?;
        Ok(())
    }

    /// The client's configuration for this target; the rest is the client's default.
    #[must_use]
    pub fn config(&self) -> Config {
        let tls = self.dialer.clone();
        Config { deadline: self.request_timeout(), tls, ..Config::default() }
    }

    /// How long a request may take.
    fn request_timeout(&self) -> Duration {
        self.timeout.as_ref().map_or(REQUEST_TIMEOUT, TimeLimit::length)
    }

    /// The same for a command that ends as a whole when the limit does.
    pub(crate) fn bounded_config(&self) -> Config {
        let until = self.timeout.as_ref().map(TimeLimit::requests_end);
        let deadline = until.map_or(REQUEST_TIMEOUT, |until| until - Instant::now().min(until));
        Config { deadline, until, ..self.config() }
    }

    /// The end of a wait of so long, in a command that ends as a whole when the limit does.
    pub(crate) fn end_of_wait(&self, length: Duration) -> Instant {
        // Waits that the clock cannot hold are for ever, as good as.
        let now = Instant::now();
        let end = now.checked_add(length).unwrap_or(now + Duration::from_secs(1 << 31));
        self.timeout.as_ref().map_or(end, |limit| limit.requests_end().min(end))
    }

    /// The end of a request that is made now, in such a command.
    pub(crate) fn end_of_request(&self) -> Instant {
        self.end_of_wait(self.request_timeout())
    }

    /// A client of the cluster, which speaks its API version, in such a command.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        let config = self.config_of_cluster(self.bounded_config()).await?;
        Ok(Client::connect(&self.endpoints, config).await?)
    }

    /// `config` with the API version of the cluster. If no store answers yet, one is waited for as
    /// long as for a request.
    pub(crate) async fn config_of_cluster(&self, config: Config) -> Result<Config, Error> {
        let told = match self.ask_registry().await {
            Ok(told) => told,
            Err(_) => {
                // A client asks again and again, and knows best why there is no answer.
                Client::connect(&self.endpoints, config.clone()).await?;
                self.ask_registry().await?
            }
        };
        Ok(Config { api: api_of(&told), ..config })
    }

    /// For asking one store about itself.
    pub(crate) fn observer(&self, address: &str) -> Result<Observer, Error> {
        // One that does not answer leaves time for others.
        let attempt_timeout = LOOK_TIMEOUT.min(self.request_timeout() / 4);
        Ok(Observer::new(address, Config { attempt_timeout, ..self.config() })?)
    }

    /// The stores that take part, from the first endpoint that answers. Needs no quorum.
    pub(crate) async fn stores(&self) -> Result<Vec<peers::KnownStore>, Error> {
        let mut stores = self.registered_stores().await?.stores;
        // The name and the address of one that is gone may be those of its successor.
        stores.retain(|store| !is_gone(store));
        Ok(stores)
    }

    /// The same, with those that are lost or have left. A limit of time that was given is a wait
    /// for a store that starts.
    pub(crate) async fn registered_stores(&self) -> Result<peers::StoresResponse, Error> {
        let end = self.timeout.as_ref().map(TimeLimit::requests_end);
        loop {
            let told = self.ask_registry().await;
            if told.is_ok() || end.is_none_or(|end| Instant::now() + ASK_PAUSE >= end) {
                return told;
            }
            tokio::time::sleep(ASK_PAUSE).await;
        }
    }

    /// The same, with one question to each endpoint.
    pub(crate) async fn ask_registry(&self) -> Result<peers::StoresResponse, Error> {
        let mut silent = Vec::new();
        let mut refusals = Vec::new();
        for endpoint in &self.endpoints {
            match self.observer(endpoint)?.stores().await {
                Ok(stores) => return Ok(stores),
                Err(error @ flotilla_client::Error::NotServing { .. }) => {
                    refusals.push(error.to_string());
                }
                Err(error) => silent.push(error.to_string()),
            }
        }
        match refusals.is_empty() {
            true => Err(Error::Silent(silent.join("; "))),
            false => Err(Error::NotServing(refusals.join("; "))),
        }
    }
}

/// The API version of a cluster, as one of its stores tells it.
pub(crate) fn api_of(told: &peers::StoresResponse) -> RequestApi {
    if told.api_version == 2 { RequestApi::V2 } else { RequestApi::V1 }
}

/// Whether a store is lost or has left: it never answers.
pub(crate) fn is_gone(store: &peers::KnownStore) -> bool {
    matches!(store.state(), peers::StoreState::StoreLost | peers::StoreState::StoreRemoved)
}

/// The value of a metric of a store; `None` if the store is of a version that does not report it.
pub(crate) fn metric(stats: &StatsResponse, group: &str, name: &str) -> Option<u64> {
    let metric = stats.metrics.iter().find(|metric| metric.group == group && metric.name == name);
    metric.map(|metric| metric.value)
}

/// Why a tool could not do what was asked: one sentence for a person, one exit code for a script.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No endpoint answers.
    #[error(
        "{0}. Does the cluster run? `flotilla playground` starts one; --endpoints says where yours is"
    )]
    Silent(String),
    /// Stores answer, but have no cluster yet, or stop. Their messages say what they wait for.
    #[error("{0}")]
    NotServing(String),
    /// Stores answer, but too few for the cluster to have leaders.
    #[error("{0}")]
    NoQuorum(String),
    /// The time of the whole command is over. The text says why it was too short, if that is
    /// known.
    #[error("not done within {limit}, the --timeout{why}")]
    TimedOut {
        /// As it was given.
        limit: String,
        /// Begins with a colon, or is empty.
        why: String,
    },
    /// The cluster could not or would not.
    #[error(transparent)]
    Client(flotilla_client::Error),
    /// A store could not or would not do it; its message says why.
    #[error("{0}")]
    Refused(String),
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
    /// A compare-and-swap found another value, or none; its message says which.
    #[error("{0}")]
    Mismatch(String),
    /// The replicas of regions differ; the answer says which.
    #[error("the replicas of {0}; nothing was changed: `docs/operations.md` says what to do")]
    Inconsistent(String),
    /// The key, region, file or group does not exist.
    #[error("{0}")]
    Absent(String),
    /// Some requests of a load failed.
    #[error("{failed} of {asked} requests failed, the first one: {first}")]
    Failed {
        /// How many.
        failed: u64,
        /// Out of how many.
        asked: u64,
        /// Why the first one did.
        first: String,
    },
    /// A log or a page file cannot be read, or not be written to.
    #[error("{0}")]
    Data(String),
    /// A log or a page file is not as it was written.
    #[error("{0} {problems} found", problems = if *.0 == 1 { "problem" } else { "problems" })]
    Unsound(u64),
    /// A signal has stopped the tool before it was done.
    #[error("stopped by {by}")]
    Stopped {
        /// Its name.
        by: String,
        /// The exit code.
        code: u8,
    },
    /// Standard output is gone.
    #[error("cannot write the answer: {0}")]
    Output(#[from] std::io::Error),
}

impl From<flotilla_client::Error> for Error {
    fn from(error: flotilla_client::Error) -> Error {
        match error {
            flotilla_client::Error::Unreachable { .. } => Error::Silent(error.to_string()),
            flotilla_client::Error::NotServing { .. } => Error::NotServing(error.to_string()),
            flotilla_client::Error::Config(what) => Error::Argument(what),
            flotilla_client::Error::NoRegion(_) => Error::Absent(error.to_string()),
            other => Error::Client(other),
        }
    }
}

impl From<EndSignal> for Error {
    fn from(signal: EndSignal) -> Error {
        Error::Stopped { by: signal.to_string(), code: signal.exit_code() }
    }
}

impl Error {
    /// 1: it failed; 2: the arguments are wrong, as from the parser; 3: there is no such thing; 4:
    /// there is another value than was expected; 5: replicas of a region differ; 128 and the
    /// signal's number: a signal stopped it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Argument(_) => 2,
            Error::Absent(_) => 3,
            Error::Mismatch(_) => 4,
            Error::Stopped { code, .. } => *code,
            Error::Inconsistent(_) => 5,
            Error::Silent(_)
            | Error::NotServing(_)
            | Error::NoQuorum(_)
            | Error::TimedOut { .. }
            | Error::Client(_)
            | Error::Refused(_)
            | Error::Failed { .. }
            | Error::Data(_)
            | Error::Unsound(_)
            | Error::Output(_) => 1,
        }
    }
}

/// Runs a tool to its end.
#[must_use]
pub fn run(is_json: bool, tool: impl Future<Output = Result<(), Error>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(tool);
            // A thread may still read standard input, which need not end.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Error::Output(error)),
    };
    end(is_json, result)
}

/// A line on standard error. Its reader may have gone, as in `2>&1 | head`: then the line is lost,
/// and `eprintln!` would panic.
pub(crate) fn tell(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Ends a tool: its error goes to standard error, and into the exit code.
pub(crate) fn end(is_json: bool, result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has ended, as `head` does; that is no failure of ours.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            if is_json {
                tell(json!({ "error": error.to_string() }));
            } else {
                tell(format_args!("flotilla: {error}"));
            }
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do_and_has_its_code() {
        let silent = flotilla_client::Error::Unreachable {
            endpoints: "127.0.0.1:1".to_owned(),
            reason: "refused".to_owned(),
        };
        let silent = Error::from(silent);
        assert!(silent.to_string().contains("--endpoints"), "{silent}");
        assert_eq!(silent.exit_code(), 1);
        let config = flotilla_client::Error::Config("\"x\" lacks a port".to_owned());
        assert_eq!(Error::from(config).exit_code(), 2);
        assert_eq!(Error::Absent("no value".to_owned()).exit_code(), 3);
        assert_eq!(Error::from(flotilla_client::Error::NoRegion(99)).exit_code(), 3);
    }

    #[tokio::test]
    async fn every_endpoint_that_is_silent_is_named() {
        let endpoints = vec!["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let timeout = Some(TimeLimit::parse("1").unwrap());
        let target = ClusterTarget { timeout, ..ClusterTarget::at(&endpoints) };
        let error = target.stores().await.unwrap_err().to_string();
        assert!(endpoints.iter().all(|endpoint| error.contains(endpoint)), "{error}");
    }
}
