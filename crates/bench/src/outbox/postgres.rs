//! PostgreSQL: a server with the durability of production.

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};
use steadfast::{Failure, Steadfast, Tx};
use uuid::Uuid;

use super::broker::{Broker, Written};
use super::place::{Ground, Place, TARGET};
use crate::command::order::{INSERT, ORDER, Order};
use crate::error::{Context, Result};
use crate::meter::Meter;
use crate::options::Database;
use crate::server::{Scratch, Server};

/// The business table, the outbox that people write by hand (messages, and a row for each target that has to hear of one), and the
/// inbox that they write: which consumer has handled which message.
const TABLES: &str = "
    CREATE TABLE orders (
        id       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        sku      text    NOT NULL,
        quantity integer NOT NULL,
        note     text    NOT NULL
    );
    CREATE TABLE outbox_messages (
        id         uuid        PRIMARY KEY,
        type       text        NOT NULL,
        payload    bytea       NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE TABLE outbox_deliveries (
        message    uuid        NOT NULL,
        target     text        NOT NULL,
        attempts   integer     NOT NULL DEFAULT 0,
        visible_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (message, target)
    );
    CREATE INDEX ON outbox_deliveries (target, visible_at);
    CREATE TABLE handled_messages (
        consumer   text        NOT NULL,
        message_id text        NOT NULL,
        handled_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (consumer, message_id)
    )";

const CLAIM: &str = "
    WITH due AS (
        SELECT message, target
        FROM outbox_deliveries
        WHERE target = $1 AND visible_at <= now()
        ORDER BY visible_at
        LIMIT 500
        FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE outbox_deliveries AS d
        SET attempts = attempts + 1, visible_at = now() + interval '30 seconds'
        FROM due
        WHERE d.message = due.message AND d.target = due.target
        RETURNING d.message
    )
    SELECT m.id, m.payload FROM claimed AS c JOIN outbox_messages AS m ON m.id = c.message";

const DELETE: &str = "DELETE FROM outbox_deliveries WHERE message = ANY($1) AND target = $2";

/// The rows stay locked until the transaction ends, so nothing has to be written to them. They are found first: joined at once,
/// the server may read and sort all that are due.
const TAKE: &str = "
    WITH due AS MATERIALIZED (
        SELECT message
        FROM outbox_deliveries
        WHERE target = $1 AND visible_at <= now()
        ORDER BY visible_at
        LIMIT 500
        FOR UPDATE SKIP LOCKED
    )
    SELECT m.id, m.payload FROM due AS d JOIN outbox_messages AS m ON m.id = d.message";

/// Rows of one INSERT.
const ROWS_AT_ONCE: usize = 50_000;

/// A database on the server.
pub(crate) struct OnServer {
    server: Server,
    scratch: Scratch,
    pool: PgPool,
    wide_pool: PgPool,
    /// For who works by hand beside ours: a pool hands out its connections in turn, and the more of them there are, the less each
    /// has in its caches.
    pub(crate) pool_by_hand: PgPool,
}

impl Ground for Server {
    type Place = OnServer;

    const DATABASE: Database = Database::Postgres;
    const HAS_ANNOUNCEMENTS: bool = true;

    async fn create(&self) -> Result<OnServer> {
        self.warn_if_not_durable().await?;
        let scratch = self.create_database().await?;
        let pool = scratch.pool(PgPoolOptions::new());
        let builder = Steadfast::builder(pool.clone());
        builder.migrate().await.context("making the tables of Steadfast")?;
        let place = OnServer {
            pool_by_hand: scratch.pool(PgPoolOptions::new()),
            wide_pool: scratch.wide_pool(),
            server: self.clone(),
            scratch,
            pool,
        };
        place.run(TABLES.to_owned()).await?;
        Ok(place)
    }

    fn meter(&self) -> Meter {
        Self::meter(self)
    }
}

impl OnServer {
    /// The loop that people write between a database and a broker, until its outbox is empty: take a batch, publish it, delete
    /// it. Says how many there were.
    pub(super) async fn relay_by_hand(&self, to: &impl Broker) -> Result<usize> {
        let mut conn = self.scratch.connection().await?;
        let mut count = 0;
        loop {
            let mut tx = conn.begin().await?;
            let taken: Vec<Written> = sqlx::query_as(TAKE).bind(TARGET).fetch_all(&mut *tx).await?;
            if taken.is_empty() {
                tx.commit().await?;
                conn.close().await?;
                return Ok(count);
            }
            to.publish(&taken).await?;
            let ids: Vec<_> = taken.iter().map(|(id, _)| *id).collect();
            sqlx::query(DELETE).bind(ids).bind(TARGET).execute(&mut *tx).await?;
            tx.commit().await?;
            count += taken.len();
        }
    }
}

impl Place for OnServer {
    type Db = Postgres;
    type Hand = PgConnection;

    fn pool(&self) -> &PgPool {
        &self.pool
    }

    fn wide_pool(&self) -> PgPool {
        self.wide_pool.clone()
    }

    async fn run(&self, statements: String) -> Result<()> {
        let ran = sqlx::raw_sql(AssertSqlSafe(statements.as_str())).execute(&self.pool);
        ran.await.map(drop).context(&statements)
    }

    /// What autovacuum does, and a checkpoint.
    async fn tidy(&self) -> Result<()> {
        for table in [
            "steadfast.messages",
            "steadfast.queue",
            "steadfast.history",
            "steadfast.inbox",
            "outbox_deliveries",
            "handled_messages",
            "orders",
        ] {
            self.run(format!("VACUUM (ANALYZE) {table}")).await?;
        }
        self.server.checkpoint().await
    }

    async fn place_order(tx: &mut Tx<Postgres>, order: &Order) -> Result<i64, Failure> {
        let inserting = sqlx::query_scalar(INSERT)
            .bind(&order.sku)
            .bind(order.quantity)
            .bind(&order.note);
        Ok(inserting.fetch_one(tx.db()).await?)
    }

    async fn place_order_bare(&self) -> Result<()> {
        let mut tx = self.pool_by_hand.begin().await?;
        let inserting = sqlx::query_scalar(INSERT)
            .bind(&ORDER.sku)
            .bind(ORDER.quantity)
            .bind(&ORDER.note);
        let _: i64 = inserting.fetch_one(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    async fn count_orders(&self) -> Result<i64> {
        let counting = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&self.pool);
        counting.await.context("counting the orders")
    }

    async fn fill_by_hand(&self, deliveries: usize) -> Result<()> {
        let payload = serde_json::to_vec(&*ORDER)?;
        let filling = sqlx::query(
            "
            WITH said AS (
                INSERT INTO outbox_messages (id, type, payload)
                SELECT id, 'order.placed', $2 FROM unnest($1::uuid[]) AS i (id)
                RETURNING id
            )
            INSERT INTO outbox_deliveries (message, target) SELECT id, $3 FROM said",
        );
        let filling = filling.bind(new_ids(deliveries)).bind(payload).bind(TARGET);
        filling.execute(&self.pool).await.map(drop).context("filling by hand")
    }

    async fn open_hand(&self) -> Result<PgConnection> {
        self.scratch.connection().await
    }

    async fn drain_by_hand(&self, hand: &mut PgConnection, handle: impl Fn(Order) + Send + Sync) -> Result<usize> {
        let mut count = 0;
        loop {
            let claimed: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(CLAIM).bind(TARGET).fetch_all(&mut *hand).await?;
            if claimed.is_empty() {
                return Ok(count);
            }
            for (_, payload) in &claimed {
                handle(serde_json::from_slice(payload)?);
            }
            let ids: Vec<_> = claimed.iter().map(|(id, _)| *id).collect();
            sqlx::query(DELETE).bind(ids).bind(TARGET).execute(&mut *hand).await?;
            count += claimed.len();
        }
    }

    async fn fill_history(&self, deliveries: u32) -> Result<()> {
        let mut left = deliveries as usize;
        while left > 0 {
            let count = left.min(ROWS_AT_ONCE);
            let filling = sqlx::query(
                "
                INSERT INTO steadfast.history (finished_at, attempts, item, state, kind)
                SELECT now() - interval '1 hour', 1, id, 'delivered', $2 FROM unnest($1::uuid[]) AS i (id)",
            );
            let filled = filling.bind(new_ids(count)).bind(TARGET).execute(&self.pool).await;
            filled.context("filling the history")?;
            left -= count;
        }
        Ok(())
    }

    async fn put_half_off(&self) -> Result<()> {
        self.run(
            "UPDATE steadfast.queue SET visible_at = visible_at + interval '1 hour', due_at = due_at + interval '1 hour'
             WHERE get_byte(uuid_send(item), 15) % 2 = 0"
                .to_owned(),
        )
        .await
    }

    async fn remove(&self) -> Result<()> {
        self.scratch.clone().remove().await
    }
}

/// Ids that grow with time, as those of messages do.
fn new_ids(count: usize) -> Vec<Uuid> {
    std::iter::repeat_with(Uuid::now_v7).take(count).collect()
}
