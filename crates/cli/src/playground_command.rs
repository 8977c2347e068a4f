//! `flotilla playground`: a small cluster on this machine until a signal comes.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{Client, Config};
use flotilla_identity::ApiVersion;
use flotilla_node::config::{LogFormat, read_split_keys, setting_keys};
use flotilla_node::{EndKind, NodeConfig, bind, set_sched_slice};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinSet;

use crate::playground::{self, EndedNode, Playground, PlaygroundConfig};
use crate::reserved_port::ReservedPort;
use crate::signals::{self, Signals};
use crate::tool::ClusterTarget;
use crate::{cert, fail_stop, logging, split_keys, tool};

/// The address at which clients of TiKV look for placement by default.
const PLACEMENT: &str = "127.0.0.1:2379";

/// How long it may take to find out which cluster answers there.
const PLACEMENT_PATIENCE: Duration = Duration::from_secs(2);

/// How long the cluster may take until it is ready.
const READY_PATIENCE: Duration = Duration::from_secs(60);

/// How long a child process may take to end in good order before it is killed: it hands its leaders
/// over, finishes requests and makes a checkpoint.
const CHILD_PATIENCE: Duration = Duration::from_secs(30);

/// The arguments of `flotilla playground`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlaygroundArgs {
    /// Stores, 1 to 9
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub stores: u8,
    /// Regions that the key space begins with; later they split by size and load
    #[arg(long, default_value_t = 1)]
    pub regions: u64,
    /// Borders that the regions have when the cluster is ready: one key a line; `\\` is a
    /// backslash, `\xNN` a byte
    #[arg(long, value_name = "FILE")]
    pub split_keys: Option<PathBuf>,
    /// Form of the clients' keys, v1ttl or v2, as TiKV has them; a playground that is found again
    /// keeps its own [default: v1ttl]
    #[arg(long, value_name = "VERSION")]
    pub api: Option<ApiVersion>,
    /// Directory to keep data in, found again by the next playground there [default: a temporary
    /// one, removed at the end]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Port of the first store; the others have the next ones. 0: any that are free
    #[arg(long, default_value_t = 20160)]
    pub port: u16,
    /// Connections have TLS, with certificates that are made in the directory `certs` of the data
    #[arg(long)]
    pub tls: bool,
    /// Run each store as a process of its own
    #[arg(long)]
    pub processes: bool,
    /// Log level: error, warn, info, debug, trace, or a filter of `tracing` [default: the variable
    /// FLOTILLA_LOG, or warn]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of the log's lines: text or json
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// Whether keys stay out of the log: true or false
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub log_redact: bool,
}

impl PlaygroundArgs {
    /// The filter of the log. No other setting is taken from the environment.
    fn log(&self) -> String {
        let of_environment = || std::env::var("FLOTILLA_LOG").ok().filter(|it| !it.is_empty());
        self.log.clone().or_else(of_environment).unwrap_or_else(|| "warn".to_owned())
    }
}

/// Runs the cluster until SIGINT, SIGTERM or the failure of a store.
#[must_use]
pub fn run(args: &PlaygroundArgs) -> ExitCode {
    fail_stop::end_process_on_panic();
    let log = args.log();
    let started =
        logging::check(&log).and_then(|()| logging::start(&log, args.log_format, args.log_redact));
    let result = started.and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .on_thread_start(set_sched_slice)
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start threads: {error}"))?;
        runtime.block_on(play(args))
    });
    logging::flush(fail_stop::LOG_LIMIT);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            fail_stop::say(&format!("flotilla: {reason}"));
            ExitCode::FAILURE
        }
    }
}

async fn play(args: &PlaygroundArgs) -> Result<(), String> {
    let mut signals =
        signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    if args.port > u16::MAX - (u16::from(args.stores) - 1) {
        return Err(format!("--port {}: there are no ports for all stores", args.port));
    }
    // Removed when it goes out of scope, whatever happens before.
    let temporary = match &args.dir {
        Some(_) => None,
        None => Some(
            tempfile::Builder::new()
                .prefix("flotilla-")
                .tempdir()
                .map_err(|error| format!("cannot make a temporary directory: {error}"))?,
        ),
    };
    let dir = match (&args.dir, &temporary) {
        (Some(dir), _) => dir.as_path(),
        (None, Some(temporary)) => temporary.path(),
        (None, None) => unreachable!("one of the two is there"),
    };
    let borders = match &args.split_keys {
        Some(path) => read_split_keys(path).map_err(|error| error.to_string())?,
        None => vec![],
    };
    let mut settings = PlaygroundConfig {
        stores: usize::from(args.stores),
        dir: dir.to_owned(),
        base_port: args.port,
        common: NodeConfig {
            regions: args.regions,
            api: args.api,
            log: args.log(),
            log_format: args.log_format,
            log_redact: args.log_redact,
            disk: playground::DISK,
            ..NodeConfig::default()
        },
        certificates: None,
    };
    if args.tls {
        let dir = dir.join("certs");
        cert::make_for_stores(&dir, &settings.names()).map_err(|error| error.to_string())?;
        settings.certificates = Some(dir);
    }
    if args.processes {
        with_processes(&settings, &borders, &mut signals).await
    } else {
        in_one_process(&settings, &borders, &mut signals).await
    }
}

