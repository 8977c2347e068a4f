//! `flotilla recover`: one voter for each region whose majority is lost for good, on the data
//! directories of stores that are stopped
//! (`docs/decisions/0056-one-voter-by-an-operators-word.md`).
//!
//! The rules are those of `flotilla_store`; here are the words, the question to the operator, and
//! the `report` files of survivors on other machines. `system_rows` changes the rows of placement.

mod report_file;
mod system_rows;
mod views;

use std::collections::BTreeSet;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use flotilla_identity::StoreRegistry;
use flotilla_region::StoreId;
use flotilla_store::{
    Config, LogError, PagesError, SurvivorReport, plan_recovery, recover_directory, survivor_report,
};
use flotilla_vfs::FileSystem;

use crate::offline::disk;
use crate::tool::{self, Error, tell};
use crate::wall_clock_ms::now_ms;

/// The arguments of `flotilla recover`.
#[derive(Clone, Debug, clap::Args)]
#[command(subcommand_negates_reqs = true)]
pub struct RecoverArgs {
    /// Stores that are lost for good, by name or number
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", required = true)]
    lost: Vec<String>,
    /// Data directory of a survivor that is stopped; may be given for several
    #[arg(long, value_name = "DIR", required = true)]
    dir: Vec<PathBuf>,
    /// Report of a survivor on another machine; may be given for several
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// The id of the cluster, in place of the question for it
    #[arg(long)]
    cluster_id: Option<u64>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<RecoverCommand>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum RecoverCommand {
    /// Writes the report of a survivor, for the other machines: `flotilla recover report DIR >
    /// s1.report`
    Report {
        /// Data directory of the survivor, which is stopped
        data_dir: PathBuf,
    },
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &RecoverArgs) -> ExitCode {
    let answered = match &args.command {
        None => recover(args),
        Some(_) if !args.lost.is_empty() || !args.dir.is_empty() => Err(Error::Argument(
            "a report is of one directory, and asks for no stores that are lost".to_owned(),
        )),
        Some(RecoverCommand::Report { data_dir }) => write_report(data_dir),
    };
    tool::end(args.json, answered)
}

fn write_report(dir: &Path) -> Result<(), Error> {
    let report = report_of(&disk(), dir)?;
    let out = &mut std::io::stdout().lock();
    writeln!(out, "{:#}", report_file::to_json(&report))?;
    Ok(out.flush()?)
}

fn report_of(fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<SurvivorReport, Error> {
    let report = survivor_report(fs, dir, &Config::default(), nonce());
    report.map_err(|error| refused(dir, error))
}

fn recover(args: &RecoverArgs) -> Result<(), Error> {
    let fs = disk();
    let here: Vec<_> = args.dir.iter().map(|dir| report_of(&fs, dir)).collect::<Result<_, _>>()?;
    let mut reports = here.clone();
    for file in &args.report {
        let report = report_file::read(file)?;
        match here.iter().find(|own| own.store == report.store) {
            None => reports.push(report),
            // All machines must plan by the same reports.
            Some(own) if own.replicas == report.replicas => {}
            Some(_) => {
                return Err(Error::Refused(format!(
                    "{}: store {} has changed since its report: make it again, and give all \
                     machines the new one",
                    file.display(),
                    report.store
                )));
            }
        }
    }
    let lost = lost_stores(&args.lost, &reports)?;
    let plan = plan_recovery(&reports, &lost).map_err(|why| Error::Refused(why.to_string()))?;
    let cluster_id = reports.first().map_or(0, |report| report.cluster_id);
    let registry = newest_registry(&reports);
    views::plan(&plan, cluster_id, registry, args.json)?;
    if args.dry_run {
        return Ok(());
    }
    confirm(args.cluster_id, cluster_id)?;
    let mut done = vec![];
    for (dir, report) in args.dir.iter().zip(&here) {
        let change = |rows: &flotilla_store::SystemRows| system_rows::change(rows, &plan, now_ms());
        let recovered = recover_directory(&fs, dir, &Config::default(), nonce(), &plan, change);
        done.push((report.store, recovered.map_err(|error| refused(dir, error))?));
    }
    views::done(&plan, &done, registry, args.json)
}

/// The stores that are lost, by their names or numbers.
fn lost_stores(names: &[String], reports: &[SurvivorReport]) -> Result<BTreeSet<StoreId>, Error> {
    let registry = newest_registry(reports);
    let find = |name: &String| {
        let named = registry.named(name).map(|store| store.id);
        let numbered = || name.parse().ok().map(StoreId).filter(|id| registry.store(*id).is_some());
        // One that is lost already has left its name.
        let gone = || registry.stores.iter().rfind(|store| store.name == *name).map(|it| it.id);
        let found = named.or_else(numbered).or_else(gone);
        found.ok_or_else(|| Error::Argument(format!("the cluster has no store {name}")))
    };
    names.iter().map(find).collect()
}

/// The newest registry of the cluster of the first report.
fn newest_registry(reports: &[SurvivorReport]) -> &StoreRegistry {
    let cluster_id = reports.first().map(|report| report.cluster_id);
    let reports = reports.iter().filter(|report| Some(report.cluster_id) == cluster_id);
    let registries = reports.map(|report| &report.registry);
    registries.max_by_key(|registry| registry.version).expect("a directory is given")
}

/// Has the operator type the id of the cluster, unless it is given.
fn confirm(given: Option<u64>, cluster_id: u64) -> Result<(), Error> {
    let typed = match given {
        Some(given) => Some(given),
        None => {
            tell("This cannot be undone. Type the id of the cluster to go on:");
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            line.trim().parse().ok()
        }
    };
    if typed == Some(cluster_id) {
        return Ok(());
    }
    Err(Error::Refused("that is not the id of this cluster: nothing was changed".to_owned()))
}

fn refused(dir: &Path, error: flotilla_store::Error) -> Error {
    use flotilla_store::Error as E;
    let hint = match &error {
        E::Log(LogError::Locked { .. }) | E::Pages(PagesError::Locked) => ". Stop its store first",
        _ => "",
    };
    Error::Data(format!("{}: {error}{hint}", dir.display()))
}

/// Tells this start of a directory from others.
fn nonce() -> u64 {
    fastrand::u64(..)
}
