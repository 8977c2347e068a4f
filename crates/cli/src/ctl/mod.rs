//! `flotilla ctl`: a cluster's rows, regions and stores, one question at a time.

mod rows;
mod text;
mod views;

use std::process::ExitCode;

use flotilla_client::Client;

use crate::diagnosis::explained;
use crate::tool::{self, Error, Target};
use text::Form;
pub(crate) use text::{escape, hex};

/// What the command line says.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Keys and values are hexadecimal digits, given and printed
    #[arg(long, global = true)]
    hex: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
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
    /// Lists the regions: ranges, replicas, leaders, logs
    Regions,
    /// Lists the stores, and whether they answer
    Stores,
    /// Says which region holds a key, and who leads it
    LeaderOf {
        /// Which
        key: String,
    },
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    tool::run(args.target.json, explained(&args.target, answer(args)))
}

async fn answer(args: &Args) -> Result<(), Error> {
    let form = Form { is_hex: args.hex, is_json: args.target.json };
    let out = &mut std::io::stdout().lock();
    match &args.command {
        Command::Regions => return views::regions(&args.target, form, out).await,
        Command::Stores => return views::stores(&args.target, form, out).await,
        _ => {}
    }
    let client = Client::connect(&args.target.endpoints, args.target.config()).await?;
    match &args.command {
        Command::Put { key, value } => {
            client.put(form.parse(key)?, form.parse(value)?).await?;
            rows::done(form, out)
        }
        Command::Get { key } => {
            let key = form.parse(key)?;
            match client.get(key.clone()).await? {
                Some(value) => rows::value(&key, &value, form, out),
                None => Err(Error::Absent(format!("{} has no value", form.quote(&key)))),
            }
        }
        Command::Delete { key } => {
            client.delete(form.parse(key)?).await?;
            rows::done(form, out)
        }
        Command::Scan(scan) => rows::scan(&client, scan, form, out).await,
        Command::LeaderOf { key } => views::leader_of(&client, &form.parse(key)?, form, out).await,
        Command::Regions | Command::Stores => unreachable!("answered above"),
    }
}