async fn in_one_process(
    settings: &PlaygroundConfig,
    borders: &[Bytes],
    signals: &mut Signals,
) -> Result<(), String> {
    let started = tokio::select! {
        started = Playground::start(settings) => started,
        _ = signals.next() => return Ok(()),
    };
    let mut playground = started.map_err(|error| error.to_string())?;
    let endpoints = playground.endpoints();
    listen_for_placement(&mut playground).await;
    let target = target(settings, &endpoints)?;
    let ready = ready(playground.ready(READY_PATIENCE), &target, borders);
    let mut outcome = tokio::select! {
        outcome = announce(ready, &target, settings) => outcome,
        ended = playground.ended() => Err(failure(&ended)),
        _ = signals.next() => return end(playground.shutdown(), signals).await,
    };
    while outcome.is_ok() {
        let ended = tokio::select! {
            ended = playground.ended() => ended,
            _ = signals.next() => break,
        };
        match ended.kind {
            // It did what it was told to, and the others go on without it.
            EndKind::Left => {
                playground.abandon(ended.place).await;
                listen_for_placement(&mut playground).await;
                fail_stop::announce(&format!("store {} ended: {}", ended.name, ended.reason));
            }
            EndKind::Failed | EndKind::Refused => outcome = Err(failure(&ended)),
        }
    }
    let ended = end(playground.shutdown(), signals).await;
    outcome.and(ended)
}

/// Has a store answer where clients look for placement, if that address is free.
async fn listen_for_placement(playground: &mut Playground) {
    if let Ok(listener) = bind(PLACEMENT.to_owned()).await {
        playground.listen(listener);
    }
}

fn failure(ended: &EndedNode) -> String {
    format!("store {} failed: {}", ended.name, ended.reason)
}

/// Waits for an orderly end, but not when asked a second time.
async fn end(
    ending: impl Future<Output = Result<(), String>>,
    signals: &mut Signals,
) -> Result<(), String> {
    tokio::select! {
        ended = ending => ended,
        signal = signals.next() => Err(format!("stopped by {signal} a second time")),
    }
}

/// The cluster, as its own operator reaches it.
fn target(settings: &PlaygroundConfig, endpoints: &[String]) -> Result<ClusterTarget, String> {
    let dialer = settings.dialer().map_err(|error| error.to_string())?;
    Ok(ClusterTarget { dialer, ..ClusterTarget::at(endpoints) })
}

/// Waits until the cluster serves, and has the borders that were asked for.
async fn ready(
    serves: impl Future<Output = Result<Duration, playground::NotReady>>,
    target: &ClusterTarget,
    borders: &[Bytes],
) -> Result<Duration, String> {
    let took = serves.await.map_err(|error| error.to_string())?;
    if borders.is_empty() {
        return Ok(took);
    }
    let began = Instant::now();
    let split = async {
        let client = target.client().await?;
        split_keys::split(&client, borders).await
    };
    split.await.map_err(|error: tool::Error| error.to_string())?;
    Ok(took + began.elapsed())
}

/// Prints the line that others wait for, once it is true.
async fn announce(
    ready: impl Future<Output = Result<Duration, String>>,
    target: &ClusterTarget,
    settings: &PlaygroundConfig,
) -> Result<(), String> {
    let took = ready.await?;
    let placement = if is_placement_of(target).await { [" ", PLACEMENT] } else { [""; 2] };
    if let Some(dir) = &settings.certificates {
        fail_stop::announce(&format!("TLS: flotilla ctl {}", cert::operator_args(dir)));
    }
    fail_stop::announce(&format!(
        "ready after {} ms: {}{} (data in {}, Ctrl-C ends)",
        took.as_millis(),
        target.endpoints.join(" "),
        placement.concat(),
        settings.dir.display()
    ));
    Ok(())
}

/// Whether the first store belongs to the cluster that answers where clients look for placement.
/// It may be another cluster: a store that does not get that address does without.
async fn is_placement_of(target: &ClusterTarget) -> bool {
    let config = Config { deadline: PLACEMENT_PATIENCE, ..target.config() };
    let stores = async { Client::connect(&[PLACEMENT], config).await?.stores().await };
    let stores = stores.await.unwrap_or_default();
    stores.iter().any(|store| store.address == target.endpoints[0])
}

