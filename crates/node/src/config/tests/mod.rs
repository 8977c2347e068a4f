//! Tests: each setting reaches its engine, and a wrong one is refused by its name.

mod layers;
mod page;
mod table;

use std::path::Path;

use flotilla_identity::ClusterSettings;
use flotilla_store::PageReadMode;

use super::resolved::DEFAULT_ADDR;
use super::*;

/// The settings of a file of this text.
fn parsed(text: &str) -> Result<NodeConfig, ConfigError> {
    let mut layers = SettingLayers::default();
    layers.add_text(Path::new("f.toml"), text);
    layers.finish().map(|layered| layered.config)
}

fn resolved(text: &str) -> ResolvedConfig {
    parsed(text).unwrap().resolve().unwrap()
}

fn refused(text: &str) -> String {
    parsed(text).and_then(NodeConfig::resolve).unwrap_err().to_string()
}

#[test]
fn nothing_set_gives_one_store_that_works() {
    let resolved = NodeConfig::default().resolve().unwrap();
    assert!(resolved.listed_addresses().is_empty(), "this store is no other's address");
    assert_eq!(resolved.listen_addr(None), "127.0.0.1:20160");
    assert_eq!(resolved.config.data_dir, Path::new("data/s1"));
    assert_eq!(resolved.spec.stores.len(), 1);
    assert!(resolved.config.threads.shard_count() >= 1);
}

#[test]
fn a_file_sets_what_it_names_and_keeps_the_rest() {
    let resolved = resolved("name = 'b'\ninitial_cluster = 'a=h:1,b=h:2'\n[raft]\ntick_ms = 20\n");
    assert_eq!(resolved.place, 1);
    assert_eq!(resolved.listen_addr(Some("known:1")), "h:2");
    assert_eq!(resolved.spec.settings.tick_ms, 20);
    assert_eq!(resolved.spec.settings.election_ticks, 12);
}

#[test]
fn the_log_that_is_kept_for_others_is_at_most_a_quarter_of_its_disk() {
    let kept = |text: &str| {
        let config = resolved(text).config;
        config.raft.kept_bytes_max(&config.storage)
    };
    assert_eq!(kept(""), 1 << 30);
    assert_eq!(kept("[storage]\nlog_disk_bytes_max = 2147483648"), 512 << 20);
    assert_eq!(kept("[storage]\nlog_disk_bytes_max = 1099511627776"), 1 << 30);
    assert_eq!(kept("[raft]\nlog_kept_bytes_max = 1048576"), 1 << 20);
    let disk = "[storage]\nlog_disk_bytes_max = 2147483648\n[raft]\nlog_kept_bytes_max = ";
    assert_eq!(kept(&format!("{disk}536870912")), 512 << 20);
    assert!(refused(&format!("{disk}536870913")).contains("raft.log_kept_bytes_max"));
    assert!(refused("[raft]\nlog_kept_bytes_max = 1048575").contains("raft.log_kept_bytes_max"));
}

#[test]
fn snapshots_flow_at_a_rate_or_at_any() {
    assert_eq!(resolved("[snapshot]\nbytes_per_s = 0").config.snapshot.bytes_per_s, 0);
    assert_eq!(NodeConfig::default().snapshot.bytes_per_s, 400 << 20);
    for key in ["bytes_per_s", "bytes_per_s_under_load"] {
        let refused = refused(&format!("[snapshot]\n{key} = 8388607"));
        let range = "is out of range: 0, or 8MiB to 1TiB";
        assert_eq!(refused, format!("f.toml, line 2: snapshot.{key} = 8388607 {range}"));
    }
}

#[test]
fn addresses_follow_from_what_is_given_at_this_start() {
    let addresses = |text: &str, known: Option<&str>| {
        let resolved = resolved(text);
        let listen = resolved.listen_addr(known);
        (resolved.advertised(&listen, known), listen)
    };
    let of = |advertised: &str, listen: &str| (advertised.to_owned(), listen.to_owned());
    let list = "initial_cluster = 's1=h:1,s2=h:2'";
    assert_eq!(addresses("", None), of(DEFAULT_ADDR, DEFAULT_ADDR));
    assert_eq!(addresses("", Some("known:1")), of("known:1", "known:1"));
    assert_eq!(addresses("addr = 'a:1'", Some("known:1")), of("a:1", "a:1"));
    assert_eq!(addresses(list, Some("known:1")), of("h:1", "h:1"));
    let listens_elsewhere = format!("addr = '0.0.0.0:9'\n{list}");
    assert_eq!(addresses(&listens_elsewhere, None), of("h:1", "0.0.0.0:9"));
    let both = "addr = 'a:1'\nadvertise_addr = 'b:2'";
    assert_eq!(addresses(both, Some("known:1")), of("b:2", "a:1"));
}

