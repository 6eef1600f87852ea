//! The stored end of a command: bytes that are handed out again as they are, never re-typed.
//!
//! [`Outcome::store`] is the only way into a record and [`Stored::read`] the only way out, so what they encrypt is
//! encrypted for every door.

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};

use super::encryption::Encryption;
use super::fingerprint::Fingerprint;
use super::key::Key;

/// How answers are laid out in the record. A reader that meets a higher one leaves it alone.
const PLAIN: i16 = 1;
/// The headers are empty, and the body is what [`Encryption::seal`] made of both.
const ENCRYPTED: i16 = 2;

/// The largest answer that is stored, unless a handler says otherwise.
pub const ANSWER_LENGTH_MAX: usize = 1024 * 1024;

/// What a command ended with: a status, the headers that are replayed, and the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) state: KeyState,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

/// The states of a key. There is no "started": in one transaction nobody could see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The command succeeded.
    Completed,
    /// The command failed, and its failure is stored.
    Failed,
}

impl KeyState {
    /// The state as it is spelled everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            KeyState::Completed => "completed",
            KeyState::Failed => "failed",
        }
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        [Self::Completed, Self::Failed]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// A key's row, as it is read back.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) expires_at: Timestamp,
    pub(crate) stored: Stored,
}

/// The columns of an answer, before anybody looked inside.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) format: i16,
    pub(crate) state: String,
    pub(crate) status: i16,
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Where an answer is kept: under which key, for which meaning, and behind which encryption, if any.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) key: &'a Key,
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) encryption: Option<&'a Encryption>,
}

impl Record {
    /// Expiry is this comparison and nothing else: an expired key is absent whether or not it was purged.
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        now < self.expires_at
    }
}

