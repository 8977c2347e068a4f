//! Full disks of real processes: each store's directory is on a file system of 300 MB of its own,
//! which the test fills and frees. Puts are refused with words, reads and deletions go on, nothing
//! that was acknowledged is lost, and no store restarts.
//!
//! The file systems are mounted in a mount namespace of the test's own, which ends with it. Where
//! the kernel refuses that, the test says so and does nothing.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod load;
mod processes;

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use flotilla_client::{Client, Config};
use load::Load;
use processes::{Processes, until};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use serde_json::Value;
use tokio::task::JoinSet;

/// The rounds in which disks are filled; a variable of the environment asks for more.
const ROUNDS: u64 = 2;
const ROUNDS_VARIABLE: &str = "FLOTILLA_FULL_DISK_ROUNDS";
/// The generator's seed; a variable of the environment takes another one.
const SEED_VARIABLE: &str = "FLOTILLA_FULL_DISK_SEED";
/// Set for the process that is in the namespace.
const INSIDE_VARIABLE: &str = "FLOTILLA_TEST_IN_NAMESPACE";

const MIB: u64 = 1 << 20;
const DISK_MIB: u64 = 300;
/// The disk is full below this.
const FULL_BELOW: u64 = 100 * MIB;
/// Free bytes that a filled disk has: full, exhausted, and none at all.
const LEFT: [u64; 3] = [60 * MIB, 15 * MIB, 0];
const REGIONS: u64 = 4;
/// The longest time for which a put may be refused because a log is at its limit.
const PATIENCE: Duration = Duration::from_secs(60);
/// A store on a full disk leads nothing after this; three seconds, and what a busy machine takes.
const LEAVE: Duration = Duration::from_secs(10);

/// Bytes that the log cannot compress.
fn noise(bytes: usize) -> Bytes {
    let mut value = vec![0; bytes];
    Rng::with_seed(1).fill(&mut value);
    value.into()
}

/// Runs the test of this name in a namespace, if there may be one. True in there.
fn is_inside(name: &str) -> bool {
    if std::env::var_os(INSIDE_VARIABLE).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    let probe = unshare().args(["mount", "-t", "tmpfs", "probe", "/tmp"]).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: no file system can be mounted here: {probe:?}");
        return false;
    }
    let inside = unshare()
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE_VARIABLE, "1")
        .status()
        .unwrap();
    assert!(inside.success(), "{name} in a namespace: {inside}");
    false
}

/// Three stores on disks of 300 MB.
struct SmallDisks {
    cluster: Processes,
    client: Client,
}

