//! Contents of the entries, made before anything is measured.

use bytes::Bytes;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt;

/// How well the data can be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Random bytes: not at all.
    Random,
    /// Random bytes and runs of a few words in turn: lz4 makes it about half as large.
    Half,
}

/// How many different entries there are; together they shall fit into a processor's cache, so that
/// what is measured is the engine and not the memory of the bench.
const DIFFERENT: usize = 61;
const WORDS: [&[u8; 8]; 4] = [b"region: ", b"voter 1,", b"{\"key\":\"", b"00000000"];

/// Some entries' data, from which each write takes the next few.
#[derive(Clone, Debug)]
pub struct Data {
    pool: Vec<Bytes>,
}

impl Data {
    /// Makes entries of `bytes` each, the same ones for the same arguments.
    pub fn new(kind: Kind, bytes: usize) -> Data {
        let mut rng = fastrand::Rng::with_seed(bytes as u64);
        let mut one = || {
            let mut data = vec![0; bytes];
            rng.fill(&mut data);
            if kind == Kind::Half {
                for (number, part) in data.chunks_mut(32).enumerate().filter(|(n, _)| n % 2 == 1) {
                    let word = WORDS[number / 2 % WORDS.len()];
                    part.iter_mut().zip(word.iter().cycle()).for_each(|(to, from)| *to = *from);
                }
            }
            Bytes::from(data)
        };
        // Twice over, so that any few that follow one another are a slice.
        let pool: Vec<Bytes> = (0..DIFFERENT).map(|_| one()).collect();
        Data { pool: pool.iter().cycle().take(2 * DIFFERENT + 64).cloned().collect() }
    }

    /// The data of `count` entries, at most 64; which ones, `turn` says.
    pub fn entries(&self, turn: u64, count: usize) -> &[Bytes] {
        let begin = (turn % DIFFERENT as u64) as usize;
        &self.pool[begin..begin + count]
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Random => "random data",
            Kind::Half => "data that halves",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_repeats_and_has_the_length_asked_for() {
        for kind in [Kind::Random, Kind::Half] {
            let (a, b) = (Data::new(kind, 1000), Data::new(kind, 1000));
            assert_eq!(a.pool, b.pool);
            assert!(a.entries(u64::MAX, 64).iter().all(|e| e.len() == 1000));
            assert_ne!(a.entries(1, 1), a.entries(2, 1));
            assert_eq!(a.entries(3, 4)[1..], a.entries(4, 3)[..]);
        }
    }

    #[test]
    fn half_of_it_is_words() {
        let data = Data::new(Kind::Half, 1024);
        let is_word = |part: &&[u8]| WORDS.iter().any(|w| part == w);
        let words = data.pool[0].chunks(8).filter(is_word).count();
        assert_eq!(words, 64);
    }
}
