//! Calls and returns of a history by moment, as a list that can be thinned and mended.

/// What stands at one place of the list: the call or the return of an operation.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Call(usize),
    Return(usize),
}

/// Calls and returns by moment, in a list from which marks are lifted and put back in reverse
/// order. Mark `2p + 1` is the call of operation `p`, `2p + 2` its return, 0 the head.
pub(super) struct List {
    next: Vec<usize>,
    previous: Vec<usize>,
    has_return: Vec<bool>,
}

impl List {
    pub(super) fn new(operations: impl Iterator<Item = (u64, Option<u64>)>) -> Self {
        let (mut marks, mut has_return) = (Vec::new(), Vec::new());
        for (place, (called, returned)) in operations.enumerate() {
            marks.push((called, false, Self::call(place)));
            marks.extend(returned.map(|at| (at, true, Self::call(place) + 1)));
            has_return.push(returned.is_some());
        }
        // At equal moments calls come first: such operations overlap.
        marks.sort_unstable();
        let mut list = Self {
            next: vec![0; 2 * has_return.len() + 1],
            previous: vec![0; 2 * has_return.len() + 1],
            has_return,
        };
        let mut last = 0;
        for (_, _, mark) in marks {
            list.next[last] = mark;
            list.previous[mark] = last;
            last = mark;
        }
        list.previous[0] = last;
        list
    }

    pub(super) fn call(place: usize) -> usize {
        2 * place + 1
    }

    pub(super) fn first(&self) -> usize {
        self.next[0]
    }

    pub(super) fn after(&self, mark: usize) -> usize {
        self.next[mark]
    }

    pub(super) fn kind(&self, mark: usize) -> Mark {
        assert!(mark > 0, "the list ends only after the last return, and then nothing is left");
        if mark % 2 == 1 { Mark::Call(mark / 2) } else { Mark::Return(mark / 2 - 1) }
    }

    pub(super) fn lift(&mut self, place: usize) {
        self.unlink(Self::call(place));
        if self.has_return[place] {
            self.unlink(Self::call(place) + 1);
        }
    }

    pub(super) fn put_back(&mut self, place: usize) {
        if self.has_return[place] {
            self.link(Self::call(place) + 1);
        }
        self.link(Self::call(place));
    }

    fn unlink(&mut self, mark: usize) {
        let (before, after) = (self.previous[mark], self.next[mark]);
        self.next[before] = after;
        self.previous[after] = before;
    }

    fn link(&mut self, mark: usize) {
        let (before, after) = (self.previous[mark], self.next[mark]);
        self.next[before] = mark;
        self.previous[after] = mark;
    }
}
