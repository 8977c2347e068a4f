//! `flotilla serve`: one store in the foreground, until a signal or a failure.

use std::path::PathBuf;
use std::process::ExitCode;

use flotilla_base::redact;
use flotilla_identity::ApiVersion;
use flotilla_node::config::{ConfigError, LogFormat};
use flotilla_node::{EndKind, FirstStart, Node, NodeConfig, set_sched_slice};

use crate::signals::HangupSignals;
use crate::{fail_stop, logging, signals};

/// Shown below the flags.
const EXAMPLES: &str = "\
Examples:
  One store alone:
    flotilla serve --data-dir /var/lib/flotilla
  The first of three that begin a cluster:
    flotilla serve --name s1 --initial-cluster s1=h1:20160,s2=h2:20160,s3=h3:20160
  One store alone, whose first regions begin at given keys:
    flotilla serve --data-dir /var/lib/flotilla --split-keys borders.txt
  A fourth store for a cluster that runs:
    flotilla serve --name s4 --addr h4:20160 --join h1:20160,h2:20160 --label zone=b
  A new disk for the second, whose directory is lost for ever:
    flotilla serve --name s2 --addr h2:20160 --replace --join h1:20160,h3:20160";

/// The arguments of `flotilla serve`. Flags win over the file.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// TOML file with settings; see docs/configuration.md
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Which of the initial stores this is, or the name of the store that joins [default: s1, or
    /// what the data directory says]
    #[arg(long)]
    pub name: Option<String>,
    /// Address to listen on [default: the one that --initial-cluster gives for --name]
    #[arg(long, value_name = "HOST:PORT")]
    pub addr: Option<String>,
    /// One more address to listen on, if it is free; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    pub also_listen: Vec<String>,
    /// Address that clients and other stores are told [default: the one that --initial-cluster
    /// gives for --name, or --addr]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise_addr: Option<String>,
    /// Directory for everything that the store keeps [default: data/NAME]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// All stores that begin the cluster, the same on each of them [default: this store alone]
    #[arg(long, value_name = "NAME=HOST:PORT,...")]
    pub initial_cluster: Option<String>,
    /// Members of a running cluster that this store joins, if its directory is empty
    #[arg(long, value_name = "HOST:PORT,...")]
    pub join: Option<String>,
    /// With --join: the store of this name lost its directory for ever, this one takes its place
    #[arg(long)]
    pub replace: bool,
    /// Where the store stands, as zone=a: no two replicas of a region are in one zone while another
    /// has a store; may be given several times [default: the labels it has]
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<String>,
    /// Number that the cluster must have [default: any]
    #[arg(long, value_name = "NUMBER")]
    pub cluster_id: Option<u64>,
    /// A new cluster of this one store is meant, whoever else knows its address: do not listen
    /// first
    #[arg(long)]
    pub new: bool,
    /// Regions that the key space begins with; counts at the bootstrap only; later
    /// they split by size and load [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub regions: Option<u64>,
    /// Keys at which regions begin besides, the same on all stores that begin the cluster: one key
    /// a line; `\\` is a backslash, `\xNN` a byte. Counts at the bootstrap only
    #[arg(long, value_name = "FILE")]
    pub split_keys: Option<PathBuf>,
    /// Form of the clients' keys, v1ttl or v2, as TiKV has them; the same on all stores that begin
    /// the cluster, and never changed [default: v1ttl]
    #[arg(long, value_name = "VERSION")]
    pub api: Option<ApiVersion>,
    /// The process itself: its log, and its end
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// The arguments of `flotilla serve` that are about its process.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ProcessArgs {
    /// Log level: error, warn, info, debug, trace, or a filter of `tracing` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of the log's lines: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Whether keys stay out of the log: true or false [default: true]
    #[arg(long, value_name = "BOOL")]
    pub log_redact: Option<bool>,
    /// End in good order when standard input, a pipe, ends: with the process that has its other end
    #[arg(long)]
    pub end_with_input: bool,
}

impl ServeArgs {
    /// The settings of the file, if one is named, with what the flags say put over them.
    ///
    /// # Errors
    ///
    /// As [`NodeConfig::read`], for a label that is none, and for flags that exclude each other.
    pub fn config(self) -> Result<NodeConfig, ConfigError> {
        let mut config = match &self.config {
            Some(path) => NodeConfig::read(path)?,
            None => NodeConfig::default(),
        };
        put(&mut config.name, self.name);
        put(&mut config.addr, self.addr);
        put(&mut config.advertise_addr, self.advertise_addr);
        put(&mut config.data_dir, self.data_dir);
        put(&mut config.initial_cluster, self.initial_cluster);
        put(&mut config.join, self.join);
        for label in &self.label {
            let (key, value) = parse_label(label)?;
            config.labels.insert(key, value);
        }
        put(&mut config.cluster_id, self.cluster_id);
        put(&mut config.regions, self.regions);
        put(&mut config.split_keys, self.split_keys);
        config.api = self.api.or(config.api);
        put(&mut config.log, self.process.log);
        put(&mut config.log_format, self.process.log_format);
        put(&mut config.log_redact, self.process.log_redact);
        config.first_start = match (self.new, self.replace) {
            (false, false) => FirstStart::Usual,
            (true, false) => FirstStart::New,
            (false, true) => FirstStart::Replace,
            (true, true) => {
                let words = "--new and --replace are both given: begin a new cluster, or take a \
                             lost store's place in one; take one of the two out";
                return Err(ConfigError::Value(words.to_owned()));
            }
        };
        config.also_listen.extend(self.also_listen);
        Ok(config)
    }
}

