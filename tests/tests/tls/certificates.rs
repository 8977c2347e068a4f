//! Certificates for a test, made as an operator makes them.

use std::path::PathBuf;

use flotilla_cli::tls_args::TlsArgs;
use flotilla_client::Config;
use tempfile::TempDir;

use crate::processes::{Answer, flotilla};

/// A directory with an authority and what it has signed.
pub(crate) struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// An authority that has signed certificates of stores `s0` and so on, of the operator `ann`
    /// and of the client `app`.
    pub(crate) async fn new(stores: usize) -> Self {
        let certificates = Self { dir: TempDir::new().unwrap() };
        certificates.make("ca").await;
        for place in 0..stores {
            certificates.make(&format!("store s{place} --host 127.0.0.1,localhost")).await;
        }
        certificates.make("operator ann").await;
        certificates.make("client app").await;
        certificates
    }

    /// Runs `flotilla cert`.
    pub(crate) async fn run(&self, args: &str) -> Answer {
        let dir = self.dir.path().display().to_string();
        let mut all = vec!["flotilla".to_owned(), "cert".to_owned(), "--dir".to_owned(), dir];
        all.extend(args.split_whitespace().map(str::to_owned));
        flotilla(all).await
    }

    pub(crate) async fn make(&self, args: &str) {
        let answer = self.run(args).await;
        assert_eq!(answer.code, Some(0), "{answer:?}");
    }

    /// The path of a file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The lines of a store's settings.
    pub(crate) fn settings(&self, mode: &str, store: &str) -> String {
        format!(
            "[tls]\nmode = \"{mode}\"\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}\n",
            self.file("ca.pem"),
            self.file(&format!("{store}.pem")),
            self.file(&format!("{store}-key.pem")),
        )
    }

    /// The flags of a party, as `operator-ann`.
    pub(crate) fn flags(&self, party: &str) -> TlsArgs {
        TlsArgs {
            ca: Some(self.file("ca.pem")),
            cert: Some(self.file(&format!("{party}.pem"))),
            key: Some(self.file(&format!("{party}-key.pem"))),
        }
    }

    /// A client's configuration for a party.
    pub(crate) fn config(&self, party: &str) -> Config {
        Config { tls: self.flags(party).dialer().unwrap(), ..Config::default() }
    }
}