impl SmallDisks {
    async fn start(more: &str) -> Self {
        let mut cluster = Processes::plan(3, REGIONS);
        for place in 0..3 {
            let dir = cluster.data_dir(place);
            std::fs::create_dir_all(&dir).unwrap();
            let size = format!("size={DISK_MIB}m,mode=700");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &size, "flotilla-test"]).arg(&dir);
            assert!(mount.status().unwrap().success());
            let settings = cluster.settings(place);
            cluster.configure(place, &format!("{settings}{more}"));
        }
        cluster.start_all();
        cluster.ready().await;
        let config = Config { deadline: Duration::from_secs(10), ..Config::default() };
        let client = Client::connect(cluster.endpoints(), config).await.unwrap();
        Self { cluster, client }
    }

    fn ballast(&self, place: usize) -> PathBuf {
        self.cluster.data_dir(place).join("ballast")
    }

    fn free_bytes(&self, place: usize) -> u64 {
        let disk = statvfs(self.cluster.data_dir(place)).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    /// Another program takes the disk of a store, all but `left` bytes.
    fn fill(&self, place: usize, left: u64) {
        let file = File::create(self.ballast(place)).unwrap();
        let mut taken = 0;
        // The store writes meanwhile, and nothing is taken if not all of a piece is there.
        while let Some(free) = self.free_bytes(place).checked_sub(left).filter(|free| *free > 0) {
            let more = free.div_ceil(2);
            match fallocate(&file, FallocateFlags::empty(), taken, more) {
                Ok(()) => taken += more,
                Err(_) if free > 1 << 20 => {}
                Err(_) => return,
            }
        }
    }

    fn free(&self, place: usize) {
        std::fs::remove_file(self.ballast(place)).unwrap();
    }

    /// The row of `ctl stores` for a store.
    async fn store(&self, place: usize) -> Value {
        self.cluster.ctl("--json stores").await.json()[place].take()
    }

    async fn is_full(&self, place: usize) {
        until(async || match &self.store(place).await["disk_usage"] {
            word if word == "full" || word == "exhausted" => Ok(()),
            word => Err(format!("the disk of store {place} is {word}")),
        })
        .await;
    }

    async fn has_room(&self, place: usize) {
        until(async || match &self.store(place).await["disk_usage"] {
            word if word == "normal" => Ok(()),
            word => Err(format!("the disk of store {place} is {word}, and was to have room")),
        })
        .await;
    }

    async fn leads_nothing(&self, place: usize) {
        let began = Instant::now();
        until(async || match &self.store(place).await["leaders"] {
            leaders if leaders == 0 => Ok(()),
            leaders => Err(format!("store {place} leads {leaders} regions")),
        })
        .await;
        let took = began.elapsed();
        assert!(took < LEAVE, "the leaders of store {place} have left after {took:?}");
        println!("  its leaders have left after {took:?} at most");
    }

    /// Waits until a put of each region is taken again.
    async fn takes_puts(&self) {
        until(async || {
            for first in [0x10_u8, 0x50, 0x90, 0xd0] {
                let put = self.client.put(vec![first, 1], "room").await;
                put.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
        .await;
    }

    /// Lines of a store's log that say that its disk is full, or exhausted.
    fn told(&self, place: usize) -> usize {
        let words = ["puts are refused, and leaders", "no entries are taken where"];
        let is_told = |line: &&str| words.iter().any(|words| line.contains(words));
        self.cluster.said(place).lines().filter(is_told).count()
    }
}

impl Drop for SmallDisks {
    fn drop(&mut self) {
        for place in 0..3 {
            // Else the directory below stays. The stores are killed next.
            let _ = Command::new("umount").arg("-l").arg(self.cluster.data_dir(place)).status();
        }
    }
}

const SETTINGS: &str = "
[storage]
segment_bytes = \"2MiB\"
log_purge_above_bytes = \"16MiB\"
dirty_bytes_max = \"4MiB\"
pages_growth_bytes = \"1MiB\"
pages_trim_bytes = \"2MiB\"
checkpoint_interval_ms = 300
[raft]
log_kept_bytes_max = \"8MiB\"
[disk]
almost_full_free_ratio = 0.0
full_free_bytes = \"100MiB\"
full_free_ratio = 0.0
reserve_bytes = \"16MiB\"
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_of_one_store_and_of_all_become_full_and_have_room_again() {
    if !is_inside("disks_of_one_store_and_of_all_become_full_and_have_room_again") {
        return;
    }
    let variable = |name, default| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let rounds: u64 = variable(ROUNDS_VARIABLE, ROUNDS);
    let mut rng = Rng::with_seed(variable(SEED_VARIABLE, 1));
    let mut disks = SmallDisks::start(SETTINGS).await;
    let load = Load::start(6, disks.cluster.endpoints()).await;
    load.progress(100).await;
    let pids: Vec<_> = (0..3).map(|place| disks.cluster.pid(place)).collect();
    for round in 0..rounds {
        let left = LEFT[(round as usize / 2) % LEFT.len()];
        match round % 2 {
            0 => one_is_full(&disks, rng.usize(..3), left, &load).await,
            _ => all_are_full(&disks, left).await,
        }
        load.progress(100).await;
        load.next_round();
        for (place, pid) in pids.iter().enumerate() {
            assert!(disks.cluster.runs(place), "store {place} has ended");
            assert_eq!(disks.cluster.pid(place), *pid);
        }
    }
    println!("{}", load.end(disks.cluster.endpoints()).await);
}

/// The disk of one store is full: it leads nothing, all goes on by the others, and it comes back.
async fn one_is_full(disks: &SmallDisks, full: usize, left: u64, load: &Load) {
    println!("the disk of store {full} has {left} bytes left");
    let told = disks.told(full);
    disks.fill(full, left);
    disks.is_full(full).await;
    disks.leads_nothing(full).await;
    disks.takes_puts().await;
    load.progress(200).await;
    let lines = disks.told(full) - told;
    assert!((1..=2).contains(&lines), "{lines} lines say that it is full");
    disks.free(full);
    disks.has_room(full).await;
}

/// All disks are full: puts are refused with words, reads and deletions go on.
async fn all_are_full(disks: &SmallDisks, left: u64) {
    println!("all disks have {left} bytes left");
    let key = |name: &str| Bytes::from([b"\x50kept-", name.as_bytes()].concat());
    for name in ["read", "deleted"] {
        disks.client.put(key(name), "value").await.unwrap();
    }
    for place in 0..3 {
        disks.fill(place, left);
    }
    for place in 0..3 {
        disks.is_full(place).await;
    }
    until(async || match disks.client.put(key("put"), "value").await {
        Err(error) if error.to_string().contains("the disk is full on store") => Ok(()),
        other => Err(format!("a put without room: {other:?}")),
    })
    .await;
    let value = disks.client.get(key("read")).await.unwrap();
    assert_eq!(value, Some(Bytes::from_static(b"value")));
    if left > 0 {
        disks.client.delete(key("deleted")).await.unwrap();
        assert_eq!(disks.client.get(key("deleted")).await.unwrap(), None);
    }
    for place in 0..3 {
        disks.free(place);
    }
    for place in 0..3 {
        disks.has_room(place).await;
    }
    disks.takes_puts().await;
    assert_eq!(disks.client.get(key("put")).await.unwrap(), None, "it was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_fill_the_disks_and_deletions_make_room() {
    if !is_inside("clients_fill_the_disks_and_deletions_make_room") {
        return;
    }
    let mut disks = SmallDisks::start(SETTINGS).await;
    let key = |count: u64| Bytes::from(format!("\x20{count:08}"));
    let value = noise(128 << 10);
    let mut written = 0;
    let refused = loop {
        match disks.client.put(key(written), value.clone()).await {
            Ok(()) => written += 1,
            Err(error) => break error.to_string(),
        }
        assert!(written * value.len() as u64 <= DISK_MIB * MIB, "the disk is never full");
    };
    assert!(refused.contains("the disk is full on store"), "{refused}");
    println!("{written} values of 128 KiB, then: {refused}");
    for place in 0..3 {
        let free = disks.free_bytes(place);
        assert!(free > FULL_BELOW / 4, "{free} bytes are left on the disk of store {place}");
    }
    for count in 0..written {
        assert_eq!(disks.client.get(key(count)).await.unwrap().as_ref(), Some(&value));
    }
    disks.client.delete_range(key(0), key(written)).await.unwrap();
    for place in 0..3 {
        disks.has_room(place).await;
    }
    disks.takes_puts().await;
    assert!((0..3).all(|place| disks.cluster.runs(place)));
}

/// The log may take less than the disk has: that ends in the same way, and not with the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_the_log_refuses_puts_and_heals() {
    if !is_inside("the_limit_of_the_log_refuses_puts_and_heals") {
        return;
    }
    let small = SETTINGS
        .replace(
            "segment_bytes = \"2MiB\"",
            "segment_bytes = \"1MiB\"\nlog_disk_bytes_max = \"12MiB\"\nlog_spare_segments = 0",
        )
        .replace("log_kept_bytes_max = \"8MiB\"", "log_kept_bytes_max = \"2MiB\"");
    let mut disks = SmallDisks::start(&small).await;
    let value = noise(256 << 10);
    // So many at once that the log comes to its limit before a checkpoint lets it go.
    let mut writers = JoinSet::new();
    for writer in 0..16_u8 {
        let (client, value) = (disks.client.clone(), value.clone());
        writers.spawn(async move {
            let mut refused = 0_u64;
            let mut looks = tokio::time::interval(Duration::from_millis(50));
            for count in 0..25_u8 {
                let key = Bytes::from(vec![0x20, writer, count]);
                let began = Instant::now();
                while let Err(error) = client.put(key.clone(), value.clone()).await {
                    assert!(began.elapsed() < PATIENCE, "{error}");
                    refused += 1;
                    looks.tick().await;
                }
            }
            refused
        });
    }
    let refused: u64 = writers.join_all().await.into_iter().sum();
    let told: usize = (0..3).map(|place| disks.told(place)).sum();
    println!("{refused} puts were refused at first; the logs were at their limits {told} times");
    assert!(told > 0, "no log has come to its limit");
    for place in 0..3 {
        assert!(disks.cluster.runs(place), "store {place} has ended");
        disks.has_room(place).await;
    }
}
