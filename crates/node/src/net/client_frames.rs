//! Follows the frames of a connection in the bytes that a client sends: HTTP/2, or HTTP/1.1, which
//! its first bytes tell apart.
//!
//! A connection opens with a fixed preface and a frame of settings; the first request is a block of
//! headers, in one frame or several (RFC 9113, sections 3.4, 4.1 and 6.10). Only the lengths, kinds
//! and flags of frames are looked at here: the HTTP/2 library refuses what is wrong in them.
//!
//! Frames that carry no request are counted: a client needs few of them, and each costs the server
//! about as much as a small request does.

/// Bytes of the preface, `PRI * HTTP/2.0` and so on.
const PREFACE_BYTES: usize = 24;
/// No request of HTTP/1.1 that is served begins like this.
const PREFACE_BEGIN: &[u8] = b"PR";

/// Bytes of a frame's header: length (3), kind, flags, stream (4).
const FRAME_HEADER_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

/// The flag of the last frame of a stream.
const END_STREAM: u8 = 1;
/// The flag of the last frame of a block of headers.
const END_HEADERS: u8 = 4;

/// The next thing that a client owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpeningStage {
    /// The preface and its settings.
    Preface,
    /// The headers of a request.
    FirstRequest,
    /// Nothing: a request has come.
    Open,
    /// Its end: a connection of HTTP/1.1 is for a few requests.
    Plain,
}

/// Follows the frames of a connection.
#[derive(Debug)]
pub(crate) struct ClientFrames {
    stage: OpeningStage,
    /// Frames without a request that have begun since they were last taken.
    control_frames: u32,
    /// Bytes until the frame that is under way ends; first of all, until the preface does.
    frame_bytes_left: usize,
    /// Kind and flags of the frame that is under way; none of the preface.
    frame: Option<(u8, u8)>,
    /// Bytes of the preface's beginning that have come.
    begin_bytes: usize,
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
}

impl ClientFrames {
    pub(crate) fn new() -> Self {
        Self {
            stage: OpeningStage::Preface,
            control_frames: 0,
            frame_bytes_left: PREFACE_BYTES,
            frame: None,
            begin_bytes: 0,
            header: [0; FRAME_HEADER_BYTES],
            header_bytes: 0,
        }
    }

    /// Takes the bytes that came next; what the client owes after them.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> OpeningStage {
        let of_begin = bytes.iter().zip(&PREFACE_BEGIN[self.begin_bytes..]);
        if of_begin.clone().any(|(byte, expected)| byte != expected) {
            self.stage = OpeningStage::Plain;
        }
        self.begin_bytes += of_begin.count();
        while self.stage != OpeningStage::Plain && !bytes.is_empty() {
            if self.frame_bytes_left == 0 {
                let (of_header, rest) =
                    bytes.split_at(bytes.len().min(FRAME_HEADER_BYTES - self.header_bytes));
                let end = self.header_bytes + of_header.len();
                self.header[self.header_bytes..end].copy_from_slice(of_header);
                self.header_bytes = end;
                bytes = rest;
                if end < FRAME_HEADER_BYTES {
                    break;
                }
                self.begin_frame();
            } else {
                let passed = bytes.len().min(self.frame_bytes_left);
                self.frame_bytes_left -= passed;
                bytes = &bytes[passed..];
            }
            if self.frame_bytes_left == 0 {
                self.end_frame();
            }
        }
        self.stage
    }

    /// The frames that carry neither headers nor data and have come since the last call.
    pub(crate) fn take_control_frames(&mut self) -> u32 {
        std::mem::take(&mut self.control_frames)
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.frame_bytes_left = u32::from_be_bytes([0, high, middle, low]) as usize;
        let is_of_request = match kind {
            HEADERS => true,
            DATA => self.frame_bytes_left > 0 || flags & END_STREAM != 0,
            _ => false,
        };
        self.control_frames += u32::from(!is_of_request);
        self.frame = Some((kind, flags));
        self.header_bytes = 0;
    }

    /// A frame counts once it is whole: half of one is what a client may be stuck with.
    fn end_frame(&mut self) {
        match self.frame {
            Some((SETTINGS, _)) if self.stage == OpeningStage::Preface => {
                self.stage = OpeningStage::FirstRequest;
            }
            Some((HEADERS | CONTINUATION, flags)) if flags & END_HEADERS != 0 => {
                self.stage = OpeningStage::Open;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &1_u32.to_be_bytes(), payload].concat()
    }

    /// Bytes of an opening, and what is owed once all of them have come.
    fn opening() -> Vec<(Vec<u8>, OpeningStage)> {
        vec![
            (PREFACE.to_vec(), OpeningStage::Preface),
            (frame(SETTINGS, 0, &[0; 12]), OpeningStage::FirstRequest),
            (frame(SETTINGS, 1, &[]), OpeningStage::FirstRequest),
            (frame(6, 0, &[7; 8]), OpeningStage::FirstRequest),
            (frame(HEADERS, 1, &[5; 300]), OpeningStage::FirstRequest),
            (frame(CONTINUATION, END_HEADERS, &[5; 3]), OpeningStage::Open),
            (frame(0, 1, &[5; 300]), OpeningStage::Open),
        ]
    }

    #[test]
    fn a_stage_is_over_with_the_last_byte_of_its_frame() {
        for piece in [1, 2, 5, 24, 33, 1000] {
            let mut frames = ClientFrames::new();
            let mut owed = OpeningStage::Preface;
            for (bytes, after) in opening() {
                let (last, before) = bytes.split_last().unwrap();
                for part in before.chunks(piece) {
                    assert_eq!(frames.read(part), owed, "pieces of {piece}");
                }
                assert_eq!(frames.read(&[*last]), after, "pieces of {piece}");
                owed = after;
            }
        }
    }

    #[test]
    fn a_request_of_http_1_is_known_by_its_first_bytes() {
        for request in ["GET / HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\n\r\n", "\u{7}"] {
            for piece in [1, 5, 100] {
                let mut frames = ClientFrames::new();
                let mut stages = request.as_bytes().chunks(piece).map(|part| frames.read(part));
                assert_eq!(stages.next_back(), Some(OpeningStage::Plain), "{request:?}");
            }
        }
    }

    #[test]
    fn frames_without_a_request_are_counted_however_they_come() {
        let empty = [frame(DATA, 0, &[]), frame(DATA, END_STREAM, &[])].concat();
        let all: Vec<u8> =
            opening().into_iter().flat_map(|(bytes, _)| bytes).chain(empty).collect();
        for piece in [1, 2, 5, 24, 33, 1000] {
            let mut frames = ClientFrames::new();
            for part in all.chunks(piece) {
                frames.read(part);
            }
            // Settings twice, a ping, a continuation, data of no bytes that ends nothing.
            assert_eq!(frames.take_control_frames(), 5, "pieces of {piece}");
            assert_eq!(frames.take_control_frames(), 0);
        }
    }

    #[test]
    fn an_opening_that_comes_at_once_is_open() {
        let all: Vec<u8> = opening().into_iter().flat_map(|(bytes, _)| bytes).collect();
        assert_eq!(ClientFrames::new().read(&all), OpeningStage::Open);
    }
}
