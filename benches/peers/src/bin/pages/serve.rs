//! The process that has an engine open: reads what to do from standard input, a line each, and
//! answers.

use crate::load::{Load, Outcome};
use crate::loads;
use crate::store::Store;
use peers::Result;
use std::io::Write;
use std::time::Instant;

/// Opens a store, says how long that took, and does what is asked until it is told to close.
///
/// # Errors
///
/// Errors of opening or closing the store; those of a load are answered.
pub fn serve<S: Store>(open: impl FnOnce() -> Result<S>) -> Result<()> {
    let begin = Instant::now();
    let store = open()?;
    let mut opened = Outcome::default();
    opened.add("open ms", begin.elapsed().as_secs_f64() * 1000.0);
    answer(&opened)?;
    for line in std::io::stdin().lines() {
        let load: Load = serde_json::from_str(&line?)?;
        if let Load::Close = load {
            store.close()?;
            return answer(&Outcome::default());
        }
        answer(&loads::run(&store, load).unwrap_or_else(|error| Outcome {
            error: Some(error.to_string()),
            ..Outcome::default()
        }))?;
        if let Load::WriteOn { keys, value_bytes } = load {
            return loads::write_on(&store, keys, value_bytes);
        }
    }
    Ok(())
}

fn answer(outcome: &Outcome) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, outcome)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
