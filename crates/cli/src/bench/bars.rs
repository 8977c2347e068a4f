//! Progress bars of a load.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar for `count` requests, on standard error; nowhere if that is no terminal.
#[must_use]
pub fn bar(name: &'static str, count: u64) -> ProgressBar {
    let style = "{prefix:>6} {wide_bar} {pos}/{len} {per_sec} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is well formed");
    ProgressBar::new(count).with_style(style).with_prefix(name)
}

/// As [`bar`], for a load without a known number of requests.
pub(crate) fn spinner(name: &'static str) -> ProgressBar {
    let style = "{prefix:>6} {spinner} {pos} {per_sec} {elapsed}";
    let style = ProgressStyle::with_template(style).expect("the template is well formed");
    ProgressBar::no_length().with_style(style).with_prefix(name)
}
