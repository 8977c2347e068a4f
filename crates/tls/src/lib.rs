//! Mutual TLS for stores, clients and operators.
//!
//! Every party has a certificate of one authority, and shows it; the names in it say which role
//! the party has (docs/decisions/0052-mutual-tls-with-roles-by-names.md). Code map:
//!
//! - `files` reads a certificate, its key and its authority; `credentials` makes settings of the
//!   TLS library of them, and `credential_store` keeps the newest.
//! - `certificate` reads names and times in a certificate, `roles` says what they allow.
//! - `acceptor` is the side that is connected to, `plain_refusal` its words to a peer without TLS;
//!   `dialer` is the side that connects; `stream` is a socket of either, with TLS or without.
//!
//! Nothing here knows what is served, and nothing here starts a task.

mod acceptor;
mod certificate;
mod credential_store;
mod credentials;
mod dialer;
mod error;
mod files;
mod plain_refusal;
mod roles;
mod stream;

pub use acceptor::{AcceptError, TlsAcceptor, TlsCounts};
pub use credential_store::CredentialStore;
pub use credentials::Credentials;
pub use dialer::TlsDialer;
pub use error::TlsError;
pub use files::CertificateFiles;
pub use roles::{PartyRole, PeerIdentity, RoleNames};
pub use stream::MaybeTlsStream;
