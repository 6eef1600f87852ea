//! One connection: a pump for each direction, both in one task.
//!
//! That they share a task is what makes the counts exact: between the write of a message's last byte and the note
//! that it was sent, nothing of the server's answer can be passed.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::counts::Sent;
use super::fault::Fault;
use super::frame::{Frames, Malformed, Message, Piece, Side, Wish};
use super::session::Session;

/// How much is read at once.
const CHUNK_LENGTH: usize = 16 * 1024;

/// How long a server may take to accept a connection. A local one takes no time, or refuses.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long a server is listened to after its client was cut off. Beyond that its answer counts as lost.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

const EXECUTE: u8 = b'E';
const SYNC: &[u8] = b"S\0\0\0\x04";

/// There is nothing more to pass: one side has left, or has to.
struct End;

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<Malformed> for End {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// Serves a client until one side leaves or `cut` is cancelled.
pub(super) async fn serve(shared: Arc<Shared>, number: u64, client: TcpStream, cut: CancellationToken) {
    let link = Link {
        shared,
        number,
        session: Mutex::default(),
    };
    let connecting = cut.run_until_cancelled(link.connect(client));
    let Some(Ok((mut requests, mut replies))) = connecting.await else {
        return;
    };
    let passing = async {
        let requests = async {
            requests.pass(&link).await?;
            pending::<Result<Infallible, End>>().await
        };
        let _: Result<Infallible, End> = tokio::select! {
            end = requests => end,
            end = replies.pass(&link) => end,
        };
        // That a side has left does not get through a black hole either.
        link.shared.passable(Side::Client).await;
    };
    cut.run_until_cancelled(passing).await;

    // The client's socket is closed here and now. The server's stays until it has answered the COMMIT that its client
    // will not hear of, even if everything else is cut meanwhile.
    drop((requests.client, replies.client));
    if link.session().is_awaiting() {
        let answer = timeout(ANSWER_LIMIT, link.listen(&mut replies.frames, &mut replies.server));
        link.shared.ended.run_until_cancelled(answer).await;
        link.give_up();
    }
}

struct Link {
    shared: Arc<Shared>,
    number: u64,
    session: Mutex<Session>,
}

/// From the client to the server.
struct Requests {
    frames: Frames,
    client: OwnedReadHalf,
    server: OwnedWriteHalf,
    /// What is to be handed on next, and what it means.
    out: BytesMut,
    sent: Sent,
}

/// From the server to the client.
struct Replies {
    frames: Frames,
    server: OwnedReadHalf,
    client: OwnedWriteHalf,
}

impl Link {
    /// Listens to the client until it says what it wants, and connects it with the server.
    async fn connect(&self, mut client: TcpStream) -> Result<(Requests, Replies), End> {
        client.set_nodelay(true)?;
        let mut frames = Frames::of(Side::Client);
        let (wish, bytes) = loop {
            match frames.next()? {
                Some(Piece::Startup { wish, bytes }) if wish != Wish::Encryption => break (wish, bytes),
                Some(_) => self.hand_on(b"N", Side::Server, &mut client).await?,
                None if read(&mut frames, &mut client).await? => {}
                None => return Err(End),
            }
        };
        self.shared.passable(Side::Client).await;
        let upstream = self.shared.upstream();
        let connecting = timeout(CONNECT_LIMIT, TcpStream::connect(upstream));
        let mut server = connecting.await.map_err(|_| End)??;
        server.set_nodelay(true)?;

        let mut sent = Sent::default();
        match wish {
            Wish::Cancel => sent.counts.cancels += 1,
            _ => {
                sent.counts.connections += 1;
                self.session().start();
            }
        }
        self.send(&mut BytesMut::from(bytes), &mut sent, &mut server).await?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let requests = Requests {
            frames,
            client: from_client,
            server: to_server,
            out: BytesMut::new(),
            sent: Sent::default(),
        };
        let replies = Replies {
            frames: Frames::of(Side::Server),
            server: from_server,
            client: to_client,
        };
        Ok((requests, replies))
    }

    /// Hands messages to the server, and takes them into the record.
    async fn send(
        &self,
        out: &mut BytesMut,
        sent: &mut Sent,
        server: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        self.hand_on(out, Side::Client, server).await?;
        sent.counts.bytes_up += out.len() as u64;
        out.clear();
        let sent = std::mem::take(sent);
        self.shared.record.send_modify(|record| record.add(sent));
        Ok(())
    }

    /// Writes bytes in pieces as large as they may be, when they may pass.
    async fn hand_on(&self, bytes: &[u8], from: Side, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            let conditions = self.shared.passable(from).await;
            let length = match conditions.slice {
                0 => left.len(),
                slice => left.len().min(slice),
            };
            to.write_all(&left[..length]).await?;
            to.flush().await?;
            left = &left[length..];
            if !left.is_empty() {
                // Whoever reads shall see this piece alone.
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Takes note of everything that has come from the server, and appends it to `out`. True: it answers something.
    fn note_replies(&self, frames: &mut Frames, out: &mut BytesMut) -> Result<bool, Malformed> {
        let mut is_answer = false;
        while let Some(piece) = frames.next()? {
            if let Piece::Message(message) = &piece {
                let reply = self.session().reply(message);
                is_answer |= reply.is_answer;
                if let Some((entry, answer)) = reply.settled {
                    self.shared.record.send_modify(|record| record.settle(entry, answer));
                }
            }
            out.extend_from_slice(piece.bytes());
        }
        Ok(is_answer)
    }

    /// Listens to the server until it has answered the COMMIT whose client is gone.
    async fn listen(&self, frames: &mut Frames, server: &mut OwnedReadHalf) -> Result<(), End> {
        while self.session().is_awaiting() && read(frames, server).await? {
            self.note_replies(frames, &mut BytesMut::new())?;
        }
        Ok(())
    }

    /// Records a fault. From here on, the answer to a COMMIT that was sent is for us alone.
    fn fire(&self, fault: Fault) {
        let mut session = self.session();
        let backend = session.backend;
        self.shared.record.send_modify(|record| {
            let entry = record.fire(fault, self.number, backend);
            if fault != Fault::CutBeforeCommit {
                session.await_answer(entry);
            }
        });
    }

    fn give_up(&self) {
        if let Some((entry, answer)) = self.session().give_up() {
            self.shared.record.send_modify(|record| record.settle(entry, answer));
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        // Both pumps are in one task and hold this for a moment only; a panic in one has ended the other.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    /// Passes what the client says until it has left (`Ok`), or has to.
    async fn pass(&mut self, link: &Link) -> Result<(), End> {
        while read(&mut self.frames, &mut self.client).await? {
            link.shared.passable(Side::Client).await;
            // All that has come together is understood before any of it is sent, so it is one round trip.
            while let Some(piece) = self.frames.next()? {
                if let Piece::Message(message) = &piece {
                    let request = link.session().request(message);
                    if request.counts.commits > 0
                        && let Some(fault) = link.shared.fate()
                    {
                        return self.suffer(fault, message, request, link).await;
                    }
                    self.sent.append(request);
                }
                self.out.extend_from_slice(piece.bytes());
            }
            if self.send(link).await.is_err() {
                // The server has left. What it said before is still on its way, and then the other pump ends.
                return Ok(());
            }
        }
        link.shared.passable(Side::Client).await;
        Ok(self.server.shutdown().await?)
    }

    /// Lets a fault happen to a COMMIT. What came before it is passed as ever, what comes after it never is.
    async fn suffer(&mut self, fault: Fault, commit: &Message, request: Sent, link: &Link) -> Result<(), End> {
        if fault != Fault::CutBeforeCommit {
            self.sent.append(request);
            self.out.extend_from_slice(&commit.bytes);
            if commit.tag == EXECUTE {
                // The client's own Sync is behind it, or still to come; without one the server keeps its answer back.
                self.out.extend_from_slice(SYNC);
                link.session().owe_one_more();
            }
        }
        let is_sent = self.send(link).await;
        link.fire(fault);
        is_sent?;
        if fault == Fault::SwallowCommitReply {
            while read(&mut self.frames, &mut self.client).await? {
                self.frames.buffer.clear();
            }
        }
        Err(End)
    }

    async fn send(&mut self, link: &Link) -> io::Result<()> {
        link.send(&mut self.out, &mut self.sent, &mut self.server).await
    }
}

impl Replies {
    /// Passes what the server says until it has left.
    async fn pass(&mut self, link: &Link) -> Result<Infallible, End> {
        let mut out = BytesMut::new();
        while read(&mut self.frames, &mut self.server).await? {
            let is_answer = link.note_replies(&mut self.frames, &mut out)?;
            link.shared.delay().await;
            link.shared.passable(Side::Server).await;
            if !link.session().is_swallowing {
                link.session().has_heard |= is_answer;
                // Before the write, since the client may be asked for it right after.
                link.shared
                    .record
                    .send_modify(|record| record.counts.bytes_down += out.len() as u64);
                link.hand_on(&out, Side::Server, &mut self.client).await?;
            }
            out.clear();
        }
        if link.session().is_swallowing {
            link.give_up();
            pending::<()>().await;
        }
        Err(End)
    }
}

/// Reads what has arrived. False: there will be nothing more.
async fn read(frames: &mut Frames, from: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
    frames.buffer.reserve(CHUNK_LENGTH);
    Ok(from.read_buf(&mut frames.buffer).await? > 0)
}
