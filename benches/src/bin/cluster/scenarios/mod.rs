//! The scenarios, a file each.

mod away;
mod grow;
mod large;
mod restart;
mod rows;
mod snapshot;
mod splits;
mod spread;
mod watched;

use flotilla_cli::tool::Error;

use super::report::ScenarioReport;
use super::test_bench::TestBench;

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Scenario {
    /// One store becomes three and five by `--join`, and three again by `ctl store leave`
    Grow(grow::GrowArgs),
    /// Stores are away until the others have dropped the log that they kept for them
    Away(away::AwayArgs),
    /// Each of three stores is drained and started again
    Restart(restart::RestartArgs),
    /// One region becomes a thousand
    Splits(splits::SplitsArgs),
    /// One region splits by load, and its parts spread over the stores
    Spread(spread::SpreadArgs),
    /// A store with a thousand regions beside one with sixteen: a put, a checkpoint, a start
    Large(large::LargeArgs),
    /// The rate of a snapshot beside that of a plain write and sync of as many bytes
    Snapshot(snapshot::SnapshotArgs),
    /// The rates of puts and gets while metrics are scraped and a status page is open
    Watched,
}

/// Runs a scenario to its end.
pub(crate) async fn measure(
    bench: &TestBench,
    scenario: &Scenario,
) -> Result<ScenarioReport, Error> {
    match scenario {
        Scenario::Grow(args) => grow::measure(bench, args).await,
        Scenario::Away(args) => away::measure(bench, args).await,
        Scenario::Restart(args) => restart::measure(bench, args).await,
        Scenario::Splits(args) => splits::measure(bench, args).await,
        Scenario::Spread(args) => spread::measure(bench, args).await,
        Scenario::Large(args) => large::measure(bench, args).await,
        Scenario::Snapshot(args) => snapshot::measure(bench, args).await,
        Scenario::Watched => watched::measure(bench).await,
    }
}
