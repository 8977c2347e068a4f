//! Keys and values on a command line and on a screen.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use bytes::Bytes;
pub(crate) use flotilla_node::config::escape_key as escape;
use flotilla_node::config::{KEY_ESCAPES, unescape_key};

use crate::tool::Error;

/// The format of keys and values in arguments and in output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteFormat {
    pub(crate) is_hex: bool,
    pub(crate) is_json: bool,
    /// Columns of the terminal that shows tables, if one does.
    pub(crate) screen_width: Option<usize>,
}

/// Columns of a terminal that does not tell them.
const SCREEN_WIDTH_USUAL: usize = 80;

/// The columns of the terminal that standard output is; `None` if it is none.
pub(crate) fn screen_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let told = || rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
    stdout.is_terminal().then(|| match told() {
        0 => SCREEN_WIDTH_USUAL,
        columns => columns,
    })
}

impl ByteFormat {
    /// The key that an argument stands for, written as keys are shown: escaped, or `--hex`.
    pub(crate) fn key(self, argument: &str) -> Result<Bytes, Error> {
        if self.is_hex {
            return unhex(argument);
        }
        unescape_key(argument)
            .ok_or_else(|| Error::Argument(format!("{argument:?} is no key: {KEY_ESCAPES}")))
    }

    /// The value that an argument stands for: its own bytes, backslashes too, or `--hex`.
    pub(crate) fn value(self, argument: &str) -> Result<Bytes, Error> {
        match self.is_hex {
            true => unhex(argument),
            false => Ok(Bytes::copy_from_slice(argument.as_bytes())),
        }
    }

    /// For a place where nothing else is: text, with what cannot be shown escaped.
    pub(crate) fn show(self, bytes: &[u8]) -> String {
        if self.is_hex { hex(bytes) } else { escape(bytes) }
    }

    /// For the middle of a sentence, where the empty key must be seen.
    pub(crate) fn quote(self, bytes: &[u8]) -> String {
        if self.is_hex { format!("0x{}", hex(bytes)) } else { format!("\"{}\"", escape(bytes)) }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The bytes of hexadecimal digits, with or without the `0x` with which keys are shown.
fn unhex(argument: &str) -> Result<Bytes, Error> {
    pairs(argument.strip_prefix("0x").unwrap_or(argument)).ok_or_else(|| {
        let wanted = "an even number of hexadecimal digits";
        Error::Argument(format!("--hex: {argument:?} is not {wanted}"))
    })
}

fn pairs(digits: &str) -> Option<Bytes> {
    let digits = digits.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    digits.chunks(2).map(byte).collect::<Option<Vec<_>>>().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_become_bytes_and_back() {
        let format = ByteFormat { is_hex: true, is_json: false, screen_width: None };
        assert_eq!(format.key("").unwrap(), "");
        assert_eq!(format.value("00fFa0").unwrap(), [0, 255, 160].as_slice());
        assert_eq!(format.show(&[0, 255, 160]), "00ffa0");
        for bad in ["0", "0g", "+1", "zz", "é", "0x0"] {
            assert_eq!(format.key(bad).unwrap_err().exit_code(), 2, "{bad}");
            assert_eq!(format.value(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn a_key_is_read_as_it_is_shown() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        for is_hex in [false, true] {
            let format = ByteFormat { is_hex, is_json: false, screen_width: None };
            for key in [&all[..], b"", b"a\\x41", "na\u{ef}ve \u{9b}".as_bytes()] {
                assert_eq!(format.key(&format.show(key)).unwrap(), key, "{is_hex}");
            }
            let quoted = format.quote(&all);
            assert_eq!(format.key(quoted.trim_matches('"')).unwrap(), all, "{is_hex}");
        }
        let format = ByteFormat { is_hex: false, is_json: false, screen_width: None };
        let error = format.key(r"C:\new").unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("two hexa"), "{error}");
        assert_eq!(format.value(r"C:\new").unwrap(), r"C:\new", "values are taken as they are");
    }

    #[test]
    fn what_would_spoil_the_screen_is_escaped() {
        let format = ByteFormat { is_hex: false, is_json: false, screen_width: None };
        assert_eq!(format.show("naïve \\ key".as_bytes()), "naïve \\\\ key");
        assert_eq!(format.show(b"a\x1b[2J\n\xff"), "a\\x1b[2J\\x0a\\xff");
        assert_eq!(format.show("\u{9b}".as_bytes()), "\\xc2\\x9b");
        assert_eq!(format.quote(b""), "\"\"");
    }
}
