//! `flotilla backup` and `flotilla restore`: the rows of a cluster in files, and back.
//!
//! The format and each decision are those of `flotilla_backup`; here are the files, the requests
//! and the clock. `create` makes a backup with `region_reader`, which fetches one region;
//! `restore` sends the rows of one; `verify` reads one; `directory` owns the files.

mod create;
mod directory;
mod region_reader;
mod restore;
mod verify;
mod views;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::diagnosis::explained;
use crate::tool::{self, ClusterTarget, Error};

/// Default of the bound on what a backup reads and a restore writes in a second: puts beside it are
/// measured in docs/benchmarks.md.
const MIB_PER_S: u64 = 16;

/// The arguments of `flotilla backup`.
#[derive(Clone, Debug, clap::Args)]
#[command(subcommand_negates_reqs = true)]
pub struct BackupArgs {
    #[command(flatten)]
    target: ClusterTarget,
    /// Directory of the backup, made if it is missing. One that has backups of this cluster gets
    /// another, which shares the files of regions that are unchanged
    #[arg(long, value_name = "DIR", required = true)]
    to: Option<PathBuf>,
    /// Bytes that are read in a second at most, in MiB; 0 for no bound
    #[arg(long, value_name = "COUNT", default_value_t = MIB_PER_S)]
    mib_per_s: u64,
    /// Fetch the rows of all regions, also of those that are unchanged
    #[arg(long)]
    full: bool,
    #[command(subcommand)]
    command: Option<BackupCommand>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum BackupCommand {
    /// Reads a backup whole and checks each byte of it; exit code 1 if anything is wrong
    Verify {
        /// The directory
        dir: PathBuf,
        /// Number of the backup; the last one if it is left out
        #[arg(long)]
        number: Option<u64>,
    },
    /// Lists the backups of a directory; with a number, the regions of one
    List {
        /// The directory
        dir: PathBuf,
        /// Number of a backup
        #[arg(long)]
        number: Option<u64>,
    },
}

/// The arguments of `flotilla restore`.
#[derive(Clone, Debug, clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    target: ClusterTarget,
    /// Directory of the backup
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Number of the backup; the last one if it is left out
    #[arg(long)]
    number: Option<u64>,
    /// Bytes of rows that are written in a second at most, in MiB; 0 for no bound
    #[arg(long, value_name = "COUNT", default_value_t = MIB_PER_S)]
    mib_per_s: u64,
}

/// Makes a backup, or looks at some.
#[must_use]
pub fn run(args: &BackupArgs) -> ExitCode {
    let is_json = args.target.json;
    match &args.command {
        Some(_) if args.to.is_some() => {
            let words = "--to is for a backup that is made: leave it out";
            tool::end(is_json, Err(Error::Argument(words.to_owned())))
        }
        Some(BackupCommand::Verify { dir, number }) => {
            tool::end(is_json, verify::run(dir, *number, is_json))
        }
        Some(BackupCommand::List { dir, number }) => {
            tool::end(is_json, views::list(dir, *number, is_json))
        }
        None => {
            let (mut target, to) = (args.target.clone(), args.to.clone().unwrap_or_default());
            if let Err(error) = target.read_certificates() {
                return tool::end(is_json, Err(error));
            }
            let options =
                create::CreateOptions { bytes_per_s: args.mib_per_s << 20, is_full: args.full };
            tool::run(is_json, async move {
                let making = async {
                    let made = create::run(&target, &to, options).await?;
                    views::made(&made, is_json)
                };
                explained(&target, making).await
            })
        }
    }
}

/// Restores a backup.
#[must_use]
pub fn restore(args: &RestoreArgs) -> ExitCode {
    let (is_json, mut target) = (args.target.json, args.target.clone());
    if let Err(error) = target.read_certificates() {
        return tool::end(is_json, Err(error));
    }
    let args = args.clone();
    tool::run(is_json, async move {
        let bytes_per_s = args.mib_per_s << 20;
        let restoring = async {
            let restored = restore::run(&target, &args.from, args.number, bytes_per_s).await?;
            views::restored(&restored, is_json)
        };
        explained(&target, restoring).await
    })
}
