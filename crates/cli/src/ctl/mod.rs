//! `flotilla ctl`: a cluster's rows, regions and stores, one question at a time.

mod config;
mod evidence;
mod input;
mod key_target;
mod keyspace;
pub(crate) mod placement;
mod region;
mod replicas;
mod rows;
mod store;
mod stores;
mod text;
mod transfer;
mod verify;
mod views;
mod writes;

use std::io::Write as _;
use std::process::ExitCode;

use flotilla_client::ColumnFamily;
use tokio::time::timeout_at;

use crate::diagnosis::{self, explained};
use crate::tool::{self, ClusterTarget, Error};
pub(crate) use evidence::{EVIDENCE_VIEWS, evidence};
use key_target::{KeyTarget, column_family};
use text::ByteFormat;
pub(crate) use text::{escape, hex};

/// The arguments of `flotilla ctl`.
#[derive(Clone, Debug, clap::Args)]
pub struct CtlArgs {
    #[command(flatten)]
    target: ClusterTarget,
    /// Keys and values are hexadecimal digits, in arguments and in output
    #[arg(long, global = true)]
    hex: bool,
    /// Column family of the keys: `default`, `lock` or `write`
    #[arg(long, global = true, value_name = "NAME", value_parser = column_family,
          default_value = "default", hide_default_value = true)]
    cf: ColumnFamily,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum CtlCommand {
    /// Writes a value: `flotilla ctl put ship Vasa`, `flotilla ctl put ship --file vasa.png`
    ///
    /// All bytes of a file or of standard input are the value, the last line's end too. Its limit
    /// is the cluster's `raft.entry_bytes_max`.
    Put(writes::PutArgs),
    /// Prints a key's value and a line's end; exit code 3 if there is none
    Get(rows::GetArgs),
    /// Prints how long a key still lives, `none` if there is no limit; exit code 3 if it is absent
    Ttl {
        /// Which
        key: String,
    },
    /// Writes or deletes if the key has a value: `flotilla ctl cas ship Kronan --expect Vasa`
    ///
    /// Or if it has none: `flotilla ctl cas ship Vasa --absent`. Exit code 4 if it has another one.
    /// Is never sent twice: after a lost answer it says that the write may have happened.
    Cas(writes::CasArgs),
    /// Deletes a key, whether or not it exists
    Delete {
        /// Which
        key: String,
    },
    /// Deletes the keys of a range, in all its regions: `flotilla ctl delete-range a c`
    ///
    /// START is in it and END is not. Region after region is deleted, so a failure may leave a
    /// part. An empty END is refused, and so is an empty START without END.
    DeleteRange(writes::DeleteRangeArgs),
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
    /// Shows the settings in force, or changes those of the cluster
    #[command(subcommand)]
    Config(config::SettingCommand),
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
    /// Makes a keyspace, or lists them, in a cluster of API V2
    #[command(subcommand)]
    Keyspace(keyspace::KeyspaceCommand),
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
    let mut args = args.clone();
    match args.target.read_certificates() {
        Ok(()) => tool::run(args.target.json, in_time(&args)),
        Err(error) => tool::end(args.target.json, Err(error)),
    }
}

/// Answers, or ends when the time of the whole command does.
async fn in_time(args: &CtlArgs) -> Result<(), Error> {
    let (target, tool) = (&args.target, answer(args));
    let Some(limit) = &target.timeout else { return explained(target, tool).await };
    let timed_out = |why| Error::TimedOut { limit: limit.to_string(), why };
    let error = match timeout_at(limit.end().into(), tool).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => return Err(timed_out(String::new())),
    };
    // Its requests ended a little earlier, so that there is time to ask why.
    let explained = timeout_at(limit.end().into(), diagnosis::cause(target, &error)).await;
    let error = explained.ok().flatten().unwrap_or(error);
    if limit.is_spent() && is_for_want_of_an_answer(&error) {
        return Err(timed_out(format!(": {error}")));
    }
    Err(error)
}

fn is_for_want_of_an_answer(error: &Error) -> bool {
    match error {
        Error::Silent(_) | Error::NotServing(_) | Error::NoQuorum(_) => true,
        Error::Client(error) => matches!(
            error,
            flotilla_client::Error::Deadline { .. }
                | flotilla_client::Error::NoLeader { .. }
                | flotilla_client::Error::Undetermined(_)
        ),
        _ => false,
    }
}

async fn answer(args: &CtlArgs) -> Result<(), Error> {
    let (is_hex, is_json) = (args.hex, args.target.json);
    let format = ByteFormat { is_hex, is_json, screen_width: text::screen_width() };
    let out = &mut std::io::stdout().lock();
    let keys = KeyTarget { cluster: &args.target, family: args.cf };
    let client = || keys.client();
    let answered = match &args.command {
        CtlCommand::Regions => views::regions(&args.target, format, out).await,
        CtlCommand::Region(command) => region::run(&args.target, command, format, out).await,
        CtlCommand::Repair(command) => replicas::repair(&args.target, command, format, out).await,
        CtlCommand::Cluster(ClusterCommand::Set(ClusterSetting::Replicas { count })) => {
            replicas::set_replicas(&args.target, *count, format, out).await
        }
        CtlCommand::Config(command) => config::run(&args.target, command, format, out).await,
        CtlCommand::Keyspace(command) => keyspace::run(&args.target, command, format, out).await,
        CtlCommand::Stores => stores::run(&args.target, format, out).await,
        CtlCommand::Store(command) => store::run(&args.target, command, format, out).await,
        CtlCommand::Put(put) => writes::put(keys, put, format, out).await,
        CtlCommand::Get(get) => rows::get(&client().await?, get, format, out).await,
        CtlCommand::Ttl { key } => {
            let key = format.key(key)?;
            rows::ttl(&client().await?, &key, format, out).await
        }
        CtlCommand::Cas(cas) => writes::cas(keys, cas, format, out).await,
        CtlCommand::Delete { key } => {
            let key = format.key(key)?;
            client().await?.delete(key).await?;
            rows::done(format, out)
        }
        CtlCommand::DeleteRange(range) => writes::delete_range(keys, range, format, out).await,
        CtlCommand::Scan(scan) => rows::scan(&client().await?, scan, format, out).await,
        CtlCommand::LeaderOf { key } => {
            let key = format.key(key)?;
            views::leader_of(&client().await?, &key, format, out).await
        }
    };
    // A value need not end in a line's end, with which standard output is flushed.
    answered.and_then(|()| Ok(out.flush()?))
}
