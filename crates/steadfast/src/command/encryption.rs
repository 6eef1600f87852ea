//! Stored answers behind a key that the database does not have.
//!
//! Each answer is sealed by AES-256-GCM with a key of its own, HMAC-SHA256 of the master key over a random salt. So no
//! two answers share a key, and the nonce can always be zero: with one key for all of them, random nonces of 96 bits
//! would have to be counted, and a repeated one would give both answers away. What is sealed is bound to its row
//! ([`Place`](super::outcome::Place)): moved to another one, it does not open.

use std::fmt;

use hmac::Mac;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::fingerprint::Secret;
use super::outcome::{locked, tampered};
use crate::error::{Code, Error, Result};

/// The shortest key: AES-256 is worth no more than what its keys are made of.
const KEY_LENGTH_MIN: usize = 32;

/// What the key of an answer is derived for. A [`Secret`] that also keys fingerprints never sees the same input there:
/// those begin with a length, and nothing is as long as these letters say.
const PURPOSE: &[u8] = b"steadfast answer";

const ID_LENGTH: usize = 4;
const SALT_LENGTH: usize = 16;
const TAG_LENGTH: usize = 16;

type Salt = [u8; SALT_LENGTH];

/// The keys that stored answers are encrypted with: [`Builder::encryption`](crate::Builder::encryption).
///
/// The first key encrypts; all of them decrypt. Answers from before encryption was switched on stay readable.
///
/// ```
/// use steadfast::{Encryption, Owner, Steadfast};
/// use steadfast::sqlx::{self, Sqlite};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// let (new, old) = ([7; 32], [8; 32]); // from your secret store: 32 random bytes each, or 64 random hex digits
/// let builder = Steadfast::<Sqlite>::connect("sqlite::memory:")
///     .await?
///     .encryption(Encryption::new(new)?.rotated_from(old)?);
/// # builder.migrate().await?;
/// let sf = builder.build().await?;
///
/// let owner = Owner::new("tenant-1", "user-a");
/// let issue = async || {
///     let command = sf.command("tokens.issue", "key-1").owner(&owner);
///     command.run(async |_| Ok("a token nobody else may see".to_owned())).await
/// };
/// assert_eq!(issue().await?.value, issue().await?.value);
///
/// let stored: Vec<u8> = sqlx::query_scalar("SELECT body FROM steadfast_keys").fetch_one(sf.pool()).await.expect("stored");
/// assert!(!stored.windows(5).any(|bytes| bytes == b"token"));
/// # Ok(())
/// # }
/// ```
///
/// `Debug` shows the ids of the keys, which are made from their hashes and also begin each stored answer.
#[derive(Clone)]
pub struct Encryption {
    /// The first one encrypts.
    keys: Vec<Secret>,
}

impl Encryption {
    /// Encrypts with this key: at least 32 random bytes, the same on all nodes. Longer ones, such as 64 hexadecimal
    /// digits, are taken as they are.
    ///
    /// Whoever loses the key loses the stored answers: their commands are then neither replayed nor run again until they
    /// expire (SF121).
    ///
    /// # Errors
    /// SF303 if the key is shorter.
    pub fn new(key: impl Into<Vec<u8>>) -> Result<Self> {
        Ok(Self {
            keys: vec![checked(key.into())?],
        })
    }

    /// Also decrypts with this key, which encrypted before. It can go when what it encrypted has expired.
    ///
    /// # Errors
    /// SF303 if the key has less than 32 bytes.
    pub fn rotated_from(mut self, old: impl Into<Vec<u8>>) -> Result<Self> {
        self.keys.push(checked(old.into())?);
        Ok(self)
    }

    /// Encrypts an answer: the id of the key, the salt, the ciphertext, the tag.
    pub(super) fn seal(&self, context: &[u8], answer: &[u8]) -> Result<Vec<u8>> {
        let key = &self.keys[0];
        let mut salt = Salt::default();
        SystemRandom::new().fill(&mut salt).map_err(|_| not_sealed())?;

        let mut sealed = Vec::with_capacity(ID_LENGTH + SALT_LENGTH + answer.len() + TAG_LENGTH);
        sealed.extend(key.id());
        sealed.extend(salt);
        sealed.extend(answer);
        let tag = answer_key(key, &salt)
            .seal_in_place_separate_tag(zero_nonce(), Aad::from(context), &mut sealed[ID_LENGTH + SALT_LENGTH..])
            .map_err(|_| not_sealed())?;
        sealed.extend(tag.as_ref());
        Ok(sealed)
    }

    /// Decrypts an answer, if it is the one that was stored in this context.
    pub(super) fn open(&self, context: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
        let (id, rest) = sealed.split_first_chunk::<ID_LENGTH>().ok_or_else(tampered)?;
        let (salt, ciphertext) = rest.split_first_chunk::<SALT_LENGTH>().ok_or_else(tampered)?;
        // An id has four bytes: two keys may share one.
        let mut candidates = self.keys.iter().filter(|key| key.id() == *id).peekable();
        if candidates.peek().is_none() {
            return Err(locked().with_source(format!("it has the key {}, we have {self:?}", Id(*id))));
        }
        candidates
            .find_map(|key| {
                let mut answer = ciphertext.to_vec();
                let opened = answer_key(key, salt).open_in_place(zero_nonce(), Aad::from(context), &mut answer);
                let length = opened.ok()?.len();
                answer.truncate(length);
                Some(answer)
            })
            .ok_or_else(tampered)
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| Id(key.id()));
        f.write_str("Encryption ")?;
        f.debug_list().entries(ids).finish()
    }
}

