//! Losses that replicas cannot mend: a majority of stores, or all of them.

use std::fs;

use crate::site::Site;

/// The id in the first line of what `flotilla recover` has shown, for the operator to give.
pub(super) fn the_id_of_the_cluster_was_read(site: &mut Site) {
    let mut words = site.said.split_whitespace();
    let id = words.by_ref().skip_while(|word| *word != "cluster").nth(1);
    let id: u64 = id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{}", site.said));
    let profile = site.root("s1").join("etc/profile.d/cluster.sh");
    fs::write(profile, format!("export CLUSTER={id}\n")).unwrap();
}

pub(super) fn the_survivor_serves_and_the_others_never_again(site: &mut Site) {
    let found = site.run("s1", "flotilla ctl --timeout 60s get ship");
    assert_eq!(found, "Vasa\n", "the value that the guide has put");
    for machine in ["s2", "s3"] {
        site.run(machine, "systemctl start flotilla");
        site.until(machine, "! systemctl is-active flotilla > /dev/null");
        let journal = site.journal(machine);
        assert!(journal.contains("was declared lost"), "{machine}: {journal}");
    }
}

/// Of one store, where the first one has three.
pub(super) fn a_second_cluster_begins(site: &mut Site) {
    let settings = "cat > /etc/flotilla/flotilla.toml <<END\nname = \"s4\"\n\
                    data_dir = \"/var/lib/flotilla\"\ninitial_cluster = \"s4=10.0.0.4:20160\"\nEND\n\
                    systemctl enable --now flotilla\n";
    site.run("s4", settings);
    let is_empty = "flotilla ctl --endpoints 10.0.0.4:20160 --timeout 60s scan --limit 1";
    let found = site.run("s4", is_empty);
    assert!(found.ends_with("rows: 0\n"), "the second cluster has rows: {found}");
}

pub(super) fn the_second_cluster_has_the_rows(site: &mut Site) {
    let found = site.run("s4", "flotilla ctl --endpoints 10.0.0.4:20160 get ship");
    assert_eq!(found, "Vasa\n", "the value that was put into the first cluster");
}
