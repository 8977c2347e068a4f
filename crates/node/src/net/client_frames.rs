//! Follows the frames of a connection in the bytes that a client sends: HTTP/2, or HTTP/1.1, which
//! its first bytes tell apart.
//!
//! A connection opens with a fixed preface and a frame of settings; the first request is a block of
//! headers, in one frame or several (RFC 9113, sections 3.4, 4.1 and 6.10). Only the lengths, kinds
//! and flags of frames are looked at here: the HTTP/2 library refuses what is wrong in them.
//!
//! Frames are weighed by what they cost the server. Those without a request are weighed by
//! themselves too: a client needs few of them.

/// Bytes of the preface, `PRI * HTTP/2.0` and so on.
const PREFACE_BYTES: usize = 24;
/// No request of HTTP/1.1 that is served begins like this.
const PREFACE_BEGIN: &[u8] = b"PR";

/// Bytes of a frame's header: length (3), kind, flags, stream (4).
const FRAME_HEADER_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

/// Of settings that are sent: a write of its own acknowledges them.
const SETTINGS_WEIGHT: u32 = 8;
/// Of a ping that is sent: its answer is written with those of others.
const PING_WEIGHT: u32 = 4;
/// Of data without a byte or an end: the task of its stream is woken for it.
const EMPTY_DATA_WEIGHT: u32 = 8;
/// Of the reset of a stream: a request was begun for nothing.
const RESET_WEIGHT: u32 = 8;
/// The flag of settings and pings that are themselves answers.
const ACK: u8 = 1;

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

/// The weight of frames: 1 for each, more for those that are answered at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameWeight {
    /// Of all frames.
    pub(crate) all: u32,
    /// Of those that carry neither headers nor data.
    pub(crate) control: u32,
}

