//! The transaction of a request, lent to its handler and given back.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{FromRequestParts, MatchedPath};
use http::request::Parts;

use crate::error::{Code, Error, Result};
use crate::store::Database;
use crate::tx::Tx;

/// The transaction of this request, as an extractor. Derefs to [`Tx`].
///
/// # Errors
/// SF020 if the route has no `sf.idempotent()` layer for this database, SF021 if the transaction was extracted before.
pub struct CmdTx<Db: Database> {
    /// Always there, until the drop gives it back.
    tx: Option<Tx<Db>>,
    slot: Slot<Db>,
}

impl<Db: Database> Deref for CmdTx<Db> {
    type Target = Tx<Db>;

    fn deref(&self) -> &Tx<Db> {
        self.tx
            .as_ref()
            .unwrap_or_else(|| unreachable!("the transaction is there until the drop"))
    }
}

impl<Db: Database> DerefMut for CmdTx<Db> {
    fn deref_mut(&mut self) -> &mut Tx<Db> {
        self.tx
            .as_mut()
            .unwrap_or_else(|| unreachable!("the transaction is there until the drop"))
    }
}

impl<Db: Database> Drop for CmdTx<Db> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.slot.put(tx);
        }
    }
}

impl<Db: Database, S: Sync> FromRequestParts<S> for CmdTx<Db> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let route = parts
            .extensions
            .get::<MatchedPath>()
            .map_or(parts.uri.path(), MatchedPath::as_str);
        let Some(slot) = parts.extensions.get::<Slot<Db>>() else {
            return Err(Error::new(
                Code::NoTransaction,
                format!(
                    "{} {route} takes a CmdTx on {}, but no idempotent layer for that database is on this route; add .route_layer(sf.idempotent()), \
                     and use a method that changes something",
                    parts.method,
                    Db::NAME
                ),
            ));
        };
        match slot.borrow() {
            Some(tx) => Ok(Self {
                tx: Some(tx),
                slot: slot.clone(),
            }),
            None => Err(Error::new(
                Code::TransactionTaken,
                format!(
                    "{} {route} extracts CmdTx twice; a request has one transaction, pass it on as &mut",
                    parts.method
                ),
            )),
        }
    }
}

/// Where the layer lends the transaction to the handler and gets it back.
pub(super) struct Slot<Db: Database>(Arc<Lent<Db>>);

struct Lent<Db: Database> {
    tx: Mutex<Option<Tx<Db>>>,
    was_taken: AtomicBool,
    /// Whether the handler's time is over: what comes back later is rolled back at once.
    is_over: AtomicBool,
}

impl<Db: Database> Clone for Slot<Db> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Db: Database> Slot<Db> {
    pub(super) fn new(tx: Tx<Db>) -> Self {
        Self(Arc::new(Lent {
            tx: Mutex::new(Some(tx)),
            was_taken: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }))
    }

    /// Begins the time in which the handler may have the transaction; it ends with the guard.
    pub(super) fn lend(&self) -> Lending<Db> {
        Lending(self.clone())
    }

    fn borrow(&self) -> Option<Tx<Db>> {
        self.0.was_taken.store(true, Ordering::Relaxed);
        self.take()
    }

    pub(super) fn take(&self) -> Option<Tx<Db>> {
        self.0.tx.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, tx: Tx<Db>) {
        if self.0.is_over.load(Ordering::Acquire) {
            return drop(tx);
        }
        *self.0.tx.lock().unwrap_or_else(PoisonError::into_inner) = Some(tx);
    }

    pub(super) fn was_taken(&self) -> bool {
        self.0.was_taken.load(Ordering::Relaxed)
    }
}

/// The time during which a handler may have the transaction.
pub(super) struct Lending<Db: Database>(Slot<Db>);

impl<Db: Database> Drop for Lending<Db> {
    fn drop(&mut self) {
        self.0.0.is_over.store(true, Ordering::Release);
        drop(self.0.take());
    }
}
