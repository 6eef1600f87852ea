//! Connections, one by one, since one of them may have to be dropped instead of answered.

use std::fmt;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

/// Marks a response that is never sent: the connection ends without a word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// Serves until it is killed, as gently or not as anybody likes: what it has done is in the ledger.
pub(super) async fn serve(listener: TcpListener, router: Router) -> ! {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, router.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Too many are open, as a rule: some of them will end.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, router: Router) {
    let service = service_fn(move |request| answer(router.clone(), request));
    if let Err(error) = http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn answer(router: Router, request: hyper::Request<Incoming>) -> Result<Response, Dropped> {
    // In a task of its own: what was begun is written down, whether or not its client still listens.
    let answered = tokio::spawn(router.oneshot(request.map(Body::new))).await;
    let response = answered.map_err(|_| Dropped)?.unwrap_or_else(|never| match never {});
    match response.extensions().get::<Dropped>() {
        Some(dropped) => Err(*dropped),
        None => Ok(response),
    }
}