impl Outcome {
    /// What a transaction without a key ends with: nothing to store.
    pub(crate) fn empty() -> Self {
        Self {
            state: KeyState::Completed,
            status: 200,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub(crate) fn store(&self, place: &Place<'_>) -> Result<Stored> {
        let plain = Stored {
            format: PLAIN,
            state: self.state.as_str().to_owned(),
            status: i16::try_from(self.status).unwrap_or(i16::MAX),
            headers: encode_headers(&self.headers),
            body: self.body.to_vec(),
        };
        match place.encryption {
            Some(encryption) => plain.encrypt(encryption, place),
            None => Ok(plain),
        }
    }
}

impl Stored {
    /// The bytes that count against a quota.
    pub(crate) fn size(&self) -> i64 {
        i64::try_from(self.headers.len() + self.body.len()).unwrap_or(i64::MAX)
    }

    pub(crate) fn read(self, place: &Place<'_>) -> Result<Outcome> {
        let plain = match (self.format, place.encryption) {
            (PLAIN, _) => self,
            (ENCRYPTED, Some(encryption)) => self.decrypt(encryption, place)?,
            (ENCRYPTED, None) => return Err(locked()),
            _ => return Err(too_new()),
        };
        Ok(Outcome {
            state: KeyState::read(&plain.state).ok_or_else(too_new)?,
            status: u16::try_from(plain.status).map_err(|_| too_new())?,
            headers: decode_headers(&plain.headers).ok_or_else(too_new)?,
            body: plain.body.into(),
        })
    }

    fn encrypt(self, encryption: &Encryption, place: &Place<'_>) -> Result<Self> {
        let length = self.headers.len() as u64;
        let answer = [&length.to_be_bytes(), &self.headers[..], &self.body].concat();
        Ok(Self {
            format: ENCRYPTED,
            headers: Vec::new(),
            body: encryption.seal(&self.context(place), &answer)?,
            ..self
        })
    }

    fn decrypt(self, encryption: &Encryption, place: &Place<'_>) -> Result<Self> {
        let answer = encryption.open(&self.context(place), &self.body)?;
        let (length, answer) = answer.split_first_chunk().ok_or_else(tampered)?;
        let length = usize::try_from(u64::from_be_bytes(*length)).map_err(|_| tampered())?;
        let (headers, body) = answer.split_at_checked(length).ok_or_else(tampered)?;
        Ok(Self {
            format: PLAIN,
            headers: headers.to_vec(),
            body: body.to_vec(),
            ..self
        })
    }

    /// What an encrypted answer is bound to, so that it opens in its own row only and says what it said there.
    ///
    /// Each part is length-prefixed, so that no boundary between them can be moved.
    fn context(&self, place: &Place<'_>) -> Vec<u8> {
        let parts: [&[u8]; 5] = [
            &ENCRYPTED.to_be_bytes(),
            &place.key.hash,
            &place.fingerprint.0,
            self.state.as_bytes(),
            &self.status.to_be_bytes(),
        ];
        let prefixed = parts.map(|part| [&(part.len() as u64).to_be_bytes(), part].concat());
        prefixed.concat()
    }
}

fn too_new() -> Error {
    Error::new(
        Code::RecordTooNew,
        "the stored answer has a format this version does not know; send the same request again, a newer node will answer",
    )
}

/// Somebody else may have the key, so this may pass.
pub(super) fn locked() -> Error {
    Error::new(
        Code::AnswerLocked,
        "the stored answer is encrypted, and this process does not have its key; the command was not run again: send the same \
         request again, a node that has the key will answer",
    )
}

pub(super) fn tampered() -> Error {
    Error::new(
        Code::AnswerTampered,
        "the stored answer, or the row it stands in, was changed after it was encrypted; it is not handed out, and the command \
         was not run again",
    )
}

/// Headers as `name`, NUL, value, NUL: neither can contain one.
fn encode_headers(headers: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(value);
        bytes.push(0);
    }
    bytes
}

fn decode_headers(bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut fields = bytes.split(|byte| *byte == 0);
    let mut headers = Vec::new();
    loop {
        let name = fields.next()?;
        match fields.next() {
            Some(value) => headers.push((String::from_utf8(name.to_vec()).ok()?, value.to_vec())),
            // The last NUL leaves one empty field behind.
            None => return name.is_empty().then_some(headers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Scope;

    fn outcome() -> Outcome {
        Outcome {
            state: KeyState::Completed,
            status: 201,
            headers: vec![
                ("content-type".into(), b"application/json".to_vec()),
                ("location".into(), b"/orders/\xff1".to_vec()),
            ],
            body: Bytes::from_static(b"{\"nul\":\"\\u0000\"}\0"),
        }
    }

    fn key(value: &str) -> Key {
        Key::new(Scope::Global, None, "orders.place", value).expect("a good key")
    }

    fn in_plain<T>(test: impl FnOnce(&Place<'_>) -> T) -> T {
        test(&Place {
            key: &key("k"),
            fingerprint: &Fingerprint(vec![1, 2, 3]),
            encryption: None,
        })
    }

    fn stored() -> Stored {
        in_plain(|place| outcome().store(place)).expect("stored")
    }

    #[test]
    fn what_is_stored_is_what_is_read() {
        let bare = Outcome {
            headers: Vec::new(),
            ..outcome()
        };
        for outcome in [outcome(), bare] {
            let read = in_plain(|place| outcome.store(place)?.read(place));
            assert_eq!(read.expect("readable"), outcome);
        }
    }

    #[test]
    fn an_answer_in_a_newer_format_is_left_alone() {
        let unreadable = [
            Stored { format: 3, ..stored() },
            Stored {
                state: "parked".into(),
                ..stored()
            },
            Stored {
                headers: b"half".to_vec(),
                ..stored()
            },
        ];
        for stored in unreadable {
            let error = in_plain(|place| stored.read(place)).expect_err("too new");
            assert_eq!(error.code(), Code::RecordTooNew);
        }
    }

    #[test]
    fn an_encrypted_answer_without_a_key_is_left_alone() {
        let encrypted = Stored { format: 2, ..stored() };
        let error = in_plain(|place| encrypted.read(place)).expect_err("no key");
        assert_eq!(error.code(), Code::AnswerLocked);
        assert!(error.is_transient(), "a node that has the key will answer");
    }

    #[cfg(feature = "encryption")]
    mod encrypted {
        use super::*;

        fn place<'a>(key: &'a Key, fingerprint: &'a Fingerprint, encryption: &'a Encryption) -> Place<'a> {
            Place {
                key,
                fingerprint,
                encryption: Some(encryption),
            }
        }

        #[test]
        fn what_is_encrypted_is_what_is_read_and_nothing_of_it_shows() {
            let (key, fingerprint) = (key("k"), Fingerprint(vec![1, 2, 3]));
            let encryption = Encryption::new([1; 32]).expect("long enough");
            let place = place(&key, &fingerprint, &encryption);
            let bare = Outcome {
                headers: Vec::new(),
                body: Bytes::new(),
                ..outcome()
            };
            for outcome in [outcome(), bare] {
                let stored = outcome.store(&place).expect("stored");
                assert_eq!((stored.format, stored.headers.len()), (2, 0));
                for part in [&b"nul"[..], b"location", b"json"] {
                    assert!(!stored.body.windows(part.len()).any(|bytes| bytes == part));
                }
                assert_eq!(stored.read(&place).expect("readable"), outcome);
            }
        }

        #[test]
        fn what_was_stored_in_plain_stays_readable() {
            let (key, fingerprint) = (key("k"), Fingerprint(vec![1, 2, 3]));
            let encryption = Encryption::new([1; 32]).expect("long enough");
            let read = stored().read(&place(&key, &fingerprint, &encryption));
            assert_eq!(read.expect("readable"), outcome());
        }

        #[test]
        fn an_encrypted_answer_opens_in_its_own_row_only() {
            let (own_key, own_fingerprint) = (key("k"), Fingerprint(vec![1, 2, 3]));
            let encryption = Encryption::new([1; 32]).expect("long enough");
            let own = place(&own_key, &own_fingerprint, &encryption);
            let stored = || outcome().store(&own).expect("stored");
            let tampered = |stored: Stored, place: &Place<'_>, what: &str| {
                assert_eq!(
                    stored.read(place).expect_err(what).code(),
                    Code::AnswerTampered,
                    "{what}"
                );
            };
            tampered(stored(), &Place { key: &key("l"), ..own }, "another key");
            for bytes in [vec![1, 2, 4], vec![1, 2], vec![]] {
                let fingerprint = &Fingerprint(bytes);
                tampered(stored(), &Place { fingerprint, ..own }, "another fingerprint");
            }
            let (status, state) = (200, "failed".to_owned());
            tampered(Stored { status, ..stored() }, &own, "another status");
            tampered(Stored { state, ..stored() }, &own, "another state");

            let format = 3;
            let newer = Stored { format, ..stored() }.read(&own).expect_err("another format");
            assert_eq!(newer.code(), Code::RecordTooNew);
            let headers = b"set-cookie\0forged\0".to_vec();
            let forged = Stored { headers, ..stored() }.read(&own).expect("readable");
            assert_eq!(forged, outcome(), "the column is not looked at");
        }

        /// Made by another program from the description in docs/guide/tables.md: what is stored today is read for ever.
        #[test]
        fn the_layout_of_an_encrypted_answer_is_the_one_that_is_described() {
            let body = concat!(
                "c98f39fc",                                                                     // the id of the key
                "404142434445464748494a4b4c4d4e4f",                                             // the salt
                "19e23339f0adff948ac521eaee3d1c16f12471152bffff65d716c9f3527578ae11214c049ad9", // the headers with their length, and the body
                "1f57af7af2b803d3882dc08fc7db9c54",                                             // the tag
            );
            let byte = |at: usize| u8::from_str_radix(&body[at..at + 2], 16).expect("hexadecimal digits");
            let stored = Stored {
                format: 2,
                state: "completed".into(),
                status: 201,
                headers: Vec::new(),
                body: (0..body.len()).step_by(2).map(byte).collect(),
            };
            let (key, fingerprint) = (key("k"), Fingerprint(vec![1, 2, 3]));
            let encryption = Encryption::new([1; 32]).expect("long enough");
            let outcome = stored.read(&place(&key, &fingerprint, &encryption)).expect("readable");
            assert_eq!(outcome.headers, [("content-type".to_owned(), b"text/plain".to_vec())]);
            assert_eq!(outcome.body, "placed");
        }
    }

    #[test]
    fn a_record_lives_until_the_very_microsecond_it_expires() {
        let record = Record {
            fingerprint: Fingerprint(vec![0]),
            expires_at: Timestamp(1_000_000),
            stored: stored(),
        };
        assert!(record.is_live(Timestamp(999_999)));
        assert!(!record.is_live(Timestamp(1_000_000)));
        assert!(!record.is_live(Timestamp(1_000_001)));
    }
}
