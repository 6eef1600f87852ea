//! The engine's connections: one of its own, which handlers cannot keep waiting, and while there is much to do a second one, so
//! that rows are finished and claimed at the same time.

use std::collections::HashMap;
use std::time::Duration;

use super::engine::Held;
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

/// How long a statement may take while these are held; `lease`: how long one lasts if nothing is.
pub(super) fn statement_limit(held: &HashMap<Lease, Held>, lease: Duration) -> Duration {
    let shortest = held.values().map(|held| held.lease).min().unwrap_or(lease);
    let [at_least, at_most] = STATEMENT_LIMITS;
    (shortest / STATEMENT_PART).clamp(at_least, at_most)
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
        limit: Duration,
        ask: impl AsyncFnOnce(&Db::Store, &mut <Db::Store as Store<Db>>::Link) -> Result<T>,
    ) -> Result<T> {
        self.ask_while(|| false, statement, limit, ask).await
    }

    /// The same, and the limit begins anew while something is so.
    pub(super) async fn ask_while<T>(
        &mut self,
        may_go_on: impl Fn() -> bool,
        statement: &'static str,
        limit: Duration,
        ask: impl AsyncFnOnce(&Db::Store, &mut <Db::Store as Store<Db>>::Link) -> Result<T>,
    ) -> Result<T> {
        self.sf.ask(statement);
        let Self { sf, link, hears } = self;
        let store = sf.store();
        let asking = async {
            let link = match link {
                Some(link) => link,
                link if *hears => link.insert(store.open_link().await?),
                link => link.insert(store.open_deaf_link().await?),
            };
            ask(store, link).await
        };
        let answer = answer_within(limit, may_go_on, asking).await;
        if answer.is_err() {
            self.close();
        }
        answer
    }

    /// Waits until another process announces something, or the connection is lost. It says who is to look after his rows, because
    /// one of them was cancelled.
    pub(super) async fn woken(&mut self) -> Vec<String> {
        let heard = match &mut self.link {
            Some(link) => self.sf.store().woken(link).await,
            None => std::future::pending().await,
        };
        heard.unwrap_or_else(|_| {
            self.close();
            Vec::new()
        })
    }

    /// Closes it until it is needed again.
    pub(super) fn close(&mut self) {
        self.link = None;
    }
}

/// What somebody answers within a limit, which begins anew while something is so.
async fn answer_within<T>(
    limit: Duration,
    may_go_on: impl Fn() -> bool,
    asking: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut asking = std::pin::pin!(asking);
    loop {
        match tokio::time::timeout(limit, &mut asking).await {
            Ok(answer) => return answer,
            Err(_) if may_go_on() => {}
            Err(_) => {
                let message = format!("the database did not answer the engine within {limit:?}");
                return Err(Error::new(Code::Unreachable, message));
            }
        }
    }
}