#[test]
fn a_member_is_started_with_what_its_directory_says_or_refused_with_both_values() {
    let check = |text: &str| {
        let copy = ClusterSettings { election_ticks: 20, ..ClusterSettings::default() };
        resolved(text).check_member("s1", 7, &copy).map_err(|error| error.to_string())
    };
    assert_eq!(check(""), Ok(()));
    assert_eq!(check("cluster_id = 7\nname = 's1'\nregions = 5"), Ok(()));
    assert_eq!(check("[raft]\nelection_ticks = 20"), Ok(()));
    let refused = |text: &str| check(text).unwrap_err();
    assert!(refused("cluster_id = 8").contains("cluster_id = 8, but"));
    assert!(refused("name = 's2'").contains("is that of store s1"));
    let settings = refused("[raft]\nelection_ticks = 12");
    assert!(settings.contains("raft.election_ticks = 12 is given, but the cluster has 20"));
    assert!(refused("replicas = 1").contains("replicas = 1 is given, but the cluster has 3"));
    assert_eq!(check("api = 'v1ttl'"), Ok(()));
    assert!(refused("api = 'v2'").contains("api = v2 is given, but the cluster has v1ttl"));
}

#[test]
fn a_wrong_setting_is_refused_by_its_name() {
    assert!(refused("nmae = 'x'").contains("nmae"));
    assert!(refused("[raft]\ntick = 5").contains("tick"));
    assert!(refused("api = 'v1'").contains("api = \"v1\": expected v1ttl or v2"));
    assert!(refused("regions = 0").contains("regions = 0 is out of range: 1 to 9997"));
    assert!(refused("[raft]\nelection_ticks = 5").contains("three times raft.heartbeat_ticks"));
    assert!(refused("[raft]\nelection_ticks = 3").contains("3 is out of range: 4 to 10000, at"));
    assert!(refused("name = 'x'\ninitial_cluster = 'a=h:1,b=h:2'").contains("has a, b"));
    assert!(refused("initial_cluster = 's1'").contains("name=host:port"));
    assert!(refused("join = 'h:1'\nsplit_keys = 'x'").contains("join and split_keys are both"));
    assert!(refused("regions = 'many'").contains("regions"));
    assert!(refused("[raft]\nentry_bytes_max = 99999999").contains("entry_bytes_max"));
}

#[test]
fn each_setting_of_the_log_reaches_the_engine() {
    let log = |line: &str| resolved(&format!("[storage]\n{line}\n")).config.storage.store();
    assert_eq!(log("segment_bytes = 2097152").log.segment_bytes, 2 << 20);
    assert_eq!(log("log_purge_above_bytes = 5").log.purge_above_bytes, 5);
    assert_eq!(log("log_move_bytes_max = 0").log.move_bytes_max, 0);
    assert_eq!(log("log_move_live_ratio_max = 0.25").log.move_live_ratio_max, 0.25);
    assert_eq!(log("log_move_live_ratio_max = 1").log.move_live_ratio_max, 1.0);
    assert_eq!(log("log_spare_segments = 9").log.spare_segments, 9);
    assert_eq!(log("log_cache_bytes_max = 7").log.cache_bytes_max, 7);
    let limited = log("log_disk_bytes_max = 536870912");
    assert_eq!(limited.log.disk_bytes_max, Some(512 << 20));
    assert_eq!(limited.checkpoint_log_bytes, 128 << 20);
    let standard = flotilla_store::Config::default();
    assert_eq!(format!("{:?}", log("").log), format!("{:?}", standard.log));
    assert_eq!(log("").checkpoint_log_bytes, standard.checkpoint_log_bytes);
}

