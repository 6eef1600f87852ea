//! Keys as a list, for those who look after a database: which commands have ended, whose they are, until when.
//!
//! The order is that of the ids, which are hashes: the table has no other index, since every command would pay for it. So
//! a page costs what it shows, and paging misses nothing and shows nothing twice, whatever is written meanwhile.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use super::key::KeyHash;
use super::{KeyLookUp, KeyState, Owner, Scope};
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::page;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

/// The hexadecimal digits of a whole id.
const ID_LENGTH: usize = 2 * size_of::<KeyHash>();

/// What a key is known by: the hash of its scope, owner, operation and value, in hexadecimal digits.
///
/// ```
/// let id: steadfast::KeyId = "1f3a9c00000000000000000000000001".parse()?;
/// assert_eq!(id.to_string(), "1f3a9c00000000000000000000000001");
/// # Ok::<(), steadfast::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u128);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ids = ids_with_prefix(text)?;
        if ids.start() == ids.end() {
            Ok(Self(*ids.start()))
        } else {
            let message = format!("{text:?} is only the beginning of an id; write all its {ID_LENGTH} digits");
            Err(Error::new(Code::ConfigurationInvalid, message))
        }
    }
}

/// The ids that begin with these digits.
fn ids_with_prefix(prefix: &str) -> Result<RangeInclusive<u128>> {
    let is_prefix = (1..=ID_LENGTH).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
    let filled = |digit: &str| {
        let digits = format!("{prefix}{}", digit.repeat(ID_LENGTH.saturating_sub(prefix.len())));
        u128::from_str_radix(&digits, 16).ok()
    };
    match (filled("0"), filled("f")) {
        (Some(first), Some(last)) if is_prefix => Ok(first..=last),
        _ => Err(Error::new(
            Code::ConfigurationInvalid,
            format!("{prefix:?} is not the id of a key; write 1 to {ID_LENGTH} hexadecimal digits"),
        )),
    }
}

/// Which keys are wanted, as a store is asked for them.
pub(crate) struct KeyFilter {
    pub(crate) ids: RangeInclusive<u128>,
    pub(crate) operation: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) state: Option<KeyState>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) limit: u32,
}

impl KeyFilter {
    /// The first and the last id, as the table has them.
    pub(crate) fn bounds(&self) -> [Vec<u8>; 2] {
        [self.ids.start(), self.ids.end()].map(|id| id.to_be_bytes().to_vec())
    }
}

/// The columns of a key without its answer, before anybody looked inside.
pub(crate) struct KeyColumns {
    pub(crate) hash: Vec<u8>,
    pub(crate) scope: String,
    pub(crate) tenant: String,
    pub(crate) user: String,
    pub(crate) operation: String,
    pub(crate) value: String,
    pub(crate) state: String,
    pub(crate) status: i16,
    pub(crate) answer_bytes: i64,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

/// A key that has ended, without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedKey {
    /// What it is known by.
    pub id: KeyId,
    /// Within which circle its value is unique.
    pub scope: Scope,
    /// Whose it is; empty where the scope does not ask.
    pub owner: Owner,
    /// The operation it belongs to.
    pub operation: String,
    /// The value the caller chose.
    pub value: String,
    /// How the command ended.
    pub state: KeyState,
    /// The status of the answer.
    pub status: u16,
    /// How long the stored answer is, with its headers.
    pub answer_bytes: u64,
    /// When the outcome was stored.
    pub created_at: SystemTime,
    /// From when on the key counts as absent.
    pub expires_at: SystemTime,
    /// Whether that moment has come, by the database's clock: then the row only waits to be purged.
    pub is_expired: bool,
}

impl ListedKey {
    /// The same key, to look its answer up or to evict it.
    pub fn look_up<'c, Db: Database>(&'c self, steadfast: &'c Steadfast<Db>) -> KeyLookUp<'c, Db> {
        let look_up = steadfast.key(&self.operation, &self.value);
        look_up.owner(&self.owner).scope(self.scope)
    }

    fn read(columns: KeyColumns, now: Timestamp) -> Option<Self> {
        Some(Self {
            id: KeyId(u128::from_be_bytes(columns.hash.try_into().ok()?)),
            scope: Scope::read(&columns.scope)?,
            owner: Owner::new(columns.tenant, columns.user),
            operation: columns.operation,
            value: columns.value,
            state: KeyState::read(&columns.state)?,
            status: columns.status.try_into().ok()?,
            answer_bytes: columns.answer_bytes.try_into().ok()?,
            created_at: columns.created_at.into(),
            expires_at: columns.expires_at.into(),
            is_expired: columns.expires_at <= now,
        })
    }
}

