//! The command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    flotilla_cli::command_line::run(std::env::args_os())
}
