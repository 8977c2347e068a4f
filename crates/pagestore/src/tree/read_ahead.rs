//! Read-ahead of a walk from leaf to leaf: asks the disk for the next leaves all at once where they
//! are not in memory.
//!
//! The map of the file is read at random, so a leaf that is not in memory costs the walk a whole
//! latency of the disk. The branch page names the leaves that follow. The walk begins *warm*: it
//! times its step to the third leaf and then one step of [`WARM_STEPS`], and a step that was slow
//! makes it probe the next leaves. If one of them is not in memory it is *cold*: it keeps between
//! half a window and a window of leaves asked for ahead of itself. The window doubles while the
//! walk goes on. Once all probes of new leaves are in memory the walk is warm again.
//! `docs/decisions/0025` has the reasons.

use crate::page::read_timer::ReadTimer;
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::page::view::PageBytes;
use crate::page::{PageRef, branch};

/// The first step that is timed. A scan of a few keys seldom comes to its third leaf, and pays
/// nothing.
const FIRST_STEP: usize = 2;

/// One of so many steps of a warm walk is timed: two looks at the clock cost 5 % of a step.
const WARM_STEPS: usize = 16;

/// Leaves of the first window. A short scan pays for what it does not use.
const WINDOW_LEAVES_MIN: usize = 4;

/// Units of the last window: enough requests for every queue of a disk.
const WINDOW_UNITS_MAX: usize = 128;

/// Leaves whose state is asked for before a window is.
const PROBES: usize = 4;

/// The direction of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkDirection {
    Forward,
    Backward,
}

/// The state of the read-ahead of one walk.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    /// Steps until the next look, this one included.
    due: usize,
    /// The value of `due` after the last look.
    steps: usize,
    /// Leaves of this branch that were asked for, or found in memory, ahead of the last look.
    ahead: usize,
    /// Leaves to ask for; none while the walk is warm.
    window: usize,
}

/// A look that is due at a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadAheadLook {
    /// The walk is warm, and the step is timed.
    Warm(ReadTimer),
    Cold,
}

impl ReadAhead {
    pub(crate) fn new() -> ReadAhead {
        ReadAhead { due: FIRST_STEP, steps: FIRST_STEP, ahead: 0, window: 0 }
    }

    /// To be called before each step.
    #[inline]
    pub(crate) fn step(&mut self) -> Option<ReadAheadLook> {
        // After a step that has failed it is 0 already.
        self.due = self.due.saturating_sub(1);
        if self.due > 0 {
            return None;
        }
        Some(match self.window {
            0 => ReadAheadLook::Warm(ReadTimer::start()),
            _ => ReadAheadLook::Cold,
        })
    }

    /// To be called after a step for which a look was due. `branches` lead to the leaf where the
    /// walk is now.
    pub(crate) fn look(
        &mut self,
        look: ReadAheadLook,
        source: &dyn PageSource,
        branches: &[(PageBytes<'_>, usize)],
        direction: WalkDirection,
    ) {
        let is_slow = match look {
            ReadAheadLook::Warm(timer) => timer.is_slow(),
            ReadAheadLook::Cold => true,
        };
        if is_slow {
            self.ask(source, branches, direction);
        } else {
            self.rest(WARM_STEPS);
        }
    }

    /// Asks for the leaves of the next window that were not asked for yet.
    #[cold]
    fn ask(
        &mut self,
        source: &dyn PageSource,
        branches: &[(PageBytes<'_>, usize)],
        direction: WalkDirection,
    ) {
        let Some((page, at)) = branches.last() else { return self.rest(WARM_STEPS) };
        let node = SlottedPage(page);
        let left = siblings(node, *at, direction);
        debug_assert!(left <= node.count(), "{left} siblings of child {at}");
        let units = sibling(node, *at, 1.min(left), direction).units().max(1) as usize;
        let window_max = (WINDOW_UNITS_MAX / units).max(WINDOW_LEAVES_MIN);
        let window = (2 * self.window).clamp(WINDOW_LEAVES_MIN, window_max);
        let known = self.ahead.saturating_sub(self.steps);
        let end = window.min(left);
        let mut pages: Vec<PageRef> =
            (known..end).map(|i| sibling(node, *at, i + 1, direction)).collect();
        // At its end the walk comes to the next branch.
        if end == left
            && let [.., (parent, at), _] = branches
            && siblings(SlottedPage(parent), *at, direction) > 0
        {
            pages.push(sibling(SlottedPage(parent), *at, 1, direction));
        }
        if !pages.is_empty() && !source.read_ahead(&mut pages, PROBES) {
            self.window = 0;
            return self.rest(WARM_STEPS);
        }
        self.window = window;
        self.ahead = end;
        // The step out of this branch makes the next look.
        self.steps = if end == left { left + 1 } else { window / 2 };
        self.due = self.steps;
        debug_assert!(self.due > 0, "a look is never due");
    }

    /// Nothing is known of the leaves ahead, and the next look is after so many steps.
    fn rest(&mut self, steps: usize) {
        (self.due, self.steps, self.ahead) = (steps, steps, 0);
    }
}

/// Children behind child `at`.
fn siblings(node: SlottedPage<'_>, at: usize, direction: WalkDirection) -> usize {
    match direction {
        WalkDirection::Forward => node.count() - at,
        WalkDirection::Backward => at,
    }
}

/// The child that lies `distance` behind child `at`.
fn sibling(node: SlottedPage<'_>, at: usize, distance: usize, direction: WalkDirection) -> PageRef {
    match direction {
        WalkDirection::Forward => branch::child(node, at + distance),
        WalkDirection::Backward => branch::child(node, at - distance),
    }
}
