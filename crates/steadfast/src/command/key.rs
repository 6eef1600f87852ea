//! What makes two requests *the same wish*: scope, owner, operation and the value the caller chose.
//!
//! The parts are hashed length-prefixed, so that no choice of names can make two different keys one
//! (joined by a `:`, user `a` with key `b:c` and user `a:b` with key `c` would be the same). The next
//! module on the way is [`fingerprint`](super::fingerprint): the same key for another meaning.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};

/// The longest key value a caller may send, as in Stripe's API and the IETF draft's examples.
pub const KEY_LENGTH_MAX: usize = 255;

/// The longest tenant, user or operation name. They are our side's names, so this only guards the index.
const NAME_LENGTH_MAX: usize = 255;

/// Who is asking: set by your authentication, carried by every transport.
///
/// With axum it is a request extension; in plain Rust calls it is an argument. Keys of different
/// owners never meet, whatever values their clients choose.
///
/// ```
/// use steadfast::Owner;
///
/// let owner = Owner::new("tenant-1", "user-a");
/// assert_eq!((owner.tenant(), owner.user()), ("tenant-1", "user-a"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    tenant: String,
    user: String,
}

impl Owner {
    /// An owner in a tenant. Without tenants of your own, pass one constant.
    pub fn new(tenant: impl Into<String>, user: impl Into<String>) -> Self {
        Self {
            tenant: tenant.into(),
            user: user.into(),
        }
    }

    /// The tenant this owner belongs to.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The user inside the tenant.
    pub fn user(&self) -> &str {
        &self.user
    }
}

/// Within which circle a key value must be unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// One user of one tenant. The default: nobody can meet, block or read another's key.
    #[default]
    User,
    /// All users of one tenant share their keys, and therefore each other's answers.
    Tenant,
    /// Everybody shares one bucket. Only for callers that are one trusted party, such as a webhook sender.
    Global,
}

impl Scope {
    /// The scope as it is spelled in the table and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::User => "user",
            Scope::Tenant => "tenant",
            Scope::Global => "global",
        }
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        [Self::User, Self::Tenant, Self::Global]
            .into_iter()
            .find(|scope| scope.as_str() == text)
    }
}

/// The identity of one command: what the unique constraint is about. A clone shares its texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    pub(crate) hash: KeyHash,
    pub(crate) scope: Scope,
    pub(crate) tenant: Arc<str>,
    pub(crate) user: Arc<str>,
    pub(crate) operation: Arc<str>,
    pub(crate) value: Arc<str>,
}

/// The first half of SHA-256 over the length-prefixed parts of a key. To meet somebody else's key takes 2^128 attempts;
/// the other half would only make every row and index entry longer.
pub(crate) type KeyHash = [u8; 16];

impl Key {
    pub(crate) fn new(scope: Scope, owner: Option<&Owner>, operation: &str, value: &str) -> Result<Self> {
        check_value(value)?;
        check_name("operation", operation)?;
        let (tenant, user) = match (scope, owner) {
            (Scope::User, Some(owner)) => (owner.tenant(), owner.user()),
            (Scope::Tenant, Some(owner)) => (owner.tenant(), ""),
            (Scope::Global, _) => ("", ""),
            (Scope::User | Scope::Tenant, None) => return Err(owner_missing(scope, operation)),
        };
        if scope != Scope::Global {
            check_name("tenant", tenant)?;
        }
        if scope == Scope::User {
            check_name("user", user)?;
        }

        let mut digest = Sha256::new();
        for part in [scope.as_str(), tenant, user, operation, value] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut hash = KeyHash::default();
        hash.copy_from_slice(&digest.finalize()[..16]);
        Ok(Self {
            hash,
            scope,
            tenant: tenant.into(),
            user: user.into(),
            operation: operation.into(),
            value: value.into(),
        })
    }

