//! Living by the lab's clock, whichever process has moved it.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use steadfast::Steadfast;

use super::Db;
use crate::lab::{Clock, ClockService};

/// The time of this process, and where that of all processes is kept.
#[derive(Clone)]
pub(super) struct Time {
    steadfast: Steadfast<Db>,
    clock: ClockService<Db>,
}

/// How often a process looks by itself: deliveries come without a request.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Time {
    pub(super) fn new(sf: &Steadfast<Db>) -> Self {
        Self {
            steadfast: sf.clone(),
            clock: Clock.on(sf),
        }
    }

    /// Takes over what other processes do to the time, now and as long as this one lives.
    pub(super) async fn keep_up(&self) -> steadfast::Result<()> {
        self.take_over().await?;
        let time = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                // The next look may be luckier; requests look by themselves.
                let _ = time.take_over().await;
            }
        });
        Ok(())
    }

    /// Where the time is shown and moved.
    pub(super) fn routes(self) -> Router {
        let routes = self.clock.routes();
        routes.route_layer(from_fn_with_state(self, go_along))
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
async fn go_along(State(time): State<Time>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    match time.take_over().await {
        Ok(()) => response,
        Err(error) => error.into_response(),
    }
}