/// Reads `zone=a`.
fn parse_label(label: &str) -> Result<(String, String), ConfigError> {
    let (key, value) = label.split_once('=').ok_or_else(|| {
        ConfigError::Value(format!("--label {label}: a label is of the form key=value"))
    })?;
    Ok((key.to_owned(), value.to_owned()))
}

fn put<T>(setting: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *setting = flag;
    }
}

/// Serves until SIGINT, SIGTERM, a failure, or until the store has left the cluster.
#[must_use]
pub fn run(args: ServeArgs) -> ExitCode {
    // Until the settings are known: what is wrong with them may name a key.
    redact::set(true);
    fail_stop::end_process_on_panic();
    let config = match args.clone().config() {
        Ok(config) => config,
        Err(error) => return refuse(&error.to_string()),
    };
    if let Err(error) = logging::start(&config.log, config.log_format, config.log_redact) {
        return refuse(&error);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads.runtime_count())
        .thread_name("rim")
        .on_thread_start(set_sched_slice)
        .enable_all()
        .build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(serve(config, args)),
        Err(error) => refuse(&format!("cannot start threads: {error}")),
    };
    logging::flush(fail_stop::LOG_LIMIT);
    code
}

async fn serve(config: NodeConfig, args: ServeArgs) -> ExitCode {
    let listened = signals::listen().and_then(|it| Ok((it, signals::listen_for_hangups()?)));
    let (mut signals, hangups) = match listened {
        Ok(listened) => listened,
        Err(error) => return refuse(&format!("cannot listen for signals: {error}")),
    };
    if args.process.end_with_input {
        signals = match signals.with_input_end() {
            Ok(signals) => signals,
            Err(error) => {
                return refuse(&format!("--end-with-input: standard input is no pipe: {error}"));
            }
        };
    }
    tokio::spawn(reload_on_hangup(hangups, args));
    let started = tokio::select! {
        started = Node::start(config) => started,
        // Still waiting for other stores, or opening the directory: nothing is lost by ending in
        // between.
        signal = signals.next() => {
            tracing::info!("{signal}");
            return ExitCode::SUCCESS;
        }
    };
    let node = match started {
        Ok(node) => node,
        Err(error) => return refuse(&error.to_string()),
    };
    tokio::select! {
        reason = node.failed() => end(&node, &reason),
        signal = signals.next() => tracing::info!("{signal}"),
    }
    tokio::select! {
        ended = node.shutdown() => match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => fail(&reason),
        },
        signal = signals.next() => fail(&format!("{signal} a second time")),
    }
}

/// At each SIGHUP reads the settings again, and takes from them what can change while a node runs:
/// the filter of the log.
async fn reload_on_hangup(mut hangups: HangupSignals, args: ServeArgs) {
    loop {
        hangups.next().await;
        let config = args.clone().config().map_err(|error| error.to_string());
        match config.and_then(|config| logging::reload(&config.log)) {
            Ok(filter) => tracing::info!("SIGHUP: the filter of the log is {filter}"),
            Err(error) => tracing::warn!("SIGHUP: nothing is changed: {error}"),
        }
    }
}

/// Ends the process of a node that has come to an end by itself. Of one that must not run the line
/// says what an operator has to do, and the exit code is that of a start that was refused; one
/// whose store has left did what it was told to.
fn end(node: &Node, reason: &str) -> ! {
    match node.end_kind() {
        Some(EndKind::Left) => fail_stop::end(0, &format!("flotilla: {reason}")),
        Some(EndKind::Refused) => fail_stop::end(1, &format!("flotilla: {reason}")),
        Some(EndKind::Failed) | None => fail(reason),
    }
}

/// Ends the process at once, without joining threads: they may be stuck in a disk that does not
/// answer. Acknowledged writes are in the log, which needs no orderly end.
fn fail(reason: &str) -> ! {
    fail_stop::end(fail_stop::FAILED, &format!("flotilla: stopped: {reason}"))
}

fn refuse(reason: &str) -> ExitCode {
    fail_stop::say(&format!("flotilla: {reason}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_an_empty_directory_means() {
        let config = |new, replace| ServeArgs { new, replace, ..ServeArgs::default() }.config();
        assert_eq!(config(false, true).unwrap().first_start, FirstStart::Replace);
        assert_eq!(config(true, false).unwrap().first_start, FirstStart::New);
        assert_eq!(config(false, false).unwrap().first_start, FirstStart::Usual);
        let both = config(true, true).unwrap_err().to_string();
        assert!(both.contains("--new and --replace are both given"), "{both}");
    }

    #[test]
    fn labels_are_keys_and_values() {
        let label = |label: &str| {
            let label = vec![label.to_owned(), "rack=r1".to_owned()];
            ServeArgs { label, ..ServeArgs::default() }.config()
        };
        let labels = label("zone=a").unwrap().labels;
        assert_eq!((labels["zone"].as_str(), labels["rack"].as_str()), ("a", "r1"));
        let wrong = label("zone").unwrap_err().to_string();
        assert!(wrong.contains("--label zone: a label is of the form key=value"), "{wrong}");
    }
}
