//! Keyspaces: the named parts of the key space under TiKV's API V2.
//!
//! One is there from the start, `DEFAULT`. The others are in one row of the system region, in the
//! order of their ids, which rise by one. None is ever taken out, so no id comes twice.

use crate::rows::{KEYSPACES_KEY, RowSwap};

/// Keyspaces that can be made: the row is written whole.
pub const KEYSPACES_MAX: usize = 1_000;
/// The name of the keyspace with the id 0.
pub const DEFAULT_KEYSPACE: &str = "DEFAULT";

/// The format of the row.
const VERSION: u8 = 1;
/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 20;

/// A keyspace. All are enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    /// Its number, which is in each of its keys: three bytes.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970; 0 for the one that is there from the start.
    pub created_s: u64,
}

/// The keyspaces of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspaces {
    all: Vec<Keyspace>,
    /// The row that they were read from.
    row: Option<Vec<u8>>,
}

/// Bytes that are no row of keyspaces. Nothing can be said of the keyspaces then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {}: {bytes} bytes that are not keyspaces of version {VERSION}", KEYSPACES_KEY.escape_ascii())]
pub struct MalformedKeyspaces {
    bytes: usize,
}

/// Why a keyspace is not made; the first three in PD's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyspaceRefusal {
    /// The name has other characters, none, or too many.
    #[error(
        "illegal keyspace name {0}, should contain only alphanumerical and underline, and hyphens, \
         1 to {NAME_BYTES_MAX} of them"
    )]
    Name(String),
    /// The name is that of the first keyspace.
    #[error("illegal keyspace name {0}, collides with a protected keyspace name")]
    Protected(String),
    /// There is one of this name.
    #[error("keyspace already exists")]
    Exists,
    /// Those of a backup do not go with those that are there.
    #[error("the cluster has other keyspaces than the backup")]
    Others,
    /// There are as many as there may be.
    #[error(
        "there are {KEYSPACES_MAX} keyspaces besides {DEFAULT_KEYSPACE}, and no more can be made"
    )]
    TooMany,
}

impl Keyspaces {
    /// The keyspaces of a row; only `DEFAULT` without one.
    ///
    /// # Errors
    ///
    /// The row is damaged, or of a format that this version does not know.
    pub fn recover(row: Option<&[u8]>) -> Result<Self, MalformedKeyspaces> {
        let mut all = vec![Keyspace { id: 0, name: DEFAULT_KEYSPACE.to_owned(), created_s: 0 }];
        if let Some(row) = row {
            let malformed = MalformedKeyspaces { bytes: row.len() };
            let (version, mut rest) = row.split_first().ok_or(malformed)?;
            if *version != VERSION {
                return Err(malformed);
            }
            while !rest.is_empty() {
                let keyspace = take(&mut rest).ok_or(malformed)?;
                // They rise by one, so the next id follows from the last.
                if keyspace.id as usize != all.len() || all.len() > KEYSPACES_MAX {
                    return Err(malformed);
                }
                all.push(keyspace);
            }
        }
        Ok(Self { all, row: row.map(<[u8]>::to_vec) })
    }

    /// All of them, by id.
    #[must_use]
    pub fn all(&self) -> &[Keyspace] {
        &self.all
    }

    /// The one of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Keyspace> {
        self.all.iter().find(|keyspace| keyspace.name == name)
    }

    /// The write that makes a keyspace of this name, and the keyspace that there is then.
    ///
    /// # Errors
    ///
    /// Why there can be none.
    pub fn create(
        &self,
        name: &str,
        created_s: u64,
    ) -> Result<(RowSwap, Keyspace), KeyspaceRefusal> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_legal) {
            // The words must not be as long as the request.
            return Err(KeyspaceRefusal::Name(name.chars().take(64).collect()));
        }
        if name == DEFAULT_KEYSPACE {
            return Err(KeyspaceRefusal::Protected(name.to_owned()));
        }
        if self.find(name).is_some() {
            return Err(KeyspaceRefusal::Exists);
        }
        if self.all.len() > KEYSPACES_MAX {
            return Err(KeyspaceRefusal::TooMany);
        }
        // Bounded just now, so it fits.
        let id = self.all.len() as u32;
        let made = Keyspace { id, name: name.to_owned(), created_s };
        let mut value = self.row.clone().unwrap_or_else(|| vec![VERSION]);
        put(&mut value, &made);
        Ok((RowSwap { key: KEYSPACES_KEY, expected: self.row.clone(), value }, made))
    }

    /// The write that makes the keyspaces of a backup, with their ids; `None` if they are there.
    ///
    /// # Errors
    ///
    /// [`KeyspaceRefusal::Others`] if there are others, or theirs are none that a cluster can have.
    pub fn restore(&self, made: &[Keyspace]) -> Result<Option<RowSwap>, KeyspaceRefusal> {
        if self.all[1..] == *made {
            return Ok(None);
        }
        let is_short = |keyspace: &Keyspace| keyspace.name.len() <= NAME_BYTES_MAX;
        if self.all.len() > 1 || !made.iter().all(is_short) {
            return Err(KeyspaceRefusal::Others);
        }
        let mut value = vec![VERSION];
        made.iter().for_each(|keyspace| put(&mut value, keyspace));
        match Self::recover(Some(&value)) {
            Ok(read) if read.all[1..] == *made => {
                Ok(Some(RowSwap { key: KEYSPACES_KEY, expected: self.row.clone(), value }))
            }
            _ => Err(KeyspaceRefusal::Others),
        }
    }
}

