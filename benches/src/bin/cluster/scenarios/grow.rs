//! One store becomes three and five by `--join`, and three again by `ctl store leave`, under load.
//!
//! The stores that leave are the first ones: those that the system region was on, and whose
//! addresses clients have known longest.

use flotilla_cli::tool::Error;

use super::rows::EvenRows;
use crate::load_record::LoadRecord;
use crate::open_load::OpenLoad;
use crate::report::ScenarioReport;
use crate::store_processes::{ClusterPlan, StoreProcesses, field};
use crate::test_bench::{ChangeSpans, TestBench};

/// The p99 of a change may be this many times the calm one.
const RATIO_MAX: f64 = 1.5;
/// Bytes of a value of the data that is copied.
const VALUE_BYTES: usize = 4096;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GrowArgs {
    /// Regions at the beginning [default: 16, or 4 if quick]
    #[arg(long)]
    regions: Option<u64>,
    /// MiB of data to be copied to each store [default: 1024, or 8 if quick]
    #[arg(long)]
    data_mib: Option<u64>,
}

/// A change of the number of stores.
#[derive(Clone, Copy, Debug)]
enum Step {
    Join { key: &'static str, names: [&'static str; 2], stores: usize, system_replicas: usize },
    Leave { key: &'static str, places: [usize; 2] },
}

const STEPS: [Step; 3] = [
    Step::Join { key: "to_three", names: ["s2", "s3"], stores: 3, system_replicas: 3 },
    Step::Join { key: "to_five", names: ["s4", "s5"], stores: 5, system_replicas: 5 },
    Step::Leave { key: "back_to_three", places: [0, 1] },
];

pub(crate) async fn measure(bench: &TestBench, args: &GrowArgs) -> Result<ScenarioReport, Error> {
    let regions = args.regions.unwrap_or(bench.args.pick(16, 4));
    let data = args.data_mib.unwrap_or(bench.args.pick(1024, 8)) << 20;
    let plan = ClusterPlan { regions, tables: String::new() };
    let (three, five) = (bench.rate_of(&plan, 3).await?, bench.rate_of(&plan, 5).await?);
    let mut cluster = StoreProcesses::start(bench, "grow", 1, &plan).await?;
    EvenRows::of(data, VALUE_BYTES).fill(&cluster.client().await?, bench.args.seed).await?;
    let mut report = ScenarioReport::new("grow");
    report.tell("rate_of_three", "load of three stores, puts a second", three);
    report.tell("rate_of_five", "load of five stores, puts a second", five);
    let mut records = vec![];
    for step in STEPS {
        let rate = if matches!(step, Step::Join { stores: 5, .. }) { five } else { three };
        records.push(take(step, rate, bench, &mut cluster, &mut report).await?);
    }
    bench.no_failures(&mut report, &records.iter().collect::<Vec<_>>());
    let sent = cluster.lines_with("a snapshot was sent");
    let bytes: u64 = sent.iter().filter_map(|line| field(line, "bytes")).sum();
    report.tell("snapshots", "snapshots sent", sent.len() as f64);
    report.tell("snapshot_mib", "MiB of them", bytes as f64 / f64::from(1 << 20));
    let unsent = cluster.lines_with("a snapshot was not sent");
    report.tell(
        "snapshots_unsent",
        "snapshots that were not sent to their end",
        unsent.len() as f64,
    );
    Ok(report)
}

/// One change under load, and calm windows behind it.
async fn take(
    step: Step,
    rate: f64,
    bench: &TestBench,
    cluster: &mut StoreProcesses,
    report: &mut ScenarioReport,
) -> Result<LoadRecord, Error> {
    let client = cluster.client().await?;
    let load = OpenLoad::start(&client, bench.plan(Some(rate))?);
    bench.warm_up().await;
    // Stores that leave run until they have, so that the windows of the change are of all of them:
    // it is compared with all at rest. What the ones that stay have at rest is told as well.
    let before = match step {
        Step::Leave { .. } => Some(bench.calm(&load).await),
        Step::Join { .. } => None,
    };
    let from = load.now();
    let (key, words) = match step {
        Step::Join { key, names, stores, system_replicas } => {
            for name in names {
                cluster.join(name).await?;
            }
            bench.say(&format!("{stores} stores: waiting for the replicas"));
            cluster.settled(3, system_replicas).await?;
            (key, format!("to {stores} stores"))
        }
        Step::Leave { key, places } => {
            for place in places {
                let name = cluster.stores[place].name.clone();
                bench.say(&format!("{name} leaves"));
                cluster.flotilla(&format!("ctl store leave {name}")).await?;
                cluster.left(place).await?;
            }
            cluster.settled(3, 3).await?;
            (key, "back to 3 stores".to_owned())
        }
    };
    let change = bench.change_ends(&load, from).await;
    bench.warm_up().await;
    let calm = bench.calm(&load).await;
    let record = load.end().await;
    let seconds = (change.to - change.from).as_secs_f64();
    report.tell(&format!("{key}_seconds"), &format!("{words}: seconds"), seconds);
    let gap = record.longest_gap(change);
    report.tell(
        &format!("{key}_gap_ms"),
        &format!("{words}: longest time without an answer, ms"),
        gap,
    );
    let changes = &[change];
    if let Some(calm) = before {
        let (key, words) = (format!("{key}_before"), format!("{words}, to all stores before"));
        let spans = ChangeSpans { changes, calm };
        bench.compare(report, (&key, &words), &record, spans, Some(RATIO_MAX));
    }
    let spans = ChangeSpans { changes, calm };
    let ratio_max = before.is_none().then_some(RATIO_MAX);
    bench.compare(report, (key, &words), &record, spans, ratio_max);
    Ok(record)
}