async fn with_processes(
    settings: &PlaygroundConfig,
    borders: &[Bytes],
    signals: &mut Signals,
) -> Result<(), String> {
    let mut children = Children::start(settings)?;
    let endpoints: Vec<_> = children.ports.iter().map(|port| port.addr().to_string()).collect();
    let target = target(settings, &endpoints)?;
    let regions = settings.common.regions;
    let ready = playground::ready_by(&endpoints, regions, READY_PATIENCE, target.config());
    let ready = self::ready(ready, &target, borders);
    let mut outcome = tokio::select! {
        outcome = announce(ready, &target, settings) => outcome,
        (name, status) = children.ended() => Err(format!("store {name} ended: {status}")),
        _ = signals.next() => return end(children.terminate(), signals).await,
    };
    // A store that has ended is not started again: the behaviour of a cluster without it is worth
    // looking at.
    while outcome.is_ok() && !children.running.is_empty() {
        tokio::select! {
            (name, status) = children.ended() => {
                fail_stop::announce(&format!("store {name} ended: {status}"));
            }
            _ = signals.next() => break,
        }
    }
    if children.running.is_empty() {
        outcome = Err("all stores have ended".to_owned());
    }
    end(children.terminate(), signals).await.and(outcome)
}

/// Processes of this same program, one for each store. Each ends in good order when this process
/// has ended, however that happens: the pipe to its standard input has no writer then.
struct Children {
    /// Their ports, reserved: no other process gets one when its store has ended.
    ports: Vec<ReservedPort>,
    pids: Vec<Pid>,
    /// Kept open; nothing is written to them.
    inputs: Vec<ChildStdin>,
    running: JoinSet<(String, Pid, std::io::Result<ExitStatus>)>,
}

impl Children {
    fn start(settings: &PlaygroundConfig) -> Result<Self, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's file: {error}"))?;
        let ports = playground::ports(settings).map_err(|error| error.to_string())?;
        let configs = playground::configs(settings, &ports);
        let running = JoinSet::new();
        let mut children = Self { ports, pids: Vec::new(), inputs: Vec::new(), running };
        for config in configs {
            let mut command = Command::new(&program);
            command
                .arg("serve")
                .args(["--name", &config.name, "--initial-cluster", &config.initial_cluster])
                .args(["--regions", &config.regions.to_string(), "--log", &config.log, "--new"])
                .arg("--data-dir")
                .arg(&config.data_dir)
                .args(["--log-format", &config.log_format.to_string()])
                .args(["--log-redact", &config.log_redact.to_string()])
                .arg("--end-with-input")
                .stdin(Stdio::piped())
                // A Ctrl-C at the terminal is for this process alone, which ends the others: they
                // would take the signal of both for a second one.
                .process_group(0)
                .kill_on_drop(true);
            // As in one process, where stores have no environment of their own.
            for key in setting_keys() {
                command.env_remove(key.variable());
            }
            let disk = &config.disk;
            for (key, value) in [
                ("almost_full_free_ratio", disk.almost_full_free_ratio.to_string()),
                ("full_free_bytes", disk.full_free_bytes.to_string()),
                ("full_free_ratio", disk.full_free_ratio.to_string()),
                ("reserve_bytes", disk.reserve_bytes.to_string()),
            ] {
                command.args(["--set", &format!("disk.{key}={value}")]);
            }
            if let Some(api) = config.api {
                command.args(["--api", &api.to_string()]);
            }
            for (flag, file) in [
                ("--tls-ca", &config.tls.ca_file),
                ("--tls-cert", &config.tls.cert_file),
                ("--tls-key", &config.tls.key_file),
            ] {
                if !file.as_os_str().is_empty() {
                    command.arg(flag).arg(file);
                }
            }
            if children.pids.is_empty() {
                command.args(["--also-listen", PLACEMENT]);
            }
            let child = command
                .spawn()
                .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
            let (name, addr, process) = (&config.name, &config.addr, id(&child));
            fail_stop::announce(&format!("store {name} at {addr}: process {process}"));
            children.watch(config.name, child);
        }
        Ok(children)
    }

    fn watch(&mut self, name: String, mut child: Child) {
        // Taken out, or waiting for the child would close it.
        self.inputs.extend(child.stdin.take());
        let pid = Pid::from_raw(id(&child)).expect("ids of processes are not 0");
        self.pids.push(pid);
        self.running.spawn(async move { (name, pid, child.wait().await) });
    }

    /// Waits for the next child to end; which, and how. Never ready when none runs.
    async fn ended(&mut self) -> (String, String) {
        let Some(Ok((name, pid, status))) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        self.pids.retain(|running| *running != pid);
        let process = pid.as_raw_nonzero();
        match status {
            Ok(status) => (format!("{name} (process {process})"), status.to_string()),
            Err(error) => (format!("{name} (process {process})"), error.to_string()),
        }
    }

    /// Asks those that run to end, by their ids, and kills who does not.
    async fn terminate(mut self) -> Result<(), String> {
        for pid in &self.pids {
            // Gone already is as good.
            let _ = kill_process(*pid, Signal::TERM);
        }
        let all = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(CHILD_PATIENCE, all).await.is_err() {
            // Dropping the tasks kills their children.
            self.running.shutdown().await;
            return Err("some stores did not end in time and were killed".to_owned());
        }
        Ok(())
    }
}

fn id(child: &Child) -> i32 {
    let id = child.id().expect("a child that was not waited for has an id");
    i32::try_from(id).expect("ids of processes are small")
}
