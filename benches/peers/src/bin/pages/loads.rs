//! The loads themselves, on any store. `bbolt/` has each of them once more, in Go.

mod beside;
mod reads;
mod scattered;
mod writes;

use crate::load::{Load, Outcome};
use crate::store::Store;
use peers::Result;

pub use writes::write_on;

/// Does one load and tells what was seen.
///
/// # Errors
///
/// Errors of the store, or what is wrong with what it returned.
pub fn run<S: Store>(store: &S, load: Load) -> Result<Outcome> {
    match load {
        Load::Fill { first, keys, value_bytes, in_order } => {
            writes::fill(store, first..first + keys, value_bytes, in_order)
        }
        Load::Commits { keys, value_bytes, commits, puts, reads_ahead, seed, ms } => {
            writes::commits(store, keys, value_bytes, (commits, ms), (puts, reads_ahead), seed)
        }
        Load::Durable { batch: true, .. } => {
            Ok(Outcome { missing: Some("it has no such call".to_owned()), ..Outcome::default() })
        }
        Load::Durable { keys, value_bytes, threads, ms, seed, .. } => {
            writes::durable(store, keys, value_bytes, threads, ms, seed)
        }
        Load::Gets { keys, threads, ms, seed } => reads::gets(store, keys, threads, ms, seed),
        Load::GetBatches { keys, length, ms, seed } => {
            reads::get_batches(store, keys, length, ms, seed)
        }
        Load::Scans { keys, length, ms, seed } => reads::scans(store, keys, length, ms, seed),
        Load::Beside(load) => beside::run(store, load),
        Load::Scatter { pages } => scattered::scatter(store, pages),
        Load::Large { value_bytes, ms, puts, first } => {
            scattered::large(store, value_bytes, ms, puts, first)
        }
        Load::Churn { commits, seed } => scattered::churn(store, commits, seed),
        Load::FreeSpace { keys, value_bytes, commits, puts, seed } => {
            scattered::free_space(store, keys, value_bytes, commits, puts, seed)
        }
        Load::DeleteHalf { keys } => writes::delete_half(store, keys),
        Load::Prove { keys } => reads::prove(store, keys),
        Load::Status => status(store),
        Load::WriteOn { .. } | Load::Close => Ok(Outcome::default()),
    }
}

fn status<S: Store>(store: &S) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    outcome.add("file MiB", store.file_bytes()? as f64 / f64::from(1 << 20));
    if let Some(pages) = store.free_pages()? {
        outcome.add("free pages", pages as f64);
    }
    Ok(outcome)
}
