//! Children of tests that lock files, in a process where other tests have children, too.
//!
//! A child has all files of its parent between `fork` and `exec`, and with them their locks. So a
//! file that one test has just closed can still be locked by the child that another test begins.

use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};

static FORKS: Mutex<()> = Mutex::new(());

fn none_under_way() -> MutexGuard<'static, ()> {
    FORKS.lock().unwrap()
}

/// Runs a command to its end. No file is locked any more that this test has closed before.
pub(crate) fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child: Child = {
        // It has its own program when `spawn` returns.
        let _alone = none_under_way();
        command.spawn().unwrap()
    };
    child.wait_with_output().unwrap()
}

/// Waits until no file is locked any more that this test has closed before.
pub(crate) fn settle() {
    drop(none_under_way());
}
