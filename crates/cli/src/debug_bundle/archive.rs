//! The file of a bundle: a tar archive, compressed by gzip, for its owner alone.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tar::{Builder, Header};

use super::evidence::EvidencePart;
use crate::offline::{finish, named};
use crate::tool::Error;

/// The directory of all parts in the archive.
const DIRECTORY: &str = "flotilla-bundle";

/// Writes the parts behind the manifest, and makes the file durable.
pub(super) fn write(
    made: File,
    file: &Path,
    unix_time_s: u64,
    manifest: &Value,
    parts: &[EvidencePart],
) -> Result<(), Error> {
    let pack = || {
        let mut archive =
            Builder::new(GzEncoder::new(BufWriter::new(made), Compression::default()));
        let text = format!("{manifest:#}\n");
        append(&mut archive, unix_time_s, "manifest.json", text.as_bytes())?;
        for part in parts {
            append(&mut archive, unix_time_s, &part.path, &part.bytes)?;
        }
        finish(archive.into_inner()?.finish()?, file)
    };
    pack().map_err(|error| named(file, &error))
}

fn append(
    archive: &mut Builder<impl Write>,
    unix_time_s: u64,
    path: &str,
    bytes: &[u8],
) -> std::io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(unix_time_s);
    archive.append_data(&mut header, format!("{DIRECTORY}/{path}"), bytes)
}
