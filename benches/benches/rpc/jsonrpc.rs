//! JSON-RPC 2.0 over HTTP/1.1, as plain as it gets: the baseline.
//!
//! One POST for each request, answered before the next one on that connection, which stays open;
//! `TCP_NODELAY` is set. Keys and values are base64 in the JSON text, for JSON has no bytes.
//! Head and body leave in one write. Both ends are written by hand for this one purpose and do
//! less for each request than any HTTP library, so the baseline is rather too fast than too slow.
//! The server finds the region itself and then calls the service that gRPC calls.

use std::net::SocketAddr;
use std::sync::Arc;

use flotilla_node::router::Router;
use flotilla_node::service::rawkv::RawKv;
use flotilla_proto::{kvrpcpb, metapb};
use flotilla_region::Space;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Failure;

/// A head or body above this is nonsense here.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Serves on a free port until the runtime ends.
pub(crate) async fn serve(service: RawKv, router: Router) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Arc::new(Server { service, router });
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let Ok(mut connection) = Connection::new(socket) else { return };
                while let Ok(Some(request)) = connection.receive().await {
                    let answer = server.answer(&request).await;
                    if connection.send("HTTP/1.1 200 OK", &answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok(address)
}

struct Server {
    service: RawKv,
    router: Router,
}

impl Server {
    async fn answer(&self, request: &Value) -> Value {
        let result = match request["method"].as_str() {
            Some("put") => self.put(&request["params"]).await,
            Some("get") => self.get(&request["params"]).await,
            _ => Err("no such method".into()),
        };
        match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "result": result, "id": request["id"] }),
            Err(error) => json!({
                "jsonrpc": "2.0",
                "error": { "code": -32000, "message": error.to_string() },
                "id": request["id"],
            }),
        }
    }

    async fn put(&self, params: &Value) -> Result<Value, Failure> {
        let (key, value) = (bytes_of(&params["key"])?, bytes_of(&params["value"])?);
        let request = kvrpcpb::RawPutRequest {
            context: Some(self.context(&key)?),
            key: key.into(),
            value: value.into(),
            ..Default::default()
        };
        let response = self.service.raw_put(request).await?;
        match (response.region_error, response.error) {
            (None, error) if error.is_empty() => Ok(Value::Null),
            (region_error, error) => Err(format!("{region_error:?} {error}").into()),
        }
    }

    async fn get(&self, params: &Value) -> Result<Value, Failure> {
        let key = bytes_of(&params["key"])?;
        let request = kvrpcpb::RawGetRequest {
            context: Some(self.context(&key)?),
            key: key.into(),
            ..Default::default()
        };
        let response = self.service.raw_get(request).await?;
        match response.region_error {
            None if response.not_found => Ok(Value::Null),
            None => Ok(base64::encode(&response.value).into()),
            Some(error) => Err(format!("{error:?}").into()),
        }
    }

    fn context(&self, key: &[u8]) -> Result<kvrpcpb::Context, Failure> {
        let region = self.router.locate(Space::Raw, key).ok_or("no region holds the key")?;
        let (_, leader) = self.router.leader(region.id).ok_or("the region has no leader")?;
        let epoch = metapb::RegionEpoch {
            conf_ver: region.epoch.conf_version,
            version: region.epoch.version,
        };
        let (id, store_id) = (leader.id.0, leader.store.0);
        Ok(kvrpcpb::Context {
            region_id: region.id.0,
            region_epoch: Some(epoch),
            peer: Some(metapb::Peer { id, store_id, ..Default::default() }),
            ..Default::default()
        })
    }
}

/// A client with a connection of its own.
pub(crate) struct Caller {
    connection: Connection,
    next_id: u64,
}

impl Caller {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Caller, Failure> {
        let connection = Connection::new(TcpStream::connect(address).await?)?;
        Ok(Caller { connection, next_id: 1 })
    }

    pub(crate) async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let params = json!({ "key": base64::encode(key), "value": base64::encode(value) });
        self.call("put", params).await.map(drop)
    }

    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        match self.call("get", json!({ "key": base64::encode(key) })).await? {
            Value::Null => Ok(None),
            value => bytes_of(&value).map(Some),
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": id });
        self.connection.send("POST /rpc HTTP/1.1\r\nhost: localhost", &request).await?;
        let mut answer = self.connection.receive().await?.ok_or("the server has gone")?;
        if answer["id"] != id {
            return Err("an answer to another request".into());
        }
        match answer["error"].take() {
            Value::Null => Ok(answer["result"].take()),
            error => Err(error.to_string().into()),
        }
    }
}

/// A client that connects anew for each request.
pub(crate) struct Naive {
    address: SocketAddr,
}

impl Naive {
    pub(crate) fn new(address: SocketAddr) -> Naive {
        Naive { address }
    }

    pub(crate) async fn connect(&self) -> Result<Caller, Failure> {
        let caller = Caller::connect(self.address).await?;
        // A connection closed in good order keeps its port for a minute, and ports are few.
        caller.connection.socket.set_zero_linger()?;
        Ok(caller)
    }
}

fn bytes_of(value: &Value) -> Result<Vec<u8>, Failure> {
    Ok(value.as_str().and_then(base64::decode).ok_or("not base64")?)
}

/// HTTP/1.1 messages with JSON bodies, in either direction.
struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn new(socket: TcpStream) -> Result<Connection, Failure> {
        socket.set_nodelay(true)?;
        Ok(Connection { socket, buffer: Vec::new() })
    }

    async fn send(&mut self, start: &str, body: &Value) -> Result<(), Failure> {
        let body = body.to_string();
        let length = body.len();
        let message = format!(
            "{start}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        Ok(self.socket.write_all(message.as_bytes()).await?)
    }

    /// The next message's body; `None` if there is none.
    async fn receive(&mut self) -> Result<Option<Value>, Failure> {
        let head_bytes = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.fill().await? {
                return Ok(None);
            }
        };
        let head = std::str::from_utf8(&self.buffer[..head_bytes])?.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.ok_or("no content-length")?.trim().parse()?;
        if length > MESSAGE_BYTES_MAX {
            return Err("the message is too long".into());
        }
        while self.buffer.len() < head_bytes + length {
            if !self.fill().await? {
                return Err("the message ends early".into());
            }
        }
        let body = serde_json::from_slice(&self.buffer[head_bytes..head_bytes + length])?;
        self.buffer.drain(..head_bytes + length);
        Ok(Some(body))
    }

    async fn fill(&mut self) -> Result<bool, Failure> {
        if self.buffer.len() > 2 * MESSAGE_BYTES_MAX {
            return Err("the message is too long".into());
        }
        Ok(self.socket.read_buf(&mut self.buffer).await? > 0)
    }
}

/// Just enough of it.
mod base64 {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    pub(super) fn encode(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
        for group in bytes.chunks(3) {
            let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for at in 0..4 {
                let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
                text.push(if at <= group.len() { char::from(letter) } else { '=' });
            }
        }
        text
    }

    pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
        let text = text.trim_end_matches('=').as_bytes();
        let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
        for group in text.chunks(4) {
            let mut bits = 0;
            for letter in group {
                bits = bits << 6 | value(*letter)?;
            }
            let bits = bits << (6 * (4 - group.len()));
            bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
        }
        Some(bytes)
    }

    fn value(letter: u8) -> Option<u32> {
        Some(u32::from(match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        }))
    }
}
