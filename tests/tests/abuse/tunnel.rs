//! A tunnel that puts TLS around the bytes of connections: what is sent through it reaches the
//! store as the bytes of a client with a certificate.

use flotilla_tls::TlsDialer;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

/// Opens a tunnel to the store at `addr`, which works on these threads; its own address.
pub(crate) async fn open(dialer: TlsDialer, addr: String, threads: &Handle) -> String {
    let bound = threads.spawn(TcpListener::bind("127.0.0.1:0"));
    let listener = bound.await.unwrap().unwrap();
    let own = listener.local_addr().unwrap().to_string();
    threads.spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (dialer, addr) = (dialer.clone(), addr.clone());
            tokio::spawn(async move {
                let (host, port) = addr.split_once(':').unwrap();
                // A store that has no place left does not answer; the near side then hears nothing.
                let Ok(mut far) = dialer.dial(host, port.parse().unwrap()).await else { return };
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    own
}
