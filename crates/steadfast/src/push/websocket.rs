//! The same over WebSocket: a text of JSON for each thing that is told, with the place to come back to.

use std::time::Duration;

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::Push;
use super::name::StreamName;
use super::place::Returning;
use super::subscription::{Subscription, Tale, Told};
use crate::store::Database;

/// How long a message of a client may be. It has nothing to say.
const MESSAGE_LENGTH_MAX: usize = 1024;

/// How much is kept for a client that does not take it.
const WRITE_BUFFER_MAX: usize = 256 * 1024;

/// How long a client may take to take something.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Turns the connection into a WebSocket and tells what comes, for as long as the client listens.
pub(super) async fn answer<Db: Database>(
    push: &Push<Db>,
    upgrade: WebSocketUpgrade,
    streams: &[StreamName],
    returning: &Returning,
) -> Response {
    let heartbeat = push.options.heartbeat;
    match push.subscribe(streams, returning).await {
        Ok(subscription) => upgrade
            .max_message_size(MESSAGE_LENGTH_MAX)
            .max_frame_size(MESSAGE_LENGTH_MAX)
            .read_buffer_size(MESSAGE_LENGTH_MAX)
            .write_buffer_size(0)
            .max_write_buffer_size(WRITE_BUFFER_MAX)
            .on_upgrade(move |socket| serve(socket, subscription, heartbeat)),
        Err(error) => error.into_response(),
    }
}

/// Tells a client what comes, until either of them has enough.
async fn serve<Db: Database>(mut socket: WebSocket, mut subscription: Subscription<Db>, heartbeat: Duration) {
    let mut is_waiting_for_pong = false;
    let mut beat = tokio::time::interval_at(Instant::now() + heartbeat, heartbeat);
    loop {
        tokio::select! {
            told = subscription.next() => {
                let Some(told) = told else { break };
                for told in &told {
                    if send(&mut socket, Message::text(write(told))).await.is_none() {
                        return;
                    }
                }
            }
            heard = socket.recv() => match heard {
                // Whatever it says, it lives.
                Some(Ok(_)) => is_waiting_for_pong = false,
                Some(Err(_)) | None => return,
            },
            _ = beat.tick() => {
                if is_waiting_for_pong || send(&mut socket, Message::Ping(bytes::Bytes::new())).await.is_none() {
                    return;
                }
                is_waiting_for_pong = true;
            }
        }
    }
    let goodbye = CloseFrame {
        code: close_code::AWAY,
        reason: "come back".into(),
    };
    let _ = send(&mut socket, Message::Close(Some(goodbye))).await;
}

/// `None`: the client is gone, or does not take anything.
async fn send(socket: &mut WebSocket, message: Message) -> Option<()> {
    tokio::time::timeout(SEND_LIMIT, socket.send(message)).await.ok()?.ok()
}

/// The place is the first thing in it. Names of streams have nothing in them that JSON would escape.
fn write(Told { tale, place }: &Told) -> String {
    match tale {
        Tale::Ready => format!(r#"{{"place":"{place}","event":"ready"}}"#),
        Tale::Resync => format!(r#"{{"place":"{place}","event":"resync"}}"#),
        Tale::Entry(entry) => format!(
            r#"{{"place":"{place}","entry":{}}}"#,
            String::from_utf8_lossy(&entry.json)
        ),
    }
}