    /// The operation this key belongs to.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The value the caller chose.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// A short, safe stand-in for logs and spans: callers put order numbers and addresses into keys.
    pub(crate) fn short(&self) -> String {
        use std::fmt::Write;
        self.hash[..6].iter().fold(String::with_capacity(12), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl fmt::Debug for Key {
    /// Shows the hash, not the value: callers put order numbers and addresses into it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} {})", self.operation, self.short())
    }
}

fn check_value(value: &str) -> Result<()> {
    if value.is_empty() {
        return Err(Error::new(
            Code::KeyInvalid,
            "the idempotency key is empty; send 1 to 255 visible ASCII characters, for example a UUID",
        ));
    }
    if value.len() > KEY_LENGTH_MAX {
        return Err(Error::new(
            Code::KeyInvalid,
            format!(
                "the idempotency key has {} bytes; send at most {KEY_LENGTH_MAX}, for example a UUID",
                value.len()
            ),
        ));
    }
    if let Some(position) = value.bytes().position(|byte| !byte.is_ascii_graphic()) {
        return Err(Error::new(
            Code::KeyInvalid,
            format!(
                "the idempotency key has a character at position {position} that is not visible ASCII; \
                 send 1 to 255 visible ASCII characters without spaces"
            ),
        ));
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_LENGTH_MAX || name.chars().any(char::is_control) {
        return Err(Error::new(
            Code::NameInvalid,
            format!(
                "the {what} {name:?} is not usable; a name has 1 to {NAME_LENGTH_MAX} bytes and no control characters"
            ),
        ));
    }
    Ok(())
}

fn owner_missing(scope: Scope, operation: &str) -> Error {
    Error::new(
        Code::OwnerMissing,
        format!(
            "{operation} has keys per {}, but this call carries no Owner; insert one as a request extension in your \
             authentication (or `.owner(..)` on a plain call), or choose Scope::Global if all callers are one party",
            scope.as_str()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, user: &str, operation: &str, value: &str) -> Key {
        Key::new(Scope::User, Some(&Owner::new(tenant, user)), operation, value).expect("a good key")
    }

    #[test]
    fn parts_that_join_to_the_same_text_are_different_keys() {
        let keys = [
            key("t", "a", "op", "b:c"),
            key("t", "a:b", "op", "c"),
            key("t:a", "b", "op", "c"),
            key("t", "ab", "op", "c"),
            key("t", "a", "opb", "c"),
        ];
        for (i, left) in keys.iter().enumerate() {
            for right in &keys[i + 1..] {
                assert_ne!(left.hash, right.hash);
            }
        }
    }

    #[test]
    fn the_same_value_in_another_scope_is_another_key() {
        let owner = Owner::new("t", "u");
        let of = |scope| Key::new(scope, Some(&owner), "op", "k").expect("a good key").hash;
        assert_ne!(of(Scope::User), of(Scope::Tenant));
        assert_ne!(of(Scope::Tenant), of(Scope::Global));
    }

    #[test]
    fn a_key_is_1_to_255_visible_ascii_characters() {
        let owner = Owner::new("t", "u");
        let of = |value: &str| Key::new(Scope::User, Some(&owner), "op", value);
        assert!(of(&"k".repeat(255)).is_ok());
        for bad in ["", "a b", "a\tb", "é", "a\0b", &"k".repeat(256)] {
            assert_eq!(of(bad).expect_err(bad).code(), Code::KeyInvalid);
        }
    }

    #[test]
    fn a_missing_owner_is_an_error_and_not_a_shared_bucket() {
        for scope in [Scope::User, Scope::Tenant] {
            let error = Key::new(scope, None, "orders.place", "k").expect_err("no owner");
            assert_eq!(error.code(), Code::OwnerMissing);
            assert!(error.to_string().contains("orders.place"));
        }
        assert!(Key::new(Scope::Global, None, "orders.place", "k").is_ok());
    }

    #[test]
    fn debug_output_does_not_show_the_value() {
        assert!(!format!("{:?}", key("t", "u", "op", "card-4242")).contains("4242"));
    }
}
