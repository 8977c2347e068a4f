//! One line for each thing that an operator should know, on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// The variable that wins over the settings.
const VARIABLE: &str = "FLOTILLA_LOG";

/// Starts logging, once for the process.
///
/// # Errors
///
/// What is wrong with the filter.
pub fn start(filter: &str) -> Result<(), String> {
    let (name, text) = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => (VARIABLE, text),
        _ => ("log", filter.to_owned()),
    };
    let filter =
        EnvFilter::try_new(&text).map_err(|error| format!("{name} = \"{text}\": {error}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init()
        .map_err(|error| error.to_string())
}
