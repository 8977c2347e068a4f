//! A site: machines with stores on them, as far as the guide's commands see machines.
//!
//! A machine is a directory with its own `/etc`, `/var` and `/mnt` and an address of the loopback
//! network. In each block of commands those paths are replaced by that directory's, and the
//! addresses `10.0.0.N` by addresses of this site; nothing else. `flotilla` is the program under
//! test; the programs in `machine/` stand for those that a test must not call: `systemctl` runs
//! the unit of `ops/debian` as systemd would.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::markdown::CommandBlock;

/// A block of commands takes no longer, on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at something that only a look tells.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Machines have numbers up to this.
const MACHINES_MAX: usize = 9;
/// The network of the guide's stores.
const GUIDE_NETWORK: &str = "10.0.0.";
/// The port of all stores.
const PORT: u16 = 20_160;
/// The directories of a machine.
const MACHINE_PATHS: [&str; 3] = ["/etc/", "/var/", "/mnt/"];

/// Other programs share the disk, which may be fuller than a store likes.
const DISK_SETTINGS: [(&str, &str); 4] = [
    ("FLOTILLA_DISK_ALMOST_FULL_FREE_RATIO", "0"),
    ("FLOTILLA_DISK_FULL_FREE_RATIO", "0"),
    ("FLOTILLA_DISK_FULL_FREE_BYTES", "256MiB"),
    ("FLOTILLA_DISK_RESERVE_BYTES", "0"),
];

/// Sites of this process so far: each has a network of its own.
static SITES: AtomicU32 = AtomicU32::new(0);

