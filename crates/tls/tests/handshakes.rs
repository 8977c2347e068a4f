//! Handshakes between an acceptor and a dialer on loopback: those that come about, and those that
//! do not.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod authority;

use std::io;
use std::path::Path;
use std::sync::Arc;

use authority::{Authority, Leaf};
use flotilla_tls::{
    AcceptError, CertificateFiles, CredentialStore, PartyRole, PeerIdentity, RoleNames,
    TlsAcceptor, TlsDialer,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The answer of a server over a connection that it has taken.
const ANSWER: &[u8] = b"taken";

type Taken = Result<Option<Arc<PeerIdentity>>, AcceptError>;

fn credentials(files: CertificateFiles) -> CredentialStore {
    CredentialStore::open(files).unwrap()
}

fn store(authority: &Authority, dir: &Path) -> CredentialStore {
    credentials(authority.leaf(dir, "s1", Leaf::store("s1")))
}

/// Takes one connection on `port`, and answers over it.
async fn take(listener: TcpListener, acceptor: TlsAcceptor) -> Taken {
    let (stream, _) = listener.accept().await.unwrap();
    let (mut stream, identity) = acceptor.accept(stream).await?;
    stream.write_all(ANSWER).await.map_err(AcceptError::Handshake)?;
    stream.shutdown().await.map_err(AcceptError::Handshake)?;
    Ok(identity)
}

/// The outcome on both sides of one connection.
async fn meet(acceptor: TlsAcceptor, dialer: TlsDialer) -> (Taken, io::Result<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let taken = tokio::spawn(take(listener, acceptor));
    let dialled = async {
        let mut stream = dialer.dial("127.0.0.1", port).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(answer)
    };
    let dialled = dialled.await;
    (taken.await.unwrap(), dialled)
}

fn required(credentials: &CredentialStore) -> TlsAcceptor {
    TlsAcceptor::new(credentials.clone(), RoleNames::default(), false)
}

#[tokio::test]
async fn parties_of_one_authority_know_each_other_by_their_names() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let store = store(&authority, dir.path());
    let client = credentials(authority.leaf(dir.path(), "app", Leaf::client("app")));
    let (taken, dialled) = meet(required(&store), TlsDialer::new(client)).await;
    let identity = taken.unwrap().unwrap();
    assert!(identity.has(PartyRole::Client) && !identity.has(PartyRole::Store));
    assert_eq!(dialled.unwrap(), ANSWER);
    let between = TlsDialer::new(store.clone()).to_stores(RoleNames::default());
    let (taken, dialled) = meet(required(&store), between).await;
    assert!(taken.unwrap().unwrap().is_store("s1"));
    assert_eq!(dialled.unwrap(), ANSWER);
}

/// Neither side gets a connection out of it, and the one that dials hears why.
async fn is_refused(acceptor: TlsAcceptor, dialer: TlsDialer, words: &str) {
    let counts = acceptor.clone();
    let (taken, dialled) = meet(acceptor, dialer).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains(words), "{words:?} is not in {error:?}; {taken:?}");
    taken.unwrap_err();
    assert_eq!(counts.counts().handshakes, 0);
    assert_eq!(counts.counts().failures, 1);
}

#[tokio::test]
async fn a_client_of_another_authority_is_refused() {
    let (dir, ours, other) = (TempDir::new().unwrap(), Authority::new(), Authority::new());
    let store = store(&ours, dir.path());
    let files = other.leaf(dir.path(), "app", Leaf::client("app"));
    // It knows the stores' authority only: such a client would be refused everywhere, and is here.
    let known = ours.leaf(dir.path(), "none", Leaf::client("none")).ca;
    let wrong = CertificateFiles { ca: known.clone(), ..files.clone() };
    let why = CredentialStore::open(wrong).unwrap_err().to_string();
    assert!(why.contains("it would be refused by whoever trusts"), "{why}");
    // It knows its own only, and refuses the store by that.
    let client = TlsDialer::new(credentials(files.clone()));
    is_refused(required(&store), client, "UnknownIssuer").await;
    // It knows both.
    let both = [std::fs::read(&known).unwrap(), std::fs::read(&files.ca).unwrap()].concat();
    std::fs::write(&known, both).unwrap();
    let client = TlsDialer::new(credentials(CertificateFiles { ca: known, ..files }));
    is_refused(required(&store), client, "UnknownCA").await;
}

#[tokio::test]
async fn a_client_whose_certificate_has_ended_is_refused() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let store = store(&authority, dir.path());
    let files = authority.leaf(dir.path(), "app", Leaf::client("app").valid_for(2));
    let client = TlsDialer::new(credentials(files.clone()));
    // Certificates have whole seconds.
    let ended = || CredentialStore::open(files.clone()).is_err();
    while !ended() {
        tokio::task::yield_now().await;
    }
    let why = CredentialStore::open(files).unwrap_err().to_string();
    assert!(why.contains("xpired"), "{why}");
    is_refused(required(&store), client, "CertificateExpired").await;
}