#[test]
fn each_setting_of_the_pages_reaches_the_engine_or_is_refused() {
    let store = |line: &str| resolved(&format!("[storage]\n{line}\n")).config.storage.store();
    assert_eq!(store("").pages.read_mode, PageReadMode::Mapped);
    assert_eq!(store("pages_read_mode = 'cached'").pages.read_mode, PageReadMode::Cached);
    assert_eq!(store("cache_bytes = 1048577").pages.cache_bytes, 1_048_577);
    assert_eq!(store("pages_growth_bytes = 5").pages.growth_bytes, 5);
    assert_eq!(store("pages_trim_bytes = 6").pages.trim_bytes, 6);
    assert_eq!(store("pages_move_bytes_max = 7").pages.defragment_bytes, 7);
    assert_eq!(store("pages_move_free_ratio_min = 0.25").pages.defragment_free_ratio_min, 0.25);
    assert_eq!(store("dirty_bytes_max = 8388608").pages.dirty_soft_bytes, 8 << 20);
    assert_eq!(store("dirty_bytes_max = 8388608").pages.dirty_hard_bytes, 32 << 20);
    assert_eq!(store("dirty_bytes_hard_max = 67108864").pages.dirty_hard_bytes, 64 << 20);
    assert_eq!(store("old_version_bytes = 4194304").pages.old_version_bytes, 4 << 20);
    let least = store("old_version_disk_bytes = 67108864").pages;
    assert_eq!(least.old_version_disk_bytes, 64 << 20);
    let standard = flotilla_store::Config::default();
    assert_eq!(format!("{:?}", store("")), format!("{standard:?}"));

    let wrong = |line: &str| refused(&format!("[storage]\n{line}"));
    assert!(wrong("pages_read_mode = 'quick'").contains("expected mapped or cached"));
    assert!(wrong("pages_move_free_ratio_min = nan").contains("nan is out of range: 0 to 1"));
    assert!(wrong("pages_growth_bytes = 1073741825").contains("pages_growth_bytes"));
    assert!(wrong("dirty_bytes_hard_max = 4194304").contains("less than storage.dirty_bytes_max"));
    let old = wrong("old_version_bytes = 4194303");
    assert!(old.contains("storage.old_version_bytes = 4194303 is out of range"), "{old}");
    let old = wrong("old_version_disk_bytes = 67108863");
    assert!(old.contains("storage.old_version_disk_bytes = 67108863 is out of range"), "{old}");
    assert!(wrong("old_version_bytes = '64 MB'").contains("\"MB\" is no unit of this key"));
    assert!(wrong("old_version_bytes_max = 4194304").contains("old_version_bytes"));
}

#[test]
fn the_scrub_has_its_interval_or_is_off() {
    let interval = |text: &str| resolved(text).config.scrub.pages_interval();
    assert_eq!(interval(""), flotilla_store::Config::default().pages.scrub_interval);
    assert_eq!(interval("[scrub]\npages_interval_ms = 0"), None);
    let minute = Some(std::time::Duration::from_secs(60));
    assert_eq!(interval("[scrub]\npages_interval_ms = 60000"), minute);
    let wrong = refused("[scrub]\npages_interval_ms = 59999");
    assert!(wrong.ends_with("59999 is out of range: 0, or at least 1m"), "{wrong}");
}

#[test]
fn replicas_are_compared_in_an_interval_or_never() {
    let verify = |text: &str| parsed(text).unwrap().resolve().unwrap().config.verify;
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    assert_eq!((verify("").interval(), verify("").bytes_per_s), (Some(day), 32 << 20));
    assert_eq!(verify("[verify]\ninterval_ms = 0").interval(), None);
    assert_eq!(verify("[verify]\ninterval_ms = \"2d\"").interval(), Some(2 * day));
}

#[test]
fn wrong_settings_of_the_log_are_refused_by_their_range_or_by_the_engine() {
    let wrong = |line: &str| refused(&format!("[storage]\n{line}"));
    let ratio =
        |given| format!("storage.log_move_live_ratio_max = {given} is out of range: 0 to 1");
    assert!(wrong("log_move_live_ratio_max = 1.5").ends_with(&ratio("1.5")));
    assert!(wrong("log_move_live_ratio_max = nan").ends_with(&ratio("nan")));
    let disk = |given: u64| {
        format!("storage.log_disk_bytes_max is {given} and must be at least eight segments")
    };
    assert_eq!(wrong("log_disk_bytes_max = 536870911"), disk(536_870_911));
    let larger = wrong("segment_bytes = 134217728\nlog_disk_bytes_max = 536870912");
    assert_eq!(larger, disk(536_870_912));
    assert!(wrong("log_spare_segments = -1").contains("log_spare_segments"));
}

#[test]
fn a_missing_file_is_named() {
    let mut layers = SettingLayers::default();
    layers.add_file(Path::new("/nowhere/flotilla.toml"));
    let error = layers.finish().unwrap_err().to_string();
    assert!(error.contains("cannot read /nowhere/flotilla.toml"), "{error}");
}

#[test]
fn flags_about_an_empty_directory_that_do_not_fit_are_refused() {
    let refused = |first_start, join: &str| {
        let config = NodeConfig { first_start, join: join.to_owned(), ..NodeConfig::default() };
        config.resolve().map(|resolved| resolved.contacts).map_err(|error| error.to_string())
    };
    let both = refused(FirstStart::New, "h:1").unwrap_err();
    assert!(both.contains("--join and --new are both given"), "{both}");
    let nowhere = refused(FirstStart::Replace, "").unwrap_err();
    assert!(nowhere.contains("--replace without --join"), "{nowhere}");
    assert_eq!(refused(FirstStart::Replace, "h:1, h:2").unwrap(), ["h:1", "h:2"]);
}
