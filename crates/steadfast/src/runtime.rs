//! Starts what a service needs and stops it without losing anything.

use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::error::{Code, Error, Result};
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How long requests are still taken after SIGTERM, while `/readyz` says 503: load balancers hear of it with a delay, and
/// whom they send until then should find an open door. Ctrl-C is a person, who does not want to wait.
const LAME_DUCK: Duration = Duration::from_secs(2);

/// How long a client may leave unread what was sent to it, before its connection is cut: it would hold its place among live clients for
/// ever, and hold up the end of the process.
#[cfg(target_os = "linux")]
const UNREAD_LIMIT: Duration = Duration::from_secs(10);

/// How long commands may take to end after SIGTERM: less than the 30 seconds Kubernetes waits before it kills.
const DRAIN_GRACE: Duration = Duration::from_secs(25);

impl<Db: Database> Steadfast<Db> {
    /// Serves a router until SIGTERM or Ctrl-C, then ends in order: `/readyz` says 503, after two seconds (Ctrl-C: at once)
    /// no new connections are taken, and what is under way gets 25 seconds to end. A second signal ends at once.
    ///
    /// Reactions are [declared](Self::declare) before the first request is taken. If the database is away just then, it is
    /// waited for.
    ///
    /// # Errors
    /// If the listener fails, or a command had not ended in time.
    pub async fn serve(&self, listener: TcpListener, router: Router) -> Result<()> {
        let mut first = Box::pin(signal());
        tokio::select! {
            declared = self.declare_in_the_end() => declared?,
            _ = &mut first => {
                self.stop();
                return Ok(());
            }
            () = self.stopped() => return Ok(()),
        }
        let sf = self.clone();
        let listener = listener.tap_io(|connection| {
            // Small answers, and what is pushed, go out at once. A connection that is gone already needs neither.
            let _ = connection.set_nodelay(true);
            #[cfg(target_os = "linux")]
            let _ = socket2::SockRef::from(&*connection).set_tcp_user_timeout(Some(UNREAD_LIMIT));
        });
        let server = axum::serve(listener, router).with_graceful_shutdown(async move {
            let signal = first.await;
            tracing::info!("stopping: not ready any more, waiting for what is under way");
            sf.stop();
            if signal == Signal::Terminate {
                tokio::time::sleep(LAME_DUCK).await;
            }
        });
        let house = self.clone();
        tokio::spawn(async move { house.keep_house().await });
        let dispatcher = self.clone();
        let dispatching = tokio::spawn(async move { dispatcher.dispatch_declared().await });
        let dispatched = dispatching.abort_handle();
        let served = async {
            let ended = server.await;
            // It waits for what it works on, and gives the rest back.
            let _ = dispatching.await;
            // A command may outlive the connection of the client that asked for it.
            self.drained().await;
            ended.map_err(|error| Error::new(Code::ShuttingDown, "the listener failed").with_source(error))
        };
        let out_of_time = async {
            self.stopped().await;
            tokio::select! {
                _ = signal() => "a second signal came",
                () = tokio::time::sleep(DRAIN_GRACE) => "the grace period ended",
            }
        };
        tokio::select! {
            ended = served => ended,
            why = out_of_time => {
                if self.tasks().is_empty() && dispatched.is_finished() {
                    tracing::warn!("{why} while clients were connected; nothing was under way");
                    return Ok(());
                }
                Err(Error::new(
                    Code::ShuttingDown,
                    format!("{why} while commands were under way; the database rolls them back"),
                ))
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Interrupt,
    Terminate,
}

async fn signal() -> Signal {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => Signal::Interrupt,
        () = terminate => Signal::Terminate,
    }
}
