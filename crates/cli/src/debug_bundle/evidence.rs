//! The parts of a bundle, within bounds, and notes about what is missing.

use bytes::Bytes;
use parking_lot::Mutex;

use super::redaction;

/// Bytes of one part at most.
pub(super) const PART_BYTES_MAX: usize = 16 << 20;
/// Bytes of all parts at most, before they are compressed.
const ALL_BYTES_MAX: usize = 128 << 20;
/// Notes at most: a cluster has few stores, and each few documents.
const NOTES_MAX: usize = 1000;

/// A file of the bundle.
pub(super) struct EvidencePart {
    /// Below the bundle's directory.
    pub(super) path: String,
    pub(super) bytes: Bytes,
}

/// Parts and notes, which are gathered from many places at the same time.
#[derive(Default)]
pub(super) struct Evidence {
    gathered: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    parts: Vec<EvidencePart>,
    bytes: usize,
    notes: Vec<String>,
}

impl Evidence {
    /// Adds a text that has no keys of clients.
    pub(super) fn add(&self, path: &str, bytes: Bytes) {
        let gathered = &mut *self.gathered.lock();
        if bytes.len() > PART_BYTES_MAX || gathered.bytes + bytes.len() > ALL_BYTES_MAX {
            let why = format!("{path}: left out, for it has {} bytes", bytes.len());
            gathered.note(why);
            return;
        }
        gathered.bytes += bytes.len();
        gathered.parts.push(EvidencePart { path: path.to_owned(), bytes });
    }

    /// Adds a JSON document without the keys of clients in it.
    pub(super) fn add_json(&self, path: &str, document: &[u8]) {
        match redaction::without_keys(document) {
            Ok(document) => self.add(path, document.into()),
            Err(error) => self.note(format!("{path}: it is no JSON: {error}")),
        }
    }

    /// Notes that something is missing, and why.
    pub(super) fn note(&self, why: String) {
        self.gathered.lock().note(why);
    }

    /// All of it, in the order of the paths.
    pub(super) fn take(&self) -> (Vec<EvidencePart>, Vec<String>) {
        let mut gathered = std::mem::take(&mut *self.gathered.lock());
        gathered.parts.sort_by(|a, b| a.path.cmp(&b.path));
        (gathered.parts, gathered.notes)
    }
}

impl Gathered {
    fn note(&mut self, why: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_bounds_and_says_what_they_left_out() {
        let evidence = Evidence::default();
        evidence.add("b", vec![0; PART_BYTES_MAX].into());
        evidence.add("a", vec![0; PART_BYTES_MAX + 1].into());
        for number in 0..ALL_BYTES_MAX / PART_BYTES_MAX {
            evidence.add(&format!("c{number}"), vec![0; PART_BYTES_MAX].into());
        }
        evidence.add_json("d", b"{");
        let (parts, notes) = evidence.take();
        let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
        assert_eq!((parts[0].path.as_str(), bytes), ("b", ALL_BYTES_MAX));
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert_eq!(notes[0], "a: left out, for it has 16777217 bytes");
        assert!(notes[2].starts_with("d: it is no JSON"), "{notes:?}");
    }
}
