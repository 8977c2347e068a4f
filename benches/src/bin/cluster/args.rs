//! Arguments that all scenarios share.

use std::path::PathBuf;
use std::time::Duration;

/// Where the stores run, and how their load is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CommonArgs {
    /// Program of the stores [default: `flotilla` beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) binary: Option<PathBuf>,
    /// Directory in which the stores get one of their own, which stays if the scenario fails
    /// [default: that for temporary files]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Small and short: shows that a scenario works, and no figure of time counts
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Calm windows that are measured [default: 5, or 2 if quick]
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    windows: Option<u32>,
    /// Seconds of a window, of the load before it, and of a measurement of the peak [default: 10,
    /// or 1 if quick]
    #[arg(long, global = true, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    window: Option<u64>,
    /// Callers of the load, each with one request on its way
    #[arg(long, global = true, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: u32,
    /// Requests a second [default: a third of the peak rate, which is measured first]
    #[arg(long, global = true, value_name = "REQUESTS/S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
    /// Which keys are chosen in which order
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl CommonArgs {
    /// Calm windows.
    pub(crate) fn windows(&self) -> u32 {
        self.windows.unwrap_or(self.pick(5, 2))
    }

    /// The length of a window.
    pub(crate) fn window(&self) -> Duration {
        Duration::from_secs(self.window.unwrap_or(self.pick(10, 1)))
    }

    /// One of two defaults.
    pub(crate) fn pick<T>(&self, usual: T, quick: T) -> T {
        if self.quick { quick } else { usual }
    }
}
