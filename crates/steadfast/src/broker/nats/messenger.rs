//! NATS as a messenger: a subject of the core, without JetStream. Nothing is kept there.
//!
//! The client brings its connection and its subscriptions back by itself, and does not say what was missed meanwhile. So an ear
//! fails as soon as the connection is lost, and there is another one when it is back.

use std::fmt;
use std::sync::Arc;

use async_nats::connection::State;
use async_nats::{Client, Event, Subscriber};
use futures_util::StreamExt;
use tokio::sync::{Mutex, watch};

use super::Nats;
use crate::broker::{Ear, Messenger};
use crate::error::Result;
use crate::failure::Failure;

/// A subject of NATS, by which the processes of a service tell each other of what is pushed:
/// [`PushTarget::across`](crate::PushTarget::across).
///
/// The user may publish and subscribe to `steadfast.streams.*`. JetStream is not needed.
pub struct NatsPubSub {
    nats: Nats,
    client: Mutex<Option<Client>>,
    /// Counts how often something may have been missed.
    gaps: Arc<watch::Sender<u64>>,
}

impl NatsPubSub {
    /// A server: `nats://host:4222`, or `tls://host:4222`, with user and password or a token before an `@` if it wants them.
    /// Nothing is connected before something is told or followed; on another machine than this one, only by TLS.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at(server: &str) -> Result<Self> {
        Ok(Self::by(Nats::at(server)?))
    }

    /// A server, as [`at`](Self::at) has it, that the names of streams and passwords may go to as plain text.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at_plaintext(server: &str) -> Result<Self> {
        Ok(Self::by(Nats::at_plaintext(server)?))
    }

    fn by(nats: Nats) -> Self {
        Self {
            nats,
            client: Mutex::new(None),
            gaps: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The client, if it is connected.
    async fn client(&self) -> Result<Client, Failure> {
        let mut client = self.client.lock().await;
        if client.is_none() {
            let gaps = self.gaps.clone();
            let options = self.nats.options().event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed | Event::SlowConsumer(_)) {
                    gaps.send_modify(|count| *count += 1);
                }
                std::future::ready(())
            });
            let connecting = options.connect(self.nats.server.clone()).await;
            *client = Some(connecting.map_err(|error| away(error.kind()))?);
        }
        match &*client {
            Some(client) if client.connection_state() == State::Connected => Ok(client.clone()),
            _ => Err(away("the connection was lost")),
        }
    }
}

impl Messenger for NatsPubSub {
    type Ear = NatsEar;

    async fn tell(&self, channel: &str, notice: &str) -> Result<(), Failure> {
        let client = self.client().await?;
        let publishing = client.publish(channel.to_owned(), notice.to_owned().into());
        publishing.await.map_err(away)?;
        client.flush().await.map_err(away)
    }

    async fn listen(&self, channel: &str) -> Result<NatsEar, Failure> {
        // Before it is seen that there is a connection: whatever is lost after that counts.
        let gaps = self.gaps.subscribe();
        let client = self.client().await?;
        let hears = client.subscribe(channel.to_owned()).await.map_err(away)?;
        client.flush().await.map_err(away)?;
        Ok(NatsEar { hears, gaps })
    }

    fn address(&self) -> String {
        self.nats.address()
    }
}

fn away(error: impl fmt::Display) -> Failure {
    Failure::transient("away", error.to_string())
}

/// What hears a subject of NATS.
#[derive(Debug)]
pub struct NatsEar {
    hears: Subscriber,
    gaps: watch::Receiver<u64>,
}

impl Ear for NatsEar {
    async fn hear(&mut self) -> Result<String, Failure> {
        tokio::select! {
            _ = self.gaps.changed() => Err(away("the connection was lost")),
            message = self.hears.next() => match message {
                Some(message) => Ok(String::from_utf8_lossy(&message.payload).into_owned()),
                None => Err(away("the connection was closed")),
            },
        }
    }
}

impl fmt::Debug for NatsPubSub {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPubSub")
            .field("server", &self.address())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn an_address_is_one_of_nats_and_keeps_its_password_to_itself() {
        let refused = NatsPubSub::at("redis://127.0.0.1").expect_err("not NATS");
        assert_eq!(refused.code(), Code::ConfigurationInvalid);
        let nats = NatsPubSub::at("nats://ann:secret@127.0.0.1:4222").expect("an address");
        let shown = format!("{nats:?}");
        assert!(
            shown.contains("nats://127.0.0.1:4222") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
