//! `ops/`: the unit, the image and the example for Kubernetes start `flotilla` by flags and
//! variables that there are, completions and manual have each command, and systemd finds no fault
//! with the unit (decision 57, `docs/decisions/0057-a-package-starts-nothing.md`).

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Commands whose flags must be known to completions and manual.
const COMMANDS: [&str; 9] =
    ["serve", "config", "playground", "ctl", "bench", "debug", "cert", "log", "pages"];

fn ops(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops").join(name)
}

/// The lines of a file that are no comments.
fn lines(name: &str) -> Vec<String> {
    let text = fs::read_to_string(ops(name)).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(str::to_owned).collect()
}

fn flotilla(args: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    command.args(args).env_clear().output().unwrap()
}

/// The output, and that the command succeeds.
fn says(args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let output = flotilla(&args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `config show` takes the arguments of `serve` and checks them as `serve` does.
fn takes(args: &[String], variables: &[(String, String)]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    command.args(["config", "show"]).args(args).env_clear().envs(variables.iter().cloned());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?} {variables:?}: {output:?}");
}

#[test]
fn the_arguments_and_variables_of_the_stateful_set_are_those_of_serve() {
    let lines = lines("kubernetes/statefulset.yaml");
    let items: Vec<&str> =
        lines.iter().filter_map(|line| line.trim_start().strip_prefix("- ")).collect();
    assert!(items.contains(&"serve"), "{items:?}");
    let flags: Vec<&str> = items.into_iter().filter(|item| item.starts_with("--")).collect();
    assert!(flags.len() >= 5, "{flags:?}");
    let value = |at: usize| lines[at + 1].trim().strip_prefix("value: ").map(str::to_owned);
    let variables = lines.iter().enumerate().filter_map(|(at, line)| {
        let name = line.trim_start().strip_prefix("- name: ")?;
        let value = value(at).map(|value| value.trim_matches('"').to_owned());
        name.starts_with("FLOTILLA_").then(|| (name.to_owned(), value.unwrap()))
    });
    let variables: Vec<_> = variables.collect();
    assert!(variables.len() >= 3, "{variables:?}");
    for pod in ["flotilla-0", "flotilla-2"] {
        let args: Vec<_> = flags.iter().map(|flag| flag.replace("$(POD_NAME)", pod)).collect();
        takes(&args, &variables);
    }
    // A flag that is none, and a variable that sets nothing, are noticed.
    let mut wrong = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    wrong.args(["config", "show", "--nmae=flotilla-0"]).env_clear();
    assert!(!wrong.output().unwrap().status.success());
    let mut wrong = Command::new(env!("CARGO_BIN_EXE_flotilla"));
    wrong.args(["config", "show"]).env_clear().env("FLOTILLA_THREADS_SHARD", "2");
    assert!(!wrong.output().unwrap().status.success());
}

#[test]
fn the_probes_ask_for_what_is_served() {
    let guide = fs::read_to_string(ops("../docs/operations.md")).unwrap();
    let lines = lines("kubernetes/statefulset.yaml");
    let probes = lines.iter().filter_map(|line| line.split("httpGet: { path: ").nth(1));
    let paths: BTreeSet<_> = probes.map(|rest| rest.split(',').next().unwrap()).collect();
    assert_eq!(paths, BTreeSet::from(["/live", "/ready"]));
    for path in paths {
        assert!(guide.contains(&format!("| `{path}` |")), "{path} stands in the guide");
    }
}

#[test]
fn the_image_serves() {
    let lines = lines("container/Dockerfile");
    let list = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(name)).unwrap();
        serde_json::from_str::<Vec<String>>(line.trim()).unwrap()
    };
    assert_eq!(list("ENTRYPOINT"), ["/usr/bin/flotilla"]);
    let command = list("CMD");
    assert_eq!(command[0], "serve");
    takes(&command[1..], &[]);
    assert!(lines.iter().any(|line| line == "STOPSIGNAL SIGTERM"));
}

