//! `flotilla pages`: info, check, dump, map, copies and repair of a page file on disk.

mod access;
mod backup;
mod draw;
mod dump;
mod views;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use flotilla_pagestore as pagestore;
use flotilla_pagestore::tools::ScanProgress;

use crate::offline::{Bar, create_new, disk};
use crate::tool::{self, Error};
use access::{copying, open};

/// The arguments of `flotilla pages`.
#[derive(Clone, Debug, clap::Args)]
pub struct PagesArgs {
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: PagesCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum PagesCommand {
    /// Lists meta pages, trees, space and the redo area
    Info {
        /// The page file, such as the file `pages` of a store
        file: PathBuf,
    },
    /// Checks every byte in use; exit code 1 if anything is wrong
    Check {
        /// The page file, such as the file `pages` of a store
        file: PathBuf,
    },
    /// Prints the entries of trees, or what one page says
    Dump(dump::PageDumpArgs),
    /// Draws which part of the file belongs to whom
    Map {
        /// The page file, such as the file `pages` of a store
        file: PathBuf,
        /// Also draw it into this file, which must not exist yet
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Copies all trees into a new, dense file
    Compact {
        /// The page file; nothing is changed there
        file: PathBuf,
        /// The new file, which must not exist yet
        to: PathBuf,
    },
    /// Writes a backup, whole or of what differs from backups before
    Backup {
        /// The page file, such as the file `pages` of a store
        file: PathBuf,
        /// The backup, which must not exist yet
        to: PathBuf,
        /// Backups before: one that is whole, and those that follow it, in order
        #[arg(long, value_delimiter = ',', value_name = "FILE,...")]
        since: Vec<PathBuf>,
    },
    /// Makes a page file of backups
    Restore {
        /// The new page file, which must not exist yet
        to: PathBuf,
        /// One backup that is whole, and those that follow it, in order
        #[arg(required = true)]
        backups: Vec<PathBuf>,
    },
    /// Writes what is whole of a damaged file to a new one
    Repair {
        /// The damaged file; nothing is changed there
        file: PathBuf,
        /// The new file, which must not exist yet
        to: PathBuf,
        /// From the older of the two meta pages: the state of one checkpoint before
        #[arg(long)]
        older: bool,
    },
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &PagesArgs) -> ExitCode {
    tool::end(args.json, answer(args))
}

fn answer(args: &PagesArgs) -> Result<(), Error> {
    let out = &mut BufWriter::new(io::stdout().lock());
    let is_json = args.json;
    match &args.command {
        PagesCommand::Info { file } => views::info(&open(file)?.info(), is_json, out)?,
        PagesCommand::Check { file } => {
            let pages = open(file)?;
            let bar = Bar::new("check");
            let report = pages.check(&mut |done| bar.show(done.bytes_done, done.bytes));
            drop(bar);
            return views::checked(&report, is_json, out);
        }
        PagesCommand::Dump(dump) => dump::dump(dump, is_json, out)?,
        PagesCommand::Map { file, svg } => {
            let pages = open(file)?;
            let bar = Bar::new("map");
            let map = pages.map(&mut |done| bar.show(done.bytes_done, done.bytes));
            drop(bar);
            if let Some(svg) = svg {
                let mut picture = BufWriter::new(create_new(svg)?);
                draw::svg(&map, &mut picture)?;
                picture.flush()?;
            }
            views::map(&map, is_json, out)?;
        }
        PagesCommand::Compact { file, to } => {
            let pages = open(file)?;
            let bar = Bar::new("compact");
            let made =
                pages.compact(&disk(), to, &mut |done| bar.show(done.bytes_done, done.bytes));
            drop(bar);
            views::compacted(&made.map_err(|error| copying(file, to, error))?, is_json, out)?;
        }
        PagesCommand::Backup { file, to, since } => {
            let made = backup::backup(file, to, since)?;
            views::backed_up(&made, is_json, out)?;
        }
        PagesCommand::Restore { to, backups } => {
            let made = backup::restore(to, backups)?;
            views::restored(&made, is_json, out)?;
        }
        PagesCommand::Repair { file, to, older } => {
            let bar = Bar::new("repair");
            let look = &mut |done: ScanProgress| bar.show(done.bytes_done, done.bytes);
            let report = pagestore::tools::repair(&disk(), file, to, *older, look);
            drop(bar);
            views::repaired(&report.map_err(|error| copying(file, to, error))?, is_json, out)?;
        }
    }
    Ok(out.flush()?)
}
