//! `flotilla serve`: one store in the foreground, until a signal or a failure.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;

use flotilla_base::redact;
use flotilla_identity::ApiVersion;
use flotilla_node::config::{ConfigError, LayeredConfig, LogFormat, SettingLayers};
use flotilla_node::{EndKind, FirstStart, Node, NodeConfig, set_sched_slice};

use crate::{fail_stop, logging, signals};

/// Shown below the flags.
pub(crate) const EXAMPLES: &str = "\
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

/// The arguments of `flotilla serve`. A flag wins over a variable of the environment, and that over
/// the file.
#[derive(Clone, Debug, Default, clap::Args)]
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
    /// Where the store stands, as zone=a: no two replicas of a region are in one zone while another
    /// has a store; may be given several times [default: the labels it has]
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<String>,
    /// Flags that count at the bootstrap.
    #[command(flatten)]
    pub bootstrap: BootstrapArgs,
    /// Connections with TLS.
    #[command(flatten)]
    pub tls: ServeTlsArgs,
    /// The process itself: its log, and its end.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Any setting, as limits.slow_request_ms=2s; may be given several times. `flotilla config
    /// default` has all of them
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Flags about an empty directory.
    #[command(flatten)]
    pub first_start: FirstStartArgs,
}

/// Flags that count when a cluster begins.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct BootstrapArgs {
    /// Number that the cluster must have [default: any]
    #[arg(long, value_name = "NUMBER")]
    pub cluster_id: Option<u64>,
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
}

/// Connections with TLS.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServeTlsArgs {
    /// off, optional or required: which connections have TLS [default: required if files are given,
    /// else off]
    #[arg(long, value_name = "MODE")]
    pub tls_mode: Option<String>,
    /// Authority of the cluster's certificates
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this store
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
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

/// The operator's word about a store whose directory is empty. These have no keys.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct FirstStartArgs {
    /// A new cluster of this one store is meant, whoever else knows its address: do not listen
    /// first
    #[arg(long)]
    pub new: bool,
    /// With --join: the store of this name lost its directory for ever, this one takes its place
    #[arg(long)]
    pub replace: bool,
}

impl ServeArgs {
    /// The settings of the file, if one is named, with those of the environment and of the flags
    /// put over them.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in one of the three, and flags that exclude each other.
    pub fn layered(self) -> Result<LayeredConfig, ConfigError> {
        let mut layers = SettingLayers::default();
        if let Some(path) = &self.config {
            layers.add_file(path);
        }
        layers.add_variables(std::env::vars_os());
        self.add_flags(&mut layers);
        let mut layered = layers.finish()?;
        // Their bytes need not be a text.
        put(&mut layered.config.data_dir, self.data_dir);
        put(&mut layered.config.split_keys, self.bootstrap.split_keys);
        put(&mut layered.config.tls.ca_file, self.tls.tls_ca);
        put(&mut layered.config.tls.cert_file, self.tls.tls_cert);
        put(&mut layered.config.tls.key_file, self.tls.tls_key);
        layered.config.first_start = match self.first_start {
            FirstStartArgs { new: true, .. } => FirstStart::New,
            FirstStartArgs { replace: true, .. } => FirstStart::Replace,
            FirstStartArgs { .. } => FirstStart::Usual,
        };
        Ok(layered)
    }

