//! The hash of what a request means: the same key with another one is refused.
//!
//! A fingerprint starts with a byte that names its algorithm, so that a record written before an upgrade,
//! or before a keyed hash was switched on, is compared by its own algorithm and never gives a false
//! mismatch. It is taken from the bytes of the request before any typed decoding: a replay must not
//! fail because today's type no longer parses yesterday's request.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::json::{self, JsonError};
use crate::error::{Code, Error, Result};

/// The shortest secret: below this, trying all of them is the easier way.
const SECRET_LENGTH_MIN: usize = 16;

/// How the meaning of an input is compared between a command and its retries.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum FingerprintPolicy {
    /// SHA-256 over the whole input. The default.
    #[default]
    Whole,
    /// Only these top-level members of a JSON input count, for clients that send a fresh timestamp with each retry.
    /// Inputs that are not JSON objects count whole.
    Fields(Arc<[Cow<'static, str>]>),
    /// As `Whole`, keyed with a secret: the hash of a card number alone could be found by trying all of them. The first
    /// secret is used for new records, the others for records from before a rotation.
    Keyed(Arc<[Secret]>),
    /// Nothing is compared: a retry with another body replays the first answer.
    Off,
}

impl FingerprintPolicy {
    /// Only these top-level members of a JSON input count.
    pub fn fields<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Cow<'static, str>>,
    {
        Self::Fields(names.into_iter().map(Into::into).collect())
    }

    /// Hash with a secret: at least 32 random bytes, the same on all nodes.
    pub fn keyed(secret: impl Into<Vec<u8>>) -> Self {
        Self::Keyed([Secret::new(secret.into())].into())
    }

    /// Whether every secret is there and long enough not to be guessed.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Self::Keyed(secrets) => {
                !secrets.is_empty() && secrets.iter().all(|secret| secret.0.len() >= SECRET_LENGTH_MIN)
            }
            _ => true,
        }
    }

    /// After a rotation: also compare records that were made with the old secret, until they have expired.
    pub fn rotated_from(self, old: impl Into<Vec<u8>>) -> Self {
        match self {
            Self::Keyed(secrets) => Self::Keyed(secrets.iter().cloned().chain([Secret::new(old.into())]).collect()),
            // A plain fingerprint needs no secret to be compared with.
            other => other,
        }
    }
}

/// Bytes that never show in `Debug` output.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    pub(super) fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Names the secret without telling it, so that a record says which one it was made with.
    pub(super) fn id(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest([b"steadfast secret id ", &*self.0].concat()));
        [a, b, c, d]
    }

    pub(super) fn mac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a command asks for, as the door it came through sees it. Its fingerprint is taken of this.
///
/// ```
/// use steadfast::Meaning;
///
/// let call = |input: &'static str| Meaning::Call { operation: "orders.place", input: input.as_bytes() };
/// let spelled = call(r#"{ "sku": "tea", "quantity": 2.0 }"#);
/// assert_eq!(spelled.canonical()?.as_deref(), Some(r#"{"quantity":2,"sku":"tea"}"#));
/// assert_eq!(spelled.fingerprint()?, call(r#"{"quantity":2,"sku":"tea"}"#).fingerprint()?);
/// # Ok::<(), steadfast::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Meaning<'m> {
    /// A call in Rust: `sf.command(operation, key).input(..)`.
    Call {
        /// The name of the operation.
        operation: &'m str,
        /// The input as JSON; `null` if there is none.
        input: &'m [u8],
    },
    /// A request through `sf.idempotent()`.
    Request {
        /// The method, in capitals.
        method: &'m str,
        /// The path, as it was sent.
        path: &'m str,
        /// The query without its `?`.
        query: &'m str,
        /// The `Content-Type`.
        media_type: &'m [u8],
        /// The body.
        body: &'m [u8],
    },
}