/// Follows the frames of a connection.
#[derive(Debug)]
pub(crate) struct ClientFrames {
    stage: OpeningStage,
    is_leaving: bool,
    /// Of the frames that have begun since it was last taken.
    weight: FrameWeight,
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
            is_leaving: false,
            weight: FrameWeight::default(),
            frame_bytes_left: PREFACE_BYTES,
            frame: None,
            begin_bytes: 0,
            header: [0; FRAME_HEADER_BYTES],
            header_bytes: 0,
        }
    }

    /// Takes bytes that came next, until the frames among them weigh `weight_max`. How many: at
    /// least one, if there are any.
    pub(crate) fn read(&mut self, bytes: &[u8], weight_max: u32) -> usize {
        let left = self.read_up_to(bytes, self.weight.all + weight_max.max(1));
        bytes.len() - left.len()
    }

    /// The next thing that the client owes after the bytes so far.
    pub(crate) fn stage(&self) -> OpeningStage {
        self.stage
    }

    /// Whether the client has said that it will make no more requests, and has made none since.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// The bytes that are left when the frames since the last look have this weight.
    fn read_up_to<'a>(&mut self, mut bytes: &'a [u8], weight: u32) -> &'a [u8] {
        let of_begin = bytes.iter().zip(&PREFACE_BEGIN[self.begin_bytes..]);
        if of_begin.clone().any(|(byte, expected)| byte != expected) {
            self.stage = OpeningStage::Plain;
        }
        self.begin_bytes += of_begin.count();
        if self.stage == OpeningStage::Plain {
            return &[];
        }
        while !bytes.is_empty() {
            if self.frame_bytes_left == 0 {
                if self.weight.all >= weight {
                    break;
                }
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
        bytes
    }

    /// The weight of the frames that have begun since the last call.
    pub(crate) fn take_weight(&mut self) -> FrameWeight {
        std::mem::take(&mut self.weight)
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.frame_bytes_left = u32::from_be_bytes([0, high, middle, low]) as usize;
        let is_of_request = match kind {
            HEADERS => true,
            DATA => self.frame_bytes_left > 0 || flags & END_STREAM != 0,
            _ => false,
        };
        let weight = match kind {
            SETTINGS if flags & ACK == 0 => SETTINGS_WEIGHT,
            PING if flags & ACK == 0 => PING_WEIGHT,
            DATA if !is_of_request => EMPTY_DATA_WEIGHT,
            RST_STREAM => RESET_WEIGHT,
            _ => 1,
        };
        self.weight.all += weight;
        self.weight.control += if is_of_request { 0 } else { weight };
        self.is_leaving = kind == GOAWAY || self.is_leaving && kind != HEADERS;
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
    /// A weight that is never reached.
    const ALL: u32 = 1000;

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
                    assert_eq!(frames.read(part, ALL), part.len());
                    assert_eq!(frames.stage(), owed, "pieces of {piece}");
                }
                assert_eq!(frames.read(&[*last], ALL), 1);
                assert_eq!(frames.stage(), after, "pieces of {piece}");
                owed = after;
            }
        }
    }

    #[test]
    fn a_request_of_http_1_is_known_by_its_first_bytes() {
        for request in ["GET / HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\n\r\n", "\u{7}"] {
            for piece in [1, 5, 100] {
                let mut frames = ClientFrames::new();
                for part in request.as_bytes().chunks(piece) {
                    assert_eq!(frames.read(part, 1), part.len());
                }
                assert_eq!(frames.stage(), OpeningStage::Plain, "{request:?}");
            }
        }
    }

    #[test]
    fn frames_are_weighed_however_they_come() {
        let empty = [frame(DATA, 0, &[]), frame(DATA, END_STREAM, &[])].concat();
        let all: Vec<u8> =
            opening().into_iter().flat_map(|(bytes, _)| bytes).chain(empty).collect();
        for piece in [1, 2, 5, 24, 33, 1000] {
            let mut frames = ClientFrames::new();
            for part in all.chunks(piece) {
                frames.read(part, ALL);
            }
            // Settings, their acknowledgement, a ping, a continuation, data of no bytes that ends
            // nothing; besides, headers, and data twice.
            let control = 8 + 1 + 4 + 1 + 8;
            let weight = FrameWeight { all: control + 3, control };
            assert_eq!(frames.take_weight(), weight, "pieces of {piece}");
            assert_eq!(frames.take_weight(), FrameWeight::default());
        }
    }

    #[test]
    fn a_client_is_leaving_when_it_has_said_so_and_asks_for_nothing_more() {
        let mut frames = ClientFrames::new();
        for (bytes, _) in opening() {
            frames.read(&bytes, ALL);
            assert!(!frames.is_leaving());
        }
        for (bytes, is_leaving) in [
            (frame(GOAWAY, 0, &[0; 8]), true),
            (frame(PING, ACK, &[7; 8]), true),
            (frame(HEADERS, END_HEADERS, &[5]), false),
            (frame(DATA, END_STREAM, &[5]), false),
        ] {
            frames.read(&bytes, ALL);
            assert_eq!(frames.is_leaving(), is_leaving);
        }
    }

    #[test]
    fn an_opening_that_comes_at_once_is_open() {
        let all: Vec<u8> = opening().into_iter().flat_map(|(bytes, _)| bytes).collect();
        let mut frames = ClientFrames::new();
        assert_eq!(frames.read(&all, ALL), all.len());
        assert_eq!(frames.stage(), OpeningStage::Open);
    }

    #[test]
    fn reading_ends_before_the_frame_that_would_be_too_much() {
        let opening = [PREFACE, &frame(SETTINGS, 0, &[0; 12])].concat();
        let ping = frame(PING, 0, &[7; 8]);
        let all = [opening.clone(), ping.repeat(5)].concat();
        let mut frames = ClientFrames::new();
        let first = frames.read(&all, 9);
        assert_eq!(first, opening.len() + ping.len(), "8 of settings, and a ping from 8 on");
        assert_eq!(frames.take_weight(), FrameWeight { all: 12, control: 12 });
        assert_eq!(frames.read(&all[first..], 0), ping.len(), "one frame at least");
    }
}
