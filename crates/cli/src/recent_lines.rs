//! The last lines of the log, kept in memory within a bound.

use std::collections::VecDeque;

/// Bytes of lines that are kept at most.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// Whole lines, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecentLines {
    bytes: VecDeque<u8>,
}

impl RecentLines {
    /// Keeps a line, and drops the oldest ones for it. Of one that is larger than the bound nothing
    /// is kept.
    pub(crate) fn push(&mut self, line: &[u8]) {
        if line.len() > KEPT_BYTES_MAX {
            return;
        }
        while self.bytes.len() + line.len() > KEPT_BYTES_MAX {
            let end = self.bytes.iter().position(|byte| *byte == b'\n');
            self.bytes.drain(..=end.unwrap_or(self.bytes.len() - 1));
        }
        self.bytes.extend(line);
    }

    /// All that is kept.
    pub(crate) fn text(&self) -> String {
        let (first, second) = self.bytes.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_whole_and_within_the_bound() {
        let mut recent = RecentLines::default();
        let line = |number: usize| format!("{number:>99}\n");
        for number in 0..4000 {
            recent.push(line(number).as_bytes());
        }
        let kept = KEPT_BYTES_MAX / 100;
        let expected: String = (4000 - kept..4000).map(line).collect();
        assert!(recent.text() == expected);
        recent.push(&[b'x'; KEPT_BYTES_MAX + 1]);
        assert!(recent.text() == expected, "too large to be kept");
        recent.push(&[b'x'; KEPT_BYTES_MAX]);
        assert_eq!(recent.text().len(), KEPT_BYTES_MAX);
        recent.push(b"y\n");
        assert_eq!(recent.text(), "y\n", "a line without an end goes as a whole");
    }
}
