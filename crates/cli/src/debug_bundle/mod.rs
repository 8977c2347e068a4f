//! `flotilla debug bundle`: evidence about a cluster in one file, for those who are asked for help.
//!
//! `store_evidence` asks each store, `machine` reads facts of this machine; `evidence` keeps within
//! its bounds what they find, and notes what they do not; `redaction` takes keys of clients out,
//! and `archive` writes the file. Nothing is changed on any store. A store that does not answer is
//! a note in the bundle: bundles are made when stores do not answer.

mod archive;
mod evidence;
mod machine;
mod redaction;
mod store_evidence;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::ctl;
use crate::tool::{self, ClusterTarget, Error};
use evidence::Evidence;

/// Gathering ends after so long if nothing else is said.
const GATHERING_LIMIT: Duration = Duration::from_secs(60);

/// The arguments of `flotilla debug`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DebugArgs {
    #[command(subcommand)]
    command: DebugCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum DebugCommand {
    /// Gathers what all stores say of themselves, and facts of this machine, in a `.tar.gz`
    ///
    /// Versions, settings, metrics, the documents of the status page, the last lines of each log,
    /// regions, stores, repair; kernel and limits of this machine and of its stores. Keys of
    /// clients are `?`, and values are in none of it. A store that does not answer is noted in
    /// `manifest.json`. Takes 60 s at most, or --timeout, and 128 MiB before compression.
    Bundle(BundleArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct BundleArgs {
    #[command(flatten)]
    target: ClusterTarget,
    /// The file to make, which must not be there [default: flotilla-bundle-TIME.tar.gz, with the
    /// seconds since 1970]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Does what the command line says.
pub(crate) fn run(args: &DebugArgs) -> ExitCode {
    let DebugCommand::Bundle(args) = &args.command;
    let mut args = args.clone();
    match args.target.read_certificates() {
        Ok(()) => tool::run(args.target.json, bundle(&args)),
        Err(error) => tool::end(args.target.json, Err(error)),
    }
}

async fn bundle(args: &BundleArgs) -> Result<(), Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let usual = || PathBuf::from(format!("flotilla-bundle-{now}.tar.gz"));
    let file = args.output.clone().unwrap_or_else(usual);
    // First: a file that cannot be made is known before a minute is over.
    let made = crate::offline::create_new(&file)?;
    let evidence = Arc::new(Evidence::default());
    machine::gather(&evidence);
    let limit = args.target.timeout.as_ref().map_or(GATHERING_LIMIT, |limit| limit.length());
    if tokio::time::timeout(limit, ask(&args.target, &evidence)).await.is_err() {
        evidence.note(format!("after {} ms not all had answered", limit.as_millis()));
    }
    let (parts, notes) = evidence.take();
    let manifest = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "unix_time_s": now,
        "endpoints": args.target.endpoints,
        "parts": parts.iter().map(|part| json!({ "path": part.path, "bytes": part.bytes.len() }))
            .collect::<Value>(),
        "notes": notes,
    });
    archive::write(made, &file, now, &manifest, &parts)?;
    report(args, &file, &manifest)
}

/// Asks the cluster, and each of its stores.
async fn ask(target: &ClusterTarget, evidence: &Arc<Evidence>) {
    // At the same time: views of the cluster wait for stores that do not answer.
    tokio::join!(store_evidence::gather(target, evidence), views(target, evidence));
}

async fn views(target: &ClusterTarget, evidence: &Arc<Evidence>) {
    for view in ctl::EVIDENCE_VIEWS {
        let path = format!("cluster/{}.json", view.name());
        match ctl::evidence(target, view).await {
            Ok(document) => evidence.add_json(&path, &document),
            Err(error) => evidence.note(format!("{path}: {error}")),
        }
    }
}

fn report(args: &BundleArgs, file: &Path, manifest: &Value) -> Result<(), Error> {
    let out = &mut std::io::stdout().lock();
    let notes = manifest["notes"].as_array().map_or(&[][..], Vec::as_slice);
    if args.target.json {
        let answer = json!({ "file": file, "parts": manifest["parts"], "notes": notes });
        writeln!(out, "{answer:#}")?;
    } else {
        let count = manifest["parts"].as_array().map_or(0, Vec::len);
        writeln!(out, "{}: {count} parts", file.display())?;
        for note in notes.iter().filter_map(Value::as_str) {
            writeln!(out, "missing: {note}")?;
        }
    }
    Ok(out.flush()?)
}
