//! Processes whose log no process reads, that panic, or whose disk refuses to go on: they serve as
//! long as they may, and end at once, with their code and their line, when they may not.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::io::{self, BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use flotilla_cli::{ReservedPort, fail_stop, playground};
use flotilla_client::{Client, Config, Observer};
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells this program, started anew, to panic.
const PANIC: &str = "FLOTILLA_TEST_PANIC";

/// The message of that panic: two lines, of which the process must make one.
const LAST_WORDS: &str = "the invariant\ndoes not hold";

/// The program; without a log of its own yet.
fn flotilla() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    command.env_remove("FLOTILLA_LOG").stdin(Stdio::null());
    command
}

/// How a store that is alone in its cluster is started.
fn serve(addr: &str, dir: &TempDir, log: &str) -> Command {
    let mut command = flotilla();
    command.args(["serve", "--new", "--addr", addr, "--regions", "2", "--log", log, "--data-dir"]);
    command.arg(dir.path());
    command
}

/// A process that a test has started, and that does not outlive the test.
struct RunningProcess {
    child: Child,
}

impl RunningProcess {
    fn start(command: &mut Command, log: PipeWriter) -> Self {
        Self { child: command.stderr(log).spawn().unwrap() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of a process that ends by itself. One that does not is killed in the end,
    /// so that the test fails with how it ended.
    fn ended(&mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        let (ended, end) = mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            if end.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let status = self.child.wait().unwrap();
        drop(ended);
        watch.join().unwrap();
        status
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe that takes nothing any more, since no process reads its bytes.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let filling = vec![b'\n'; fcntl_getpipe_size(&writer).unwrap()];
    writer.write_all(&filling).unwrap();
    (reader, writer)
}

/// A pipe whose reader has died.
fn dead_pipe() -> PipeWriter {
    let (_, writer) = io::pipe().unwrap();
    writer
}

/// A port of this test alone.
fn port() -> ReservedPort {
    ReservedPort::reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
}

async fn client(addr: &str) -> Client {
    Client::connect(&[addr], Config::default()).await.unwrap()
}

/// Puts more than the disk has room for, whatever comes of it.
async fn put_for_ever(addr: &str) {
    let client = client(addr).await;
    for n in 0_u64.. {
        let _ = client.put(format!("{n}"), vec![7; 1 << 16]).await;
    }
}

async fn lines_lost(addr: &str) -> u64 {
    Observer::new(addr, Config::default()).unwrap().stats().await.unwrap().log_lines_lost
}

#[tokio::test]
async fn a_store_whose_log_has_no_reader_serves_and_ends_well() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let addr = port.addr().to_string();
    let mut store = RunningProcess::start(&mut serve(&addr, &dir, "trace"), dead_pipe());
    playground::ready(std::slice::from_ref(&addr), 2, PATIENCE).await.unwrap();
    client(&addr).await.put("key", "value").await.unwrap();
    assert!(lines_lost(&addr).await > 0);
    store.signal(Signal::TERM);
    assert_eq!(store.ended().code(), Some(0));
}

#[tokio::test]
async fn a_store_whose_log_is_full_serves_and_says_later_how_many_lines_are_lost() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let addr = port.addr().to_string();
    let (reader, writer) = full_pipe();
    let mut store = RunningProcess::start(&mut serve(&addr, &dir, "trace"), writer);
    playground::ready(std::slice::from_ref(&addr), 2, PATIENCE).await.unwrap();
    let client = client(&addr).await;
    let mut puts = 0;
    while lines_lost(&addr).await == 0 {
        client.put(format!("{puts}"), "value").await.unwrap();
        puts += 1;
        assert!(puts < 10_000, "so much fits nowhere");
    }
    // From here on a thread reads.
    let mut lines = BufReader::new(reader).lines();
    let told = lines.find(|line| line.as_ref().unwrap().starts_with("flotilla: ")).unwrap();
    assert!(told.unwrap().ends_with("lines of the log are lost: standard error did not take them"));
    std::thread::spawn(move || lines.count());
    client.put("key", "value").await.unwrap();
    store.signal(Signal::TERM);
    assert_eq!(store.ended().code(), Some(0));
}

#[tokio::test]
async fn a_store_whose_log_stays_full_ends_well_too() {
    let (dir, port) = (TempDir::new().unwrap(), port());
    let addr = port.addr().to_string();
    let (_reader, writer) = full_pipe();
    let mut store = RunningProcess::start(&mut serve(&addr, &dir, "info"), writer);
    playground::ready(std::slice::from_ref(&addr), 2, PATIENCE).await.unwrap();
    client(&addr).await.put("key", "value").await.unwrap();
    store.signal(Signal::TERM);
    assert_eq!(store.ended().code(), Some(0));
}

#[tokio::test]
async fn a_store_that_cannot_go_on_ends_with_its_code_though_nobody_reads_why() {
    let (reader, writer) = io::pipe().unwrap();
    let (_stuck, full) = full_pipe();
    for log in [writer, dead_pipe(), full] {
        let (dir, port) = (TempDir::new().unwrap(), port());
        let addr = port.addr().to_string();
        let serve = serve(&addr, &dir, "info");
        // A disk that takes no more: files may have 512 blocks of 512 bytes less than 8 MiB, and
        // the signal that says so is left out. Its log is in small files, so its pages meet that
        // first.
        let config = dir.path().join("small.toml");
        std::fs::write(&config, "[storage]\nsegment_bytes = 1048576\n").unwrap();
        let mut limited = Command::new("/bin/sh");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 15872; exec \"$0\" \"$@\""]);
        limited.arg(serve.get_program()).args(serve.get_args()).arg("--config").arg(&config);
        limited.env_remove("FLOTILLA_LOG").stdin(Stdio::null());
        let mut store = RunningProcess::start(&mut limited, log);
        playground::ready(std::slice::from_ref(&addr), 2, PATIENCE).await.unwrap();
        let ended = tokio::task::spawn_blocking(move || store.ended());
        tokio::select! {
            status = ended => {
                let status = status.unwrap();
                assert_eq!(status.code(), Some(fail_stop::FAILED), "{status}");
            }
            () = put_for_ever(&addr) => {}
        }
    }
    let lines: Vec<String> = BufReader::new(reader).lines().map(Result::unwrap).collect();
    // Other threads may have logged something after it.
    let reasons = lines.iter().filter(|line| line.starts_with("flotilla: stopped: "));
    assert_eq!(reasons.count(), 1, "{lines:?}");
}

