//! The table of procedures, each a test of its own: how to add one stands in `main.rs`.

mod disks;
mod evidence;
mod losses;
mod members;
mod tls;

use std::collections::BTreeSet;

use crate::markdown::Guide;
use crate::site::Site;

/// A section of the guide whose commands are carried out.
pub(crate) struct Procedure {
    /// The heading of the section.
    pub(crate) heading: &'static str,
    /// Headings of procedures that are carried out before, at the same site, behind those that
    /// they begin with.
    pub(crate) begins_with: &'static [&'static str],
    /// In the order in which they happen.
    pub(crate) steps: &'static [ProcedureStep],
}

/// A part of a procedure.
pub(crate) enum ProcedureStep {
    /// The next block of commands of the section.
    Commands,
    /// Something that happens, or that must hold by now.
    World(fn(&mut Site)),
}

use ProcedureStep::{Commands, World};

/// Makes the table, and a test for each of its entries.
macro_rules! procedures {
    ($($test:ident: $procedure:expr,)*) => {
        /// All procedures.
        pub(crate) const PROCEDURES: &[Procedure] = &[$($procedure),*];

        $(#[test]
        fn $test() {
            carry_out(&$procedure);
        })*
    };
}

procedures! {
    a_package_is_installed: Procedure {
        heading: "Install",
        begins_with: &[],
        steps: &[Commands],
    },
    a_cluster_begins: Procedure {
        heading: "Begin a cluster",
        begins_with: &["Install"],
        steps: &[
            World(members::a_store_without_settings_does_not_start),
            Commands,
            Commands,
            Commands,
            World(members::three_stores_serve),
        ],
    },
    a_store_is_added: Procedure {
        heading: "Add a store",
        begins_with: &["Begin a cluster"],
        steps: &[Commands, Commands, World(members::the_fourth_store_gets_replicas)],
    },
    a_store_is_restarted: Procedure {
        heading: "Restart a store",
        begins_with: &["Begin a cluster"],
        steps: &[Commands, World(members::the_first_store_leads_nothing), Commands, Commands],
    },
    a_cluster_is_upgraded: Procedure {
        heading: "Upgrade a cluster",
        begins_with: &["Begin a cluster"],
        steps: &[Commands, World(members::each_store_has_started_twice)],
    },
    a_store_is_taken_away: Procedure {
        heading: "Take a store away",
        begins_with: &["Add a store"],
        steps: &[Commands, World(members::the_fourth_store_has_ended), Commands],
    },
    a_store_that_lost_its_disk_is_replaced: Procedure {
        heading: "Replace a store that lost its disk",
        begins_with: &["Begin a cluster"],
        steps: &[
            World(members::the_second_store_loses_its_disk),
            Commands,
            Commands,
            World(members::the_second_store_gets_replicas),
            Commands,
            World(members::the_second_store_starts_again),
        ],
    },
    a_disk_that_still_works_is_replaced: Procedure {
        heading: "Replace a disk that still works",
        begins_with: &["Begin a cluster"],
        steps: &[
            World(members::a_new_disk_is_mounted_aside),
            Commands,
            World(members::the_new_disk_is_mounted_in_its_place),
            Commands,
            World(members::each_store_serves),
        ],
    },
    a_store_that_does_not_come_back_is_declared_lost: Procedure {
        heading: "A store that does not come back, and no new disk",
        begins_with: &["Begin a cluster"],
        steps: &[
            World(members::the_second_store_dies),
            World(members::the_second_store_is_silent_for_long),
            Commands,
            World(members::the_second_store_is_lost),
        ],
    },
    keys_are_read_and_written: Procedure {
        heading: "Read and write keys",
        begins_with: &["Begin a cluster"],
        steps: &[Commands],
    },
    stores_are_looked_at: Procedure {
        heading: "Look at the stores",
        begins_with: &["Begin a cluster"],
        steps: &[Commands],
    },
    regions_are_looked_at: Procedure {
        heading: "Look at the regions",
        begins_with: &["Begin a cluster"],
        steps: &[Commands],
    },
    replicas_are_compared: Procedure {
        heading: "Compare the replicas of a region",
        begins_with: &["Begin a cluster"],
        steps: &[Commands],
    },
    a_cluster_is_monitored: Procedure {
        heading: "Monitor",
        begins_with: &["Begin a cluster"],
        steps: &[Commands],
    },
    repair_is_paused: Procedure {
        heading: "Pause repair",
        begins_with: &["Begin a cluster"],
        steps: &[Commands],
    },
    a_store_answers_again: Procedure {
        heading: "A store does not answer",
        begins_with: &["Begin a cluster"],
        steps: &[
            World(members::the_second_store_dies),
            Commands,
            World(members::the_second_store_gets_replicas),
        ],
    },
    regions_have_leaders_again: Procedure {
        heading: "Regions have no leader",
        begins_with: &["Begin a cluster"],
        steps: &[World(members::two_stores_die), Commands, Commands],
    },
    a_store_with_a_full_disk_takes_puts_again: Procedure {
        heading: "A disk is full",
        begins_with: &["Begin a cluster"],
        steps: &[
            World(disks::the_disk_of_the_second_store_is_full),
            Commands,
            World(disks::the_bound_is_lowered),
            Commands,
            World(disks::the_disk_has_room_again),
        ],
    },
    a_store_with_a_slow_disk_leads_nothing: Procedure {
        heading: "The disk is slow",
        begins_with: &["Begin a cluster"],
        steps: &[Commands, World(members::the_second_store_leads_nothing)],
    },
    a_certificate_is_renewed: Procedure {
        heading: "A certificate ends",
        begins_with: &["Turn TLS on"],
        steps: &[Commands, World(tls::the_certificate_is_read_again)],
    },
    tls_is_turned_on: Procedure {
        heading: "Turn TLS on",
        begins_with: &["Begin a cluster"],
        steps: &[
            Commands,
            Commands,
            Commands,
            World(tls::a_client_without_a_certificate_is_served),
            Commands,
            Commands,
            World(tls::a_client_without_a_certificate_is_refused),
        ],
    },
    a_cluster_is_backed_up_and_restored: Procedure {
        heading: "Back up and restore",
        begins_with: &["Begin a cluster"],
        steps: &[
            Commands,
            World(losses::a_second_cluster_begins),
            Commands,
            Commands,
            World(losses::the_second_cluster_has_the_rows),
        ],
    },
    a_majority_is_lost: Procedure {
        heading: "A majority is lost",
        begins_with: &["Begin a cluster"],
        steps: &[
            World(members::two_stores_die),
            Commands,
            World(losses::the_id_of_the_cluster_was_read),
            Commands,
            World(losses::the_survivor_serves_and_the_others_never_again),
        ],
    },
    evidence_is_collected: Procedure {
        heading: "Collect evidence",
        begins_with: &["Begin a cluster"],
        steps: &[World(evidence::a_store_dies), Commands, World(evidence::the_bundle_is_whole)],
    },
}

/// Carries a procedure out at a new site.
fn carry_out(procedure: &Procedure) {
    reach(procedure, &Guide::read(), &mut Site::new(), &mut BTreeSet::new());
}

/// Carries a procedure out behind those that it begins with, each of them once.
fn reach(procedure: &Procedure, guide: &Guide, site: &mut Site, done: &mut BTreeSet<&'static str>) {
    if !done.insert(procedure.heading) {
        return;
    }
    for heading in procedure.begins_with {
        let first = PROCEDURES.iter().find(|it| it.heading == *heading);
        reach(first.expect("it is in the table"), guide, site, done);
    }
    steps_of(procedure, guide, site);
}

fn steps_of(procedure: &Procedure, guide: &Guide, site: &mut Site) {
    let mut blocks = guide.section(procedure.heading).blocks.iter();
    for step in procedure.steps {
        match step {
            Commands => site.carry_out(blocks.next().expect("a step for each block")),
            World(happens) => happens(site),
        }
    }
}
