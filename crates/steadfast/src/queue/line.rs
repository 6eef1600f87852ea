//! The engine's connections: one of its own, which handlers cannot keep waiting, and while there is much to do a second one, so
//! that rows are finished and claimed at the same time.

use std::collections::HashMap;
use std::time::Duration;

use super::engine::Held;
use super::renew::let_go_in_time;
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

/// How long a statement of the engine may take, as a part of the shortest lease and within these bounds. They are quick; one
/// that is not has lost its connection, or waits for a lock that nobody should hold, and leases have to be renewed meanwhile.
const STATEMENT_PART: u32 = 6;
const STATEMENT_LIMITS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// A connection of the engine that is opened when it is needed, and again after whatever went wrong on it.
pub(super) struct Line<Db: Database> {
    sf: Steadfast<Db>,
    hears: bool,
    link: Option<<Db::Store as Store<Db>>::Link>,
}

/// What has to be known while the database is asked: work whose lease ends meanwhile is told so in time.
#[derive(Clone, Copy)]
pub(super) struct Meanwhile<'h> {
    held: &'h HashMap<Lease, Held>,
    limit: Duration,
}

impl<'h> Meanwhile<'h> {
    /// `lease`: how long one lasts if nothing is held.
    pub(super) fn new(held: &'h HashMap<Lease, Held>, lease: Duration) -> Self {
        let shortest = held.values().map(|held| held.lease).min().unwrap_or(lease);
        let [at_least, at_most] = STATEMENT_LIMITS;
        let limit = (shortest / STATEMENT_PART).clamp(at_least, at_most);
        Self { held, limit }
    }
}

impl<Db: Database> Line<Db> {
    /// One that hears of what other processes announce.
    pub(super) fn hearing(sf: &Steadfast<Db>) -> Self {
        Self {
            sf: sf.clone(),
            hears: true,
            link: None,
        }
    }

    /// One that is asked, and hears nothing.
    pub(super) fn deaf(sf: &Steadfast<Db>) -> Self {
        Self {
            hears: false,
            ..Self::hearing(sf)
        }
    }

    /// Asks the database, within a limit. What was asked in vain, or got no answer, is asked over a new connection.
    pub(super) async fn ask<T>(
        &mut self,
        statement: &'static str,
        meanwhile: Meanwhile<'_>,
        ask: impl AsyncFnOnce(&Db::Store, &mut <Db::Store as Store<Db>>::Link) -> Result<T>,
    ) -> Result<T> {
        self.sf.ask(statement);
        let Self { sf, link, hears } = self;
        let store = sf.store();
        let Meanwhile { held, limit } = meanwhile;
        let asked = tokio::time::timeout(limit, async {
            let link = match link {
                Some(link) => link,
                link if *hears => link.insert(store.open_link().await?),
                link => link.insert(store.open_deaf_link().await?),
            };
            ask(store, link).await
        });
        let answer = tokio::select! {
            answer = asked => answer,
            never = let_go_in_time(held) => match never {},
        };
        let answer = answer.unwrap_or_else(|_| {
            let message = format!("the database did not answer the engine within {limit:?}");
            Err(Error::new(Code::Unreachable, message))
        });
        if answer.is_err() {
            self.close();
        }
        answer
    }

    /// Waits until another process announces something, or the connection is lost.
    pub(super) async fn woken(&mut self) {
        let heard = match &mut self.link {
            Some(link) => self.sf.store().woken(link).await,
            None => std::future::pending().await,
        };
        if heard.is_err() {
            self.close();
        }
    }

    /// Closes it until it is needed again.
    pub(super) fn close(&mut self) {
        self.link = None;
    }
}