#[test]
fn a_panicking_task_ends_the_process_with_its_code_and_one_line() {
    let panicking = |log| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "panics_if_told_to", "--nocapture"]).env(PANIC, "1");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        RunningProcess::start(&mut command, log).ended().code()
    };
    let (mut reader, writer) = io::pipe().unwrap();
    let (_stuck, full) = full_pipe();
    for log in [writer, full, dead_pipe()] {
        assert_eq!(panicking(log), Some(fail_stop::PANICKED));
    }
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("flotilla: stopped by a panic in thread unlucky at "), "{said}");
    assert!(said.contains("tests/fail_stop.rs:"), "{said}");
    assert!(said.ends_with(": the invariant does not hold\n"), "{said}");
}

/// Where the process of that test begins. Among the other tests, without being told to, there is
/// nothing to do.
#[test]
fn panics_if_told_to() {
    if std::env::var_os(PANIC).is_none() {
        return;
    }
    fail_stop::end_process_on_panic();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).thread_name("unlucky").build().unwrap();
    // Several at a time: the process still has one cause, and one line.
    for _ in 0..4 {
        runtime.spawn(async { panic!("{LAST_WORDS}") });
    }
    runtime.block_on(std::future::pending::<()>());
}

/// Output of a process that must end by itself.
fn refused(command: &mut Command) -> String {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut process = RunningProcess::start(command, writer);
    assert_eq!(process.ended().code(), Some(1));
    // Until here the command has the pipe's other end.
    command.stderr(Stdio::null());
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_log_filter_that_is_none_is_refused_wherever_it_stands() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("flotilla.toml");
    let settings = format!("log = \"loud\"\ndata_dir = {:?}\n", dir.path().join("s1"));
    std::fs::write(&file, settings).unwrap();
    let addr = "127.0.0.1:0";
    let playground = ["playground", "--port", "0", "--log", "loud"];
    let in_file = format!("{}, line 1: ", file.display());
    let mut by_variable = flotilla();
    by_variable.args(["serve", "--addr", addr, "--data-dir"]).arg(dir.path().join("s1"));
    for (said, place) in [
        (refused(&mut serve(addr, &dir, "loud")), "--log: ".to_owned()),
        (refused(flotilla().args(["serve", "--config"]).arg(&file)), in_file),
        (refused(by_variable.env("FLOTILLA_LOG", "loud")), "FLOTILLA_LOG: ".to_owned()),
        (refused(flotilla().args(playground)), String::new()),
    ] {
        let expected =
            format!("flotilla: {place}log = \"loud\": \"loud\" is no level; expected a level");
        assert!(said.starts_with(&expected), "{said}");
    }
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "nothing but the file of settings");
}