/// The id of a key, for people.
struct Id([u8; ID_LENGTH]);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn checked(key: Vec<u8>) -> Result<Secret> {
    if key.len() < KEY_LENGTH_MIN {
        return Err(Error::new(
            Code::ConfigurationInvalid,
            format!(
                "a key to encrypt stored answers has {} bytes; it needs at least {KEY_LENGTH_MIN}, all of them random: make \
                 one by `openssl rand -hex 32`",
                key.len()
            ),
        ));
    }
    Ok(Secret::new(key))
}

/// The key of one answer.
fn answer_key(key: &Secret, salt: &Salt) -> LessSafeKey {
    let mut mac = key.mac();
    mac.update(PURPOSE);
    mac.update(salt);
    let unbound = UnboundKey::new(&AES_256_GCM, &mac.finalize().into_bytes());
    LessSafeKey::new(unbound.unwrap_or_else(|_| unreachable!("HMAC-SHA256 makes the 32 bytes that AES-256 takes")))
}

/// The key is used for one answer, so there is nothing to count.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn not_sealed() -> Error {
    Error::new(
        Code::AnswerNotReplayable,
        "the answer could not be encrypted, since the system gave no random bytes; nothing was committed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: &[u8] = b"this row";
    const ANSWER: &[u8] = b"an answer with a canary in it";

    fn encryption(byte: u8) -> Encryption {
        Encryption::new([byte; 32]).expect("long enough")
    }

    #[test]
    fn what_is_sealed_is_what_is_opened() {
        for answer in [&b""[..], ANSWER, &[0; 100_000]] {
            let sealed = encryption(1).seal(CONTEXT, answer).expect("sealed");
            assert_eq!(sealed.len(), ID_LENGTH + SALT_LENGTH + answer.len() + TAG_LENGTH);
            assert_eq!(encryption(1).open(CONTEXT, &sealed).expect("opened"), answer);
        }
    }

    #[test]
    fn the_same_answer_is_never_sealed_the_same_way() {
        let sealed = [(); 2].map(|()| encryption(1).seal(CONTEXT, ANSWER).expect("sealed"));
        let [one, other] = sealed.each_ref().map(|sealed| &sealed[ID_LENGTH..]);
        assert_ne!(one[..SALT_LENGTH], other[..SALT_LENGTH]);
        assert_ne!(one[SALT_LENGTH..], other[SALT_LENGTH..]);
        assert!(!sealed.concat().windows(6).any(|bytes| bytes == b"canary"));
    }

    #[test]
    fn a_rotated_key_opens_what_the_old_one_sealed_and_seals_with_the_new_one() {
        let rotated = encryption(2).rotated_from([1; 32]).expect("long enough");
        let old = encryption(1).seal(CONTEXT, ANSWER).expect("sealed");
        assert_eq!(rotated.open(CONTEXT, &old).expect("opened"), ANSWER);

        let new = rotated.seal(CONTEXT, ANSWER).expect("sealed");
        assert_eq!(encryption(2).open(CONTEXT, &new).expect("opened"), ANSWER);
    }

    #[test]
    fn another_key_says_that_it_is_another_one() {
        let sealed = encryption(1).seal(CONTEXT, ANSWER).expect("sealed");
        let error = encryption(2).open(CONTEXT, &sealed).expect_err("another key");
        assert_eq!(error.code(), Code::AnswerLocked);
    }

    #[test]
    fn a_key_that_is_given_twice_does_no_harm() {
        let sealed = encryption(1).seal(CONTEXT, ANSWER).expect("sealed");
        let twice = encryption(1).rotated_from([1; 32]).expect("long enough");
        assert_eq!(twice.open(CONTEXT, &sealed).expect("opened"), ANSWER);
        assert_eq!(
            twice.open(b"that row", &sealed).expect_err("moved").code(),
            Code::AnswerTampered
        );
    }

    #[test]
    fn half_an_answer_is_none() {
        let sealed = encryption(1).seal(CONTEXT, ANSWER).expect("sealed");
        for length in 0..sealed.len() {
            let error = encryption(1).open(CONTEXT, &sealed[..length]).expect_err("truncated");
            assert_eq!(error.code(), Code::AnswerTampered, "{length} bytes");
        }
        let longer = [&sealed[..], b"x"].concat();
        assert!(encryption(1).open(CONTEXT, &longer).is_err());
    }

    #[test]
    fn no_bit_can_be_changed() {
        let sealed = encryption(1).seal(CONTEXT, ANSWER).expect("sealed");
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = encryption(1).open(CONTEXT, &changed).expect_err("changed");
            // Whoever changes the id names a key that nobody has.
            let expected = if bit < ID_LENGTH * 8 {
                Code::AnswerLocked
            } else {
                Code::AnswerTampered
            };
            assert_eq!(error.code(), expected, "bit {bit}");
        }
    }

    #[test]
    fn a_short_key_is_refused_with_the_rule_and_the_fix() {
        for length in [0, 16, 31] {
            let key = vec![1; length];
            let refused = [Encryption::new(key.clone()), encryption(1).rotated_from(key)];
            for error in refused.map(|refused| refused.expect_err("too short")) {
                assert_eq!(error.code(), Code::ConfigurationInvalid);
                let message = error.to_string();
                for part in [&format!("has {length} bytes"), "at least 32", "openssl rand -hex 32"] {
                    assert!(message.contains(part), "{message}");
                }
            }
        }
        assert!(Encryption::new([1; 32]).is_ok() && Encryption::new(vec![1; 64]).is_ok());
    }

    #[test]
    fn an_encryption_key_does_not_show_in_debug_output() {
        let encryption = Encryption::new(*b"hunter2 hunter2 hunter2 hunter2 ").expect("long enough");
        let shown = format!("{encryption:?} {encryption:#?}");
        assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
        assert!(shown.starts_with("Encryption ["), "{shown}");
    }
}