fn put(row: &mut Vec<u8>, keyspace: &Keyspace) {
    row.extend_from_slice(&keyspace.id.to_be_bytes());
    row.extend_from_slice(&keyspace.created_s.to_be_bytes());
    // Checked to be short.
    row.push(keyspace.name.len() as u8);
    row.extend_from_slice(keyspace.name.as_bytes());
}

fn take(rest: &mut &[u8]) -> Option<Keyspace> {
    let (id, after) = rest.split_first_chunk()?;
    let (created_s, after) = after.split_first_chunk()?;
    let (length, after) = after.split_first()?;
    let (name, after) = after.split_at_checked(usize::from(*length))?;
    *rest = after;
    let name = String::from_utf8(name.to_vec()).ok()?;
    let (id, created_s) = (u32::from_be_bytes(*id), u64::from_be_bytes(*created_s));
    Some(Keyspace { id, name, created_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries the write of a new keyspace out on the row.
    fn create(row: &mut Option<Vec<u8>>, name: &str) -> Result<u32, KeyspaceRefusal> {
        let (swap, made) = Keyspaces::recover(row.as_deref()).unwrap().create(name, 1_700)?;
        assert_eq!((swap.key, &swap.expected), (KEYSPACES_KEY, &*row));
        *row = Some(swap.value);
        Ok(made.id)
    }

    #[test]
    fn ids_rise_and_names_are_unique() {
        let mut row = None;
        assert_eq!(Keyspaces::recover(None).unwrap().find("DEFAULT").unwrap().id, 0);
        assert_eq!(create(&mut row, "one"), Ok(1));
        assert_eq!(row.as_deref(), Some(&b"\x01\0\0\0\x01\0\0\0\0\0\0\x06\xa4\x03one"[..]));
        assert_eq!(create(&mut row, "one"), Err(KeyspaceRefusal::Exists));
        assert_eq!(create(&mut row, "One-2_"), Ok(2));
        let known = Keyspaces::recover(row.as_deref()).unwrap();
        let names: Vec<_> = known.all().iter().map(|it| (it.id, &it.name[..])).collect();
        assert_eq!(names, [(0, "DEFAULT"), (1, "one"), (2, "One-2_")]);
        assert_eq!(known.find("one").map(|it| it.created_s), Some(1_700));
        assert_eq!(known.find("two"), None);
    }

    #[test]
    fn a_name_is_as_pd_wants_it() {
        let refused = |name: &str| create(&mut None, name).unwrap_err();
        for name in ["", "a b", "a/b", "ä", &"x".repeat(21)] {
            assert_eq!(refused(name), KeyspaceRefusal::Name(name.to_owned()));
        }
        assert!(refused(&"x".repeat(9_999)).to_string().len() < 250);
        assert_eq!(refused("DEFAULT"), KeyspaceRefusal::Protected("DEFAULT".to_owned()));
        assert_eq!(create(&mut None, &"x".repeat(20)), Ok(1));
    }

    #[test]
    fn the_keyspaces_of_a_backup_come_with_their_ids_into_a_cluster_without_others() {
        let made = |id: u32, name: &str| Keyspace { id, name: name.to_owned(), created_s: 7 };
        let backup = [made(1, "one"), made(2, "two")];
        let none = Keyspaces::recover(None).unwrap();
        assert_eq!(none.restore(&[]), Ok(None));
        let swap = none.restore(&backup).unwrap().unwrap();
        assert_eq!((swap.key, &swap.expected), (KEYSPACES_KEY, &None));
        let restored = Keyspaces::recover(Some(&swap.value)).unwrap();
        assert_eq!(restored.all()[1..], backup);
        assert_eq!(restored.restore(&backup), Ok(None), "again");
        assert_eq!(restored.restore(&backup[..1]), Err(KeyspaceRefusal::Others));
        for wrong in [vec![made(2, "two")], vec![made(1, &"x".repeat(300))]] {
            assert_eq!(none.restore(&wrong), Err(KeyspaceRefusal::Others));
        }
    }

    #[test]
    fn there_is_a_bound() {
        let mut row = None;
        for number in 1..=KEYSPACES_MAX {
            assert_eq!(create(&mut row, &format!("k{number}")), Ok(number as u32));
        }
        assert_eq!(create(&mut row, "more"), Err(KeyspaceRefusal::TooMany));
        assert_eq!(Keyspaces::recover(row.as_deref()).unwrap().all().len(), KEYSPACES_MAX + 1);
    }

    #[test]
    fn other_bytes_are_no_keyspaces() {
        let mut row = None;
        create(&mut row, "one").unwrap();
        let row = row.unwrap();
        for len in (0..row.len()).filter(|len| *len != 1) {
            assert!(Keyspaces::recover(Some(&row[..len])).is_err(), "cut at {len}");
        }
        for (place, byte) in [(0, 2), (4, 0), (4, 2), (13, 4), (14, 0xff)] {
            let mut changed = row.clone();
            changed[place] = byte;
            assert!(Keyspaces::recover(Some(&changed)).is_err(), "{byte} at {place}");
        }
    }
}
