//! `flotilla man`: the pages of the manual, made from the command line itself.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::offline::named;
use crate::tool;

/// The arguments of `flotilla man`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory of the pages, `flotilla.1`, `flotilla-serve.1` and so on; made if it is missing
    dir: PathBuf,
}

/// Writes a page for each command, over those that are there.
pub(crate) fn run(args: &ManArgs, command: clap::Command) -> ExitCode {
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(command, &args.dir));
    tool::end(false, written.map_err(|error| named(&args.dir, &error)))
}
