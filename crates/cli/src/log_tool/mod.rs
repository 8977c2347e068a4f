//! `flotilla log`: info, dump, verify, copies and salvage of a log on disk.

mod access;
mod dump;
mod views;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flotilla_raftlog as raftlog;
use flotilla_raftlog::{Config, LogEngine, ToolProgress, VerifyLevel};
use flotilla_vfs::os::OsFs;

use crate::offline::{Bar, create_new, disk, finish, named};
use crate::tool::{self, Error};
use access::{read_only, refused};

/// The arguments of `flotilla log`.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum LogCommand {
    /// Lists segments and groups
    Info {
        /// The log, such as the `log` directory of a store
        dir: PathBuf,
    },
    /// Prints what the log says, in the order in which it was written
    Dump(dump::LogDumpArgs),
    /// Checks every byte; exit code 1 if anything is wrong
    Verify {
        /// The log, such as the `log` directory of a store
        dir: PathBuf,
        /// Only checksums of headers and batches, not of what is in them
        #[arg(long)]
        quick: bool,
    },
    /// Writes what is whole of a damaged log to a new one
    Salvage {
        /// The damaged log; nothing is changed there
        dir: PathBuf,
        /// The new log: an empty or missing directory
        to: PathBuf,
    },
    /// Copies a log as it is now; its store may be running
    Checkpoint {
        /// The log
        dir: PathBuf,
        /// The copy: an empty or missing directory
        to: PathBuf,
    },
    /// Writes groups to a file that `import` reads
    Export {
        /// The log
        dir: PathBuf,
        /// The file, which must not exist yet; `-` is standard output
        file: PathBuf,
        /// Only these groups
        #[arg(long, value_delimiter = ',', value_name = "ID,...")]
        groups: Vec<u64>,
    },
    /// Adds the groups of a file to a log, which is made if missing
    Import {
        /// The log; its store must not be running
        dir: PathBuf,
        /// The file; `-` is standard input
        file: PathBuf,
    },
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &LogArgs) -> ExitCode {
    tool::end(args.json, answer(args))
}

fn answer(args: &LogArgs) -> Result<(), Error> {
    let out = &mut BufWriter::new(io::stdout().lock());
    let is_json = args.json;
    match &args.command {
        LogCommand::Info { dir } => views::info(&read_only(dir)?, is_json, out)?,
        LogCommand::Dump(dump) => dump::dump(dump, is_json, out)?,
        LogCommand::Verify { dir, quick } => {
            let level = if *quick { VerifyLevel::Frames } else { VerifyLevel::Entries };
            let bar = Bar::new("verify");
            let look = &mut |done: ToolProgress| bar.show(done.bytes_done, done.bytes);
            let report = LogEngine::verify_directory(disk(), dir, level, look).map_err(refused)?;
            drop(bar);
            return views::verified(&report, is_json, out);
        }
        LogCommand::Salvage { dir, to } => {
            let bar = Bar::new("salvage");
            let look = &mut |done: ToolProgress| bar.show(done.bytes_done, done.bytes);
            let report = raftlog::salvage(disk(), dir, to, look).map_err(refused)?;
            drop(bar);
            views::salvaged(&report, is_json, out)?;
        }
        LogCommand::Checkpoint { dir, to } => {
            let log = read_only(dir)?;
            let bar = Bar::new("copy");
            let look = &mut |done: ToolProgress| bar.show(done.bytes_done, done.bytes);
            let made = log.checkpoint(&OsFs::new(), to, look).map_err(refused)?;
            drop(bar);
            views::copied(&made, is_json, out)?;
        }
        LogCommand::Export { dir, file, groups } => return export(dir, file, groups, is_json, out),
        LogCommand::Import { dir, file } => {
            let done = import(dir, file)?;
            views::carried(&done, is_json, out)?;
        }
    }
    Ok(out.flush()?)
}

fn export(
    dir: &Path,
    file: &Path,
    groups: &[u64],
    is_json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let log = read_only(dir)?;
    let groups = Some(groups).filter(|groups| !groups.is_empty());
    let is_stdout = file == Path::new("-");
    let bar = Bar::new("export");
    let look = &mut |done: ToolProgress| bar.show(done.bytes_done, done.bytes);
    let done = if is_stdout {
        raftlog::export(&log, groups, out, look).map_err(refused)?
    } else {
        let mut stream = BufWriter::new(create_new(file)?);
        let done = raftlog::export(&log, groups, &mut stream, look).map_err(refused)?;
        finish(stream, file)?;
        done
    };
    drop(bar);
    if is_stdout {
        // Standard output is the stream, and nothing else.
        return Ok(out.flush()?);
    }
    views::carried(&done, is_json, out)?;
    Ok(out.flush()?)
}

fn import(dir: &Path, file: &Path) -> Result<raftlog::Exported, Error> {
    let mut stream: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).map_err(|error| named(file, &error))?))
    };
    // Nothing that could be exported is too large.
    let config = Config::default().batch_bytes_max(1 << 30);
    let (log, _) = LogEngine::open_with(disk(), dir, config).map_err(refused)?;
    let bar = Bar::new("import");
    let done =
        raftlog::import(&log, &mut *stream, &mut |done| bar.show(done.bytes_done, done.bytes));
    drop(bar);
    // Groups that were imported before an error stay, and are closed as well.
    log.close().map_err(refused)?;
    done.map_err(refused)
}
