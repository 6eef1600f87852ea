//! Shops on one database that tell each other by a broker of what customers should hear.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Database;
use crate::PATIENCE;
use crate::process::{Shop, send_until_settled};

/// A customer who looks on, over a plain socket.
struct Onlooker {
    socket: TcpStream,
    heard: String,
}

impl Onlooker {
    async fn at(shop: &Shop) -> Self {
        let mut socket = TcpStream::connect(shop.address()).await.unwrap();
        let request = "GET /events HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer user-a\r\n\r\n";
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut onlooker = Self {
            socket,
            heard: String::new(),
        };
        onlooker.hears("event: ready").await;
        onlooker
    }

    /// Waits until something is heard.
    async fn hears(&mut self, what: &str) {
        let hearing = async {
            let mut buffer = [0; 4096];
            while !self.heard.contains(what) {
                let length = self.socket.read(&mut buffer).await.unwrap();
                assert!(length > 0, "the shop hung up: {}", self.heard);
                self.heard += &String::from_utf8_lossy(&buffer[..length]);
            }
        };
        timeout(PATIENCE, hearing).await.expect("it is heard");
    }
}

/// An order at one shop is heard by a customer of the other one.
async fn hears_of_the_other(variable: &str, broker: &str) {
    let url = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"));
    let (database, flags) = (Database::fresh().await, ["--push-across", &*url]);
    let (sells, shows) = (
        Shop::start(&database.url(), &flags).await,
        Shop::start(&database.url(), &[&flags[..], &["--no-dispatch"]].concat()).await,
    );
    assert!(
        sells
            .said()
            .contains(&format!("tell each other of what is live by {broker} at ")),
        "{}",
        sells.said()
    );
    let mut onlooker = Onlooker::at(&shows).await;
    for number in 0..5 {
        let placed = send_until_settled(&sells.order(&format!("key-{number}"))).await;
        assert_eq!(placed.status, 201, "{}", placed.text());
        onlooker.hears(placed.json()["id"].as_str().unwrap()).await;
    }
}

mod nats {
    #[tokio::test]
    async fn a_customer_of_one_shop_hears_of_an_order_at_another() {
        super::hears_of_the_other("TEST_NATS_URL", "NATS").await;
    }
}

mod redis {
    #[tokio::test]
    async fn a_customer_of_one_shop_hears_of_an_order_at_another() {
        super::hears_of_the_other("TEST_REDIS_URL", "Redis").await;
    }
}
