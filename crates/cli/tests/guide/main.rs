//! The procedures of `docs/operations.md`, carried out as they are written.
//!
//! The guide's commands are its blocks of `sh` whose first line says where they are given: `# on
//! s1`, `# on each of s1, s2, s3`, or `# anywhere`. All other blocks are examples. This program
//! takes the blocks from the guide, and runs them by `bash`, each command of which must succeed,
//! at a [`site::Site`]: machines `s1` to `s9` with stores that are real processes (decision 57,
//! `docs/decisions/0057-a-package-starts-nothing.md`).
//!
//! To add a procedure: write its section in the guide, and an entry for it in the table of
//! `procedures/mod.rs`, the name of a test and a [`procedures::Procedure`]:
//! - `heading`: that of the section;
//! - `begins_with`: headings of procedures that are carried out before it, as `Begin a cluster`,
//!   with those that they begin with;
//! - `steps`: [`procedures::ProcedureStep::Commands`] for each block of the section, in their
//!   order, with [`procedures::ProcedureStep::World`] where something happens between them that no
//!   operator does (a machine dies), or where there is something to check. Such functions get the
//!   site, and lie in a file of `procedures/` for each subject.
//!
//! Addresses in the guide are `10.0.0.1:20160` for `s1`, and so on; files are below `/etc`, `/var`
//! or `/mnt`; `systemctl`, `journalctl`, `hostname` and `apt-get` are there (`machine/`), and all
//! that a shell has. Commands that are to be refused stand in a `World` step, or as `if flotilla
//! ...; then exit 1; fi`; of `! flotilla ...` a shell takes no notice but at the end of a block.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod markdown;
mod procedures;
mod site;

use std::collections::BTreeSet;

use markdown::Guide;
use procedures::{PROCEDURES, ProcedureStep};

#[test]
fn each_section_with_commands_is_in_the_table_with_all_of_them() {
    let guide = Guide::read();
    let run: BTreeSet<_> = PROCEDURES.iter().map(|procedure| procedure.heading).collect();
    assert_eq!(run.len(), PROCEDURES.len(), "a heading is in the table twice");
    for section in guide.sections.iter().filter(|section| !section.blocks.is_empty()) {
        let heading = section.heading.as_str();
        assert!(run.contains(heading), "no procedure carries out the commands of {heading:?}");
    }
    for procedure in PROCEDURES {
        let blocks = guide.section(procedure.heading).blocks.len();
        let commands =
            procedure.steps.iter().filter(|step| matches!(step, ProcedureStep::Commands));
        assert_eq!(blocks, commands.count(), "blocks of {:?}, and steps", procedure.heading);
        assert!(blocks > 0, "{:?} has no commands", procedure.heading);
        for heading in procedure.begins_with {
            assert!(run.contains(heading), "{:?} begins with {heading:?}", procedure.heading);
        }
    }
}