impl Meaning<'_> {
    /// The input or body as canonical JSON; `None` if it is not JSON and counts byte for byte.
    ///
    /// # Errors
    /// SF106 if it says that it is JSON, and is not.
    pub fn canonical(&self) -> Result<Option<String>> {
        self.canonical_of(|_| true)
    }

    /// One member of it; `None` if it is not there, or this is no JSON object.
    #[cfg(feature = "axum")]
    pub(crate) fn member(&self, name: &str) -> Result<Option<serde_json::Value>> {
        let only = self.canonical_of(|member| member == name)?;
        let only: Option<serde_json::Value> = only.and_then(|only| serde_json::from_str(&only).ok());
        Ok(only.and_then(|mut only| only.get_mut(name).map(serde_json::Value::take)))
    }

    fn canonical_of(&self, keep: impl Fn(&str) -> bool) -> Result<Option<String>> {
        let canonical = |text| {
            json::canonical(text, &keep)
                .map_err(|error| self.refused(&error))
                .map(Some)
        };
        match *self {
            Self::Call { input, .. } => canonical(input),
            Self::Request { media_type, body, .. } if is_json(&essence(media_type), body) => canonical(body),
            Self::Request { .. } => Ok(None),
        }
    }

    /// The fingerprint of the default policy, [`FingerprintPolicy::Whole`], in hexadecimal digits as in the view
    /// `idempotency_records`: a byte for the algorithm, then SHA-256.
    ///
    /// # Errors
    /// SF106 if it says that it is JSON, and is not.
    pub fn fingerprint(&self) -> Result<String> {
        let input = self.input(&FingerprintPolicy::Whole)?;
        Ok(input.fingerprint().0.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub(crate) fn input(&self, policy: &FingerprintPolicy) -> Result<Input> {
        let input = match *self {
            Self::Call { operation, input } => Input::new([operation.as_bytes()], input, true, policy),
            Self::Request {
                method,
                path,
                query,
                media_type,
                body,
            } => {
                let essence = essence(media_type);
                let is_json = is_json(&essence, body);
                // A JSON body means the same with and without `; charset=utf-8`.
                let media_type = if is_json { &essence } else { media_type };
                let parts = [method.as_bytes(), path.as_bytes(), query.as_bytes(), media_type];
                Input::new(parts, body, is_json, policy)
            }
        };
        input.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &JsonError) -> Error {
        let what = match self {
            Self::Call { operation, .. } => format!("the input of {operation}"),
            Self::Request { .. } => "the request body is not acceptable JSON".to_owned(),
        };
        Error::new(Code::BodyRefused, format!("{what}: {error}"))
    }
}

/// A media type without its parameters.
fn essence(media_type: &[u8]) -> Vec<u8> {
    let essence = media_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().to_ascii_lowercase()
}

fn is_json(essence: &[u8], body: &[u8]) -> bool {
    is_json_essence(essence) && !body.is_empty()
}

fn is_json_essence(essence: &[u8]) -> bool {
    essence == b"application/json" || (essence.starts_with(b"application/") && essence.ends_with(b"+json"))
}

/// Whether a media type says JSON, whatever its parameters.
#[cfg(all(feature = "axum", feature = "service"))]
pub(crate) fn is_json_type(media_type: &[u8]) -> bool {
    is_json_essence(&essence(media_type))
}

/// Whether a media type says that it is a form.
#[cfg(all(feature = "axum", feature = "service"))]
pub(crate) fn is_form_type(media_type: &[u8]) -> bool {
    essence(media_type) == b"application/x-www-form-urlencoded"
}

/// What a request means, as the fingerprints this process can make of it.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// The first is stored with a new record; the others are what older records may have.
    fingerprints: Vec<Fingerprint>,
}

impl Input {
    /// Hashes parts in a fixed order, then the body: canonical where it is JSON, raw bytes otherwise.
    ///
    /// Each is length-prefixed, so that no boundary between them can be moved.
    fn new<const N: usize>(
        parts: [&[u8]; N],
        body: &[u8],
        is_json: bool,
        policy: &FingerprintPolicy,
    ) -> Result<Self, JsonError> {
        let body = if is_json {
            let keep = |name: &str| match policy {
                FingerprintPolicy::Fields(names) => names.iter().any(|kept| kept == name),
                _ => true,
            };
            Cow::Owned(json::canonical(body, keep)?.into_bytes())
        } else {
            Cow::Borrowed(body)
        };
        let feed = |update: &mut dyn FnMut(&[u8])| {
            for part in parts.into_iter().chain([&*body]) {
                update(&(part.len() as u64).to_be_bytes());
                update(part);
            }
        };
        let plain = || {
            let mut digest = Sha256::new();
            feed(&mut |bytes| digest.update(bytes));
            Fingerprint::new(SHA_256, &digest.finalize())
        };
        let keyed = |secret: &Secret| {
            let mut mac = secret.mac();
            feed(&mut |bytes| mac.update(bytes));
            Fingerprint::new(HMAC_SHA_256, &[&secret.id()[..], &mac.finalize().into_bytes()].concat())
        };
        let fingerprints = match policy {
            FingerprintPolicy::Off => vec![Fingerprint::new(OFF, &[])],
            FingerprintPolicy::Whole | FingerprintPolicy::Fields(_) => vec![plain()],
            FingerprintPolicy::Keyed(secrets) => secrets.iter().map(keyed).chain([plain()]).collect(),
        };
        Ok(Self { fingerprints })
    }

    /// The fingerprint to store with a new record.
    pub(crate) fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprints[0]
    }

    /// Whether a stored fingerprint means the same as this input, judged by the stored one's algorithm and secret.
    pub(crate) fn compare(&self, stored: &Fingerprint) -> Comparison {
        if self.fingerprint().method() == [OFF] || stored.method() == [OFF] {
            return Comparison::Same;
        }
        match self.fingerprints.iter().find(|ours| ours.method() == stored.method()) {
            Some(ours) if ours == stored => Comparison::Same,
            Some(_) => Comparison::Different,
            None => Comparison::Unknown,
        }
    }
}

