//! Stores that come, rest, and go.

use std::fs;

use serde_json::Value;

use crate::site::Site;

/// The row that `ctl stores` has of a store that is not gone.
fn row(site: &Site, name: &str) -> Option<Value> {
    let rows = site.run("s1", "flotilla ctl stores --json");
    let rows: Value = serde_json::from_str(&rows).unwrap();
    let is_it = |row: &&Value| row["name"] == name && row["registry_state"] != "lost";
    rows.as_array().unwrap().iter().find(is_it).cloned()
}

/// A value in that row.
pub(super) fn told(site: &Site, name: &str, key: &str) -> Value {
    row(site, name).unwrap_or_else(|| panic!("there is no {name}"))[key].clone()
}

/// Waits until a store has replicas.
fn gets_replicas(site: &Site, name: &str) {
    let has_some =
        |site: &Site| row(site, name).is_some_and(|row| row["replicas"].as_u64() > Some(0));
    site.until_holds(&format!("{name} has replicas"), has_some);
}

pub(super) fn a_store_without_settings_does_not_start(site: &mut Site) {
    site.run("s1", "! systemctl start flotilla 2> /dev/null");
}

pub(super) fn three_stores_serve(site: &mut Site) {
    assert_eq!(site.said, "Vasa\n", "the value that the guide has put");
    each_store_serves(site);
}

pub(super) fn each_store_serves(site: &mut Site) {
    for name in ["s1", "s2", "s3"] {
        assert_eq!(told(site, name, "up"), true, "{name}");
    }
}

pub(super) fn the_fourth_store_gets_replicas(site: &mut Site) {
    gets_replicas(site, "s4");
}

pub(super) fn the_first_store_leads_nothing(site: &mut Site) {
    assert_eq!(told(site, "s1", "leaders"), 0);
}

pub(super) fn each_store_has_started_twice(site: &mut Site) {
    for name in ["s1", "s2", "s3"] {
        assert_eq!(told(site, name, "starts"), 2, "{name}");
    }
}

pub(super) fn the_fourth_store_has_ended(site: &mut Site) {
    site.until("s4", "! systemctl is-active flotilla > /dev/null");
    assert!(site.journal("s4").contains("has left the cluster"), "{}", site.journal("s4"));
}

pub(super) fn the_second_store_leads_nothing(site: &mut Site) {
    assert_eq!(told(site, "s2", "leaders"), 0);
}

pub(super) fn the_second_store_dies(site: &mut Site) {
    site.kill("s2");
}

/// For longer than the ten seconds that placement asks for.
pub(super) fn the_second_store_is_silent_for_long(site: &mut Site) {
    let is_silent = |site: &Site| {
        let told = site.run("s1", "curl -sf http://10.0.0.1:20160/status/stores");
        let told: Value = serde_json::from_str(&told).unwrap();
        let row = told["stores"].as_array().unwrap().iter().find(|row| row["name"] == "s2");
        let row = row.unwrap_or_else(|| panic!("no s2: {told}"));
        row["connected"] == false && row["since_ms"].as_u64() > Some(12_000)
    };
    site.until_holds("s2 is silent for 12 s", is_silent);
}

pub(super) fn two_stores_die(site: &mut Site) {
    site.kill("s2");
    site.kill("s3");
}

pub(super) fn the_second_store_is_lost(site: &mut Site) {
    // The command has told placement's leader; the store that is asked learns of it by raft.
    site.until_holds("there is no s2 but the lost one", |site| row(site, "s2").is_none());
    site.run("s2", "systemctl start flotilla");
    site.until("s2", "! systemctl is-active flotilla > /dev/null");
    assert!(site.journal("s2").contains("was declared lost"), "{}", site.journal("s2"));
}

pub(super) fn the_second_store_loses_its_disk(site: &mut Site) {
    site.kill("s2");
    fs::remove_dir_all(site.data_dir("s2")).unwrap();
    // As systemd starts a store again that was killed.
    site.run("s2", "systemctl start flotilla");
    site.until("s2", "! systemctl is-active flotilla > /dev/null");
    assert!(site.journal("s2").contains("this store lost its data"), "{}", site.journal("s2"));
}

pub(super) fn the_second_store_gets_replicas(site: &mut Site) {
    gets_replicas(site, "s2");
}

pub(super) fn the_second_store_starts_again(site: &mut Site) {
    site.run("s2", "systemctl restart flotilla; flotilla ctl --timeout 60s get ship");
    gets_replicas(site, "s2");
}

pub(super) fn a_new_disk_is_mounted_aside(site: &mut Site) {
    fs::create_dir(site.root("s3").join("mnt/new")).unwrap();
}

pub(super) fn the_new_disk_is_mounted_in_its_place(site: &mut Site) {
    fs::rename(site.root("s3").join("mnt/new"), site.data_dir("s3")).unwrap();
}
