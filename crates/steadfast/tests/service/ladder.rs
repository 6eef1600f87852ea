//! The programs of the guide *from reactions to outbox*: the same shop four times, and what each of them loses.

use std::sync::{Arc, Mutex};

use steadfast::sqlx::{self, Sqlite};
use steadfast::{Failure, Owner, Steadfast};
use tempfile::TempDir;

/// The post office: it keeps the key and the text of every letter that it was asked to send, and may lose its answer.
#[derive(Clone, Default)]
pub(crate) struct Post {
    asked: Arc<Mutex<Vec<(String, String)>>>,
    answers_to_lose: Arc<Mutex<u32>>,
}

impl Post {
    async fn send(&self, key: &str, text: &str) -> Result<(), Failure> {
        self.asked.lock().unwrap().push((key.to_owned(), text.to_owned()));
        let mut answers_to_lose = self.answers_to_lose.lock().unwrap();
        if *answers_to_lose > 0 {
            *answers_to_lose -= 1;
            return Err(Failure::transient("no_reply", "the post office did not answer"));
        }
        Ok(())
    }

    fn loses_its_next_answer(&self) {
        *self.answers_to_lose.lock().unwrap() = 1;
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().unwrap().clone()
    }
}

/// A database that outlives its processes.
struct Site(TempDir);

impl Site {
    async fn prepare() -> Self {
        let site = Self(tempfile::tempdir().unwrap());
        let sf = site.process().await;
        let create = "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL)";
        sqlx::query(create).execute(sf.pool()).await.unwrap();
        site
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.0.path().join("shop.db").display())
    }

    async fn process(&self) -> Steadfast<Sqlite> {
        Steadfast::<Sqlite>::open(&self.url()).await.unwrap()
    }
}

async fn count(sf: &Steadfast<Sqlite>, table: &str) -> i64 {
    let select = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    sqlx::query_scalar(select).fetch_one(sf.pool()).await.unwrap()
}

fn owner() -> Owner {
    Owner::new("tenant-1", "user-a")
}

