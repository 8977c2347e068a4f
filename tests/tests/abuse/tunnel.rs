//! A tunnel that puts TLS around the bytes of connections: what is sent through it reaches the
//! store as the bytes of a client with a certificate.

use flotilla_tls::TlsDialer;
use socket2::SockRef;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

/// The tunnel's kernel takes as much of what the near side does not read, on each of both sides: by
/// default it is megabytes, and a store would see a client that reads them. Since the tunnel reads
/// until it is full, its receive buffer would grow meanwhile; that of a client that never reads
/// does not.
const UNREAD_BYTES: usize = 64 << 10;

/// Opens a tunnel to the store at `addr`, which works on these threads; its own address.
pub(crate) async fn open(dialer: TlsDialer, addr: String, threads: &Handle) -> String {
    let bound = threads.spawn(TcpListener::bind("127.0.0.1:0"));
    let listener = bound.await.unwrap().unwrap();
    let own = listener.local_addr().unwrap().to_string();
    threads.spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            SockRef::from(&near).set_send_buffer_size(UNREAD_BYTES).unwrap();
            let (dialer, addr) = (dialer.clone(), addr.clone());
            tokio::spawn(async move {
                let (host, port) = addr.split_once(':').unwrap();
                // A store that has no place left does not answer; the near side then hears nothing.
                let Ok(mut far) = dialer.dial(host, port.parse().unwrap()).await else { return };
                let tcp = SockRef::from(far.tcp());
                tcp.set_send_buffer_size(UNREAD_BYTES).unwrap();
                tcp.set_recv_buffer_size(UNREAD_BYTES).unwrap();
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    own
}