#[tokio::test]
async fn a_server_whose_certificate_is_for_another_host_is_refused() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let leaf = Leaf::store("s1").at("store.example.com");
    let store = credentials(authority.leaf(dir.path(), "s1", leaf));
    let client = credentials(authority.leaf(dir.path(), "app", Leaf::client("app")));
    is_refused(required(&store), TlsDialer::new(client), "not valid for name").await;
}

#[tokio::test]
async fn a_client_does_not_pass_for_a_store() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let leaf = Leaf { hosts: vec!["127.0.0.1".to_owned()], ..Leaf::client("app") };
    let files = authority.leaf(dir.path(), "app", leaf.serving());
    let store = store(&authority, dir.path());
    let dialer = TlsDialer::new(store).to_stores(RoleNames::default());
    let (_, dialled) = meet(required(&credentials(files)), dialer).await;
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("its certificate is no store's: app"), "{error}");
}

#[tokio::test]
async fn a_peer_without_tls_is_told_in_its_own_protocol() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let store = store(&authority, dir.path());
    for (request, begins) in [
        (&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], &b"HTTP/1.1 400 "[..]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", b"\0\0\0\x04\0\0\0\0\0"),
    ] {
        let acceptor = required(&store);
        let counts = acceptor.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let taken = tokio::spawn(take(listener, acceptor));
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(begins), "{answer:?}");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains("this store speaks TLS only"), "{answer}");
        assert!(matches!(taken.await.unwrap(), Err(AcceptError::Plain)));
        assert_eq!(counts.counts().plain_refused, 1);
    }
}

#[tokio::test]
async fn an_optional_acceptor_takes_both_and_an_optional_dialer_does_without() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let store = store(&authority, dir.path());
    let optional = TlsAcceptor::new(store.clone(), RoleNames::default(), true);
    let (taken, dialled) = meet(optional.clone(), TlsDialer::new(store.clone())).await;
    assert!(taken.unwrap().is_some());
    assert_eq!(dialled.unwrap(), ANSWER);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let taken = tokio::spawn(take(listener, optional.clone()));
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0").await.unwrap();
    assert!(taken.await.unwrap().unwrap().is_none());
    assert_eq!((optional.counts().handshakes, optional.counts().plain), (1, 1));

    // A server without TLS, which answers what it cannot read in words of its own, or hangs up.
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            first.read_u8().await.unwrap();
            first.write_all(answer).await.unwrap();
            drop(first);
            let (mut second, _) = listener.accept().await.unwrap();
            let mut request = [0; 5];
            second.read_exact(&mut request).await.unwrap();
            request
        });
        let dialer = TlsDialer::new(store.clone()).or_plain();
        let mut stream = dialer.dial("127.0.0.1", port).await.unwrap();
        stream.write_all(b"plain").await.unwrap();
        assert_eq!(&server.await.unwrap(), b"plain");
    }
}

#[tokio::test]
async fn a_dialer_says_that_the_other_side_has_no_tls() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let store = store(&authority, dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = TlsDialer::new(store).dial("127.0.0.1", port).await.unwrap_err().to_string();
    assert!(error.ends_with("speaks no TLS"), "{error}");
}

#[tokio::test]
async fn a_renewed_certificate_comes_into_use_and_a_broken_one_does_not() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let files = authority.leaf(dir.path(), "s1", Leaf::store("s1"));
    let store = credentials(files.clone());
    assert!(!store.reload_if_changed().unwrap());
    let before = store.current().expires();

    let longer = Leaf::store("s1").valid_for(7200);
    authority.leaf(dir.path(), "s1", longer);
    assert!(store.reload_if_changed().unwrap());
    assert!(store.current().expires() > before);
    assert!(!store.reload_if_changed().unwrap());

    // The key of another certificate, as between two renames.
    let other = authority.leaf(dir.path(), "other", Leaf::store("s1"));
    std::fs::copy(&other.key, &files.key).unwrap();
    let why = store.reload_if_changed().unwrap_err().to_string();
    assert!(why.contains("s1.pem"), "{why}");
    assert!(!store.reload_if_changed().unwrap(), "the same files are read once");
    std::fs::copy(&other.cert, &files.cert).unwrap();
    assert!(store.reload_if_changed().unwrap());
    assert_eq!(store.reload_counts(), (2, 1));
    let (taken, dialled) = meet(required(&store), TlsDialer::new(store.clone())).await;
    assert!(taken.is_ok() && dialled.is_ok());
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (dir, authority) = (TempDir::new().unwrap(), Authority::new());
    let files = authority.leaf(dir.path(), "s1", Leaf::store("s1"));
    let refused = |files: CertificateFiles, word: &str| {
        let why = CredentialStore::open(files).unwrap_err().to_string();
        assert!(why.contains(word), "{word:?} is not in {why:?}");
    };
    let missing = dir.path().join("missing.pem");
    refused(CertificateFiles { ca: missing.clone(), ..files.clone() }, "missing.pem: No such file");
    refused(CertificateFiles { cert: missing, ..files.clone() }, "missing.pem: No such file");
    let swapped = CertificateFiles { cert: files.key.clone(), ..files.clone() };
    refused(swapped, "s1-key.pem: there is no certificate in it");
    let swapped = CertificateFiles { key: files.cert.clone(), ..files.clone() };
    refused(swapped, "s1.pem: there is no private key in it");
}
