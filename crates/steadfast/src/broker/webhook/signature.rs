//! Signatures by the Standard Webhooks specification: HMAC-SHA256 over id, time and body.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The specification asks for 192 bits.
const SECRET_LENGTH_MIN: usize = 24;

/// How a secret begins that is written as text.
const PREFIX: &str = "whsec_";

/// What both sides of a webhook know and nobody else: at least 24 random bytes, raw or as `whsec_` and base64.
///
/// ```
/// use steadfast::WebhookSecret;
///
/// let text = WebhookSecret::from("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
/// let raw = WebhookSecret::from([7; 32]);
/// assert_eq!(format!("{text:?} {raw:?}"), "WebhookSecret(…) WebhookSecret(…)");
/// ```
pub struct WebhookSecret(Given);

enum Given {
    Bytes(Vec<u8>),
    Text(String),
}

impl From<&str> for WebhookSecret {
    fn from(text: &str) -> Self {
        Self(Given::Text(text.to_owned()))
    }
}

impl From<String> for WebhookSecret {
    fn from(text: String) -> Self {
        Self(Given::Text(text))
    }
}

impl From<Vec<u8>> for WebhookSecret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Given::Bytes(bytes))
    }
}

impl From<&[u8]> for WebhookSecret {
    fn from(bytes: &[u8]) -> Self {
        Self(Given::Bytes(bytes.to_owned()))
    }
}

impl<const N: usize> From<[u8; N]> for WebhookSecret {
    fn from(bytes: [u8; N]) -> Self {
        Self(Given::Bytes(bytes.into()))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// What messages are signed with.
#[derive(Clone)]
pub(super) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// # Errors
    /// The rule that the secret breaks, without the secret.
    pub(super) fn new(secret: WebhookSecret) -> Result<Self, String> {
        let bytes = match secret.0 {
            Given::Bytes(bytes) => bytes,
            Given::Text(text) => read(&text).ok_or(
                "has a secret that is not `whsec_` and base64; write it so, or give the raw bytes instead of text",
            )?,
        };
        if bytes.len() < SECRET_LENGTH_MIN {
            let length = bytes.len();
            return Err(format!(
                "has a secret of {length} bytes; take {SECRET_LENGTH_MIN} random ones at least"
            ));
        }
        let mac = Hmac::new_from_slice(&bytes).map_err(|error| format!("has a secret that cannot sign: {error}"))?;
        Ok(Self(mac))
    }

    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

fn read(text: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text.strip_prefix(PREFIX)?).ok()
}

/// The header `webhook-signature`: one signature for each key, so that the other side may know any of them.
pub(super) fn signatures(keys: &[SigningKey], id: &str, timestamp: u64, body: &[u8]) -> String {
    let signatures: Vec<_> = keys.iter().map(|key| key.sign(id, timestamp, body)).collect();
    signatures.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: impl Into<WebhookSecret>) -> SigningKey {
        SigningKey::new(secret.into()).unwrap_or_else(|rule| panic!("{rule}"))
    }

    fn refusal(secret: impl Into<WebhookSecret>) -> String {
        SigningKey::new(secret.into()).err().expect("no secret")
    }

    #[test]
    fn a_signature_is_the_one_that_standard_webhooks_publishes() {
        let sign = |keys: &[SigningKey]| {
            signatures(
                keys,
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                br#"{"test": 2432232314}"#,
            )
        };
        let published = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        assert_eq!(sign(&[key(text)]), published);
        assert_eq!(sign(&[key(read(text).expect("base64"))]), published);

        let both = sign(&[key([7; 24]), key(text)]);
        let (new, old) = both.split_once(' ').expect("two signatures");
        assert_eq!(old, published);
        assert!(new.starts_with("v1,") && new != old, "{new}");
    }

    #[test]
    fn a_secret_is_long_enough_and_never_shown() {
        assert!(refusal([7; 23]).contains("23 bytes"));
        assert!(refusal("whsec_").contains("0 bytes"));
        for text in ["hunter2", "whsec_hunter2!", "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            let said = refusal(text);
            assert!(said.contains("is not `whsec_` and base64"), "{said}");
            assert!(!said.contains("hunter2") && !said.contains("MfKQ"), "{said}");
        }
    }
}
