//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use flotilla_cli::playground_command::{self, PlaygroundArgs};
use flotilla_cli::serve::{self, ServeArgs};
use flotilla_cli::{bench, ctl, log_tool, page_tool};

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
    Serve(ServeArgs),
    /// Runs a small cluster on this machine
    Playground(PlaygroundArgs),
    /// Asks a running cluster, or writes to it
    Ctl(ctl::CtlArgs),
    /// Puts a load on a running cluster and measures
    Bench(bench::BenchArgs),
    /// Looks at a log on disk, checks it, copies it, rescues it
    Log(log_tool::LogArgs),
    /// Looks at a page file on disk, checks it, draws it, copies it, rescues it
    Pages(page_tool::PagesArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Playground(args) => playground_command::run(&args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Log(args) => log_tool::run(&args),
        Command::Pages(args) => page_tool::run(&args),
    }
}
