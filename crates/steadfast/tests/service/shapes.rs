//! Every shape of block that a user may write. Most of it is proved by being compiled.

use std::fmt::Display;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::sqlx::{self, Pool, Postgres, Sqlite};
use steadfast::{Database, Failure, FailureClass, FingerprintPolicy, Owner, Steadfast, Tx};

/// A crate by another name.
mod renamed {
    pub(crate) use steadfast as reliable;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: i64,
    sku: String,
}

async fn insert<Db: Database>(tx: &mut Tx<Db>, sku: &str) -> Result<Order, Failure>
where
    for<'q> &'q mut Db::Connection: sqlx::Executor<'q, Database = Db>,
    for<'q> <Db as sqlx::Database>::Arguments: sqlx::IntoArguments<Db>,
    for<'q> &'q str: sqlx::Encode<'q, Db> + sqlx::Type<Db>,
    for<'r> i64: sqlx::Decode<'r, Db> + sqlx::Type<Db>,
    usize: sqlx::ColumnIndex<Db::Row>,
{
    let id = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ($1) RETURNING id")
        .bind(sku)
        .fetch_one(tx.db())
        .await?;
    Ok(Order {
        id,
        sku: sku.to_owned(),
    })
}

async fn open() -> (Steadfast<Sqlite>, Owner) {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    let create = "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL)";
    sqlx::query(create).execute(sf.pool()).await.unwrap();
    (sf, Owner::new("tenant-1", "user-a"))
}

/// What only reads its own fields; the two databases have one body.
struct Both {
    prefix: &'static str,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Both {
    const LIMIT: usize = 10;

    #[command("both.place", retention = "48h", conflict = wait)]
    async fn place(&self, tx: &mut Tx<Db>, mut sku: String) -> Result<Order, Failure> {
        sku.truncate(Self::LIMIT);
        self.write(tx, &sku).await
    }

    #[command("both.count_up", key = required, route = "POST /both/{by}")]
    async fn count_up(&self, tx: &mut Tx<Db>, owner: &Owner, by: u8) -> Result<String, Failure> {
        self.place(tx, format!("{}{by}", owner.user()))
            .await
            .map(|order| order.sku)
    }

    #[query("both.list")]
    async fn list(&self, db: &Pool<Db>) -> Result<Vec<String>, sqlx::Error> {
        sqlx::query_scalar("SELECT sku FROM orders ORDER BY id")
            .fetch_all(db)
            .await
    }

    /// It speaks of `Db`, so it is there once for each.
    async fn write(&self, tx: &mut Tx<Db>, sku: &str) -> Result<Order, Failure> {
        insert(tx, &self.prefixed(sku)).await
    }

    fn prefixed(&self, sku: &str) -> String {
        format!("{}{sku}", self.prefix)
    }
}

#[tokio::test]
async fn one_body_serves_two_databases() {
    let (sf, owner) = open().await;
    let both = Both { prefix: "sku-" }.on(&sf);
    let first = both.place(&owner, "k", "a very long name".into()).await.unwrap();
    let again = both.place(&owner, "k", "a very long name".into()).await.unwrap();
    assert_eq!(first.value.sku, "sku-a very lon");
    assert!(!first.replayed && again.replayed);
    assert_eq!(both.count_up(&owner, "k", 7).await.unwrap().value, "sku-user-a7");
    assert_eq!(both.list().await.unwrap(), ["sku-a very lon", "sku-user-a7"]);
}

/// Compiled is enough: a future that could not move between threads would be refused here.
#[test]
fn the_futures_of_a_service_can_move_between_threads_on_both_databases() {
    fn is_send<T: Send>(_: impl FnOnce() -> T) {}
    fn on_sqlite(both: &BothService<Sqlite>, owner: &Owner) {
        is_send(|| both.place(owner, "k", String::new()));
        is_send(|| both.count_up(owner, "k", 1));
        is_send(|| both.list());
    }
    fn on_postgres(both: &BothService<Postgres>, owner: &Owner) {
        is_send(|| both.place(owner, "k", String::new()));
        is_send(|| both.count_up(owner, "k", 1));
        is_send(|| both.list());
    }
    let _ = (on_sqlite as fn(&_, &_), on_postgres as fn(&_, &_));
}

/// A parameter of the block, with a bound and a `where`, and a crate by another name.
struct Generic<M, const N: usize> {
    mark: M,
}

#[renamed::reliable::service(db = Sqlite, crate = renamed::reliable)]
impl<M, const N: usize> Generic<M, N>
where
    M: Display + Send + Sync,
{
    #[command("generic.place")]
    async fn place(&self, tx: &mut Tx<Db>, sku: &str) -> Result<Order, Failure> {
        insert(tx, &format!("{}{sku}{N}", self.mark)).await
    }
}

