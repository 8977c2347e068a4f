//! Values from arguments, files and standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flotilla_node::config::ENTRY_BYTES_MAX;
use tokio::task::spawn_blocking;

use super::text::ByteFormat;
use crate::tool::Error;

/// The name of standard input among files and values.
const STANDARD_INPUT: &str = "-";

/// A value on the command line, or the place where it is.
#[derive(Clone, Debug)]
pub(super) enum ValueSource {
    Argument(String),
    File(PathBuf),
}

impl ValueSource {
    /// The source that two arguments name, of which the parser lets one be given at most.
    pub(super) fn of(argument: Option<&String>, file: Option<&PathBuf>) -> Option<ValueSource> {
        let file = file.map(|path| ValueSource::File(path.clone()));
        file.or_else(|| argument.map(|value| ValueSource::Argument(value.clone())))
    }

    /// Whether it is standard input.
    pub(super) fn is_standard(&self) -> bool {
        match self {
            ValueSource::Argument(value) => value == STANDARD_INPUT,
            ValueSource::File(path) => is_standard(path),
        }
    }

    /// The value: of an argument as `format` has it, of a file all bytes as they are.
    ///
    /// # Cancel safety
    ///
    /// Bytes that were read are lost, and a thread may go on to read.
    pub(super) async fn read(self, format: ByteFormat) -> Result<Bytes, Error> {
        let is_standard = self.is_standard();
        let path = match self {
            ValueSource::Argument(value) if !is_standard => return format.value(&value),
            ValueSource::Argument(_) => PathBuf::new(),
            ValueSource::File(path) => path,
        };
        // A pipe may never end: the thread is left behind then, and not the command.
        let reading = spawn_blocking(move || match is_standard {
            true => read_all(io::stdin().lock(), "standard input"),
            false => {
                let name = path.display().to_string();
                let file = File::open(&path).map_err(|error| unreadable(&name, &error))?;
                read_all(file, &name)
            }
        });
        // It is not aborted, so this can only be its panic, which belongs to the caller.
        reading.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

/// Whether a path stands for the standard stream.
pub(super) fn is_standard(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// All that `source` has, and hardly more than a value may have.
fn read_all(source: impl Read, name: &str) -> Result<Bytes, Error> {
    let mut value = vec![];
    let read = source.take(ENTRY_BYTES_MAX + 1).read_to_end(&mut value);
    read.map_err(|error| unreadable(name, &error))?;
    if value.len() as u64 > ENTRY_BYTES_MAX {
        return Err(Error::Argument(format!(
            "{name} has more than {ENTRY_BYTES_MAX} bytes, which no cluster takes as a value: \
             raft.entry_bytes_max is at most that"
        )));
    }
    Ok(value.into())
}

fn unreadable(name: &str, error: &io::Error) -> Error {
    Error::Argument(format!("cannot read the value from {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_up_to_its_limit() {
        assert_eq!(read_all(&b"\x00\xff\n"[..], "f").unwrap(), &b"\x00\xff\n"[..]);
        let most = ENTRY_BYTES_MAX as usize;
        assert_eq!(read_all(io::repeat(7).take(most as u64), "f").unwrap().len(), most);
        let endless = read_all(io::repeat(7), "standard input").unwrap_err();
        assert_eq!(endless.exit_code(), 2);
        let words = endless.to_string();
        assert!(words.starts_with("standard input has more than 12582912 bytes"), "{words}");
    }

    #[tokio::test]
    async fn an_argument_is_a_value_and_a_file_has_bytes_as_they_are() {
        let format = ByteFormat { is_hex: true, is_json: false, screen_width: None };
        let (argument, file) = ("00ff".to_owned(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(file.path(), "00ff\n").unwrap();
        let of = |argument, file| ValueSource::of(argument, file).unwrap();
        let path = file.path().to_owned();
        assert_eq!(of(Some(&argument), None).read(format).await.unwrap(), &b"\x00\xff"[..]);
        assert_eq!(of(None, Some(&path)).read(format).await.unwrap(), "00ff\n");
        let nowhere = path.join("nowhere");
        let error = of(None, Some(&nowhere)).read(format).await.unwrap_err().to_string();
        assert!(error.contains(&nowhere.display().to_string()), "{error}");
        assert!(ValueSource::of(None, None).is_none());
    }
}
