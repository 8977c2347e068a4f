//! The chunks of one gRPC message: long values are sent from where they lie, without a copy.
#![expect(unsafe_code, reason = "a buffer that takes values without a copy is an unsafe trait")]

use std::collections::VecDeque;

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use flotilla_proto::tikvpb::batch_commands_response::Response;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len, uint64};
use tonic::Status;

use super::row_encoder::RowEncoder;

/// The fields of a batch of answers.
const RESPONSES_FIELD: u32 = 1;
const IDS_FIELD: u32 = 2;
/// Shorter pieces are copied together: a chunk of its own costs more than the copy.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// The bytes of one message, gRPC's header included.
#[derive(Debug)]
pub(super) struct ChunkedBody {
    whole: VecDeque<Bytes>,
    open: BytesMut,
}

/// The last piece of a message, with something that goes when the piece does.
struct LastPiece<T> {
    bytes: Bytes,
    _kept: T,
}

impl<T> AsRef<[u8]> for LastPiece<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// One answer in a batch.
#[derive(Debug)]
pub(super) enum BatchReply {
    /// A message that is encoded as a whole.
    Message(Box<Response>),
    /// The rows of an answer that stands in this field.
    Rows { field: u32, rows: RowEncoder },
}

impl BatchReply {
    /// Bytes of the answer.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            BatchReply::Message(response) => response.encoded_len(),
            BatchReply::Rows { field, rows } => delimited_len(*field, rows.encoded_len()),
        }
    }

    fn encode(self, pieces: &mut ChunkedBody) {
        let bytes = self.encoded_len();
        head(RESPONSES_FIELD, bytes, &mut pieces.open);
        match self {
            BatchReply::Message(response) => response.encode_raw(pieces),
            BatchReply::Rows { field, rows } => {
                head(field, rows.encoded_len(), &mut pieces.open);
                pieces.put_rows(rows);
            }
        }
    }
}

impl ChunkedBody {
    /// A batch of answers, with the ids of their requests in the same order.
    ///
    /// # Errors
    ///
    /// As [`ChunkedBody::announce`].
    pub(super) fn batch(replies: Vec<BatchReply>, ids: &[u64]) -> Result<ChunkedBody, Status> {
        let bytes = replies.iter().map(|reply| delimited_len(RESPONSES_FIELD, reply.encoded_len()));
        let bytes = bytes.sum::<usize>() + uint64::encoded_len_packed(IDS_FIELD, ids);
        let mut pieces = ChunkedBody::announce(bytes)?;
        replies.into_iter().for_each(|reply| reply.encode(&mut pieces));
        uint64::encode_packed(IDS_FIELD, ids, &mut pieces.open);
        pieces.close();
        Ok(pieces)
    }

    /// A message.
    ///
    /// # Errors
    ///
    /// As [`ChunkedBody::announce`].
    pub(super) fn message(message: &impl Message) -> Result<ChunkedBody, Status> {
        let mut pieces = ChunkedBody::announce(message.encoded_len())?;
        message.encode_raw(&mut pieces);
        pieces.close();
        Ok(pieces)
    }

    /// An answer that has rows and nothing else.
    ///
    /// # Errors
    ///
    /// As [`ChunkedBody::announce`].
    pub(super) fn rows(rows: RowEncoder) -> Result<ChunkedBody, Status> {
        let mut pieces = ChunkedBody::announce(rows.encoded_len())?;
        pieces.put_rows(rows);
        pieces.close();
        Ok(pieces)
    }

    /// The same, which keeps `kept` until its last piece is dropped: when the kernel has it, not
    /// when the connection has taken it, for the server library has a queue of its own.
    pub(super) fn keeping(mut self, kept: impl Send + 'static) -> ChunkedBody {
        if let Some(last) = self.whole.back_mut() {
            let bytes = std::mem::take(last);
            *last = Bytes::from_owner(LastPiece { bytes, _kept: kept });
        }
        self
    }

    /// Bytes of all pieces that were not taken.
    pub(super) fn len(&self) -> usize {
        self.whole.iter().map(Bytes::len).sum()
    }

    /// The next piece, until there is none.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        self.whole.pop_front()
    }

    /// Begins with gRPC's header: not compressed, and the length of the message.
    ///
    /// # Errors
    ///
    /// The length is beyond what gRPC can say.
    fn announce(bytes: usize) -> Result<ChunkedBody, Status> {
        let length = u32::try_from(bytes)
            .map_err(|_| Status::resource_exhausted(format!("an answer of {bytes} bytes")))?;
        let mut open = BytesMut::new();
        // The flag "not compressed".
        open.put_u8(0);
        open.put_u32(length);
        Ok(ChunkedBody { whole: VecDeque::new(), open })
    }

    fn put_rows(&mut self, rows: RowEncoder) {
        rows.into_pieces().into_iter().for_each(|piece| self.put(piece));
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.whole.push_back(self.open.split().freeze());
        }
    }
}

