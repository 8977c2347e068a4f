//! The form of the log's lines: text for people, JSON for programs, and a bound for each kind.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::time::Instant;

use flotilla_node::config::LogFormat;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::log_kind_limit::{KindLimit, LeftOut};

/// Letters of a line that was left out, as far as it is repeated.
const EXAMPLE_LETTERS_MAX: usize = 200;

/// The budgets of the kinds of lines, and the form in which the end says what was left out.
static LIMIT: OnceLock<(LogFormat, Mutex<KindLimit>)> = OnceLock::new();

/// Writes events as lines.
pub(crate) struct LogLine {
    format: LogFormat,
    text: Format<Full, SystemTime>,
    limit: &'static Mutex<KindLimit>,
}

impl LogLine {
    pub(crate) fn new(format: LogFormat, is_terminal: bool) -> Self {
        let (_, limit) = LIMIT.get_or_init(|| (format, Mutex::default()));
        let text = tracing_subscriber::fmt::format().with_target(false).with_ansi(is_terminal);
        Self { format, text, limit }
    }

    /// Whether the event is to be written; before it what was left out of others.
    fn admit(&self, event: &Event<'_>, writer: &mut Writer<'_>) -> Result<bool, fmt::Error> {
        let metadata = event.metadata();
        // An operator who asks for these levels wants all of them.
        if *metadata.level() > Level::INFO {
            return Ok(true);
        }
        let now = Instant::now();
        let words = || {
            let mut fields = LineFields::default();
            event.record(&mut fields);
            fields.message.chars().take(EXAMPLE_LETTERS_MAX).collect()
        };
        let (left_out, admits) = {
            let mut limit = self.limit.lock();
            let left_out = limit.take_left_out(now, false);
            (left_out, limit.admits(metadata.callsite(), now, words))
        };
        for left_out in &left_out {
            write_left_out(self.format, left_out, writer)?;
        }
        Ok(admits)
    }
}

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if !self.admit(event, &mut writer)? {
            return Ok(());
        }
        match self.format {
            LogFormat::Text => self.text.format_event(context, writer, event),
            LogFormat::Json => {
                let mut fields = LineFields::default();
                event.record(&mut fields);
                let metadata = event.metadata();
                write_json(*metadata.level(), metadata.target(), &fields, &mut writer)
            }
        }
    }
}

/// The lines about what was left out and not said yet, at the end of the process.
pub(crate) fn left_out_at_end() -> String {
    let mut lines = String::new();
    if let Some((format, limit)) = LIMIT.get() {
        let left_out = limit.lock().take_left_out(Instant::now(), true);
        for left_out in &left_out {
            // A String takes every write.
            let _ = write_left_out(*format, left_out, &mut Writer::new(&mut lines));
        }
    }
    lines
}

fn write_left_out(format: LogFormat, left_out: &LeftOut, writer: &mut Writer<'_>) -> fmt::Result {
    let LeftOut { count, first } = left_out;
    let message = format!("{count} more lines were left out, the first of them: {first}");
    match format {
        LogFormat::Text => {
            SystemTime.format_time(writer)?;
            writeln!(writer, "  INFO {}", message.escape_debug())
        }
        LogFormat::Json => {
            let fields = LineFields { message, others: Vec::new() };
            write_json(Level::INFO, env!("CARGO_CRATE_NAME"), &fields, writer)
        }
    }
}

/// An object on one line. The keys that each line has come first.
fn write_json(
    level: Level,
    target: &str,
    fields: &LineFields,
    writer: &mut Writer<'_>,
) -> fmt::Result {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    write!(writer, "{{\"time\":{},\"level\":\"{level}\"", Value::from(time))?;
    write!(writer, ",\"target\":{}", Value::from(target))?;
    write!(writer, ",\"message\":{}", Value::from(fields.message.as_str()))?;
    for (name, value) in &fields.others {
        write!(writer, ",{}:{value}", Value::from(*name))?;
    }
    writeln!(writer, "}}")
}

/// The fields of an event.
#[derive(Debug, Default)]
struct LineFields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl LineFields {
    fn put(&mut self, field: &Field, value: Value) {
        self.others.push((field.name(), value));
    }
}

impl Visit for LineFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    /// Milliseconds of a duration, mostly.
    fn record_u128(&mut self, field: &Field, value: u128) {
        let number = u64::try_from(value);
        self.put(field, number.map_or_else(|_| value.to_string().into(), Value::from));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.put(field, value.into()),
        }
    }

    /// The message, and what is shown by `Display` or `Debug`. An id is a number.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // A String takes every write.
            let _ = write!(self.message, "{value:?}");
            return;
        }
        let text = format!("{value:?}");
        let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
        self.put(field, number.map_or_else(|| text.into(), Value::from));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines of events in this format.
    fn logged(format: LogFormat, events: impl FnOnce()) -> String {
        let (lines, limit) = (Lines::default(), Box::leak(Box::default()));
        let text = tracing_subscriber::fmt::format().with_target(false).with_ansi(false);
        let made = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || made.clone())
            .event_format(LogLine { format, text, limit })
            .finish();
        tracing::subscriber::with_default(subscriber, events);
        let bytes = std::mem::take(&mut *lines.0.lock());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_is_an_object_with_a_key_for_each_field() {
        let line = logged(LogFormat::Json, || {
            let (took, region) = (std::time::Duration::from_millis(7), 12);
            tracing::warn!(
                region = %region, ms = took.as_millis(), name = "s\"1", whole = true, cause = ?Some(3),
                "two\nlines and {}", "words"
            );
        });
        assert_eq!(line.lines().count(), 1, "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["level"], &value["message"]),
            (&"WARN".into(), &"two\nlines and words".into())
        );
        assert_eq!((&value["region"], &value["ms"]), (&12.into(), &7.into()));
        assert_eq!((&value["name"], &value["whole"]), (&"s\"1".into(), &true.into()));
        assert_eq!(value["cause"], "Some(3)");
        assert!(value["target"].as_str().unwrap().contains("log_line"), "{line}");
        assert!(line.starts_with("{\"time\":\"20"), "{line}");
    }

    #[test]
    fn a_kind_that_floods_the_log_is_cut_short_and_others_are_not() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let lines = logged(format, || {
                for number in 0..500 {
                    tracing::info!(number, "a region was split");
                }
                tracing::error!("the disk is gone");
            });
            assert_eq!(lines.matches("a region was split").count(), 100, "{lines}");
            assert_eq!(lines.matches("the disk is gone").count(), 1, "{lines}");
        }
    }
}
