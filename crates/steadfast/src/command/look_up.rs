//! One key, for those who ask about it: support, operators, clients that lost an answer.

use std::time::SystemTime;

use bytes::Bytes;

use super::{Key, KeyState, Owner, Scope};
use crate::audit::AuditEntry;
use crate::error::{Error, Result};
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

/// One key, to look at or to evict: [`Steadfast::key`].
#[must_use = "nothing is looked up until `outcome`"]
pub struct KeyLookUp<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    operation: &'c str,
    value: &'c str,
    owner: Option<&'c Owner>,
    scope: Scope,
}

/// The stored end of a command, as a retry of it would get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAnswer {
    /// Whether it succeeded.
    pub state: KeyState,
    /// The status of the answer.
    pub status: u16,
    /// Its body, byte for byte.
    pub body: Bytes,
    /// From when on the key counts as absent.
    pub expires_at: SystemTime,
}

impl<'c, Db: Database> KeyLookUp<'c, Db> {
    pub(crate) fn new(steadfast: &'c Steadfast<Db>, operation: &'c str, value: &'c str) -> Self {
        Self {
            steadfast,
            operation,
            value,
            owner: None,
            scope: Scope::default(),
        }
    }

    /// Whose key it is. Needed unless the scope is global.
    pub fn owner(mut self, owner: &'c Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Within which circle the key is unique; one user by default.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// What the command ended with; `None` if it has not ended, is unknown, or its retention is over.
    ///
    /// # Errors
    /// If the names are not usable, or the database does not answer. SF121 and SF122 if the answer is encrypted and cannot be
    /// read.
    pub async fn outcome(self) -> Result<Option<KeyAnswer>> {
        let key = self.key()?;
        let look_up = self.steadfast.ask("look the key up").look_up(&key).await?;
        let now = self.steadfast.clock().at(look_up.now);
        let Some(record) = look_up.record.filter(|record| record.is_live(now)) else {
            return Ok(None);
        };
        let place = self.steadfast.place(&key, &record.fingerprint);
        let outcome = record.stored.read(&place)?;
        Ok(Some(KeyAnswer {
            state: outcome.state,
            status: outcome.status,
            body: outcome.body,
            expires_at: record.expires_at.into(),
        }))
    }

    /// Forgets the key, so that the next command with it is executed as if it was the first, and writes into the audit who
    /// did that and why. False: there was nothing to forget.
    ///
    /// The effect of the first execution stays; evicting a key means that it may happen again.
    ///
    /// # Errors
    /// If the names are not usable, or the database does not answer.
    pub async fn evict(self, actor: &str, reason: &str) -> Result<bool> {
        let key = self.key()?;
        let entry = AuditEntry::new(actor, "key.evict", format!("{} {}", key.operation, key.short())).because(reason);
        let (key, entry) = (&key, &entry);
        self.steadfast
            .transact(async |tx| {
                let is_removed = tx.remove_key(key).await?;
                if is_removed {
                    tx.audit(entry).await?;
                }
                Ok(is_removed)
            })
            .await
            .map_err(Error::unwrapped)
    }

    fn key(&self) -> Result<Key> {
        Key::new(self.scope, self.owner, self.operation, self.value)
    }
}
