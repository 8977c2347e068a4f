//! The command line of Flotilla: the subcommands of the binary `flotilla`, and what they share.
//!
//! A library only as far as tests and benches need one: [`playground::Playground`] runs a small
//! cluster in this process, [`serve::run`] is what a store's process does, and
//! [`command_line::run`] what all others do.

pub mod backup;
pub mod bench;
pub mod cert;
pub mod command_line;
mod completions;
mod config_command;
pub mod ctl;
mod debug_bundle;
pub mod diagnosis;
pub mod fail_stop;
mod log_kind_limit;
mod log_line;
mod log_line_queue;
pub mod log_tool;
pub mod logging;
mod manual;
mod offline;
pub mod page_tool;
pub mod playground;
pub mod playground_command;
mod recent_lines;
pub mod recover;
mod reserved_port;
mod screen_table;
pub mod serve;
mod signals;
mod split_keys;
mod time_limit;
pub mod tls_args;
pub mod tool;
mod units;
mod wall_clock_ms;

pub use reserved_port::ReservedPort;
