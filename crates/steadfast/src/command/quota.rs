//! How much one owner may keep.

use super::Key;
use crate::error::{Code, Error, Result};
use crate::store::{Database, Settlement, Store};

/// The most keys and bytes of stored answers that one owner may have at a time.
///
/// What has expired counts until it is purged. Counting costs each command a statement, and lets the commands of one owner
/// commit one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub(crate) keys: i64,
    pub(crate) bytes: i64,
}

impl Quota {
    /// So many keys, whose stored answers have so many bytes together.
    pub fn new(keys: u32, bytes: u64) -> Self {
        Self {
            keys: keys.into(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        }
    }

    /// Counts a key that is about to be stored, or refuses it.
    pub(crate) async fn charge<Db: Database>(
        self,
        store: &Db::Store,
        conn: &mut Db::Connection,
        settlement: &Settlement<'_>,
    ) -> Result<()> {
        let is_possible = self.keys > 0 && settlement.stored.size() <= self.bytes;
        if is_possible && store.charge(conn, settlement, self).await? {
            return Ok(());
        }
        Err(self.exceeded(settlement.key))
    }

    fn exceeded(self, key: &Key) -> Error {
        Error::new(
            Code::QuotaExceeded,
            format!(
                "the owner of this key keeps {} keys or {} bytes of answers already, which is the most; it was rolled back. \
                 Keys of {} make room when their retention is over",
                self.keys, self.bytes, key.operation
            ),
        )
    }
}