/// The values of a key of the unit.
fn of_unit(key: &str) -> Vec<String> {
    let lines = lines("debian/flotilla.service");
    let values = lines.iter().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn the_unit_serves_and_leaves_time_to_stop() {
    let [start] = &of_unit("ExecStart")[..] else { panic!("one ExecStart") };
    let mut words = start.split(' ');
    assert_eq!((words.next(), words.next()), (Some("/usr/bin/flotilla"), Some("serve")));
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("flotilla.toml");
    fs::write(&settings, says(&["config", "default"])).unwrap();
    let [default, named] = ["$SERVE_FLAGS", "/etc/flotilla/flotilla.toml"];
    let args: Vec<String> = words
        .filter(|word| *word != default)
        .map(|word| word.replace(named, settings.to_str().unwrap()))
        .collect();
    assert_eq!(args.len(), 2, "{args:?}");
    takes(&args, &[]);
    // The flag that the guide puts into the file of variables.
    let replacing = ["--replace", "--name=s2", "--addr=10.0.0.2:20160", "--join=10.0.0.1:20160"];
    takes(&[args, replacing.map(str::to_owned).to_vec()].concat(), &[]);
    let defaults: serde_json::Value =
        serde_json::from_str(&says(&["config", "default", "--json"])).unwrap();
    let key = |key: &&serde_json::Value| key["key"] == "limits.hand_over_ms";
    let hand_over = defaults.as_array().unwrap().iter().find(key).unwrap();
    let hand_over_s = hand_over["default"].as_u64().unwrap() / 1000;
    let stop_s: u64 = of_unit("TimeoutStopSec")[0].parse().unwrap();
    // Besides, requests have five seconds, and there is a checkpoint.
    assert!(hand_over_s > 0 && stop_s >= 4 * (hand_over_s + 5), "{stop_s} {hand_over_s}");
    // As docs/configuration.md says which starts are worth another one.
    assert_eq!(of_unit("RestartPreventExitStatus"), ["1"]);
    assert_eq!(of_unit("KillSignal"), ["SIGTERM"]);
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let verify = Command::new("systemd-analyze").args(["--version"]).output();
    if !verify.is_ok_and(|output| output.status.success()) {
        println!("skipped: systemd-analyze is not installed (Debian: apt-get install systemd)");
        return;
    }
    // The program is where it was built, and there is no manual yet.
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("flotilla.service");
    let text = fs::read_to_string(ops("debian/flotilla.service")).unwrap();
    let text = text.replace("/usr/bin/flotilla", env!("CARGO_BIN_EXE_flotilla"));
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("Documentation=")).collect();
    fs::write(&unit, text.join("\n")).unwrap();
    let run = |args: &[&str]| {
        let output = Command::new("systemd-analyze").args(args).arg(&unit).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let about_it: Vec<_> = said
            .lines()
            .filter(|line| line.contains("flotilla.service"))
            .map(str::to_owned)
            .collect();
        (output, about_it)
    };
    let (verified, about_it) = run(&["verify", "--man=no"]);
    assert!(verified.status.success() && about_it.is_empty(), "{verified:?}");
    // Of ten, of which a unit without any of it has 9.6.
    let (judged, _) = run(&["security", "--offline=true", "--threshold=20"]);
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}

#[test]
fn completions_and_manual_have_each_command() {
    for (shell, mark) in
        [("bash", "complete -F"), ("zsh", "#compdef flotilla"), ("fish", "complete -c")]
    {
        let script = says(&["completions", shell]);
        assert!(script.contains(mark), "{shell}");
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("new/man1");
    says(&["man", pages.to_str().unwrap()]);
    for command in COMMANDS {
        let page = fs::read_to_string(pages.join(format!("flotilla-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}");
    }
    let serve = fs::read_to_string(pages.join("flotilla-serve.1")).unwrap();
    assert!(serve.contains("initial\\-cluster"), "{serve}");
    let taken = dir.path().join("file");
    fs::write(&taken, "").unwrap();
    let refused = flotilla(&["man".to_owned(), taken.to_str().unwrap().to_owned()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
