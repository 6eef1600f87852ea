//! The program of the guide on services, declared and by hand.

use serde::{Deserialize, Serialize};
use steadfast::sqlx::Sqlite;
use steadfast::{Owner, Steadfast};

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PlaceOrder {
    sku: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    id: i64,
    sku: String,
}

mod declared {
    use super::{Order, PlaceOrder};
    // guide: declared
    use steadfast::sqlx::{self, Pool};
    use steadfast::{Failure, Tx};

    pub(crate) struct Orders;

    #[steadfast::service(db = [Sqlite, Postgres])]
    impl Orders {
        /// Places an order.
        #[command(
            "orders.place",
            route = "POST /orders",
            status = 201,
            location = "/orders/{id}",
            retention = "48h"
        )]
        pub(crate) async fn place(&self, tx: &mut Tx<Db>, order: PlaceOrder) -> Result<Order, Failure> {
            let insert = "INSERT INTO orders (sku) VALUES ($1) RETURNING id";
            let id = sqlx::query_scalar(insert).bind(&order.sku).fetch_one(tx.db()).await?;
            Ok(Order { id, sku: order.sku })
        }

        /// Shows an order.
        #[query("orders.show", route = "GET /orders/{id}", max_age = "60s")]
        pub(crate) async fn show(&self, db: &Pool<Db>, id: i64) -> Result<Order, Failure> {
            let select = "SELECT sku FROM orders WHERE id = $1";
            let sku = sqlx::query_scalar(select).bind(id).fetch_one(db).await?;
            Ok(Order { id, sku })
        }
    }
    // guide: end
}

mod by_hand {
    use super::{Order, PlaceOrder};
    // guide: by hand
    use std::sync::Arc;
    use std::time::Duration;

    use steadfast::service::{self, Answer, MethodFilter, Router};
    use steadfast::sqlx::{self, Pool, Sqlite};
    use steadfast::{Failure, Owner, Reply, Steadfast, Tx};

    const RETENTION: Duration = Duration::from_secs(48 * 60 * 60);

    pub(crate) struct Orders;

    impl Orders {
        async fn place(&self, tx: &mut Tx<Sqlite>, order: PlaceOrder) -> Result<Order, Failure> {
            let insert = "INSERT INTO orders (sku) VALUES ($1) RETURNING id";
            let id = sqlx::query_scalar(insert).bind(&order.sku).fetch_one(tx.db()).await?;
            Ok(Order { id, sku: order.sku })
        }

        async fn show(&self, db: &Pool<Sqlite>, id: i64) -> Result<Order, Failure> {
            let select = "SELECT sku FROM orders WHERE id = $1";
            let sku = sqlx::query_scalar(select).bind(id).fetch_one(db).await?;
            Ok(Order { id, sku })
        }
    }

    pub(crate) struct OrdersService {
        pub(crate) service: Arc<Orders>,
        pub(crate) steadfast: Steadfast<Sqlite>,
    }

    impl OrdersService {
        pub(crate) async fn place(
            &self,
            owner: &Owner,
            key: &str,
            order: PlaceOrder,
        ) -> steadfast::Result<Reply<Order>> {
            let command = self.steadfast.command("orders.place", key).retention(RETENTION);
            let run = command.owner(owner).input(&order);
            run.run(async |tx| self.service.place(tx, order.clone()).await).await
        }

        pub(crate) async fn show(&self, id: i64) -> steadfast::Result<Order> {
            service::answered(self.service.show(self.steadfast.pool(), id).await)
        }

        pub(crate) fn routes(&self) -> Router {
            let layer = self
                .steadfast
                .idempotent()
                .operation("orders.place")
                .retention(RETENTION);
            let place = service::command(
                MethodFilter::POST,
                layer,
                &self.service,
                |service, mut tx, call| async move {
                    let order = service.place(&mut tx, call.input()?).await.map_err(service::failed)?;
                    Ok(Answer::new(201, &order)?.location(format!("/orders/{}", service::segment(&order.id))))
                },
            );
            let show = service::query(&self.steadfast, &self.service, |service, sf, call| async move {
                let order = service
                    .show(sf.pool(), call.path("id")?)
                    .await
                    .map_err(service::failed)?;
                Ok(Answer::new(200, &order)?.max_age(Duration::from_secs(60)))
            });
            Router::new().route("/orders", place).route("/orders/{id}", show)
        }
    }
    // guide: end
}

mod reacting {
    #[derive(Clone)]
    pub(crate) struct Mailer;

