//! The command line as a whole: one subcommand, carried out.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::completions::{self, CompletionsArgs};
use crate::config_command::{self, ConfigArgs};
use crate::debug_bundle::{self, DebugArgs};
use crate::manual::{self, ManArgs};
use crate::playground_command::{self, PlaygroundArgs};
use crate::serve::{self, ServeArgs};
use crate::{backup, bench, cert, ctl, log_tool, page_tool, recover};

/// A multi-raft storage node that speaks TiKV's RawKV and PD protocols.
#[derive(Debug, Parser)]
#[command(name = "flotilla", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one store
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServeArgs),
    /// Checks settings, shows them, and prints a file with all of them
    Config(ConfigArgs),
    /// Runs a small cluster on this machine
    Playground(PlaygroundArgs),
    /// Asks a running cluster, or writes to it
    ///
    /// A key is given as it is printed: `\\` stands for a backslash and `\xNN` for a byte. A value
    /// is taken and printed as it is, but in tables and in JSON, where it looks as keys do. With
    /// --hex both are hexadecimal digits. Exit codes: 0 done, 1 refused or failed, 2 a wrong
    /// argument, 3 no such key or region, 4 `cas` found another value.
    Ctl(ctl::CtlArgs),
    /// Puts a load on a running cluster and measures
    Bench(bench::BenchArgs),
    /// Collects evidence about a cluster
    Debug(DebugArgs),
    /// Makes a backup of a running cluster: `flotilla backup --to DIR`; or looks at one
    ///
    /// Region by region, each as it is at one entry of its log; there is no moment that is common
    /// to all. The same command goes on with a backup that was interrupted.
    Backup(backup::BackupArgs),
    /// Restores a backup into a cluster that was just bootstrapped, of any number of stores
    ///
    /// The same command goes on with a restore that was interrupted. Clients should not write
    /// before it is done.
    Restore(backup::RestoreArgs),
    /// Has each region go on by one replica, once a majority of stores is lost for good
    ///
    /// On the data directories of the survivors, all of which are stopped. Shows region by region
    /// which replica is the newest, asks for the id of the cluster, and cannot be undone: writes
    /// that only the lost stores had are lost, and those stores never take part again.
    Recover(recover::RecoverArgs),
    /// Makes an authority and certificates for TLS
    Cert(cert::CertArgs),
    /// Looks at a log on disk, checks it, copies it, rescues it
    Log(log_tool::LogArgs),
    /// Looks at a page file on disk, checks it, draws it, copies it, rescues it
    Pages(page_tool::PagesArgs),
    /// Prints the completions of a shell: `flotilla completions bash`
    Completions(CompletionsArgs),
    /// Writes the manual's pages, one for each command
    Man(ManArgs),
}

/// Does what the arguments say, of which the first is the name of the program. Ends the process if
/// they make no sense, or ask for help.
#[must_use]
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Cli::parse_from(args).command {
        Command::Serve(args) => serve::run(args),
        Command::Config(args) => config_command::run(args),
        Command::Playground(args) => playground_command::run(&args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Debug(args) => debug_bundle::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Cert(args) => cert::run(&args),
        Command::Log(args) => log_tool::run(&args),
        Command::Pages(args) => page_tool::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => manual::run(&args, Cli::command()),
    }
}