/// A stored fingerprint: one byte of algorithm, the id of its secret if it has one, then the hash.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) Vec<u8>);

impl Fingerprint {
    fn new(algorithm: u8, hash: &[u8]) -> Self {
        Self([&[algorithm], hash].concat())
    }

    /// How it was made: the algorithm, and the id of the secret if it has one.
    fn method(&self) -> &[u8] {
        let length = if self.0.first() == Some(&HMAC_SHA_256) { 5 } else { 1 };
        self.0.get(..length).unwrap_or_default()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(method {:?})", self.method())
    }
}

const OFF: u8 = 0;
const SHA_256: u8 = 1;
const HMAC_SHA_256: u8 = 2;

/// What comparing two fingerprints says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Same,
    Different,
    /// The record was written by an algorithm, or with a secret, that this process does not have.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(body: &str, policy: &FingerprintPolicy) -> Input {
        Input::new([b"POST", b"/orders"], body.as_bytes(), true, policy).expect("valid JSON")
    }

    #[test]
    fn the_same_meaning_in_another_spelling_is_the_same() {
        let whole = FingerprintPolicy::Whole;
        let stored = input(r#"{"sku":"tea","quantity":2}"#, &whole).fingerprint().clone();
        assert_eq!(
            input(r#"{ "quantity": 2.0, "sku": "\u0074ea" }"#, &whole).compare(&stored),
            Comparison::Same
        );
        assert_eq!(
            input(r#"{"sku":"tea","quantity":3}"#, &whole).compare(&stored),
            Comparison::Different
        );
    }

    #[test]
    fn moving_a_boundary_between_parts_changes_the_fingerprint() {
        let of = |parts| {
            Input::new(parts, b"", false, &FingerprintPolicy::Whole)
                .expect("raw")
                .fingerprint()
                .clone()
        };
        assert_ne!(of([b"ab", b"c"]), of([b"a", b"bc"]));
    }

    #[test]
    fn a_record_from_before_the_keyed_hash_is_compared_by_its_own_algorithm() {
        let keyed = FingerprintPolicy::keyed(*b"0123456789abcdef0123456789abcdef");
        let before = input("{}", &FingerprintPolicy::Whole).fingerprint().clone();
        assert_eq!(input("{}", &keyed).compare(&before), Comparison::Same);
        assert_eq!(input("{\"a\":1}", &keyed).compare(&before), Comparison::Different);
    }

    #[test]
    fn what_cannot_be_recomputed_is_unknown_and_never_different() {
        let keyed = FingerprintPolicy::keyed(*b"0123456789abcdef0123456789abcdef");
        let stored = input("{}", &keyed).fingerprint().clone();
        assert_eq!(
            input("{}", &FingerprintPolicy::Whole).compare(&stored),
            Comparison::Unknown
        );
        assert_eq!(
            input("{}", &FingerprintPolicy::Whole).compare(&Fingerprint(vec![99, 1])),
            Comparison::Unknown
        );
        assert_eq!(
            input("{}", &FingerprintPolicy::Whole).compare(&Fingerprint(vec![])),
            Comparison::Unknown
        );
    }

    #[test]
    fn a_rotated_secret_still_compares_records_made_with_the_old_one() {
        let (old, new) = ([7; 32], [8; 32]);
        let stored = input("{}", &FingerprintPolicy::keyed(old)).fingerprint().clone();
        let rotated = FingerprintPolicy::keyed(new).rotated_from(old);
        assert_eq!(input("{}", &rotated).compare(&stored), Comparison::Same);
        assert_eq!(input("{\"a\":1}", &rotated).compare(&stored), Comparison::Different);
        let forgotten = FingerprintPolicy::keyed(new);
        assert_eq!(
            input("{}", &forgotten).compare(&stored),
            Comparison::Unknown,
            "and never a false mismatch"
        );
    }

    #[test]
    fn only_chosen_fields_count_when_asked() {
        let fields = FingerprintPolicy::fields(["sku"]);
        let stored = input(r#"{"sku":"tea","sent_at":1}"#, &fields).fingerprint().clone();
        assert_eq!(
            input(r#"{"sku":"tea","sent_at":2}"#, &fields).compare(&stored),
            Comparison::Same
        );
        assert_eq!(
            input(r#"{"sku":"jam","sent_at":1}"#, &fields).compare(&stored),
            Comparison::Different
        );
    }

    #[test]
    fn off_compares_nothing() {
        let stored = input("{\"a\":1}", &FingerprintPolicy::Whole).fingerprint().clone();
        assert_eq!(
            input("{\"a\":2}", &FingerprintPolicy::Off).compare(&stored),
            Comparison::Same
        );
    }

    #[test]
    fn a_secret_does_not_show_in_debug_output() {
        assert!(!format!("{:?}", FingerprintPolicy::keyed(*b"hunter2")).contains("hunter2"));
    }
}
