//! One store: a process of `flotilla serve`, its directory, its settings and its log lines.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use flotilla_cli::ReservedPort;
use flotilla_cli::tool::Error;
use rustix::process::{Pid, Signal, kill_process};

/// A store that runs or can be started. Dropping it kills its process.
pub(crate) struct StoreProcess {
    pub(crate) name: String,
    /// Kept while the store is down, so that no other process gets it.
    port: ReservedPort,
    dir: PathBuf,
    process: Option<Child>,
    /// Bytes of its log lines when it was last started.
    said_before: u64,
}

impl StoreProcess {
    /// A store of that name with a free port, below `dir`.
    pub(crate) fn plan(dir: &Path, name: &str) -> Result<StoreProcess, Error> {
        let port = ReservedPort::reserve(([127, 0, 0, 1], 0).into())?;
        let (name, dir) = (name.to_owned(), dir.to_owned());
        Ok(StoreProcess { name, port, dir, process: None, said_before: 0 })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        self.port.addr().to_string()
    }

    /// Everything that it keeps.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn lines(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Starts its process.
    pub(crate) fn start(
        &mut self,
        binary: &Path,
        settings: &str,
        flags: &[&str],
    ) -> Result<(), Error> {
        let file = self.dir.join(format!("{}.toml", self.name));
        fs::write(&file, settings)?;
        let lines = File::options().create(true).append(true).open(self.lines())?;
        self.said_before = lines.metadata()?.len();
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(&file).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(lines);
        let process = command.spawn().map_err(|error| {
            Error::Argument(format!("cannot start {}: {error}; see --binary", binary.display()))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Its process, if it was started and not ended here.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The exit status of a process that has ended by itself, which is forgotten then.
    pub(crate) fn take_end(&mut self) -> Option<ExitStatus> {
        let ended = self.process.as_mut()?.try_wait().ok()??;
        self.process = None;
        Some(ended)
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // One that has ended already is no failure.
            _ = process.kill();
            _ = process.wait();
        }
    }

    /// Tells it to end in good order.
    pub(crate) fn terminate(&mut self) -> Result<(), Error> {
        let Some(process) = &self.process else { return Ok(()) };
        kill_process(Pid::from_child(process), Signal::TERM)
            .map_err(|error| Error::Output(error.into()))
    }

    /// Its log lines: all of them, or those since its last start.
    pub(crate) fn said(&self, is_since_start: bool) -> String {
        let said = fs::read(self.lines()).unwrap_or_default();
        let from = if is_since_start { self.said_before as usize } else { 0 };
        String::from_utf8_lossy(said.get(from..).unwrap_or_default()).into_owned()
    }

    /// The CPU time of its process in seconds.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()?)).ok()?;
        // The second field may have spaces; the times are the fourteenth and the fifteenth.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 =
            fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Bytes on disk below a directory of its own.
    pub(crate) fn bytes_below(&self, name: &str) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        let Ok(entries) = fs::read_dir(self.data_dir().join(name)) else { return 0 };
        // Files come and go meanwhile.
        entries
            .flatten()
            .filter_map(|entry| entry.metadata().ok())
            .map(|it| it.blocks() * 512)
            .sum()
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
