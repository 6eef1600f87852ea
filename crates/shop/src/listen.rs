//! Where the shop listens.

use std::io::ErrorKind;

use tokio::net::TcpListener;

use crate::StartError;

const DEFAULT_HOST: &str = "127.0.0.1";

/// Where the search for a free port begins: a worker or a warehouse that is started first does not take the shop's.
pub(crate) const SHOP_PORT: u16 = 7878;
pub(crate) const WORKER_PORT: u16 = SHOP_PORT + PORTS_MAX;
pub(crate) const WAREHOUSE_PORT: u16 = WORKER_PORT + PORTS_MAX;

/// How many ports are tried when nobody asked for one: enough for a few shops side by side, few enough to fail soon.
const PORTS_MAX: u16 = 20;

/// Binds the address that was asked for, and no other; without one, the first free port from this one on.
pub(crate) async fn bind(address: Option<&str>, first: u16) -> Result<TcpListener, StartError> {
    match address {
        Some(address) => TcpListener::bind(address).await.map_err(|error| {
            let advice = match error.kind() {
                ErrorKind::AddrInUse => "stop what listens there, choose another port, or 0 for any free one",
                _ => "write HOST:PORT, as in 127.0.0.1:8080",
            };
            format!("the shop cannot listen on {address}: {error}; {advice}").into()
        }),
        None => bind_next_free(first).await,
    }
}

async fn bind_next_free(first: u16) -> Result<TcpListener, StartError> {
    let last = first.saturating_add(PORTS_MAX - 1);
    for port in first..=last {
        match TcpListener::bind((DEFAULT_HOST, port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            other => {
                return other
                    .map_err(|error| format!("the shop cannot listen on {DEFAULT_HOST}:{port}: {error}").into());
            }
        }
    }
    Err(format!("the ports {first} to {last} are all taken; choose one by --listen {DEFAULT_HOST}:PORT").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that is taken as long as the listener lives.
    async fn taken() -> (TcpListener, u16) {
        let listener = bind(Some("127.0.0.1:0"), 0).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        (listener, port)
    }

    #[tokio::test]
    async fn a_listener_that_is_taken_is_replaced_by_the_next_free_port() {
        let (_taken, first) = taken().await;
        let listener = bind_next_free(first).await.expect("one of twenty ports is free");
        let port = listener.local_addr().expect("an address").port();
        assert!(port > first && port < first + PORTS_MAX, "{first} → {port}");
    }

    #[tokio::test]
    async fn an_address_that_was_asked_for_is_never_replaced() {
        let (_taken, port) = taken().await;
        let address = format!("127.0.0.1:{port}");
        let error = bind(Some(&address), 0).await.expect_err("taken").to_string();
        assert!(
            error.contains(&address) && error.contains("choose another port"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_refused_with_an_example() {
        let error = bind(Some("nonsense"), 0).await.expect_err("no address").to_string();
        assert!(error.contains("HOST:PORT"), "{error}");
    }
}