    fn add_flags(&self, layers: &mut SettingLayers) {
        for assignment in &self.set {
            layers.add_assignment("--set", assignment);
        }
        let path = |path: &Option<PathBuf>| Some(path.as_ref()?.to_string_lossy().into_owned());
        let flags = [
            ("--name", "name", self.name.clone()),
            ("--addr", "addr", self.addr.clone()),
            ("--advertise-addr", "advertise_addr", self.advertise_addr.clone()),
            ("--data-dir", "data_dir", path(&self.data_dir)),
            ("--initial-cluster", "initial_cluster", self.initial_cluster.clone()),
            ("--join", "join", self.join.clone()),
            ("--cluster-id", "cluster_id", self.bootstrap.cluster_id.map(|id| id.to_string())),
            ("--regions", "regions", self.bootstrap.regions.map(|count| count.to_string())),
            ("--split-keys", "split_keys", path(&self.bootstrap.split_keys)),
            ("--api", "api", self.bootstrap.api.map(|api| api.to_string())),
            ("--tls-mode", "tls.mode", self.tls.tls_mode.clone()),
            ("--tls-ca", "tls.ca_file", path(&self.tls.tls_ca)),
            ("--tls-cert", "tls.cert_file", path(&self.tls.tls_cert)),
            ("--tls-key", "tls.key_file", path(&self.tls.tls_key)),
            ("--log", "log", self.process.log.clone()),
            ("--log-format", "log_format", self.process.log_format.map(|it| it.to_string())),
            ("--log-redact", "log_redact", self.process.log_redact.map(|it| it.to_string())),
        ];
        for (flag, key, value) in flags {
            if let Some(value) = value {
                layers.add_flag(flag, key, value);
            }
        }
        for label in &self.label {
            layers.add_flag("--label", "labels", label);
        }
        for address in &self.also_listen {
            layers.add_flag("--also-listen", "also_listen", address);
        }
        if self.first_start.new && self.first_start.replace {
            layers.add_error(
                "--new and --replace are both given: begin a new cluster, or take a lost store's \
                 place in one; take one of the two out",
            );
        }
    }
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
    let layered = match args.clone().layered() {
        Ok(layered) => layered,
        Err(error) => {
            error.lines().iter().for_each(|line| fail_stop::say(&format!("flotilla: {line}")));
            return ExitCode::FAILURE;
        }
    };
    let started = check_log(&layered).and_then(|()| {
        let NodeConfig { log, log_format, log_redact, .. } = &layered.config;
        logging::start(log, *log_format, *log_redact)
    });
    if let Err(error) = started {
        return refuse(&error);
    }
    let config = layered.config;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads.runtime_count())
        .thread_name("rim")
        .on_thread_start(set_sched_slice)
        // Every other task is one that another thread has woken: a request whose answer is here. By
        // default they wait for up to a hundred tasks that the thread has itself, new requests.
        .global_queue_interval(2)
        .enable_all()
        .build();
    let code = match runtime {
        Ok(runtime) => runtime.block_on(serve(config, args)),
        Err(error) => refuse(&format!("cannot start threads: {error}")),
    };
    logging::flush(fail_stop::LOG_LIMIT);
    code
}

/// Refuses a filter of the log that is none, with the place where it is set.
pub(crate) fn check_log(layered: &LayeredConfig) -> Result<(), String> {
    let source = layered.source_of("log");
    logging::check(&layered.config.log).map_err(|error| format!("{source}: {error}"))
}

async fn serve(config: NodeConfig, args: ServeArgs) -> ExitCode {
    let listened = signals::listen().and_then(|it| Ok((it, signals::listen_for_hangups()?)));
    let (mut signals, mut hangups) = match listened {
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
    let mut starting = pin!(Node::start(config));
    let started = loop {
        tokio::select! {
            started = &mut starting => break started,
            () = hangups.next() => reload(&args, None),
            // Still waiting for other stores, or opening the directory: nothing is lost by ending
            // in between.
            signal = signals.next() => {
                tracing::info!("{signal}");
                return ExitCode::SUCCESS;
            }
        }
    };
    let node = match started {
        Ok(node) => node,
        Err(error) => return refuse(&error.to_string()),
    };
    loop {
        tokio::select! {
            reason = node.failed() => end(&node, &reason),
            () = hangups.next() => {
                reload(&args, Some(&node));
                // Its files may have changed, whatever the settings.
                node.security().reload().await;
            }
            signal = signals.next() => {
                tracing::info!("{signal}");
                break;
            }
        }
    }
    tokio::select! {
        ended = node.shutdown() => match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => fail(&reason),
        },
        signal = signals.next() => fail(&format!("{signal} a second time")),
    }
}

