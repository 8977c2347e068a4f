//! `ctl` for every day at a shell: values of any bytes, ranges, swaps, limits of time, pipes that
//! break, terminals that are narrow.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod cluster;

use std::fs::File;
use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::time::Instant;

use cluster::{Cluster, PATIENCE, command, flotilla};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

const ALL_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

/// Runs a command with this input. It may end before it has read all of it.
async fn run_with(cluster: &Cluster, args: &[&str], input: &[u8]) -> Output {
    let mut command = cluster.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (written, output) = tokio::join!(
        async {
            let written = stdin.write_all(input).await;
            drop(stdin);
            written
        },
        child.wait_with_output()
    );
    let output = output.unwrap();
    assert!(written.is_ok() || !output.status.success(), "{output:?}");
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_any_bytes_come_from_input_and_files_and_go_there() {
    let cluster = Cluster::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (from, to) = (path("from"), path("to"));
    std::fs::write(&from, ALL_BYTES).unwrap();
    assert_eq!(cluster.says(&["ctl", "put", "file", "--file", &from]).await, "done\n");
    assert_eq!(cluster.says(&["ctl", "get", "file", "--file", &to]).await, "done\n");
    assert_eq!(std::fs::read(&to).unwrap(), ALL_BYTES);
    for args in [&["ctl", "put", "input", "-"][..], &["ctl", "put", "input", "--file", "-"]] {
        let put = run_with(&cluster, args, &ALL_BYTES).await;
        assert!(put.status.success(), "{put:?}");
        let got = cluster.run(&["ctl", "get", "input", "--file", "-"]).await;
        assert_eq!(got.stdout, ALL_BYTES);
        cluster.says(&["ctl", "delete", "input"]).await;
    }
    let put = run_with(&cluster, &["ctl", "put", "empty", "-"], b"").await;
    assert!(put.status.success(), "{put:?}");
    assert_eq!(cluster.says(&["ctl", "get", "empty"]).await, "\n");

    let nowhere = cluster.refuses(&["ctl", "put", "k", "--file", &path("nowhere")], 2).await;
    assert!(nowhere.contains("nowhere") && nowhere.contains("No such file"), "{nowhere}");
    cluster.refuses(&["ctl", "put", "k", "v", "--file", &from], 2).await;
    cluster.refuses(&["ctl", "put", "k"], 2).await;
    // More than any cluster takes, and then more than this one does.
    let most = vec![7; (12 << 20) + 1];
    let refused = run_with(&cluster, &["ctl", "put", "k", "-"], &most).await;
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("standard input has more than 12582912 bytes"), "{errors}");
    let refused = run_with(&cluster, &["ctl", "put", "k", "-"], &most[..9 << 20]).await;
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(errors.contains(" on store ") && errors.contains("entry is too large"), "{errors}");
    cluster.refuses(&["ctl", "get", "k"], 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_given_as_it_is_printed() {
    let cluster = Cluster::start().await;
    let keys = ["plain", r"a\\b", r"\x00\xff", "na\u{ef}ve", r"\x1b[2J"];
    for key in keys {
        cluster.says(&["ctl", "put", key, key]).await;
        assert_eq!(cluster.says(&["ctl", "get", key]).await, format!("{key}\n"));
    }
    let rows = cluster.tells(&["ctl", "scan", "--json"]).await;
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), keys.len());
    for row in rows {
        let (key, digits) = (row["key"].as_str().unwrap(), row["key_hex"].as_str().unwrap());
        assert!(keys.contains(&key), "{row}");
        let shown = cluster.says(&["ctl", "scan", key, "--limit", "1", "--keys-only"]).await;
        assert!(shown.contains(&format!("\n {key}\n")), "{shown}");
        // The value is the key as it was given.
        let expected: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        for digits in [digits.to_owned(), format!("0x{digits}")] {
            let got = cluster.says(&["ctl", "--hex", "get", &digits]).await;
            assert_eq!(got, format!("{expected}\n"));
        }
    }
    let refused = cluster.refuses(&["ctl", "get", r"C:\new"], 2).await;
    assert!(refused.contains("two hexadecimal digits"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_deleted_over_its_regions_and_nothing_by_mistake() {
    let cluster = Cluster::start().await;
    // The four regions begin at 0x40, 0x80 and 0xc0.
    let keys = ["1", "2", "A", "Z", r"\x80", r"\xc0", r"\xff"];
    for key in keys {
        cluster.says(&["ctl", "put", key, "v"]).await;
    }
    let left = async || {
        let rows = cluster.tells(&["ctl", "scan", "--json", "--keys-only"]).await;
        let keys = rows.as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().into());
        keys.collect::<Vec<String>>()
    };
    for (args, words) in [
        (&["a", ""][..], "--to-end"),
        (&["", "--to-end"], "--all"),
        (&["", "--prefix"], "--all"),
        (&["z", "a"], "not below END"),
        (&["a"], "required"),
        (&[], "required"),
    ] {
        let refused = cluster.refuses(&[&["ctl", "delete-range"], args].concat(), 2).await;
        assert!(refused.contains(words), "{args:?}: {refused}");
    }
    assert_eq!(left().await, keys);
    assert_eq!(cluster.says(&["ctl", "delete-range", "2", r"\xc0"]).await, "done\n");
    assert_eq!(left().await, ["1", r"\xc0", r"\xff"]);
    cluster.says(&["ctl", "delete-range", r"\xff", "--prefix"]).await;
    assert_eq!(left().await, ["1", r"\xc0"]);
    cluster.says(&["ctl", "delete-range", "2", "--to-end"]).await;
    assert_eq!(left().await, ["1"]);
    cluster.says(&["ctl", "delete-range", "--all"]).await;
    assert!(left().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_is_made_if_the_key_has_the_value_and_said_to_be_not_else() {
    let cluster = Cluster::start().await;
    let cas = async |args: &[&str]| cluster.run(&[&["ctl", "cas", "ship"], args].concat()).await;
    let refused = async |args: &[&str], words: &str| {
        let output = cas(args).await;
        assert_eq!(output.status.code(), Some(4), "{args:?}: {output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(words), "{args:?}: {errors}");
    };
    refused(&["Kronan", "--expect", "Vasa"], "\"ship\" has no value").await;
    assert_eq!(cas(&["Vasa", "--absent"]).await.stdout, b"done\n");
    refused(&["Vasa", "--absent"], "\"ship\" has another value: \"Vasa\"").await;
    refused(&["--delete", "--expect", "Kronan"], "\"Vasa\"").await;
    let told = cluster.tells(&["ctl", "cas", "ship", "Kronan", "--expect", "Vasa", "--json"]).await;
    assert_eq!(told, json!({ "succeeded": true, "previous": "Vasa", "previous_hex": "56617361" }));
    let failed = cas(&["x", "--absent", "--json"]).await;
    let told: serde_json::Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!((&told["succeeded"], &told["previous"]), (&false.into(), &"Kronan".into()));
    let swapped =
        run_with(&cluster, &["ctl", "cas", "ship", "-", "--expect", "Kronan"], &ALL_BYTES).await;
    assert!(swapped.status.success(), "{swapped:?}");
    let args = ["ctl", "cas", "ship", "--delete", "--expect-file", "-"];
    let deleted = run_with(&cluster, &args, &ALL_BYTES).await;
    assert!(deleted.status.success(), "{deleted:?}");
    cluster.refuses(&["ctl", "get", "ship"], 3).await;
    for args in [
        &["v"][..],
        &["--absent"],
        &["--absent", "--delete"],
        &["v", "--absent", "--expect", "w"],
        &["-", "--expect-file", "-"],
    ] {
        assert_eq!(cas(args).await.status.code(), Some(2), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_to_live_of_a_key_is_told() {
    let cluster = Cluster::start().await;
    cluster.says(&["ctl", "put", "ship", "Vasa"]).await;
    assert_eq!(cluster.says(&["ctl", "ttl", "ship"]).await, "none\n");
    let told = cluster.tells(&["ctl", "ttl", "ship", "--json"]).await;
    assert_eq!(told, json!({ "key": "ship", "key_hex": "73686970", "ttl_s": null }));
    let remaining = async || {
        let told = cluster.tells(&["ctl", "ttl", "ship", "--json"]).await;
        told["ttl_s"].as_u64().unwrap()
    };
    cluster.says(&["ctl", "put", "ship", "Kronan", "--ttl", "5000"]).await;
    assert!((4_000..=5_000).contains(&remaining().await));
    assert!(cluster.says(&["ctl", "ttl", "ship"]).await.ends_with(" s\n"));
    let swap = ["ctl", "cas", "ship", "Vasa", "--expect", "Kronan", "--ttl", "9000"];
    cluster.says(&swap).await;
    assert!((8_000..=9_000).contains(&remaining().await));
    let absent = cluster.refuses(&["ctl", "ttl", "none"], 3).await;
    assert!(absent.contains("\"none\" has no value"), "{absent}");
    cluster.refuses(&["ctl", "put", "ship", "Vasa", "--ttl", "0"], 2).await;
}

/// A listener that takes connections and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_ends_in_the_time_that_it_was_given() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    for line in [
        "put k v",
        "get k",
        "ttl k",
        "cas k v --absent",
        "delete k",
        "delete-range a b",
        "scan",
        "leader-of k",
        "regions",
        "region show 7",
        "region split 7",
        "region move 7 --from s1 --to s2",
        "repair show",
        "stores",
        "store drain s1",
    ] {
        let mut args = vec!["ctl", "--timeout", "400ms"];
        args.extend(line.split(' '));
        let began = Instant::now();
        let output = flotilla(&args, &endpoint).await;
        assert!(began.elapsed() < PATIENCE / 8, "{line}: {:?}", began.elapsed());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {errors}");
        assert!(errors.contains(&endpoint), "{line}: {errors}");
    }
    let output = flotilla(&["ctl", "get", "k", "--timeout", "400ms"], &endpoint).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    let words = "flotilla: not done within 400ms, the --timeout: no store answers at ";
    assert!(errors.starts_with(words), "{errors}");
    let wrong = flotilla(&["ctl", "get", "k", "--timeout", "soon"], &endpoint).await;
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("as 1500ms"));

    // Standard input that does not end.
    let mut put = command(&["ctl", "put", "k", "-", "--timeout", "400ms"], &endpoint);
    let put = put.stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut put = put.spawn().unwrap();
    let held = put.stdin.take();
    let output = timeout(PATIENCE, put.wait_with_output()).await.unwrap().unwrap();
    drop(held);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, "flotilla: not done within 400ms, the --timeout\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_time_is_a_wait_for_a_store_that_starts() {
    for line in ["stores", "put ship Vasa"] {
        let address = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = address.local_addr().unwrap().to_string();
        let args: Vec<_> = ["ctl", "--timeout", "60s"].into_iter().chain(line.split(' ')).collect();
        let waits = command(&args, &endpoint).stdout(Stdio::piped()).spawn().unwrap();
        // It asks, and no store answers.
        drop(address.accept().unwrap());
        drop(address);
        let dir = tempfile::tempdir().unwrap();
        let store = ["serve", "--new", "--set", "disk.full_free_ratio=0", "--addr", &endpoint];
        let mut serve = tokio::process::Command::new(env!("CARGO_BIN_EXE_flotilla"));
        serve.args(store).arg("--data-dir").arg(dir.path()).stdin(Stdio::null());
        let _serve = serve.stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let output = timeout(PATIENCE, waits.wait_with_output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_breaks_is_no_failure() {
    let cluster = Cluster::start().await;
    // More than a pipe holds.
    let value = vec![b'v'; 1 << 20];
    assert!(run_with(&cluster, &["ctl", "put", "k", "-"], &value).await.status.success());
    for line in ["scan", "scan --json", "get k", "get k --file -", "regions", "stores", "ttl k"] {
        let mut args = vec!["ctl"];
        args.extend(line.split(' '));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = cluster.command(&args).stdout(writer).output().await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        assert!(output.stderr.is_empty(), "{line}: {output:?}");
    }
    // The reader of both has gone, as in `2>&1 | head`.
    for (line, code) in [("get none", 3), ("get none --json", 3), ("region transfer 99", 3)] {
        let mut args = vec!["ctl"];
        args.extend(line.split(' '));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = cluster.command(&args);
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(command.status().await.unwrap().code(), Some(code), "{line}");
    }
}

/// All that a command prints to a terminal of so many columns.
async fn shown(cluster: &Cluster, args: &[&str], ws_col: u16) -> String {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: 24, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, vec![]).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(name).unwrap();
    let mut child = cluster.command(args).stdout(slave).spawn().unwrap();
    // A terminal whose last user has gone has an error for its reader, and not an end.
    let reading = tokio::task::spawn_blocking(move || {
        let (mut master, mut text) = (File::from(master), vec![]);
        let _ = master.read_to_end(&mut text);
        text
    });
    assert!(child.wait().await.unwrap().success());
    String::from_utf8(reading.await.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_as_wide_as_the_terminal() {
    let cluster = Cluster::start().await;
    let value = vec![b'v'; 120 << 10];
    assert!(run_with(&cluster, &["ctl", "put", "long", "-"], &value).await.status.success());
    cluster.says(&["ctl", "put", "short", "value"]).await;
    for (told, columns) in [(60, 60), (200, 200), (0, 80)] {
        let table = shown(&cluster, &["ctl", "scan"], told).await;
        let widest = table.lines().map(|line| line.trim_end().chars().count()).max();
        assert_eq!(widest, Some(columns), "{table}");
        assert!(table.contains("vvv…") && table.contains(" short  value"), "{table}");
    }
    let piped = cluster.says(&["ctl", "scan"]).await;
    let long = piped.lines().find(|line| line.starts_with(" long")).unwrap();
    assert!(long.ends_with("vvv") && long.len() > 120 << 10, "a pipe gets all of it");
    assert!(piped.lines().any(|line| line == " short  value"), "no row is padded");
    let rows = shown(&cluster, &["ctl", "scan", "--json"], 60).await;
    let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(rows[0]["value"].as_str().unwrap().len(), 120 << 10);
}
