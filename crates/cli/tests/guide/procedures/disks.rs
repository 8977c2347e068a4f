//! Disks that fill up.

use std::fs;

use super::members::told;
use crate::site::Site;

/// A bound that no disk is above, and one that the disk of these tests is.
const BOUNDS: [&str; 2] = ["1024TiB", "256MiB"];

/// Waits until the second store says this of its disk.
fn the_disk_is(site: &Site, usage: &str) {
    let is_it = |site: &Site| told(site, "s2", "disk_usage") == usage;
    site.until_holds(&format!("the disk of s2 is {usage}"), is_it);
}

/// A disk is full whose free space is below a bound: here it is the bound that changes.
pub(super) fn the_disk_of_the_second_store_is_full(site: &mut Site) {
    let bound = BOUNDS[0];
    let append = format!("printf '[disk]\\nfull_free_bytes = \"{bound}\"\\n'");
    site.run(
        "s2",
        &format!(
            "{append} >> /etc/flotilla/flotilla.toml\n\
             env -u FLOTILLA_DISK_FULL_FREE_BYTES systemctl restart flotilla"
        ),
    );
    the_disk_is(site, "full");
    let leads_nothing = |site: &Site| told(site, "s2", "leaders") == 0;
    site.until_holds("s2 leads nothing", leads_nothing);
    // A store that has just started does not know the leaders of its replicas, and says that first.
    let knows_leaders = |site: &Site| told(site, "s2", "replicas_without_leader") == 0;
    site.until_holds("s2 knows its leaders", knows_leaders);
}

/// Writes go on without that store. The operator lowers its bound.
pub(super) fn the_bound_is_lowered(site: &mut Site) {
    assert!(site.said.contains("up, disk full"), "{}", site.said);
    site.run("s1", "flotilla ctl put ship Fram");
    let file = site.root("s2").join("etc/flotilla/flotilla.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(BOUNDS[0]), "{text}");
    fs::write(file, text.replace(BOUNDS[0], BOUNDS[1])).unwrap();
}

pub(super) fn the_disk_has_room_again(site: &mut Site) {
    the_disk_is(site, "normal");
    assert!(site.journal("s2").contains("the disk has room again"), "{}", site.journal("s2"));
}
