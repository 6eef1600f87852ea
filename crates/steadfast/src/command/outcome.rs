//! The stored end of a command: bytes that are handed out again as they are, never re-typed.

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};

use super::fingerprint::Fingerprint;

/// How answers are laid out in the record. A reader that meets a higher one leaves it alone.
const FORMAT: i16 = 1;

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

    pub(crate) fn store(&self) -> Stored {
        Stored {
            format: FORMAT,
            state: self.state.as_str().to_owned(),
            status: i16::try_from(self.status).unwrap_or(i16::MAX),
            headers: encode_headers(&self.headers),
            body: self.body.to_vec(),
        }
    }
}

impl Stored {
    /// The bytes that count against a quota.
    pub(crate) fn size(&self) -> i64 {
        i64::try_from(self.headers.len() + self.body.len()).unwrap_or(i64::MAX)
    }

    pub(crate) fn read(self) -> Result<Outcome> {
        let state = match self.state.as_str() {
            "completed" => KeyState::Completed,
            "failed" => KeyState::Failed,
            _ => return Err(too_new()),
        };
        if self.format != FORMAT {
            return Err(too_new());
        }
        Ok(Outcome {
            state,
            status: u16::try_from(self.status).map_err(|_| too_new())?,
            headers: decode_headers(&self.headers).ok_or_else(too_new)?,
            body: self.body.into(),
        })
    }
}

fn too_new() -> Error {
    Error::new(
        Code::RecordTooNew,
        "the stored answer has a format this version does not know; send the same request again, a newer node will answer",
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

    #[test]
    fn what_is_stored_is_what_is_read() {
        assert_eq!(outcome().store().read().expect("readable"), outcome());
        let bare = Outcome {
            headers: Vec::new(),
            ..outcome()
        };
        assert_eq!(bare.store().read().expect("readable"), bare);
    }

    #[test]
    fn an_answer_in_a_newer_format_is_left_alone() {
        let unreadable = [
            Stored {
                format: 2,
                ..outcome().store()
            },
            Stored {
                state: "parked".into(),
                ..outcome().store()
            },
            Stored {
                headers: b"half".to_vec(),
                ..outcome().store()
            },
        ];
        for stored in unreadable {
            assert_eq!(stored.read().expect_err("too new").code(), Code::RecordTooNew);
        }
    }

    #[test]
    fn a_record_lives_until_the_very_microsecond_it_expires() {
        let record = Record {
            fingerprint: Fingerprint(vec![0]),
            expires_at: Timestamp(1_000_000),
            stored: outcome().store(),
        };
        assert!(record.is_live(Timestamp(999_999)));
        assert!(!record.is_live(Timestamp(1_000_000)));
        assert!(!record.is_live(Timestamp(1_000_001)));
    }
}
