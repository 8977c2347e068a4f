//! A cluster of real processes: each store is this very test program, started anew with one test
//! chosen, the one that runs `flotilla serve`. They can be killed, refused, started with other
//! settings and on other directories, and their memory can be looked at.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use flotilla_cli::serve::{self, FirstStartArgs, ServeArgs};
use flotilla_cli::{ReservedPort, command_line, playground};
use flotilla_client::{Config, Observer};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// Names the settings of the store that a process is to run.
const SETTINGS: &str = "FLOTILLA_TEST_STORE";
/// Set for a store that is started with `--new`.
const NEW: &str = "FLOTILLA_TEST_NEW";
/// Set for a store that is started with `--replace`.
const REPLACE: &str = "FLOTILLA_TEST_REPLACE";
/// The arguments of a process that is the command line, one a line.
const ARGUMENTS: &str = "FLOTILLA_TEST_ARGUMENTS";
/// Begins the output of such a process; before it is what the test program says.
const OUTPUT: &str = "==== output ====\n";
/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// Within this a wrong start is refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at something that only a look tells.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Stores, each in a process of its own. Dropping it kills them.
pub(crate) struct Processes {
    stores: Vec<Option<Child>>,
    endpoints: Vec<String>,
    /// Kept while no store listens there, so that no other process gets them.
    ports: Vec<ReservedPort>,
    regions: u64,
    /// The environment of each store's process.
    environment: Environment,
    /// A program `flotilla` of another version that runs a store, by its place.
    programs: BTreeMap<usize, PathBuf>,
    /// How long the file of each store's words was when its process was started.
    said_before: Vec<usize>,
    dir: TempDir,
}

/// What a process of the command line has said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Answer {
    /// The output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that the command has failed with each of `words`.
    pub(crate) fn refused(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "it was to be refused with {words:?}: {self:?}");
        for word in words {
            assert!(self.errors.contains(word), "it was to be refused with {word:?}: {self:?}");
        }
    }
}

