//! Living by the lab's clock, whichever process has moved it.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use steadfast::Steadfast;

use super::Db;
use crate::lab::{Clock, ClockService};

/// The time of this process, and where that of all processes is kept.
#[derive(Clone)]
pub(super) struct Time {
    steadfast: Steadfast<Db>,
    pub(super) clock: ClockService<Db>,
}

impl Time {
    pub(super) fn new(sf: &Steadfast<Db>) -> Self {
        Self {
            steadfast: sf.clone(),
            clock: Clock.on(sf),
        }
    }

    async fn take_over(&self) -> steadfast::Result<()> {
        let ahead = self.clock.show().await?;
        self.steadfast.clock().set_offset(ahead.duration());
        Ok(())
    }
}

/// Before a request: takes over what the other processes have done to the time.
pub(super) async fn follow(State(time): State<Time>, request: Request, next: Next) -> Response {
    match time.take_over().await {
        Ok(()) => next.run(request).await,
        // A wrong time would let the lab prove wrong things.
        Err(error) => error.into_response(),
    }
}

/// After a request that may have moved it: goes along.
pub(super) async fn go_along(State(time): State<Time>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    match time.take_over().await {
        Ok(()) => response,
        Err(error) => error.into_response(),
    }
}
