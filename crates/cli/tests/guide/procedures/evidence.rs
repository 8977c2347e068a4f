//! A bundle of evidence, of a cluster with a store that does not answer.

use crate::site::Site;

pub(super) fn a_store_dies(site: &mut Site) {
    site.run("s1", "flotilla ctl region split --key secret-border");
    site.run("s1", "flotilla ctl put secret-key secret-value");
    site.kill("s3");
}

pub(super) fn the_bundle_is_whole(site: &mut Site) {
    for part in [
        "manifest.json",
        "cluster/stores.json",
        "cluster/regions.json",
        "cluster/repair.json",
        "stores/s1/metrics.txt",
        "stores/s1/settings.json",
        "stores/s1/log-lines.txt",
        "stores/s2/store.json",
        "stores/s2/regions.json",
        "machine/proc/version",
    ] {
        let path = format!("flotilla-bundle/{part}\n");
        assert!(site.said.contains(&path), "no {part} in {}", site.said);
    }
    assert!(!site.said.contains("stores/s3/"), "it does not answer: {}", site.said);
    let unpacked = site.run("s1", "tar -xzOf /var/tmp/bundle.tar.gz");
    assert!(unpacked.contains("stores/s3: no answer"), "s3 is to be noted");
    assert!(unpacked.contains("flotilla_store_info"), "metrics");
    assert!(unpacked.contains("the node serves"), "lines of the log");
    assert!(unpacked.contains("\"pages_read_mode\": \"mapped\""), "settings with defaults");
    for secret in ["secret", "7365637265742d", "c2VjcmV0"] {
        assert!(!unpacked.contains(secret), "{secret} is in the bundle");
    }
}
