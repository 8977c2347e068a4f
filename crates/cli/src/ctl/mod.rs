//! `flotilla ctl`: a cluster's rows, regions and stores, one question at a time.

mod placement;
mod region;
mod replicas;
mod rows;
mod store;
mod stores;
mod text;
mod transfer;
mod views;

use std::process::ExitCode;

use flotilla_client::Client;

use crate::diagnosis::explained;
use crate::tool::{self, ClusterTarget, Error};
use text::ByteFormat;
pub(crate) use text::{escape, hex};

/// The arguments of `flotilla ctl`.
#[derive(Clone, Debug, clap::Args)]
pub struct CtlArgs {
    #[command(flatten)]
    target: ClusterTarget,
    /// Keys and values are hexadecimal digits, given and printed
    #[arg(long, global = true)]
    hex: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum CtlCommand {
    /// Writes a value
    Put {
        /// Where
        key: String,
        /// What
        value: String,
    },
    /// Prints a key's value; exit code 3 if there is none
    Get {
        /// Which
        key: String,
    },
    /// Deletes a key, whether or not it exists
    Delete {
        /// Which
        key: String,
    },
    /// Prints the rows of a range
    Scan(rows::ScanArgs),
    /// Lists the regions: ranges, replicas with their roles, leaders, logs, sizes, work under way
    ///
    /// `flotilla ctl regions --json` for programs. A replica without a role in brackets is a voter.
    /// The size is the region's share of the page file, as its leader tells it. The column `work`
    /// is there if placement has the replicas of some region changed.
    Regions,
    /// Shows or splits one region, or has it led elsewhere
    #[command(subcommand)]
    Region(region::RegionCommand),
    /// Has placement pause or resume the repair of regions, or says what it does
    #[command(subcommand)]
    Repair(replicas::RepairCommand),
    /// Sets what holds for the whole cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Lists the stores: place, labels, state, load; and says if the registry is on one disk only
    ///
    /// A store is `up`, `no leader`, `not serving` or does not answer, with `draining` or `leaving`
    /// before that; or `lost` or `removed`, and then it never takes part again.
    Stores,
    /// Drains a store, has it leave, or declares it lost
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Says which region holds a key, and who leads it
    LeaderOf {
        /// Which
        key: String,
    },
}

#[derive(Clone, Debug, clap::Subcommand)]
enum ClusterCommand {
    /// Sets a value: `flotilla ctl cluster set replicas 5`
    #[command(subcommand)]
    Set(ClusterSetting),
}

#[derive(Clone, Debug, clap::Subcommand)]
enum ClusterSetting {
    /// The replicas of each region, 1, 3, 5 or 7, as far as there are stores: `flotilla ctl cluster
    /// set replicas 5`
    Replicas {
        /// How many
        count: u32,
    },
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &CtlArgs) -> ExitCode {
    tool::run(args.target.json, explained(&args.target, answer(args)))
}

async fn answer(args: &CtlArgs) -> Result<(), Error> {
    let (is_hex, is_json) = (args.hex, args.target.json);
    let format = ByteFormat { is_hex, is_json, screen_width: text::screen_width() };
    let out = &mut std::io::stdout().lock();
    let client = || Client::connect(&args.target.endpoints, args.target.config());
    match &args.command {
        CtlCommand::Regions => views::regions(&args.target, format, out).await,
        CtlCommand::Region(command) => region::run(&args.target, command, format, out).await,
        CtlCommand::Repair(command) => replicas::repair(&args.target, command, format, out).await,
        CtlCommand::Cluster(ClusterCommand::Set(ClusterSetting::Replicas { count })) => {
            replicas::set_replicas(&args.target, *count, format, out).await
        }
        CtlCommand::Stores => stores::run(&args.target, format, out).await,
        CtlCommand::Store(command) => store::run(&args.target, command, format, out).await,
        CtlCommand::Put { key, value } => {
            client().await?.put(format.parse(key)?, format.parse(value)?).await?;
            rows::done(format, out)
        }
        CtlCommand::Get { key } => {
            let (client, key) = (client().await?, format.parse(key)?);
            match client.get(key.clone()).await? {
                Some(value) => rows::value(&key, &value, format, out),
                None => Err(Error::Absent(format!("{} has no value", format.quote(&key)))),
            }
        }
        CtlCommand::Delete { key } => {
            client().await?.delete(format.parse(key)?).await?;
            rows::done(format, out)
        }
        CtlCommand::Scan(scan) => rows::scan(&client().await?, scan, format, out).await,
        CtlCommand::LeaderOf { key } => {
            views::leader_of(&client().await?, &format.parse(key)?, format, out).await
        }
    }
}