/// The same on two, with a lifetime.
struct Borrowed<'m, M> {
    mark: &'m M,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl<'m, M: Display + Sync> Borrowed<'m, M> {
    #[command("borrowed.place")]
    async fn place(&self, tx: &mut Tx<Db>, sku: &str) -> Result<Order, Failure> {
        insert(tx, &format!("{}{sku}", self.mark)).await
    }
}

#[tokio::test]
async fn a_service_may_be_generic_and_borrow() {
    let (sf, owner) = open().await;
    let generic = Generic::<_, 3> { mark: 'x' }.on(&sf);
    assert_eq!(generic.place(&owner, "k", "tea").await.unwrap().value.sku, "xtea3");
    let mark = String::from("y");
    let borrowed = Borrowed { mark: &mark }.on(&sf);
    assert_eq!(
        borrowed.clone().place(&owner, "k", "tea").await.unwrap().value.sku,
        "ytea"
    );
}

/// Names in other languages, raw ones, and those that the macro uses itself.
struct Bestellungen;

type Db = Sqlite;

#[steadfast::service]
impl Bestellungen {
    #[command("bestellungen.größe", route = "PUT /größen/{type}/{größe}")]
    async fn größe(&self, tx: &mut Tx<Db>, r#type: String, größe: u8) -> Result<Order, Failure> {
        insert(tx, &format!("{type}{größe}")).await
    }

    #[command("bestellungen.move")]
    async fn r#move(&self, tx: &mut Tx<Db>, key: String) -> Result<(), Failure> {
        insert(tx, &key).await.map(drop)
    }

    #[query("bestellungen.names", route = "GET /names/{service}/{answer}")]
    async fn names(&self, _: &Pool<Db>, call: Names, service: u8, answer: u8) -> Result<u8, Failure> {
        Ok(call.sf + service + answer)
    }
}

#[derive(Deserialize)]
struct Names {
    sf: u8,
}

#[tokio::test]
async fn names_may_be_raw_foreign_or_those_of_the_macro() {
    let (sf, owner) = open().await;
    let orders = Bestellungen.on(&sf);
    assert_eq!(orders.größe(&owner, "k", "t".into(), 4).await.unwrap().value.sku, "t4");
    orders.r#move(&owner, "k", "key".into()).await.unwrap();
    assert_eq!(orders.names(Names { sf: 1 }, 2, 3).await.unwrap(), 6);
    let _: axum::Router = orders.routes();
}

/// Attributes stay with what they are about.
struct Attributed;

#[allow(clippy::unused_async)]
#[steadfast::service(db = [Sqlite, Postgres])]
impl Attributed {
    /// It is there.
    #[command("attributed.there", route = "POST /there")]
    #[tracing::instrument(skip_all)]
    #[allow(non_snake_case)]
    async fn there(&self, _: &mut Tx<Db>) -> Result<u8, Failure> {
        let Shouting = 1;
        Ok(Shouting)
    }

    #[cfg(any())]
    #[command("attributed.gone", route = "POST /gone")]
    async fn gone(&self, tx: &mut NoSuchType, input: NorThis) -> Result<u8, Failure> {}

    /// One party: this warning is not wanted.
    #[allow(deprecated)]
    #[command("attributed.global", scope = global)]
    async fn global(&self, _: &mut Tx<Db>) -> Result<u8, Failure> {
        Ok(2)
    }
}

#[tokio::test]
async fn what_is_configured_out_is_not_there_and_the_rest_is() {
    let (sf, owner) = open().await;
    let attributed = Attributed.on(&sf);
    assert_eq!(attributed.there(&owner, "k").await.unwrap().value, 1);
    assert_eq!(attributed.global(&owner, "k").await.unwrap().value, 2);
    let _: axum::Router = attributed.routes();
}

/// An error of the user's own, which says what kind of failure it is.
enum OutOf {
    Stock,
}

impl From<OutOf> for Failure {
    fn from(OutOf::Stock: OutOf) -> Self {
        Failure::definitive(FailureClass::BusinessRule, "out_of_stock", "nothing is left")
    }
}

/// Every option at once.
struct Options {
    retention: Duration,
}

#[steadfast::service(db = Sqlite)]
impl Options {
    #[command(
        "options.all",
        route = "PATCH /options/{id}",
        status = 202,
        location = "/options/{id}/{sku}",
        scope = tenant,
        retention = self.retention,
        conflict = fail,
        mismatch = 409,
        key = optional,
        key_field = "sku",
        accept = [json, form],
        store_failures = [business_rule, not_found],
        time_limit = "500ms",
        answer_limit = 64 * 1024,
        body_limit = BODY_LIMIT,
        authorize = anybody,
        fingerprint = FingerprintPolicy::fields(["sku"]),
    )]
    async fn all(&self, _: &mut Tx<Db>, id: i64, input: &Order) -> Result<Order, OutOf> {
        match id {
            0 => Err(OutOf::Stock),
            id => Ok(Order { id, ..input.clone() }),
        }
    }
}