// SAFETY: the memory is that of `open`, which holds what the trait asks for.
unsafe impl BufMut for ChunkedBody {
    fn remaining_mut(&self) -> usize {
        self.open.remaining_mut()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: the caller has initialised as many bytes of the chunk, which is that of `open`.
        unsafe { self.open.advance_mut(count) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.open.chunk_mut()
    }

    /// A long value becomes a piece: `prost` passes it as `Bytes`, of which that is no copy.
    fn put<T: Buf>(&mut self, mut source: T) {
        if source.remaining() < PIECE_BYTES_MIN {
            self.open.put(source);
        } else {
            self.close();
            self.whole.push_back(source.copy_to_bytes(source.remaining()));
        }
    }
}

/// Bytes of a field of `bytes`, with its key and length.
fn delimited_len(field: u32, bytes: usize) -> usize {
    key_len(field) + encoded_len_varint(bytes as u64) + bytes
}

fn head(field: u32, bytes: usize, out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(bytes as u64, out);
}

#[cfg(test)]
mod tests {
    use flotilla_proto::kvrpcpb::{KvPair, RawGetResponse, RawScanResponse};
    use flotilla_proto::tikvpb::BatchCommandsResponse;
    use flotilla_proto::tikvpb::batch_commands_response::response::Cmd;

    use super::*;

    fn bytes(mut pieces: ChunkedBody) -> Vec<u8> {
        std::iter::from_fn(|| pieces.take()).flatten().collect()
    }

    /// The bytes that the library would send.
    fn announced(message: &impl Message) -> Vec<u8> {
        let length = u32::try_from(message.encoded_len()).unwrap();
        [&[0], &length.to_be_bytes()[..], &message.encode_to_vec()].concat()
    }

    fn scan(value_bytes: usize, rows: usize) -> (RowEncoder, RawScanResponse) {
        let row = KvPair { key: Bytes::from_static(b"key"), value: vec![5; value_bytes].into() };
        let kvs = vec![row; rows];
        let mut encoded = RowEncoder::default();
        kvs.iter().for_each(|row| encoded.push(&row.key, &row.value));
        (encoded, RawScanResponse { kvs, ..Default::default() })
    }

    #[test]
    fn a_batch_is_what_the_library_makes_of_it() {
        let get = RawGetResponse { value: vec![9; 50_000].into(), ..Default::default() };
        for (value_bytes, rows) in [(0, 0), (0, 1), (10, 3), (30_000, 100), (300_000, 3)] {
            let (encoded, response) = scan(value_bytes, rows);
            let words = |cmd| Response { cmd: Some(cmd) };
            let replies = vec![
                BatchReply::Message(Box::new(words(Cmd::RawGet(get.clone())))),
                BatchReply::Rows { field: 19, rows: encoded },
                BatchReply::Message(Box::new(words(Cmd::RawGet(RawGetResponse::default())))),
            ];
            let lengths: Vec<_> = replies.iter().map(BatchReply::encoded_len).collect();
            let request_ids = vec![1, u64::MAX, 300];
            let responses = [
                Cmd::RawGet(get.clone()),
                Cmd::RawScan(response),
                Cmd::RawGet(RawGetResponse::default()),
            ];
            let responses: Vec<_> = responses.into_iter().map(words).collect();
            assert!(lengths.into_iter().eq(responses.iter().map(Message::encoded_len)));
            let message = BatchCommandsResponse {
                responses,
                request_ids: request_ids.clone(),
                ..Default::default()
            };
            let pieces = ChunkedBody::batch(replies, &request_ids).unwrap();
            assert!(bytes(pieces) == announced(&message), "{rows} rows of {value_bytes}");
        }
    }

    #[test]
    fn an_answer_alone_is_what_the_library_makes_of_it() {
        for (value_bytes, rows) in [(0, 0), (10, 3), (30_000, 100)] {
            let (encoded, response) = scan(value_bytes, rows);
            assert!(bytes(ChunkedBody::rows(encoded).unwrap()) == announced(&response));
            assert!(bytes(ChunkedBody::message(&response).unwrap()) == announced(&response));
        }
    }

    #[test]
    fn a_long_value_is_sent_from_where_it_lies() {
        let value = Bytes::from(vec![9; PIECE_BYTES_MIN]);
        let get = RawGetResponse { value: value.clone(), ..Default::default() };
        let mut pieces = ChunkedBody::message(&get).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| pieces.take()).collect();
        assert!(taken.iter().any(|piece| piece.as_ptr() == value.as_ptr()));
        let get = RawGetResponse { value: value.slice(1..), ..Default::default() };
        let mut pieces = ChunkedBody::message(&get).unwrap();
        assert_eq!(std::iter::from_fn(|| pieces.take()).count(), 1, "a short one is not");
    }

    #[test]
    fn what_cannot_be_announced_is_an_error() {
        let longest = u32::MAX as usize;
        assert!(ChunkedBody::announce(longest).is_ok());
        let refused = ChunkedBody::announce(longest + 1).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    }
}