    impl Mailer {
        async fn send(&self, _key: &str, _sku: &str) -> Result<(), Failure> {
            Ok(())
        }
    }

    // guide: reacting
    use serde::{Deserialize, Serialize};
    use steadfast::sqlx;
    use steadfast::{Event, EventCx, Failure, Tx};

    #[derive(Serialize, Deserialize, Event)]
    #[event("order.placed", ordering_key = order_id)]
    pub(crate) struct OrderPlaced {
        pub(crate) order_id: i64,
        pub(crate) sku: String,
        #[redact]
        pub(crate) email: String,
    }

    pub(crate) struct Stock {
        pub(crate) mail: Mailer,
    }

    #[steadfast::service(db = [Sqlite, Postgres])]
    impl Stock {
        /// What it writes and its delivery commit together.
        #[on(OrderPlaced, retry(retries = 5, backoff = exponential("1s"), cap = "5m"))]
        pub(crate) async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
            let take = "UPDATE stock SET free = free - 1 WHERE sku = $1";
            sqlx::query(take).bind(&event.sku).execute(tx.db()).await?;
            Ok(())
        }

        /// Nothing commits with a call to others, so it may happen again: with the same key.
        #[on(OrderPlaced, name = "stock.mail", concurrency = 8, on_dead = skip, time_limit = "30s")]
        async fn tell_the_warehouse(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
            self.mail.send(cx.key(), &event.sku).await
        }
    }
    // guide: end
}

mod reacting_by_hand {
    use std::sync::Arc;

    use super::reacting::{Mailer, OrderPlaced};
    use steadfast::sqlx::{self, Sqlite};
    use steadfast::{Failure, Steadfast, Tx, retry};

    struct Stock {
        mail: Mailer,
    }

    impl Stock {
        async fn reserve(&self, tx: &mut Tx<Sqlite>, event: OrderPlaced) -> Result<(), Failure> {
            let take = "UPDATE stock SET free = free - 1 WHERE sku = $1";
            sqlx::query(take).bind(&event.sku).execute(tx.db()).await?;
            let _ = &self.mail;
            Ok(())
        }
    }

    #[rustfmt::skip]
    pub(crate) fn register(sf: &Steadfast<Sqlite>, mail: Mailer) {
    // guide: reacting by hand
    let stock = Arc::new(Stock { mail });
    sf.reaction::<OrderPlaced>("stock.reserve")
        .retry(retry!(retries = 5, backoff = exponential("1s"), cap = "5m"))
        .run_boxed(move |tx, event| {
            let stock = Arc::clone(&stock);
            Box::pin(async move { stock.reserve(tx, event).await })
        });
    // guide: end
    }
}

#[tokio::test]
async fn reactions_are_registered_by_declaration_or_by_hand() {
    let declared = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    let mail = reacting::Mailer;
    reacting::Stock { mail: mail.clone() }.on(&declared);
    let by_hand = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    reacting_by_hand::register(&by_hand, mail);
}

#[tokio::test]
async fn what_is_declared_and_what_is_written_by_hand_are_one_thing() {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    let create = "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL)";
    steadfast::sqlx::query(create).execute(sf.pool()).await.unwrap();
    let owner = Owner::new("tenant-1", "user-a");
    let order = || PlaceOrder { sku: "tea".into() };

    let declared = declared::Orders.on(&sf);
    let by_hand = by_hand::OrdersService {
        service: by_hand::Orders.into(),
        steadfast: sf.clone(),
    };
    let first = declared.place(&owner, "k", order()).await.unwrap();
    let again = by_hand.place(&owner, "k", order()).await.unwrap();
    assert!(!first.replayed && again.replayed);
    let id = first.value.id;
    assert_eq!(declared.show(id).await.unwrap(), by_hand.show(id).await.unwrap());
    let _both: [axum::Router; 2] = [declared.routes(), by_hand.routes()];
}

#[test]
fn the_guide_shows_the_services_as_they_are() {
    let guide = include_str!("../../../../docs/guide/services.md");
    let parts: Vec<_> = include_str!("guide.rs").split("    // guide: ").collect();
    for name in ["declared\n", "by hand\n", "reacting\n", "reacting by hand\n"] {
        let program = parts.iter().find_map(|part| part.strip_prefix(name)).unwrap();
        let program: String = program
            .lines()
            .map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n")
            .collect();
        let public = program.trim().replace("pub(crate) ", "pub ");
        assert!(guide.contains(&public), "the guide lacks this:\n{public}");
    }
}