const BODY_LIMIT: usize = 100;

async fn anybody(_: http::request::Parts) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn every_option_is_taken_and_an_error_is_a_failure() {
    let (sf, owner) = open().await;
    let retention = Duration::from_secs(7 * 24 * 60 * 60);
    let options = Options { retention }.on(&sf);
    let input = Order {
        id: 0,
        sku: "tea".into(),
    };
    assert_eq!(options.all(&owner, "k", 5, &input).await.unwrap().value.id, 5);
    let error = options.all(&owner, "k2", 0, &input).await.unwrap_err();
    assert_eq!(error.failure().unwrap().code(), "out_of_stock");
    assert!(options.all(&owner, "k2", 0, &input).await.unwrap_err().is_replayed());
    let _: axum::Router = options.routes();
}

/// Where nothing is in scope, or something else is under its name.
#[no_implicit_prelude]
mod bare {
    #[allow(dead_code)]
    mod std {}
    #[allow(dead_code)]
    mod core {}
    #[allow(dead_code)]
    struct Result;
    #[allow(dead_code)]
    trait Clone {}
    #[allow(dead_code)]
    trait Send {}

    #[derive(::serde::Serialize, ::serde::Deserialize, ::steadfast::Event)]
    #[event("bare.placed", ordering_key = id, version = 2, delay = "1s", expires_after = "1d")]
    pub(super) struct Placed {
        #[redact]
        id: u8,
    }

    pub(super) struct Bare;

    #[::steadfast::service(db = [Sqlite, Postgres])]
    impl Bare {
        #[command("bare.place", route = "POST /bare/{sku}", location = "/bare/{sku}", store_failures = [validation])]
        pub(super) async fn place(
            &self,
            tx: &mut ::steadfast::Tx<Db>,
            sku: &str,
        ) -> ::std::result::Result<super::Order, ::steadfast::Failure> {
            super::insert(tx, sku).await
        }

        #[query("bare.none", route = "GET /bare", max_age = "1s")]
        pub(super) async fn none(
            &self,
            _: &::steadfast::sqlx::Pool<Db>,
        ) -> ::std::result::Result<(), ::steadfast::Failure> {
            ::std::result::Result::Ok(())
        }

        #[on(Placed, retry(retries = 1), lease = "1m", concurrency = 2, on_dead = skip, time_limit = "1s")]
        pub(super) async fn keep(
            &self,
            _: &mut ::steadfast::Tx<Db>,
            service: &Placed,
        ) -> ::std::result::Result<(), ::steadfast::Failure> {
            let _ = service;
            ::std::result::Result::Ok(())
        }

        #[on(Placed)]
        pub(super) async fn tell(
            &self,
            steadfast: &::steadfast::EventCx,
            tx: Placed,
        ) -> ::std::result::Result<(), ::steadfast::Failure> {
            let _ = (steadfast, tx);
            ::std::result::Result::Ok(())
        }
    }
}

#[tokio::test]
async fn nothing_needs_to_be_in_scope() {
    let (sf, owner) = open().await;
    let bare = bare::Bare.on(&sf);
    assert_eq!(bare.place(&owner, "k", "tea").await.unwrap().value.sku, "tea");
    bare.none().await.unwrap();
    let _: axum::Router = bare.routes();
}

/// `Self` is the struct, also in options; lifetimes may be left out, or declared by a handler; a parameter may be called as ours.
struct Lent<'m, State>(&'m str, State);

#[steadfast::service(db = [Sqlite, Postgres])]
impl<State: Send + Sync + 'static> Lent<'_, State> {
    const RETENTION: Duration = Duration::from_secs(60);

    async fn anybody(_: http::request::Parts) -> Result<(), Failure> {
        Ok(())
    }

