//! Redaction: keys of clients stay out of what a process logs.
//!
//! An error that names a key goes to the client who asked, into the log, or both. The key is
//! therefore wrapped where the text is made, and the process decides what becomes of it: with
//! redaction on, a wrapped key is `?` in every text but those that are made for the one who asked
//! ([`shown`]). Values are in no text at all. Off, as it is in a library, keys are shown; a program
//! that logs turns it on before it does anything else. Decision 51:
//! `docs/decisions/0051-keys-stay-out-of-logs.md`

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether wrapped keys are hidden in this process.
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The text at hand is for the one who asked.
    static IS_SHOWN: Cell<bool> = const { Cell::new(false) };
}

/// Turns redaction on or off, for the whole process and from now on.
pub fn set(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// Makes a text in which wrapped keys are shown whatever the process logs: an answer to the one who
/// sent them, or may read them anyway.
pub fn shown<T>(make: impl FnOnce() -> T) -> T {
    /// Also if `make` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_SHOWN.set(self.0);
        }
    }
    let _restore = Restore(IS_SHOWN.replace(true));
    make()
}

/// A key in a text that may be logged: in quotes and escaped, or `?` with redaction on.
#[derive(Clone, Copy)]
pub struct LogKey<'a>(pub &'a [u8]);

impl fmt::Display for LogKey<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if IS_ON.load(Ordering::Relaxed) && !IS_SHOWN.get() {
            return out.write_str("?");
        }
        write!(out, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for LogKey<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, for the switch is that of the whole process.
    #[test]
    fn a_key_is_hidden_but_for_the_one_who_asked() {
        let key = LogKey(b"ship\x00\"");
        let whole = "\"ship\\x00\\\"\"";
        assert_eq!(format!("{key} {key:?}"), format!("{whole} {whole}"));
        set(true);
        assert_eq!(format!("{key} {key:?}"), "? ?");
        let twice = shown(|| format!("{} {key}", shown(|| key.to_string())));
        assert_eq!(twice, format!("{whole} {whole}"));
        assert_eq!(key.to_string(), "?", "behind the answer as before");
        let panicked = std::panic::catch_unwind(|| shown(|| panic!("as an assertion does")));
        assert!(panicked.is_err() && key.to_string() == "?");
        set(false);
        assert_eq!(key.to_string(), whole);
    }
}