/// Waits for a fact, with a bound.
async fn eventually(mut holds: impl FnMut() -> bool) {
    let asking = async {
        while !holds() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let patience = std::time::Duration::from_secs(30);
    tokio::time::timeout(patience, asking).await.unwrap();
}

mod calling {
    use super::Post;
    use steadfast::sqlx;
    use steadfast::{Failure, Tx};

    pub(crate) struct Orders {
        pub(crate) post: Post,
    }

    #[steadfast::service(db = [Sqlite, Postgres])]
    impl Orders {
        // guide: calling
        #[command("orders.place")]
        pub(crate) async fn place(&self, tx: &mut Tx<Db>, sku: String) -> Result<i64, Failure> {
            let insert = "INSERT INTO orders (sku) VALUES ($1) RETURNING id";
            let id = sqlx::query_scalar(insert).bind(&sku).fetch_one(tx.db()).await?;
            self.post.send("", &sku).await?;
            Ok(id)
        }
        // guide: end
    }
}

#[tokio::test]
async fn a_call_in_the_handler_happens_without_its_order_and_twice_with_it() {
    let site = Site::prepare().await;
    let (sf, post) = (site.process().await, Post::default());
    let orders = calling::Orders { post: post.clone() }.on(&sf);
    post.loses_its_next_answer();
    orders.place(&owner(), "k", "tea".into()).await.unwrap_err();
    assert_eq!((post.asked().len(), count(&sf, "orders").await), (1, 0));
    orders.place(&owner(), "k", "tea".into()).await.unwrap();
    assert_eq!((post.asked().len(), count(&sf, "orders").await), (2, 1));
}

mod in_process {
    use super::Post;
    use serde::{Deserialize, Serialize};
    use steadfast::sqlx;
    use steadfast::{Event, EventCx, Failure, Tx};

    // guide: in process
    #[derive(Serialize, Deserialize, Event)]
    #[event("order.placed", in_process)]
    pub(crate) struct OrderPlaced {
        pub(crate) order_id: i64,
        pub(crate) sku: String,
    }
    // guide: end

    pub(crate) struct Orders {
        pub(crate) post: Post,
    }

    #[steadfast::service(db = [Sqlite, Postgres])]
    impl Orders {
        // guide: reacting
        #[command("orders.place")]
        pub(crate) async fn place(&self, tx: &mut Tx<Db>, sku: String) -> Result<i64, Failure> {
            let insert = "INSERT INTO orders (sku) VALUES ($1) RETURNING id";
            let id = sqlx::query_scalar(insert).bind(&sku).fetch_one(tx.db()).await?;
            tx.publish(&OrderPlaced { order_id: id, sku })?;
            Ok(id)
        }

        #[on(OrderPlaced, retry(retries = 5, backoff = exponential("10ms")))]
        pub(crate) async fn confirm(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
            self.post.send(cx.key(), &event.sku).await
        }
        // guide: end
    }
}

#[tokio::test]
async fn a_reaction_in_the_process_comes_after_the_commit_and_nothing_of_it_is_stored() {
    let site = Site::prepare().await;
    let (sf, post) = (site.process().await, Post::default());
    let orders = in_process::Orders { post: post.clone() }.on(&sf);
    post.loses_its_next_answer();
    orders.place(&owner(), "k", "tea".into()).await.unwrap();
    orders.place(&owner(), "k", "tea".into()).await.unwrap();
    eventually(|| post.asked().len() == 2).await;
    let asked = post.asked();
    assert_eq!(asked[0], asked[1], "the same letter with the same key");
    assert_eq!(count(&sf, "orders").await, 1);
    // A process that died in between would have left this behind: nothing.
    assert_eq!(count(&sf, "steadfast_messages").await, 0);
    assert_eq!(count(&sf, "steadfast_queue").await, 0);
}

mod outbox {
    use super::Post;
    use serde::{Deserialize, Serialize};
    use steadfast::sqlx::{self, Sqlite};
    use steadfast::{Dispatcher, Event, EventCx, Failure, Steadfast, Tx};

    // guide: outbox
    #[derive(Serialize, Deserialize, Event)]
    #[event("order.placed", ordering_key = order_id)]
    pub(crate) struct OrderPlaced {
        pub(crate) order_id: i64,
        pub(crate) sku: String,
    }
    // guide: end

    pub(crate) struct Orders {
        pub(crate) post: Post,
    }

    #[steadfast::service(db = [Sqlite, Postgres])]
    impl Orders {
        #[command("orders.place")]
        pub(crate) async fn place(&self, tx: &mut Tx<Db>, sku: String) -> Result<i64, Failure> {
            let insert = "INSERT INTO orders (sku) VALUES ($1) RETURNING id";
            let id = sqlx::query_scalar(insert).bind(&sku).fetch_one(tx.db()).await?;
            tx.publish(&OrderPlaced { order_id: id, sku })?;
            Ok(id)
        }

        #[on(OrderPlaced, retry(retries = 5, backoff = exponential("10ms")))]
        pub(crate) async fn confirm(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
            self.post.send(cx.key(), &event.sku).await
        }
    }

    // guide: worker
    /// The process that sells.
    pub(crate) async fn shop(url: &str) -> steadfast::Result<Steadfast<Sqlite>> {
        let builder = Steadfast::<Sqlite>::connect(url).await?;
        builder.dispatcher(Dispatcher::off()).build().await
    }

    /// The process that reacts, until `sf.stop()`.
    pub(crate) async fn worker(sf: &Steadfast<Sqlite>, post: Post) -> steadfast::Result<()> {
        Orders { post }.on(sf);
        sf.dispatch().await
    }
    // guide: end
}

#[tokio::test]
async fn with_the_outbox_another_process_does_what_the_first_one_left() {
    let site = Site::prepare().await;
    let (dying, post) = (site.process().await, Post::default());
    let orders = outbox::Orders { post: post.clone() }.on(&dying);
    dying.declare().await.unwrap();
    orders.place(&owner(), "k", "tea".into()).await.unwrap();
    drop((orders, dying));
    assert_eq!(post.asked().len(), 0);

    let next = site.process().await;
    outbox::Orders { post: post.clone() }.on(&next);
    next.drain().await.unwrap();
    next.drain().await.unwrap();
    assert_eq!(post.asked().len(), 1);
    assert_eq!(count(&next, "steadfast_history").await, 1);
}

#[tokio::test]
async fn a_worker_delivers_what_a_shop_that_dispatches_nothing_has_published() {
    let site = Site::prepare().await;
    let post = Post::default();
    let worker = site.process().await;
    let working = tokio::spawn({
        let (worker, post) = (worker.clone(), post.clone());
        async move { outbox::worker(&worker, post).await }
    });
    let shop = outbox::shop(&site.url()).await.unwrap();
    let never = Post::default();
    let orders = outbox::Orders { post: never.clone() }.on(&shop);
    shop.dispatch().await.unwrap();
    post.loses_its_next_answer();
    orders.place(&owner(), "k", "tea".into()).await.unwrap();
    eventually(|| post.asked().len() == 2).await;
    worker.stop();
    working.await.unwrap().unwrap();
    let asked = post.asked();
    assert_eq!(asked[0], asked[1], "the same letter with the same key");
    assert_eq!(never.asked().len(), 0, "the shop itself sends nothing");
    assert_eq!(count(&shop, "steadfast_queue").await, 0);
}

#[test]
fn the_guide_shows_the_steps_as_they_are() {
    let guide = include_str!("../../../../docs/guide/from-reactions-to-outbox.md");
    let program = include_str!("ladder.rs");
    for name in ["calling", "in process", "reacting", "outbox", "worker"] {
        let (_, after) = program.split_once(&format!("// guide: {name}\n")).unwrap();
        let (part, _) = after.split_once("// guide: end").unwrap();
        let indent = part.len() - part.trim_start().len();
        let lines = part.lines().map(|line| line.get(indent..).unwrap_or_default());
        let part = lines.collect::<Vec<_>>().join("\n").replace("pub(crate) ", "pub ");
        let part = part.trim();
        assert!(guide.contains(part), "the guide lacks this:\n{part}");
    }
}