/// Runs `flotilla` with these arguments, in a process of its own.
pub(crate) async fn flotilla(args: Vec<String>) -> Answer {
    let run = move || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::runs_the_command_line_if_told_to", "--nocapture"])
            .env(ARGUMENTS, args.join("\n"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let out = out.split_once(OUTPUT).map(|(_, out)| out.to_owned()).unwrap_or_default();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Answer { code: output.status.code(), out, errors }
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Begins `flotilla` with these arguments, in a process of its own whose words are lost.
pub(crate) fn begin_flotilla(args: &[String]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::runs_the_command_line_if_told_to", "--nocapture"])
        .env(ARGUMENTS, args.join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs `flotilla ctl` with arguments, none of which has a space, on the cluster of `endpoints`.
pub(crate) async fn ctl(endpoints: &[String], args: &str) -> Answer {
    let mut all = vec!["flotilla".to_owned(), "ctl".to_owned()];
    all.extend(["--endpoints".to_owned(), endpoints.join(",")]);
    all.extend(args.split_whitespace().map(str::to_owned));
    flotilla(all).await
}

/// Variables of the environment, by name, for the store at a place.
pub(crate) type Environment = Box<dyn Fn(usize) -> Vec<(OsString, OsString)> + Send>;

/// Keeps a port that is free.
fn any_port() -> ReservedPort {
    ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
}

impl Processes {
    /// Starts `count` stores and waits until every region serves.
    pub(crate) async fn start(count: usize, regions: u64) -> Self {
        Self::start_in(count, regions, Box::new(|_| vec![])).await
    }

    /// The same, with an environment for each store.
    pub(crate) async fn start_in(count: usize, regions: u64, environment: Environment) -> Self {
        let mut processes = Self::plan_in(count, regions, environment);
        processes.start_all();
        processes.ready().await;
        processes
    }

    /// Stores with settings, ports and empty directories, none of them started.
    pub(crate) fn plan(count: usize, regions: u64) -> Self {
        Self::plan_in(count, regions, Box::new(|_| vec![]))
    }

    fn plan_in(count: usize, regions: u64, environment: Environment) -> Self {
        let ports: Vec<ReservedPort> = (0..count).map(|_| any_port()).collect();
        let endpoints = ports.iter().map(|port| port.addr().to_string()).collect();
        let stores = (0..count).map(|_| None).collect();
        let (said_before, dir) = (vec![0; count], TempDir::new().unwrap());
        let programs = BTreeMap::new();
        let processes =
            Self { stores, endpoints, ports, regions, environment, programs, said_before, dir };
        for place in 0..count {
            processes.configure(place, &processes.settings(place));
        }
        processes
    }

    /// Starts all stores that do not run.
    pub(crate) fn start_all(&mut self) {
        for place in 0..self.stores.len() {
            if self.stores[place].is_none() {
                self.restart(place);
            }
        }
    }

    /// Runs `flotilla ctl` with these arguments on the cluster.
    pub(crate) async fn ctl(&self, args: &str) -> Answer {
        ctl(&self.endpoints, args).await
    }

    /// Where the stores listen, `host:port`.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The list of all stores, as `initial_cluster` has it.
    pub(crate) fn list(&self) -> String {
        let members = self.endpoints.iter().enumerate();
        members.map(|(place, addr)| format!("s{place}={addr}")).collect::<Vec<_>>().join(",")
    }

    /// The right settings of a store.
    pub(crate) fn settings(&self, place: usize) -> String {
        format!(
            "name = \"s{place}\"\ndata_dir = {:?}\nregions = {}\ninitial_cluster = \"{}\"\n",
            self.data_dir(place),
            self.regions,
            self.list(),
        )
    }

    /// The settings of a store from its next start on.
    pub(crate) fn configure(&self, place: usize, settings: &str) {
        fs::write(settings_path(self.dir.path(), place), settings).unwrap();
    }

    /// One more process with the settings that `settings` makes of its address. It is not one of
    /// the cluster's stores.
    pub(crate) fn add(&mut self, settings: impl FnOnce(&str) -> String) -> usize {
        let (place, port) = (self.stores.len(), any_port());
        self.configure(place, &settings(&port.addr().to_string()));
        self.ports.push(port);
        self.stores.push(None);
        self.said_before.push(0);
        place
    }

    /// Where a process listens, one that was added too.
    pub(crate) fn address(&self, place: usize) -> String {
        self.ports[place].addr().to_string()
    }

    /// Gives a store another address, from its next start on, as far as its settings say so.
    pub(crate) fn readdress(&mut self, place: usize) {
        self.ports[place] = any_port();
        self.endpoints[place] = self.ports[place].addr().to_string();
    }

    /// Has a store run by another program from its next start on, or by this one again.
    pub(crate) fn run_by(&mut self, place: usize, program: Option<&Path>) {
        match program {
            Some(program) => self.programs.insert(place, program.to_owned()),
            None => self.programs.remove(&place),
        };
    }

    /// Waits until every region has a leader and a put has worked.
    pub(crate) async fn ready(&self) {
        self.ready_by(Config::default()).await;
    }

    /// The same, by a client with this configuration.
    pub(crate) async fn ready_by(&self, config: Config) {
        let regions = self.regions;
        let ready = playground::ready_by(&self.endpoints, regions, PATIENCE, config);
        if let Err(error) = ready.await {
            self.show();
            panic!("{error}");
        }
    }

    fn show(&self) {
        for place in 0..self.stores.len() {
            let said = fs::read_to_string(self.log_path(place)).unwrap_or_default();
            eprintln!("store {place} said:\n{said}");
        }
    }

    /// Kills a store with SIGKILL.
    pub(crate) fn kill(&mut self, place: usize) {
        println!("killing store {place}, process {}", self.pid(place));
        let mut store = self.stores[place].take().expect("the store runs");
        store.kill().unwrap();
        store.wait().unwrap();
    }

    /// Ends a store in good order.
    pub(crate) fn stop(&mut self, place: usize) {
        let mut store = self.stores[place].take().expect("the store runs");
        // Kept open: `wait` would close it first, and the process would end at once.
        let _stdin = store.stdin.take();
        kill_process(Pid::from_child(&store), Signal::TERM).unwrap();
        let ended = store.wait().unwrap();
        assert!(ended.success(), "store {place}: {ended}: {}", self.said(place));
    }

    /// Asks a store to end by a signal.
    pub(crate) fn ask_to_end(&self, place: usize, signal: Signal) {
        let store = self.stores[place].as_ref().expect("the store runs");
        kill_process(Pid::from_child(store), signal).unwrap();
    }

    /// Waits until a store ends as it was asked to: with this code and each of `words`.
    pub(crate) async fn ends_asked(&mut self, place: usize, code: i32, words: &[&str]) {
        self.ends(place, code, words).await;
    }

    /// Starts a store that does not run, on the data that it has.
    pub(crate) fn restart(&mut self, place: usize) {
        self.spawn(place, &[]);
    }

    /// The same, with `--new`.
    pub(crate) fn restart_new(&mut self, place: usize) {
        self.spawn(place, &[(NEW, "1")]);
    }

    /// The same, with `--replace`.
    pub(crate) fn restart_to_replace(&mut self, place: usize) {
        self.spawn(place, &[(REPLACE, "1")]);
    }

    fn spawn(&mut self, place: usize, variables: &[(&str, &str)]) {
        assert!(self.stores[place].is_none(), "store {place} runs");
        let log = fs::File::options().create(true).append(true).open(self.log_path(place)).unwrap();
        self.said_before[place] = log.metadata().unwrap().len() as usize;
        let settings = settings_path(self.dir.path(), place);
        let mut command = match self.programs.get(&place) {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(["serve", "--config"]).arg(&settings);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "processes::runs_a_store_if_told_to", "--nocapture"]);
                command
            }
        };
        // Other programs share the disk, which may be fuller than a store likes.
        if !fs::read_to_string(&settings).unwrap().contains("[disk]") {
            command.envs([
                ("FLOTILLA_DISK_ALMOST_FULL_FREE_RATIO", "0"),
                ("FLOTILLA_DISK_FULL_FREE_RATIO", "0"),
                ("FLOTILLA_DISK_FULL_FREE_BYTES", "256MiB"),
                ("FLOTILLA_DISK_RESERVE_BYTES", "0"),
            ]);
        }
        let store = command
            .env(SETTINGS, settings)
            .env_remove(NEW)
            .env_remove(REPLACE)
            .envs(variables.iter().copied())
            .envs((self.environment)(place))
            // Ends when this process does, however that happens.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.stores[place] = Some(store);
    }

    /// Has a store read its settings and certificates again.
    pub(crate) fn hang_up(&self, place: usize) {
        let store = self.stores[place].as_ref().expect("the store runs");
        kill_process(Pid::from_child(store), Signal::HUP).unwrap();
    }

    /// Stops a store's process; returns once none of its threads runs any more.
    pub(crate) fn suspend(&self, place: usize) {
        let pid = Pid::from_child(self.stores[place].as_ref().expect("the store runs"));
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "{stopped:?}");
    }

    /// Lets a process that was suspended go on.
    pub(crate) fn resume(&self, place: usize) {
        let store = self.stores[place].as_ref().expect("the store runs");
        kill_process(Pid::from_child(store), Signal::CONT).unwrap();
    }

    /// The id of a store's process.
    pub(crate) fn pid(&self, place: usize) -> u32 {
        self.stores[place].as_ref().expect("the store runs").id()
    }

    /// Whether a store's process runs still.
    pub(crate) fn runs(&mut self, place: usize) -> bool {
        let store = self.stores[place].as_mut();
        store.is_some_and(|store| store.try_wait().unwrap().is_none())
    }

    /// Starts a store and waits until it is refused: it ends with code 1 and each of `words`, in
    /// time. How long that took.
    pub(crate) async fn refused(&mut self, place: usize, words: &[&str]) -> Duration {
        self.restart(place);
        self.ends_refused(place, words).await
    }

    /// Waits until a store that runs is refused.
    pub(crate) async fn ends_refused(&mut self, place: usize, words: &[&str]) -> Duration {
        let took = self.ends(place, 1, words).await;
        let said = self.said(place);
        assert!(took < REFUSED_WITHIN, "store {place} was refused after {took:?} only: {said}");
        took
    }

    /// Waits until a store has left: its process ends well, with words that say so.
    pub(crate) async fn ends_left(&mut self, place: usize, words: &[&str]) {
        self.ends(place, 0, words).await;
    }

    /// Waits until a store that runs ends with this code and each of `words`.
    async fn ends(&mut self, place: usize, code: i32, words: &[&str]) -> Duration {
        let began = Instant::now();
        let mut looks = tokio::time::interval(LOOK_PAUSE);
        while self.runs(place) && began.elapsed() < PATIENCE {
            looks.tick().await;
        }
        let took = began.elapsed();
        if self.runs(place) {
            self.show();
            panic!("store {place} was to end with {code} and {words:?}, and runs");
        }
        let ended = self.stores[place].take().unwrap().wait().unwrap();
        let said = self.said(place);
        let expected = format!("store {place} was to end with {code} and {words:?}");
        assert_eq!(ended.code(), Some(code), "{expected}: {said}");
        // Lines of the log may follow, of tasks that did not hear of it yet.
        let last = said.lines().rfind(|line| line.starts_with("flotilla: ")).unwrap_or_default();
        assert!(words.iter().all(|word| last.contains(word)), "{expected}: {said}");
        took
    }

    /// The standard error of a store since its last start.
    pub(crate) fn said(&self, place: usize) -> String {
        let said = fs::read(self.log_path(place)).unwrap_or_default();
        String::from_utf8_lossy(&said[self.said_before[place]..]).into_owned()
    }

    /// Waits until a store has said a line with each of `words`.
    pub(crate) async fn says(&self, place: usize, words: &[&str]) {
        let has = |line: &str| words.iter().all(|word| line.contains(word));
        until(async || {
            let said = self.said(place);
            match said.lines().any(has) {
                true => Ok(()),
                false => Err(format!("store {place} was to say {words:?}, and said:\n{said}")),
            }
        })
        .await;
    }

    /// The directory of a store's data.
    pub(crate) fn data_dir(&self, place: usize) -> PathBuf {
        self.dir.path().join(format!("s{place}"))
    }

    /// Another directory, of that name.
    pub(crate) fn aside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Moves a store's directory away, so that it starts with an empty one.
    pub(crate) fn move_away(&self, place: usize) -> PathBuf {
        let aside = self.aside(&format!("s{place}.kept"));
        fs::rename(self.data_dir(place), &aside).unwrap();
        aside
    }

    /// Puts a directory in the place of a store's data.
    pub(crate) fn put_back(&self, place: usize, kept: &Path) {
        let dir = self.data_dir(place);
        if dir.exists() {
            fs::remove_dir_all(&dir).unwrap();
        }
        fs::rename(kept, dir).unwrap();
    }

    fn log_path(&self, place: usize) -> PathBuf {
        self.dir.path().join(format!("s{place}.log"))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Their words are gone with the directory.
        if std::thread::panicking() {
            self.show();
        }
        for place in 0..self.stores.len() {
            if self.stores[place].is_some() {
                self.kill(place);
            }
        }
    }
}

/// A figure that the process of a store has counted since its start.
pub(crate) async fn store_metric(endpoint: &str, name: &str) -> Result<u64, String> {
    let observer = Observer::new(endpoint, Config::default()).unwrap();
    let stats = observer.stats().await.map_err(|error| error.to_string())?;
    let found = stats.metrics.into_iter().find(|it| it.group == "store" && it.name == name);
    Ok(found.unwrap_or_else(|| panic!("there is no {name}")).value)
}

/// Looks again and again until there is nothing missing; what is missing is in the panic.
pub(crate) async fn until(look: impl AsyncFnMut() -> Result<(), String>) {
    until_within(PATIENCE, look).await;
}

/// The same, for what takes longer than all else.
pub(crate) async fn until_within(
    patience: Duration,
    mut look: impl AsyncFnMut() -> Result<(), String>,
) {
    let began = Instant::now();
    let mut looks = tokio::time::interval(LOOK_PAUSE);
    loop {
        looks.tick().await;
        let Err(missing) = look().await else { return };
        assert!(began.elapsed() < patience, "{missing}");
    }
}

/// Copies a directory with all that is in it.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}

fn settings_path(dir: &Path, place: usize) -> PathBuf {
    dir.join(format!("s{place}.toml"))
}

/// Where a store's process begins. Among the other tests, without settings, there is nothing to do.
#[test]
fn runs_a_store_if_told_to() {
    let Some(settings) = std::env::var_os(SETTINGS) else { return };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let [new, replace] = [NEW, REPLACE].map(|flag| std::env::var_os(flag).is_some());
    let first_start = FirstStartArgs { new, replace };
    let config = Some(settings.into());
    let code = serve::run(ServeArgs { config, first_start, ..ServeArgs::default() });
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

/// Where a process of the command line begins. Among the other tests there is nothing to do.
#[test]
fn runs_the_command_line_if_told_to() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    print!("{OUTPUT}");
    let code = command_line::run(arguments.lines().map(OsString::from));
    let codes = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
    std::process::exit(i32::from(codes.expect("a code is one byte")));
}
