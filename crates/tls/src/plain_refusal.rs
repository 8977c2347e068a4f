//! Words to a peer that speaks without TLS where TLS is required, in the protocol that it speaks.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The words of the refusal.
pub(crate) const WORDS: &str = "this store speaks TLS only: connect with a certificate";

/// A reset of a connection with unread bytes would overtake the words: so many are read before,
/// and for so long.
const DRAIN_BYTES_MAX: u64 = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Bytes by which HTTP/2 is told from HTTP/1.1.
const BEGIN_BYTES: usize = 3;

/// Refuses a peer whose first bytes are there to be read.
///
/// # Errors
///
/// Of the socket.
pub(crate) async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let mut begin = [0; BEGIN_BYTES];
    stream.read_exact(&mut begin).await?;
    let answer = match &begin {
        b"PRI" => http2_answer(),
        _ => http1_answer(),
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    let mut sink = tokio::io::sink();
    let mut rest = (&mut stream).take(DRAIN_BYTES_MAX);
    // Late or not, the connection ends here.
    let _ = timeout(DRAIN_TIME, tokio::io::copy(&mut rest, &mut sink)).await;
    Ok(())
}

/// Settings, then `GOAWAY` with the words as debug data (RFC 9113, sections 6.5 and 6.8).
fn http2_answer() -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const INADEQUATE_SECURITY: u32 = 0xc;
    let length = u32::try_from(8 + WORDS.len()).unwrap_or_default().to_be_bytes();
    let mut answer = SETTINGS.to_vec();
    answer.extend(&length[1..]);
    // Kind, flags and the stream, which is that of the connection; no stream was looked at.
    answer.extend([7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    answer.extend(INADEQUATE_SECURITY.to_be_bytes());
    answer.extend(WORDS.as_bytes());
    answer
}

fn http1_answer() -> Vec<u8> {
    let length = WORDS.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{WORDS}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_http_2_is_two_whole_frames() {
        let answer = http2_answer();
        let goaway = &answer[9..];
        let length = u32::from_be_bytes([0, goaway[0], goaway[1], goaway[2]]) as usize;
        assert_eq!(goaway.len(), 9 + length);
        assert_eq!(goaway[3..9], [7, 0, 0, 0, 0, 0]);
        assert_eq!(&goaway[17..], WORDS.as_bytes());
    }
}
