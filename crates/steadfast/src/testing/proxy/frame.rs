//! Cuts a stream of bytes into the messages of PostgreSQL's protocol, however the bytes arrive.
//!
//! A message is passed on as soon as the part of it that we want to understand is here; the rest of a large one
//! follows in pieces, so that megabytes of rows or parameters are never held.

use bytes::{Bytes, BytesMut};

/// The longest message we believe in. PostgreSQL itself cannot take more.
const LENGTH_MAX: usize = 1 << 30;

/// The longest start-up packet, as PostgreSQL limits it.
const STARTUP_LENGTH_MAX: usize = 10_000;

/// How much of a message with SQL is read. A longer one is known by its beginning.
const SQL_LENGTH_MAX: usize = 1 << 20;

/// How much is read of any other message that we understand: names and tags.
const HEAD_LENGTH_MAX: usize = 1 << 10;

/// The tag and the length in front of each message.
const HEADER_LENGTH: usize = 5;

/// Where the messages come from: the same tag means different things in the two directions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// The next part of the stream. All of them together are the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A message without a tag, which only a client sends, and only at first.
    Startup {
        wish: Wish,
        bytes: Bytes,
    },
    Message(Message),
    /// What had not been read of the message before.
    Rest(Bytes),
}

/// What a client wants with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Session,
    Encryption,
    Cancel,
}

/// A message, or the beginning of a large one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) is_whole: bool,
    /// As it came, with tag and length.
    pub(super) bytes: Bytes,
}

impl Piece {
    pub(super) fn bytes(&self) -> &Bytes {
        match self {
            Self::Startup { bytes, .. } | Self::Rest(bytes) | Self::Message(Message { bytes, .. }) => bytes,
        }
    }
}

impl Message {
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[HEADER_LENGTH..]
    }
}

/// This is not PostgreSQL's protocol, or we have lost count.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

pub(super) struct Frames {
    side: Side,
    is_starting: bool,
    /// What has arrived and is not yet passed on. It grows with what arrives, never with what a length promises.
    pub(super) buffer: BytesMut,
    rest: usize,
}

impl Frames {
    pub(super) fn of(side: Side) -> Self {
        Self {
            side,
            is_starting: side == Side::Client,
            buffer: BytesMut::new(),
            rest: 0,
        }
    }

    /// The next piece, or nothing until more has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, Malformed> {
        if self.rest > 0 {
            let length = self.rest.min(self.buffer.len());
            self.rest -= length;
            return Ok((length > 0).then(|| Piece::Rest(self.take(length))));
        }
        if self.is_starting {
            return self.startup();
        }
        let [tag, a, b, c, d, ..] = self.buffer[..] else {
            return Ok(None);
        };
        let body_length = length_of([a, b, c, d], 4, LENGTH_MAX)? - 4;
        let head_length = body_length.min(self.length_to_read(tag));
        if self.buffer.len() < HEADER_LENGTH + head_length {
            return Ok(None);
        }
        self.rest = body_length - head_length;
        Ok(Some(Piece::Message(Message {
            tag,
            is_whole: self.rest == 0,
            bytes: self.take(HEADER_LENGTH + head_length),
        })))
    }

    fn startup(&mut self) -> Result<Option<Piece>, Malformed> {
        let [a, b, c, d, ..] = self.buffer[..] else {
            return Ok(None);
        };
        let length = length_of([a, b, c, d], 8, STARTUP_LENGTH_MAX)?;
        if self.buffer.len() < length {
            return Ok(None);
        }
        let bytes = self.take(length);
        // The numbers that stand where a version would: CancelRequest, SSLRequest, GSSENCRequest.
        let wish = match (&bytes[4..6], &bytes[6..8]) {
            ([0x04, 0xd2], [0x16, 0x2e]) => Wish::Cancel,
            ([0x04, 0xd2], [0x16, 0x2f | 0x30]) => Wish::Encryption,
            _ => Wish::Session,
        };
        self.is_starting = wish == Wish::Encryption;
        Ok(Some(Piece::Startup { wish, bytes }))
    }

    fn length_to_read(&self, tag: u8) -> usize {
        match (self.side, tag) {
            (Side::Client, b'Q' | b'P') => SQL_LENGTH_MAX,
            (Side::Client, b'B' | b'E' | b'C') | (Side::Server, b'C' | b'K') => HEAD_LENGTH_MAX,
            _ => 0,
        }
    }

    fn take(&mut self, length: usize) -> Bytes {
        self.buffer.split_to(length).freeze()
    }
}

fn length_of(bytes: [u8; 4], min: usize, max: usize) -> Result<usize, Malformed> {
    let length = usize::try_from(u32::from_be_bytes(bytes)).map_err(|_| Malformed)?;
    (min..=max).contains(&length).then_some(length).ok_or(Malformed)
}

/// Takes a text that ends with a zero off the front of a body. A body that was cut may lack the zero.
pub(super) fn take_text(body: &mut &[u8]) -> String {
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    let text = String::from_utf8_lossy(&body[..end]).into_owned();
    *body = body.get(end + 1..).unwrap_or_default();
    text
}

