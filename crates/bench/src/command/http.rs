//! The same behind axum, over real sockets: a handler with its own transaction, and one with the layer's.
//!
//! The client is a few lines on a socket that is kept open: it must cost as little as possible, since it shares the
//! processors with what it measures.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Json, Router};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres};
use steadfast::{CmdTx, Failure, Steadfast};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use super::keys::new_key;
use super::order::{OPERATION, ORDER, OWNER, Order, Placed};
use super::postgres::{open, place, place_in_transaction};
use crate::error::{Context, Result};
use crate::measure::{CALLERS, Case, Stage};
use crate::server::Server;

const BARE: &str = "bare handler";
const CMD_TX: &str = "CmdTx handler";

/// An answer is a few hundred bytes; one that is longer than this is not ours.
const ANSWER_LENGTH_MAX: usize = 8_192;

pub(super) fn cases() -> [Case; 2] {
    [Case::new(BARE), Case::new(CMD_TX).against(BARE, 0.7)]
}

pub(super) async fn prepare(server: Server) -> Result<Stage> {
    let scratch = server.create_database().await?;
    let pool = scratch.pool(PgPoolOptions::new());
    let sf = open(&scratch, pool.clone()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listening")?;
    let address = listener.local_addr().context("listening")?;
    let serving = tokio::spawn(async move { axum::serve(listener, app(&sf, pool)).await });
    let mut clients = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        clients.push(Mutex::new(Client::connect(address).await?));
    }
    let clients = Arc::new(clients);
    Ok(Stage::default()
        .does(BARE, &clients, |clients, caller| order(clients, caller, "/bare"))
        .does(CMD_TX, &clients, |clients, caller| order(clients, caller, "/cmd-tx"))
        .counted_by(server.meter())
        .ends_with(async move {
            serving.abort();
            scratch.remove().await
        }))
}

fn app(sf: &Steadfast<Postgres>, pool: PgPool) -> Router {
    let layered = post(in_cmd_tx).route_layer(sf.idempotent().operation(OPERATION));
    Router::new()
        .route("/bare", post(in_own_transaction))
        .route("/cmd-tx", layered)
        .layer(Extension(OWNER.clone()))
        .with_state(pool)
}

async fn in_own_transaction(
    State(pool): State<PgPool>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Placed>), StatusCode> {
    match place_in_transaction(&pool, &order).await {
        Ok(placed) => Ok((StatusCode::CREATED, Json(placed))),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

async fn in_cmd_tx(mut tx: CmdTx<Postgres>, Json(order): Json<Order>) -> Result<(StatusCode, Json<Placed>), Failure> {
    Ok((StatusCode::CREATED, Json(place(tx.db(), &order).await?)))
}

async fn order(clients: Arc<Vec<Mutex<Client>>>, caller: usize, path: &'static str) -> Result<()> {
    let body = serde_json::to_string(&*ORDER)?;
    clients[caller].lock().await.post(path, &new_key(), &body).await
}

/// One connection that is kept open, and what was read from it last.
struct Client {
    socket: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address).await.context("connecting to the handler")?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            answer: Vec::with_capacity(ANSWER_LENGTH_MAX),
        })
    }

    /// Sends a request and reads its whole answer, which must be 201.
    async fn post(&mut self, path: &str, key: &str, body: &str) -> Result<()> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
             idempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.socket.write_all(request.as_bytes()).await?;
        self.answer.clear();
        while !is_whole(&self.answer)? {
            if self.socket.read_buf(&mut self.answer).await? == 0 {
                return Err("the handler's connection ended within an answer".into());
            }
        }
        if self.answer.starts_with(b"HTTP/1.1 201 ") {
            return Ok(());
        }
        Err(format!("the handler answered {}", String::from_utf8_lossy(&self.answer)).into())
    }
}

/// Whether this is an answer to its end, by its content-length.
fn is_whole(answer: &[u8]) -> Result<bool> {
    let Some(head_length) = answer.windows(4).position(|end| end == b"\r\n\r\n") else {
        return match answer.len() {
            0..ANSWER_LENGTH_MAX => Ok(false),
            _ => Err("the handler's answer has no end".into()),
        };
    };
    let head = str::from_utf8(&answer[..head_length]).context("reading the head of an answer")?;
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length.ok_or("the handler's answer has no content-length")?;
    let length: usize = length.parse().context("reading the content-length of an answer")?;
    Ok(answer.len() >= head_length + 4 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        assert!(is_whole(answer).is_ok_and(|whole| whole));
        for length in 0..answer.len() {
            assert!(is_whole(&answer[..length]).is_ok_and(|whole| !whole), "{length}");
        }
    }

    #[test]
    fn an_answer_of_unknown_length_is_refused() {
        assert!(is_whole(b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