    #[command("lent.place", route = "POST /lent", retention = Self::RETENTION, authorize = Self::anybody)]
    async fn place<'a>(&'a self, tx: &'a mut Tx<Db>, sku: &'a str) -> Result<Order, Failure> {
        insert(tx, &format!("{}{sku}", self.0)).await
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Settings {
    limit: u8,
}

#[steadfast::service(db = Sqlite)]
impl Settings {
    #[query("settings.show", route = "GET /settings")]
    async fn show(&self, _: &Pool<Db>) -> Result<Self, Failure> {
        Ok(self.clone())
    }

    #[command("settings.try", route = "PUT /settings")]
    async fn try_out(&self, _: &mut Tx<Db>, other: &Self) -> Result<Vec<Self>, Failure> {
        Ok(vec![self.clone(), other.clone()])
    }
}

#[tokio::test]
async fn self_is_the_struct_and_lifetimes_may_be_left_out() {
    let (sf, owner) = open().await;
    let lent = Lent("x", ()).on(&sf);
    assert_eq!(lent.place(&owner, "k", "tea").await.unwrap().value.sku, "xtea");
    let _: axum::Router = Lent("x", ()).on(&sf).routes();
    let settings = Settings { limit: 3 }.on(&sf);
    assert_eq!(settings.show().await.unwrap().limit, 3);
    let tried = settings.try_out(&owner, "k", &Settings { limit: 4 }).await.unwrap();
    assert_eq!(tried.value[1].limit, 4);
    let _: axum::Router = settings.routes();
}

/// A block that a macro of the user writes, with all that it may be given.
macro_rules! keeper {
    ($service:ty, $method:ident, $input:ty, $returned:ty, $route:literal, $retention:expr) => {
        #[steadfast::service(db = Sqlite)]
        impl $service {
            #[command("keeper.keep", route = $route, retention = $retention)]
            async fn $method(&self, _: &mut Tx<Db>, input: $input) -> $returned {
                Ok(input.len())
            }
        }
    };
}

struct Keeper;
keeper!(Keeper, keep, &str, Result<usize, Failure>, "POST /keep", "48h");

#[tokio::test]
async fn a_block_may_be_written_by_a_macro() {
    let (sf, owner) = open().await;
    let keeper = Keeper.on(&sf);
    assert_eq!(keeper.keep(&owner, "k", "tea").await.unwrap().value, 3);
    let _: axum::Router = keeper.routes();
}

/// What is said to callers is said to those of the face, and what is allowed is allowed there too.
mod said {
    #![deny(warnings)]
    use super::*;

    pub(super) struct Said;

    #[allow(non_snake_case)]
    #[steadfast::service(db = [Sqlite, Postgres])]
    impl Said {
        #[deprecated = "place it anew"]
        #[must_use]
        #[command("said.old", route = "POST /old")]
        pub(super) async fn old(&self, _: &mut Tx<Db>) -> Result<u8, Failure> {
            Ok(1)
        }

        #[command("said.Loud", route = "POST /loud")]
        pub(super) async fn Loud(&self, _: &mut Tx<Db>, orderID: u8) -> Result<(), Failure> {
            assert_eq!(orderID, 1);
            Ok(())
        }

        #[cfg_attr(all(), cfg(any()))]
        #[command("said.gone", route = "POST /gone")]
        pub(super) async fn gone(&self, tx: &mut NoSuchType) -> Result<u8, Failure> {}

        #[cfg(any())]
        #[command("said.either", route = "POST /either")]
        pub(super) async fn either(&self, tx: &mut NoSuchType) -> Result<u8, Failure> {}

        #[cfg(not(any()))]
        #[command("said.either", route = "POST /either")]
        pub(super) async fn either(&self, _: &mut Tx<Db>) -> Result<u8, Failure> {
            Ok(2)
        }
    }
}

#[tokio::test]
async fn a_handler_may_be_deprecated_and_one_of_two() {
    let (sf, owner) = open().await;
    let said = said::Said.on(&sf);
    #[expect(deprecated)]
    let old = said.old(&owner, "k");
    assert_eq!(old.await.unwrap().value, 1);
    said.Loud(&owner, "k", 1).await.unwrap();
    assert_eq!(said.either(&owner, "k").await.unwrap().value, 2);
    let _: axum::Router = said.routes();
}

mod elsewhere {
    pub(super) struct Other;

    #[steadfast::service(db = Sqlite)]
    impl Other {
        #[command("both.place")]
        pub(super) async fn place(&self, _: &mut steadfast::Tx<Db>) -> Result<(), steadfast::Failure> {
            Ok(())
        }
    }
}

#[tokio::test]
async fn two_services_with_one_operation_on_one_database_are_refused_with_their_places() {
    let (sf, owner) = open().await;
    let _first = Both { prefix: "" }.on(&sf);
    let _same = Both { prefix: "" }.on(&sf);
    let other = tokio::spawn({
        let sf = sf.clone();
        async move { drop(elsewhere::Other.on(&sf)) }
    });
    let said = other.await.unwrap_err().into_panic().downcast::<String>().unwrap();
    let here = |service: &str| format!("service::shapes::{service} (crates/steadfast/tests/service/shapes.rs:");
    assert!(
        said.starts_with(&format!("error[SF302]: {}", here("elsewhere::Other"))),
        "{said}"
    );
    assert!(said.contains(&format!(") and {}", here("Both"))), "{said}");
    assert!(said.contains("both have the operation \"both.place\""), "{said}");
    let (fresh, _) = open().await;
    elsewhere::Other.on(&fresh).place(&owner, "k").await.unwrap();
}
