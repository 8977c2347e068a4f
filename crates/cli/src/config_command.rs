//! `flotilla config`: checks a file of settings, shows those that `serve` would have, and prints a
//! file with all of them. Nothing is written, nor is a data directory opened.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flotilla_node::config::{
    ConfigError, LayeredConfig, SettingKey, SettingLayers, SettingScope, SettingSource,
    default_file, default_values, setting_keys, setting_value, setting_values,
};
use serde_json::{Value, json};

use crate::offline::{named, verdict};
use crate::serve::{ServeArgs, check_log};
use crate::tool::{self, Error, TableCell, table};

/// The arguments of `flotilla config`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Checks a file of settings as `serve` would, and prints everything that is wrong; exit code 1
    /// if anything is. Variables of the environment do not count
    Check {
        /// The TOML file
        file: PathBuf,
    },
    /// Shows the settings that `serve` would have with the same flags, and where each comes from:
    /// flag, variable, file or default
    Show(Box<ServeArgs>),
    /// Prints a TOML file with every setting, commented out: default, range, meaning, variable
    Default,
}

/// Does what the command line says.
#[must_use]
pub(crate) fn run(args: ConfigArgs) -> ExitCode {
    let is_json = args.json;
    tool::end(is_json, answer(args))
}

fn answer(args: ConfigArgs) -> Result<(), Error> {
    let out = &mut BufWriter::new(io::stdout().lock());
    match args.command {
        ConfigCommand::Check { file } => return check(&file, args.json, out),
        ConfigCommand::Show(serve) => show(*serve, args.json, out)?,
        ConfigCommand::Default if args.json => {
            let values = default_values();
            let keys: Vec<_> = setting_keys().map(|key| described(key, &values)).collect();
            writeln!(out, "{}", json!(keys))?;
        }
        ConfigCommand::Default => out.write_all(default_file().as_bytes())?,
    }
    out.flush()?;
    Ok(())
}

fn check(file: &Path, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    let mut layers = SettingLayers::default();
    layers.add_file(file);
    let errors = match layers.finish() {
        Ok(layered) => {
            let resolved = layered.config.clone().resolve();
            let mut errors = resolved.err().map_or_else(Vec::new, |error| error.lines());
            errors.extend(check_log(&layered).err());
            errors
        }
        Err(ConfigError::Read { path, source }) if source.kind() != ErrorKind::InvalidData => {
            return Err(named(&path, &source));
        }
        Err(error) => error.lines(),
    };
    if is_json {
        writeln!(out, "{}", json!({ "valid": errors.is_empty(), "errors": errors }))?;
    } else {
        for error in &errors {
            writeln!(out, "{error}")?;
        }
    }
    verdict(errors.len() as u64, is_json, out)
}

fn show(serve: ServeArgs, is_json: bool, out: &mut impl Write) -> Result<(), Error> {
    let refused = |error: ConfigError| Error::Refused(error.to_string());
    let layered = serve.layered().map_err(refused)?;
    check_log(&layered).map_err(Error::Refused)?;
    let resolved = layered.config.clone().resolve().map_err(refused)?;
    let values = setting_values(&resolved.effective());
    if is_json {
        let shown: Vec<_> = setting_keys().map(|key| shown(key, &values, &layered)).collect();
        writeln!(out, "{}", json!(shown))?;
        return Ok(());
    }
    let mut rows = table(&["key", "value", "from"]);
    for key in setting_keys() {
        let source = layered.source(key);
        let value = match (key.value_words(setting_value(&values, key)), key.default_words()) {
            (value, Some(words)) if value.is_empty() => format!("({words})"),
            (value, _) => value,
        };
        // A store that is a member takes these from its directory, which is not opened here.
        let is_copied = key.scope() == SettingScope::Cluster && *source == SettingSource::Default;
        let place =
            if is_copied { "default, or the cluster".to_owned() } else { source.to_string() };
        rows.add_row([key.path(), value, place].map(TableCell::new));
    }
    writeln!(out, "{rows}")?;
    Ok(())
}

/// A setting with its value, for programs.
fn shown(key: &SettingKey, values: &Value, layered: &LayeredConfig) -> Value {
    let source = layered.source(key);
    let place = (*source != SettingSource::Default).then(|| source.to_string());
    json!({
        "key": key.path(),
        "value": setting_value(values, key),
        "kind": key.kind().name(),
        "source": source.kind(),
        "place": place,
        "scope": key.scope().name(),
        "effect": key.effect().name(),
    })
}

/// All that is known of a setting, for programs.
fn described(key: &SettingKey, values: &Value) -> Value {
    json!({
        "key": key.path(),
        "variable": key.variable(),
        "kind": key.kind().name(),
        "default": setting_value(values, key),
        "default_words": key.default_words(),
        "range": key.range_words(),
        "scope": key.scope().name(),
        "effect": key.effect().name(),
        "meaning": key.meaning(),
    })
}
