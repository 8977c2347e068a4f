//! `flotilla cert`: an authority and the certificates that it signs, for clusters without one of
//! their own.

mod authority;
mod pem_pair;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flotilla_node::config::TlsConfig;

use crate::tls_args::TlsArgs;
use crate::tool::{self, Error};
use authority::{CertificateAuthority, Party};
use pem_pair::PemPair;

/// The arguments of `flotilla cert`.
#[derive(Clone, Debug, clap::Args)]
pub struct CertArgs {
    /// Directory of the authority and of all that it signs; made if it is missing
    #[arg(long, global = true, default_value = "certs")]
    dir: PathBuf,
    /// Replace a certificate and its key that are there: both are new. Stores that run take them
    /// by themselves
    #[arg(long, global = true)]
    renew: bool,
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum CertCommand {
    /// Makes an authority: `ca.pem` for everybody, `ca-key.pem` to be kept in a safe place
    Ca {
        /// Days that it is valid
        #[arg(long, default_value_t = 3650, value_parser = days())]
        days: u32,
    },
    /// Makes the certificate of a store: `store-NAME.pem`, `store-NAME-key.pem`
    Store {
        /// The name of the store in its cluster, as `serve --name` has it
        name: String,
        /// Names and addresses at which clients and other stores reach it
        #[arg(long, required = true, value_delimiter = ',', value_name = "HOST,...")]
        host: Vec<String>,
        /// Days that it is valid
        #[arg(long, default_value_t = 365, value_parser = days())]
        days: u32,
    },
    /// Makes the certificate of a client: `client-NAME.pem`, `client-NAME-key.pem`
    Client(PersonArgs),
    /// Makes the certificate of an operator, who may change the cluster: `operator-NAME.pem`,
    /// `operator-NAME-key.pem`
    Operator(PersonArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct PersonArgs {
    /// The name in the certificate
    name: String,
    /// Days that it is valid
    #[arg(long, default_value_t = 365, value_parser = days())]
    days: u32,
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

/// Does what the command line says.
#[must_use]
pub fn run(args: &CertArgs) -> ExitCode {
    let made = make(args).and_then(|()| told(&pair(&args.dir, &args.command)));
    tool::end(false, made)
}

fn make(args: &CertArgs) -> Result<(), Error> {
    let (dir, pair) = (&args.dir, pair(&args.dir, &args.command));
    let authority = PemPair::in_dir(dir, "ca");
    let (party, days) = match &args.command {
        CertCommand::Ca { days } => {
            let made = CertificateAuthority::make(*days).map_err(refused)?;
            pair.write(&made.pem(), &made.key_pem(), args.renew)?;
            return Ok(());
        }
        CertCommand::Store { name, host, days } => {
            (Party::Store { name: name.clone(), hosts: host.clone() }, *days)
        }
        CertCommand::Client(person) => (Party::Client(person.name.clone()), person.days),
        CertCommand::Operator(person) => (Party::Operator(person.name.clone()), person.days),
    };
    check_name(party.name())?;
    let (cert, key) = authority.read().map_err(|error| {
        Error::Argument(format!("{error}; `flotilla cert ca --dir {}` makes one", dir.display()))
    })?;
    let authority = CertificateAuthority::read(&cert, &key).map_err(refused)?;
    let (cert, key) = authority.sign(&party, days).map_err(refused)?;
    pair.write(&cert, &key, args.renew)
}

/// Makes an authority, certificates for these stores on this machine, and one for an operator; as
/// far as they are not there.
pub(crate) fn make_for_stores(dir: &Path, stores: &[String]) -> Result<(), Error> {
    const HOSTS: [&str; 3] = ["127.0.0.1", "localhost", "::1"];
    let hosts = HOSTS.map(str::to_owned).to_vec();
    let days = 365;
    let stores = stores.iter().cloned();
    let stores = stores.map(|name| CertCommand::Store { name, host: hosts.clone(), days });
    let operator = CertCommand::Operator(PersonArgs { name: OPERATOR.to_owned(), days });
    for command in [CertCommand::Ca { days: 3650 }].into_iter().chain(stores).chain([operator]) {
        if !pair(dir, &command).cert().exists() {
            make(&CertArgs { dir: dir.to_owned(), renew: true, command })?;
        }
    }
    Ok(())
}

/// The operator of [`make_for_stores`].
const OPERATOR: &str = "playground";

/// The flags of that operator.
pub(crate) fn operator_args(dir: &Path) -> TlsArgs {
    let pair = PemPair::in_dir(dir, &format!("operator-{OPERATOR}"));
    TlsArgs {
        ca: Some(PemPair::in_dir(dir, "ca").cert().to_owned()),
        cert: Some(pair.cert().to_owned()),
        key: Some(pair.key().to_owned()),
    }
}

/// The settings of a store that has a certificate in `dir`.
pub(crate) fn store_config(dir: &Path, name: &str) -> TlsConfig {
    let pair = PemPair::in_dir(dir, &format!("store-{name}"));
    TlsConfig {
        ca_file: PemPair::in_dir(dir, "ca").cert().to_owned(),
        cert_file: pair.cert().to_owned(),
        key_file: pair.key().to_owned(),
        ..TlsConfig::default()
    }
}

/// The files that a command makes.
fn pair(dir: &Path, command: &CertCommand) -> PemPair {
    let name = match command {
        CertCommand::Ca { .. } => "ca".to_owned(),
        CertCommand::Store { name, .. } => format!("store-{name}"),
        CertCommand::Client(PersonArgs { name, .. }) => format!("client-{name}"),
        CertCommand::Operator(PersonArgs { name, .. }) => format!("operator-{name}"),
    };
    PemPair::in_dir(dir, &name)
}

/// A name that stands in a file's name and in a URI as it is.
fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{name:?}: a name has letters, digits, dots, dashes and underscores, 64 at most"
    )))
}

fn refused(words: String) -> Error {
    Error::Refused(words)
}

fn told(pair: &PemPair) -> Result<(), Error> {
    use std::io::Write as _;
    let paths: [&Path; 2] = [pair.cert(), pair.key()];
    let out = &mut std::io::stdout().lock();
    for path in paths {
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lead_out_of_the_directory() {
        for name in ["s1", "a.b-c_D", &"x".repeat(64)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "../s1", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
