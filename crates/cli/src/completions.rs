//! `flotilla completions`: the completions of a shell, made from the command line itself.

use std::io::Write as _;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::tool;

/// The arguments of `flotilla completions`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that reads them
    shell: Shell,
}

/// Prints them. Nothing is installed: the shell's own manual says where its completions lie.
pub(crate) fn run(args: &CompletionsArgs, mut command: clap::Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "flotilla", &mut script);
    let mut out = std::io::stdout().lock();
    let written = out.write_all(&script).and_then(|()| out.flush());
    tool::end(false, written.map_err(tool::Error::Output))
}
