//! TLS on real processes: parties of each role and of none, a cluster that is changed over while
//! it works, certificates that are renewed.

#![allow(clippy::unwrap_used, reason = "all of it is a test, its helpers too")]

mod certificates;
#[path = "../load/mod.rs"]
mod load;
#[path = "../processes/mod.rs"]
mod processes;

use std::fs;

use certificates::Certificates;
use flotilla_client::{Client, Config};
use flotilla_proto::peers::Frame;
use flotilla_proto::peers::operator_client::OperatorClient;
use flotilla_proto::peers::peers_client::PeersClient;
use flotilla_proto::peers::{RepairStatusRequest, StoreHello};
use flotilla_proto::tikvpb::tikv_client::TikvClient;
use load::Load;
use processes::{Processes, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const STORES: usize = 3;

/// Stores that speak TLS only.
async fn secure(certificates: &Certificates) -> Processes {
    let mut cluster = Processes::plan(STORES, 4);
    for place in 0..STORES {
        configure(&cluster, certificates, place, "required");
    }
    cluster.start_all();
    cluster.ready_by(certificates.config("operator-ann")).await;
    cluster
}

fn configure(cluster: &Processes, certificates: &Certificates, place: usize, mode: &str) {
    let own = certificates.settings(mode, &format!("store-s{place}"));
    cluster.configure(place, &format!("{}{own}", cluster.settings(place)));
}

/// A channel of a party to the store at a place.
fn channel(cluster: &Processes, certificates: &Certificates, party: &str, place: usize) -> Channel {
    let url = format!("https://{}", cluster.endpoints()[place]);
    let dialer = certificates.flags(party).dialer().unwrap().unwrap();
    dialer.connect_lazy(&Endpoint::from_shared(url).unwrap())
}

/// One request of HTTP/1.1 by a party: the whole answer.
async fn plain_http(
    cluster: &Processes,
    certificates: &Certificates,
    party: &str,
    request: &str,
) -> String {
    let (host, port) = cluster.endpoints()[0].split_once(':').unwrap();
    let dialer = certificates.flags(party).dialer().unwrap().unwrap();
    let mut stream = dialer.dial(host, port.parse().unwrap()).await.unwrap();
    let (head, body) = request.split_once('|').unwrap_or((request, ""));
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

fn is_denied<T: std::fmt::Debug>(answer: Result<T, Status>, words: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains(words), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_party_may_do_what_its_role_does_and_no_more() {
    let certificates = Certificates::new(STORES).await;
    let cluster = secure(&certificates).await;

    let client = Client::connect(cluster.endpoints(), certificates.config("client-app")).await;
    let client = client.unwrap();
    client.put("ship", "Vasa").await.unwrap();
    assert_eq!(client.get("ship").await.unwrap(), Some("Vasa".into()));

    // What changes the cluster is for operators, what stores say to each other for stores.
    let channel = |party| channel(&cluster, &certificates, party, 0);
    let status = |party| {
        let mut operator = OperatorClient::new(channel(party));
        async move { operator.repair_status(RepairStatusRequest::default()).await }
    };
    is_denied(status("client-app").await, "this is for an operator, and the certificate (app, ");
    is_denied(status("store-s1").await, "this is for an operator");
    let unavailable_or_answered = status("operator-ann").await.map(drop);
    assert_ne!(unavailable_or_answered.map_err(|it| it.code()), Err(Code::PermissionDenied));
    for party in ["client-app", "operator-ann"] {
        let mut peers = PeersClient::new(channel(party));
        let frames = tokio_stream::iter([Frame::default()]);
        is_denied(peers.appends(frames).await, "this is for a store");
        is_denied(peers.hello(StoreHello::default()).await, "this is for a store");
    }
    let mut peers = PeersClient::new(channel("store-s1"));
    let hello = StoreHello { name: "s2".to_owned(), ..StoreHello::default() };
    is_denied(peers.hello(hello).await, "says that it is store s2, and its certificate is of s1");

    let ask = |party, request| plain_http(&cluster, &certificates, party, request);
    let metrics = ask("client-app", "GET /metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    let expiry = "flotilla_tls_certificate_expiry_timestamp_seconds ";
    let expiry = metrics.lines().find_map(|line| line.strip_prefix(expiry)).unwrap();
    assert!(expiry.parse::<f64>().unwrap() > 1e9, "{expiry}");
    let refused = ask("client-app", "PUT /log-level|debug").await;
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("an operator"), "{refused}");
    let taken = ask("operator-ann", "PUT /log-level|info").await;
    assert!(taken.starts_with("HTTP/1.1 200"), "{taken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_and_clients_of_others_show_their_certificate() {
    let certificates = Certificates::new(STORES).await;
    let cluster = secure(&certificates).await;
    let stores = cluster.ctl(&format!("stores {}", certificates.flags("operator-ann"))).await;
    assert_eq!(stores.code, Some(0), "{stores:?}");
    assert_eq!(stores.out.matches(" up ").count(), STORES, "{stores:?}");
    let drain = format!("store drain s1 {}", certificates.flags("client-app"));
    cluster.ctl(&drain).await.refused(&["this is for an operator"]);

    // Without a certificate, with one that no store knows, and with a part of the flags.
    cluster.ctl("stores").await.refused(&["this store speaks TLS only"]);
    let strangers = Certificates::new(0).await;
    let stranger = strangers.flags("operator-ann");
    cluster.ctl(&format!("stores {stranger}")).await.refused(&["UnknownIssuer"]);
    let half = format!("stores --tls-ca {}", certificates.file("ca.pem").display());
    let half = cluster.ctl(&half).await;
    assert_eq!(half.code, Some(2), "{half:?}");
    assert!(half.errors.contains("all three of --tls-ca, --tls-cert and --tls-key"), "{half:?}");

    // The client of the Rust community, unmodified.
    let files = ["ca.pem", "client-app.pem", "client-app-key.pem"].map(|it| certificates.file(it));
    let [ca, cert, key] = files;
    let config = tikv_client::Config::default().with_security(ca, cert, key);
    let endpoints = cluster.endpoints().to_vec();
    let client = tikv_client::RawClient::new_with_config(endpoints, config).await.unwrap();
    client.put("ship".to_owned(), "Vasa").await.unwrap();
    assert_eq!(client.get("ship".to_owned()).await.unwrap(), Some(b"Vasa".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_the_certificate_of_another_does_not_start() {
    let certificates = Certificates::new(STORES).await;
    let mut cluster = secure(&certificates).await;
    cluster.stop(2);
    let wrong = certificates.settings("required", "store-s1");
    cluster.configure(2, &format!("{}{wrong}", cluster.settings(2)));
    cluster.refused(2, &["store-s1.pem: it is no certificate of store s2"]).await;
    configure(&cluster, &certificates, 2, "required");
    cluster.restart(2);
    let ctl = format!("stores {}", certificates.flags("operator-ann"));
    until(async || {
        let stores = cluster.ctl(&ctl).await;
        let is_whole = stores.out.matches(" up ").count() == STORES;
        if is_whole { Ok(()) } else { Err(format!("{stores:?}")) }
    })
    .await;

    // One that joins shows a certificate of the name that it joins under.
    let join = cluster.endpoints()[0].clone();
    let data = cluster.aside("s3.data");
    let settings = |certificate: &str| {
        let tls = certificates.settings("required", certificate);
        let (join, data) = (join.clone(), data.clone());
        move |addr: &str| {
            format!(
                "name = \"s3\"\naddr = \"{addr}\"\njoin = \"{join}\"\ndata_dir = {data:?}\n{tls}"
            )
        }
    };
    let place = cluster.add(settings("store-s1"));
    cluster.refused(place, &["store-s1.pem: it is no certificate of store s3"]).await;
    certificates.make("store s3 --host 127.0.0.1").await;
    let addr = cluster.address(place);
    cluster.configure(place, &settings("store-s3")(&addr));
    cluster.restart(place);
    cluster.says(place, &["the node serves"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_changed_over_store_by_store_while_it_works() {
    let certificates = Certificates::new(STORES).await;
    let mut cluster = Processes::start(STORES, 4).await;
    let load = Load::start(4, cluster.endpoints()).await;
    load.progress(200).await;
    change_over(&mut cluster, &certificates, &load, "optional", Config::default()).await;
    // Each store takes both now: clients are changed over one after the other.
    let config = certificates.config("client-app");
    let secure = Load::start_apart(4, cluster.endpoints(), config).await;
    secure.progress(200).await;
    load.no_refusals();
    println!("without TLS: {}", load.end(cluster.endpoints()).await);
    let operator = certificates.config("operator-ann");
    change_over(&mut cluster, &certificates, &secure, "required", operator).await;
    renew(&cluster, &certificates, &secure).await;
    secure.no_refusals();
    println!("with TLS: {}", secure.end(cluster.endpoints()).await);
    cluster.ctl("stores").await.refused(&["this store speaks TLS only"]);
}

async fn change_over(
    cluster: &mut Processes,
    certificates: &Certificates,
    load: &Load,
    mode: &str,
    config: Config,
) {
    for place in 0..STORES {
        cluster.stop(place);
        configure(cluster, certificates, place, mode);
        cluster.restart(place);
        cluster.ready_by(config.clone()).await;
        load.next_round();
        load.progress(200).await;
    }
}

/// New certificates come into use under the load, and those that cannot be used do not.
async fn renew(cluster: &Processes, certificates: &Certificates, load: &Load) {
    for place in 0..STORES {
        certificates.make(&format!("store s{place} --host 127.0.0.1 --renew --days 400")).await;
        cluster.hang_up(place);
        cluster.says(place, &["the certificate was read again"]).await;
        load.progress(100).await;
    }
    let cert = certificates.file("store-s0.pem");
    for file in ["ca-key.pem", "store-s1.pem"] {
        fs::copy(certificates.file(file), &cert).unwrap();
        cluster.hang_up(0);
        cluster.says(0, &["the certificate stays as it was", "store-s0.pem"]).await;
    }
    load.progress(100).await;
    let mut kv = TikvClient::new(channel(cluster, certificates, "client-app", 0));
    let request = flotilla_proto::kvrpcpb::RawGetRequest::default();
    // A new connection with the certificate that stayed; the request itself is not of this region.
    kv.raw_get(request).await.unwrap();
}

#[tokio::test]
async fn certificates_are_made_and_never_overwritten_by_chance() {
    let certificates = Certificates::new(1).await;
    let again = certificates.run("store s0 --host 127.0.0.1").await;
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(
        again.errors.contains("store-s0-key.pem is there; --renew replaces it")
            || again.errors.contains("store-s0.pem is there; --renew replaces it"),
        "{again:?}"
    );
    let wrong = certificates.run("client ../app").await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let key = fs::metadata(certificates.file("store-s0-key.pem")).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_files_that_cannot_be_used_does_not_start() {
    let certificates = Certificates::new(1).await;
    let mut cluster = Processes::plan(1, 1);
    let plain = cluster.settings(0);
    for (tls, words) in [
        ("[tls]\nmode = \"required\"\n", &["tls.ca_file is missing"][..]),
        ("[tls]\nmode = \"sometimes\"\n", &["sometimes", "optional"]),
        ("[tls]\nstore_name = \"x\"\n", &["store_name", "{name}"]),
    ] {
        cluster.configure(0, &format!("{plain}{tls}"));
        cluster.refused(0, words).await;
    }
    let swapped = certificates.settings("required", "store-s0").replace("-key.pem", ".pem");
    cluster.configure(0, &format!("{plain}{swapped}"));
    cluster.refused(0, &["store-s0.pem: there is no private key in it"]).await;
    let client = certificates.settings("required", "client-app");
    cluster.configure(0, &format!("{plain}{client}"));
    cluster.refused(0, &["client-app.pem: it is no certificate of store s0"]).await;
}