/// Reads the settings again, and puts into effect those that can change while a node runs.
fn reload(args: &ServeArgs, node: Option<&Node>) {
    let reloaded = args.clone().layered().map_err(|error| error.to_string()).and_then(|layered| {
        check_log(&layered)?;
        let filter = layered.config.log.clone();
        let reloaded = node.map(|node| node.reload(layered.config)).transpose();
        let reloaded = reloaded.map_err(|error| error.to_string())?.unwrap_or_default();
        logging::set_filter(&filter)?;
        Ok((filter, reloaded))
    });
    match reloaded {
        Ok((filter, reloaded)) => {
            tracing::info!("SIGHUP: the filter of the log is {filter}");
            if !reloaded.changed.is_empty() {
                tracing::info!("SIGHUP: changed: {}", reloaded.changed.join(", "));
            }
            if !reloaded.at_next_start.is_empty() {
                let keys = reloaded.at_next_start.join(", ");
                tracing::warn!("SIGHUP: these do not change before the next start: {keys}");
            }
            if !reloaded.of_cluster.is_empty() {
                let keys = reloaded.of_cluster.join(", ");
                tracing::warn!(
                    "SIGHUP: these are settings of the cluster, changed by `flotilla ctl config \
                     set`: {keys}"
                );
            }
        }
        Err(error) => tracing::warn!("SIGHUP: nothing is changed: {error}"),
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
        let first_start = |new, replace| {
            let first_start = FirstStartArgs { new, replace };
            let layered = ServeArgs { first_start, ..ServeArgs::default() }.layered();
            layered.map(|layered| layered.config.first_start).map_err(|error| error.to_string())
        };
        assert_eq!(first_start(false, true), Ok(FirstStart::Replace));
        assert_eq!(first_start(true, false), Ok(FirstStart::New));
        assert_eq!(first_start(false, false), Ok(FirstStart::Usual));
        let both = first_start(true, true).unwrap_err();
        assert!(both.contains("--new and --replace are both given"), "{both}");
    }

    #[test]
    fn labels_are_keys_and_values() {
        let label = |label: &str| {
            let label = vec![label.to_owned(), "rack=r1".to_owned()];
            ServeArgs { label, ..ServeArgs::default() }.layered()
        };
        let labels = label("zone=a").unwrap().config.labels;
        assert_eq!((labels["zone"].as_str(), labels["rack"].as_str()), ("a", "r1"));
        let wrong = label("zone").unwrap_err().to_string();
        assert!(wrong.starts_with("--label: labels = zone: expected names with values"), "{wrong}");
    }

    #[test]
    fn each_flag_sets_the_key_of_its_name() {
        let text = |text: &str| Some(text.to_owned());
        let args = ServeArgs {
            name: text("s2"),
            addr: text("h:1"),
            also_listen: vec!["h:2".to_owned(), "h:3".to_owned()],
            advertise_addr: text("h:4"),
            data_dir: Some("d".into()),
            initial_cluster: text("s2=h:4"),
            bootstrap: BootstrapArgs {
                cluster_id: Some(u64::MAX),
                regions: Some(3),
                split_keys: Some("k".into()),
                api: Some(ApiVersion::V2),
            },
            process: ProcessArgs { log: text("warn"), ..ProcessArgs::default() },
            set: vec!["raft.tick_ms=1s".to_owned(), "regions=4".to_owned()],
            ..ServeArgs::default()
        };
        let expected = NodeConfig {
            name: "s2".to_owned(),
            addr: "h:1".to_owned(),
            also_listen: vec!["h:2".to_owned(), "h:3".to_owned()],
            advertise_addr: "h:4".to_owned(),
            data_dir: "d".into(),
            initial_cluster: "s2=h:4".to_owned(),
            cluster_id: u64::MAX,
            regions: 3,
            split_keys: "k".into(),
            api: Some(ApiVersion::V2),
            log: "warn".to_owned(),
            ..NodeConfig::default()
        };
        let layered = args.layered().unwrap();
        assert_eq!(layered.config.raft.tick_ms, Some(1000));
        let (raft, sources) = (expected.raft.clone(), expected.sources.clone());
        assert_eq!(NodeConfig { raft, sources, ..layered.config }, expected);
    }
}