/// Some keys, and where to go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyPage {
    /// The keys, in the order of their ids.
    pub keys: Vec<ListedKey>,
    /// The last key of this page, if there are more: pass it to [`KeyList::after`].
    pub next: Option<KeyId>,
    /// The database's time when they were read.
    pub now: SystemTime,
}

/// Which keys to list: [`Steadfast::keys`].
#[must_use = "nothing is listed until `page`"]
pub struct KeyList<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    filter: KeyFilter,
    stored_within: Option<Duration>,
}

impl<'c, Db: Database> KeyList<'c, Db> {
    pub(crate) fn new(steadfast: &'c Steadfast<Db>) -> Self {
        let filter = KeyFilter {
            ids: 0..=u128::MAX,
            operation: None,
            tenant: None,
            user: None,
            state: None,
            since: None,
            limit: page::LENGTH,
        };
        Self {
            steadfast,
            filter,
            stored_within: None,
        }
    }

    /// Only keys whose id begins with these hexadecimal digits. Finds them by the index.
    ///
    /// # Errors
    /// SF303 if it is not the beginning of an id.
    pub fn id_prefix(mut self, prefix: &str) -> Result<Self> {
        self.filter.ids = ids_with_prefix(prefix)?;
        Ok(self)
    }

    /// Only keys of this operation.
    pub fn operation(mut self, operation: impl Into<String>) -> Self {
        self.filter.operation = Some(operation.into());
        self
    }

    /// Only keys of this tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.filter.tenant = Some(tenant.into());
        self
    }

    /// Only keys of this user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.filter.user = Some(user.into());
        self
    }

    /// Only keys in this state.
    pub fn state(mut self, state: KeyState) -> Self {
        self.filter.state = Some(state);
        self
    }

    /// Only keys whose outcome was stored within this time, by the database's clock.
    pub fn stored_within(mut self, age: Duration) -> Self {
        self.stored_within = Some(age);
        self
    }

    /// Goes on after this key, the last one of the page before.
    pub fn after(mut self, last: KeyId) -> Self {
        // Beyond the last id there is none: a range that ends before it begins.
        let (first, end) = match last.0.checked_add(1) {
            Some(next) => (next.max(*self.filter.ids.start()), *self.filter.ids.end()),
            None => (1, 0),
        };
        self.filter.ids = first..=end;
        self
    }

    /// At most so many keys, 1 to 1,000; 50 by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.filter.limit = page::length(limit);
        self
    }

    /// Reads one page. Answers are not read.
    ///
    /// Without a filter, or by id, it reads as many rows as it shows. With another filter it reads on until the page is full:
    /// where few keys match, that may be the whole table.
    ///
    /// # Errors
    /// If the database does not answer. SF118 if a row was written by a newer version.
    pub async fn page(mut self) -> Result<KeyPage> {
        let now = self.steadfast.clock().at(self.steadfast.store().now().await?);
        self.filter.since = self.stored_within.map(|age| now.before(age));
        let mut rows = self.steadfast.store().list_keys(&self.filter).await?;
        let has_more = page::cut(&mut rows, self.filter.limit);
        let keys = rows.into_iter().map(|row| ListedKey::read(row, now));
        let keys: Vec<_> = keys.collect::<Option<_>>().ok_or_else(|| {
            Error::new(
                Code::RecordTooNew,
                "a key was written in a way this version does not know; use the newer version of the program",
            )
        })?;
        Ok(KeyPage {
            next: keys.last().map(|key| key.id).filter(|_| has_more),
            keys,
            now: now.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_id_stands_for_all_that_begin_so() {
        let all = ids_with_prefix("1f3").expect("three digits");
        assert_eq!(format!("{:032x}", all.start()), format!("1f3{}", "0".repeat(29)));
        assert_eq!(format!("{:032x}", all.end()), format!("1f3{}", "f".repeat(29)));
        for wrong in ["", "g", "+1", "1f 3", &"0".repeat(33)] {
            assert!(ids_with_prefix(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_id_is_all_its_digits() {
        let digits = "00ff".repeat(8);
        assert_eq!(digits.parse::<KeyId>().expect("an id").to_string(), digits);
        assert!("00ff".parse::<KeyId>().is_err());
    }
}