/// Machines, and what the last block of commands has said. Dropping it ends the stores.
pub(crate) struct Site {
    dir: TempDir,
    /// `127.a.b.`
    network: String,
    /// Standard output of the last block, on all of its machines.
    pub(crate) said: String,
    /// The ends of pipes with which all stores end, should this process die.
    lifelines: Vec<fs::File>,
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let mut site =
            Self { dir, network: free_network(), said: String::new(), lifelines: vec![] };
        for number in 1..=MACHINES_MAX {
            site.set_up(&format!("s{number}"));
        }
        site
    }

    fn set_up(&mut self, machine: &str) {
        let root = self.root(machine);
        for path in ["etc/default", "etc/profile.d", "var/lib", "var/tmp", "mnt", "root", "run"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        let pipe = root.join("run/lifeline");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success(), "mkfifo: {made}");
        // With both directions it does not wait for a reader.
        self.lifelines.push(fs::File::options().read(true).write(true).open(pipe).unwrap());
    }

    /// The directory of a machine.
    pub(crate) fn root(&self, machine: &str) -> PathBuf {
        self.dir.path().join(machine)
    }

    /// Where the data of a machine's store are.
    pub(crate) fn data_dir(&self, machine: &str) -> PathBuf {
        self.root(machine).join("var/lib/flotilla")
    }

    /// The log of a machine's store.
    pub(crate) fn journal(&self, machine: &str) -> String {
        fs::read_to_string(self.root(machine).join("run/journal")).unwrap_or_default()
    }

    /// Carries a block out on each of its machines; each command must succeed.
    pub(crate) fn carry_out(&mut self, block: &CommandBlock) {
        self.said.clear();
        for machine in &block.machines {
            let said = self.run(machine, &block.commands);
            self.said += &said;
        }
    }

    /// Runs commands on a machine, as a login shell of root does; standard output.
    pub(crate) fn run(&self, machine: &str, commands: &str) -> String {
        let root = self.root(machine);
        let (out, errors) = (root.join("run/out"), root.join("run/errors"));
        let profile = format!("for file in {}/etc/profile.d/*.sh; do", root.display());
        let profile = format!("{profile} [ ! -e \"$file\" ] || . \"$file\"; done\n");
        let mut shell = Command::new("bash")
            .args(["-euo", "pipefail", "-c"])
            .arg(profile + &self.at_this_site(machine, commands))
            .current_dir(root.join("root"))
            .env("PATH", self.search_path())
            .env("MACHINE", &root)
            .env("UNIT", package_file("flotilla.service"))
            .envs(DISK_SETTINGS)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&out).unwrap())
            .stderr(fs::File::create(&errors).unwrap())
            // A group of its own, so that it can be ended with its children.
            .process_group(0)
            .spawn()
            .unwrap();
        let id = Pid::from_child(&shell);
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || sender.send(shell.wait().unwrap()));
        let ended = ended.recv_timeout(PATIENCE).inspect_err(|_| {
            let _ = kill_process_group(id, Signal::KILL);
        });
        let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let (out, errors) = (read(&out), read(&errors));
        let is_done = ended.is_ok_and(|status| status.success());
        assert!(
            is_done,
            "on {machine}: {ended:?}\n{commands}\n{out}\n{errors}\n{}",
            self.journal(machine)
        );
        out
    }

    /// Waits until commands succeed on a machine: something that is under way comes to its end.
    pub(crate) fn until(&self, machine: &str, condition: &str) {
        let pause = LOOK_PAUSE.as_secs_f32();
        self.run(machine, &format!("until {condition}; do sleep {pause}; done"));
    }

    /// Looks again and again until `holds` does.
    pub(crate) fn until_holds(&self, what: &str, holds: impl Fn(&Site) -> bool) {
        let began = Instant::now();
        // Each look runs a command, so that it takes some time.
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "it was to hold that {what}");
        }
    }

    /// Ends a machine's store as a loss of power would.
    pub(crate) fn kill(&self, machine: &str) {
        let id = fs::read_to_string(self.root(machine).join("run/pid")).unwrap();
        let id = Pid::from_raw(id.trim().parse().unwrap()).unwrap();
        kill_process(id, Signal::KILL).unwrap();
        self.until(machine, "[ ! -e \"$MACHINE/run/pid\" ]");
    }

    /// Commands with the paths and addresses of this site.
    fn at_this_site(&self, machine: &str, commands: &str) -> String {
        let mut text = commands.replace(GUIDE_NETWORK, &self.network);
        let root = self.root(machine).display().to_string();
        for path in MACHINE_PATHS {
            text = with_prefix(&text, path, &root);
        }
        text
    }

    /// The program under test and the programs of `machine/`, before all others.
    fn search_path(&self) -> String {
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guide/machine");
        let program = Path::new(env!("CARGO_BIN_EXE_flotilla")).parent().unwrap();
        let others = std::env::var("PATH").unwrap();
        format!("{}:{}:{others}", stand_ins.display(), program.display())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for number in 1..=MACHINES_MAX {
            let machine = format!("s{number}");
            if std::thread::panicking() {
                eprintln!("the store of {machine} said:\n{}", self.journal(&machine));
            }
            let id = fs::read_to_string(self.root(&machine).join("run/pid")).unwrap_or_default();
            if let Some(id) = id.trim().parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(id, Signal::KILL);
            }
        }
    }
}

/// A file of the package.
pub(crate) fn package_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/debian").join(name)
}

/// A network of the loopback interface on which no store listens.
fn free_network() -> String {
    let is_free = |network: &String| {
        (1..=MACHINES_MAX).all(|n| TcpListener::bind(format!("{network}{n}:{PORT}")).is_ok())
    };
    let first = SITES.fetch_add(1, Ordering::Relaxed) * 7 + std::process::id() * 113;
    let networks = (0..10_000).map(|step| first.wrapping_add(step));
    let mut networks = networks.map(|n| format!("127.{}.{}.", 1 + (n >> 8) % 254, n % 256));
    networks.find(is_free).expect("some of the loopback networks is free")
}

/// `text` with `prefix` before each `path` that begins a word.
fn with_prefix(text: &str, path: &str, prefix: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(path) {
        let (before, found) = rest.split_at(at);
        result += before;
        let continues = |letter: char| letter.is_ascii_alphanumeric() || "/._-~$}".contains(letter);
        if !before.ends_with(continues) {
            result += prefix;
        }
        result += path;
        rest = &found[path.len()..];
    }
    result + rest
}

#[test]
fn paths_are_those_of_the_machine() {
    let text = "a /etc/x '/etc/y' b=/etc/z /usr/etc/w ./etc/v";
    let expected = "a /r/etc/x '/r/etc/y' b=/r/etc/z /usr/etc/w ./etc/v";
    assert_eq!(with_prefix(text, "/etc/", "/r"), expected);
}