#[cfg(test)]
mod tests {
    use super::super::fault::Random;
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("a short body").to_be_bytes();
        [&[tag], &length[..], body].concat()
    }

    fn startup(code: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 8).expect("a short body").to_be_bytes();
        [&length[..], &code.to_be_bytes(), body].concat()
    }

    /// What the pieces say, with the rest of a message joined to it.
    fn read(frames: &mut Frames, told: &mut Vec<(u8, usize)>, passed: &mut Vec<u8>) -> Result<(), Malformed> {
        while let Some(piece) = frames.next()? {
            let bytes = match piece {
                Piece::Startup { wish, bytes } => {
                    told.push((wish as u8, bytes.len()));
                    bytes
                }
                Piece::Message(message) => {
                    told.push((message.tag, message.bytes.len()));
                    message.bytes
                }
                Piece::Rest(bytes) => {
                    assert!(!bytes.is_empty());
                    bytes
                }
            };
            passed.extend_from_slice(&bytes);
        }
        Ok(())
    }

    fn conversation() -> Vec<u8> {
        [
            startup(80_877_103, b""),
            startup(80_877_104, b""),
            startup(196_608, b"user\0me\0\0"),
            message(b'Q', b"SELECT 1\0"),
            message(b'P', &vec![b'x'; SQL_LENGTH_MAX + 3]),
            message(b'B', &vec![b'y'; 70_000]),
            message(b'?', b"unknown"),
            message(b'S', b""),
            message(b'd', &[0; 9_000]),
            message(b'X', b""),
        ]
        .concat()
    }

    #[test]
    fn any_slicing_gives_the_same_messages_and_loses_no_byte() {
        let stream = conversation();
        let mut whole = (Frames::of(Side::Client), Vec::new(), Vec::new());
        whole.0.buffer.extend_from_slice(&stream);
        read(&mut whole.0, &mut whole.1, &mut whole.2).expect("well formed");
        assert_eq!(whole.2, stream);
        assert_eq!(whole.1.len(), 10);
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let (mut frames, mut told, mut passed) = (Frames::of(Side::Client), Vec::new(), Vec::new());
            let mut left = &stream[..];
            while !left.is_empty() {
                let longest = [1, 7, 300, 100_000][random.next() as usize % 4];
                let (slice, after) = left.split_at(left.len().min(1 + random.next() as usize % longest));
                frames.buffer.extend_from_slice(slice);
                read(&mut frames, &mut told, &mut passed).expect("well formed");
                left = after;
            }
            assert_eq!(told, whole.1, "seed {seed}");
            assert!(passed == stream, "seed {seed}");
        }
    }

    #[test]
    fn a_large_message_passes_through_without_being_held() {
        let mut frames = Frames::of(Side::Server);
        let length: usize = 64 << 20;
        let header = u32::try_from(length + 4).expect("fits").to_be_bytes();
        frames
            .buffer
            .extend_from_slice(&[b'D', header[0], header[1], header[2], header[3]]);
        let (mut told, mut passed) = (Vec::new(), Vec::new());
        for _ in 0..length / 8192 {
            frames.buffer.extend_from_slice(&[7; 8192]);
            read(&mut frames, &mut told, &mut passed).expect("well formed");
            assert!(frames.buffer.is_empty());
            passed.clear();
        }
        frames.buffer.extend_from_slice(&message(b'Z', b"I"));
        read(&mut frames, &mut told, &mut passed).expect("well formed");
        assert_eq!(told, [(b'D', 5), (b'Z', 5)]);
    }

    #[test]
    fn a_message_that_ends_too_early_is_waited_for() {
        let stream = [startup(196_608, b"user\0me\0\0"), message(b'Q', b"COMMIT\0")].concat();
        for cut in 0..stream.len() {
            let mut frames = Frames::of(Side::Client);
            frames.buffer.extend_from_slice(&stream[..cut]);
            let (mut told, mut passed) = (Vec::new(), Vec::new());
            read(&mut frames, &mut told, &mut passed).expect("only short");
            assert!(told.len() < 2, "{cut}");
            frames.buffer.extend_from_slice(&stream[cut..]);
            read(&mut frames, &mut told, &mut passed).expect("well formed");
            assert_eq!((told.len(), passed.len()), (2, stream.len()), "{cut}");
        }
    }

    #[test]
    fn an_absurd_length_is_refused_before_anything_is_reserved_for_it() {
        for length in [0_u32, 3, (1 << 30) + 1, u32::MAX] {
            let mut frames = Frames::of(Side::Server);
            frames.buffer.extend_from_slice(b"D");
            frames.buffer.extend_from_slice(&length.to_be_bytes());
            assert_eq!(frames.next(), Err(Malformed), "{length}");
        }
        for length in [0_u32, 7, 10_001, u32::MAX] {
            let mut frames = Frames::of(Side::Client);
            frames.buffer.extend_from_slice(&length.to_be_bytes());
            assert_eq!(frames.next(), Err(Malformed), "{length}");
        }
        let mut frames = Frames::of(Side::Client);
        frames.is_starting = false;
        frames.buffer.extend_from_slice(b"Q\x3f\xff\xff\xff");
        assert_eq!(frames.next(), Ok(None), "believed, but only waited for");
        assert!(frames.buffer.capacity() < 1024);
    }

    #[test]
    fn noise_never_panics() {
        let mut random = Random::new(11);
        for round in 0..20_000 {
            let side = if round % 2 == 0 { Side::Client } else { Side::Server };
            let mut frames = Frames::of(side);
            frames.is_starting &= round % 4 == 0;
            for _ in 0..random.next() % 40 {
                // Small lengths are more interesting than large ones.
                let byte = if random.next().is_multiple_of(3) {
                    random.next()
                } else {
                    0
                };
                frames.buffer.extend_from_slice(&[byte as u8]);
                if read(&mut frames, &mut Vec::new(), &mut Vec::new()).is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_text_ends_with_its_zero_or_with_the_body() {
        let mut body = &b"name\0SELECT 1\0rest"[..];
        assert_eq!(take_text(&mut body), "name");
        assert_eq!(take_text(&mut body), "SELECT 1");
        assert_eq!(take_text(&mut body), "rest");
        assert_eq!(take_text(&mut body), "");
    }
}
