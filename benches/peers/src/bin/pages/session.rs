//! A process that has an engine open, as seen from the program that asks.

use crate::engines::Contender;
use crate::load::{Load, Outcome};
use peers::Result;
use peers::cgroup::MemoryCgroup;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// An engine, opened in a process of its own.
pub struct Session {
    /// Which engine.
    pub contender: Contender,
    /// How long it took to open, in ms.
    pub open_ms: f64,
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Session {
    /// Starts the process and waits until the store in `dir` is open.
    ///
    /// # Errors
    ///
    /// If it cannot be started or the store cannot be opened.
    pub fn open(
        contender: Contender,
        dir: &Path,
        durable: bool,
        bbolt: Option<&Path>,
    ) -> Result<Session> {
        let mut command = match bbolt.filter(|_| contender.is_bbolt()) {
            Some(program) => Command::new(program),
            None => Command::new(std::env::current_exe()?),
        };
        command.arg("serve").arg(contender.to_string()).arg(dir);
        if durable {
            command.arg("--durable");
        }
        Session::start(contender, command)
    }

    /// As [`Session::open`], without a sync in commits, in a cgroup with a limit of so many MiB.
    ///
    /// # Errors
    ///
    /// As [`Session::open`].
    pub fn open_limited(
        contender: Contender,
        dir: &Path,
        (cgroup, limit_mib): (&MemoryCgroup, u64),
    ) -> Result<Session> {
        let mut command = cgroup.command(std::env::current_exe()?.as_os_str());
        command.arg("serve").arg(contender.to_string()).arg(dir);
        command.args(["--memory-mib", &limit_mib.to_string()]);
        Session::start(contender, command)
    }

    fn start(contender: Contender, mut command: Command) -> Result<Session> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = process.stdin.take().ok_or("a process without an input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("a process without an output")?);
        let mut session = Session { contender, open_ms: 0.0, process, questions, answers };
        let opened = session.answer()?;
        session.open_ms = opened.figures.get("open ms").copied().unwrap_or(f64::NAN);
        Ok(session)
    }

    /// Has one thing done.
    ///
    /// # Errors
    ///
    /// Errors of the engine, or that its process has ended.
    pub fn ask(&mut self, load: &Load) -> Result<Outcome> {
        serde_json::to_writer(&mut self.questions, load)?;
        self.questions.write_all(b"\n")?;
        self.questions.flush()?;
        self.answer()
    }

    /// Closes the store as it should be closed.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    pub fn close(mut self) -> Result<()> {
        self.ask(&Load::Close)?;
        let status = self.process.wait()?;
        let is_good = status.success();
        if is_good { Ok(()) } else { Err(format!("{}: {status}", self.contender).into()) }
    }

    /// Has it replace keys without pause, and kills it in the midst of that.
    ///
    /// # Errors
    ///
    /// Errors of the engine, or that its process could not be killed.
    pub fn kill_while_writing(mut self, keys: u64, value_bytes: usize) -> Result<()> {
        self.ask(&Load::WriteOn { keys, value_bytes })?;
        // It says a line after a thousand commits.
        self.answer()?;
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    fn answer(&mut self) -> Result<Outcome> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let status = self.process.wait()?;
            return Err(format!("the process of {} has ended: {status}", self.contender).into());
        }
        let outcome: Outcome = serde_json::from_str(&line)?;
        match outcome.error {
            Some(error) => Err(format!("{}: {error}", self.contender).into()),
            None => Ok(outcome),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // One that was closed has ended already; of another nothing is needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Builds the program that has bbolt, into `dir`. Nothing if there is no Go, or no module to be
/// had.
///
/// # Errors
///
/// Why it could not be built, in words.
pub fn build_bbolt(dir: &Path) -> std::result::Result<PathBuf, String> {
    let program = dir.join("program-of-bbolt");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bbolt");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .output()
        .map_err(|error| format!("go cannot be started: {error}"))?;
    if built.status.success() {
        return Ok(program);
    }
    Err(String::from_utf8_lossy(&built.stderr).trim().to_owned())
}
