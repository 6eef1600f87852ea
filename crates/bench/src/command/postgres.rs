//! PostgreSQL: 32 connections, 32 callers, one INSERT each.

use std::sync::Arc;

use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool, Postgres};
use steadfast::Steadfast;

use super::keys::{OldKeys, expect_replay, new_key};
use super::order::{INSERT, OPERATION, ORDER, OWNER, Order, Placed};
use super::{fill, http};
use crate::error::{Context, Result};
use crate::measure::{Aim, Case, Series, Stage};
use crate::options::Database;
use crate::server::{Scratch, Server};

/// The business table, and the key table that people write by hand: the key first, its response at the end.
const TABLES: &str = "
    CREATE TABLE orders (
        id       bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        sku      text    NOT NULL,
        quantity integer NOT NULL,
        note     text    NOT NULL
    );
    CREATE TABLE idempotency_keys (
        scope       text        NOT NULL,
        key         text        NOT NULL,
        fingerprint bytea       NOT NULL,
        response    bytea,
        created_at  timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (scope, key)
    )";

/// Case names of pools that do not ask a connection for a sign of life each time they hand it out. The ping is a round
/// trip on both sides of a ratio, so without it the same command looks dearer.
const WITHOUT_PING: &str = " without ping";

pub(super) fn series(server: &Server, keys: u64) -> Vec<Series> {
    let (first, second, third, fourth) = (server.clone(), server.clone(), server.clone(), server.clone());
    let mut with_replays = transactions("");
    with_replays.push(Case::new("replay").against("command", 2.0));
    with_replays.push(Case::new("replay elsewhere").against("command", 2.0));
    vec![
        Series::new(Database::Postgres, with_replays, |_| async move {
            first.warn_if_not_durable().await?;
            prepare(first, "", PgPoolOptions::new()).await
        }),
        Series::new(Database::Postgres, transactions(WITHOUT_PING), |_| {
            prepare(second, WITHOUT_PING, PgPoolOptions::new().test_before_acquire(false))
        }),
        Series::new(Database::Postgres, http::cases(), |_| http::prepare(third)),
        Series::new(Database::Postgres, fill::cases(keys), move |progress| {
            fill::prepare(fourth, keys, progress)
        }),
    ]
}

fn transactions(suffix: &str) -> Vec<Case> {
    let name = |name: &str| format!("{name}{suffix}");
    vec![
        Case::new(name("bare")),
        Case::new(name("hand-written")).against(name("bare"), None),
        Case::new(name("command"))
            .against(name("bare"), 0.7)
            .against(name("hand-written"), 1.25)
            .aiming(Aim::WalBytes { at_most: 800.0 }),
    ]
}

/// What the callers share.
struct Shop {
    pool: PgPool,
    sf: Steadfast<Postgres>,
    /// As another process would see the same database: it has never met a key.
    elsewhere: Steadfast<Postgres>,
    old_keys: OldKeys,
}

async fn prepare(server: Server, suffix: &'static str, options: PgPoolOptions) -> Result<Stage> {
    let scratch = server.create_database().await?;
    let pool = scratch.pool(options.clone());
    let sf = open(&scratch, pool.clone()).await?;
    let elsewhere = Steadfast::new(scratch.pool(options)).await;
    let old_keys = OldKeys::commit(async |key| run_command(&sf, key).await).await?;
    let shop = Arc::new(Shop {
        pool,
        sf,
        elsewhere: elsewhere.context("opening Steadfast a second time")?,
        old_keys,
    });
    server.checkpoint().await?;
    let name = |name: &str| format!("{name}{suffix}");
    Ok(Stage::default()
        .does(name("bare"), &shop, bare)
        .does(name("hand-written"), &shop, hand_written)
        .does(name("command"), &shop, command)
        .does(name("replay"), &shop, replay)
        .does(name("replay elsewhere"), &shop, replay_elsewhere)
        .counted_by(server.meter())
        .ends_with(scratch.remove()))
}

/// Makes the tables and opens Steadfast on this pool.
pub(super) async fn open(scratch: &Scratch, pool: PgPool) -> Result<Steadfast<Postgres>> {
    let mut conn = scratch.connection().await?;
    sqlx::raw_sql(TABLES)
        .execute(&mut conn)
        .await
        .context("making the tables")?;
    let builder = Steadfast::builder(pool);
    builder.migrate().await.context("making the tables of Steadfast")?;
    builder.build().await.context("opening Steadfast")
}

async fn bare(shop: Arc<Shop>, _: usize) -> Result<()> {
    place_in_transaction(&shop.pool, &ORDER).await.map(drop)
}

/// As people write it. The fingerprint is not computed: that is in favour of this side.
async fn hand_written(shop: Arc<Shop>, _: usize) -> Result<()> {
    let key = new_key();
    let mut tx = shop.pool.begin().await?;
    let claimed = sqlx::query(
        "INSERT INTO idempotency_keys (scope, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    )
    .bind(OPERATION)
    .bind(&key)
    .bind(&[7_u8; 32][..])
    .execute(&mut *tx)
    .await?;
    if claimed.rows_affected() == 0 {
        return Err("a random key was there before".into());
    }
    let placed = place(&mut tx, &ORDER).await?;
    sqlx::query("UPDATE idempotency_keys SET response = $3 WHERE scope = $1 AND key = $2")
        .bind(OPERATION)
        .bind(&key)
        .bind(serde_json::to_vec(&placed)?)
        .execute(&mut *tx)
        .await?;
    Ok(tx.commit().await?)
}

async fn command(shop: Arc<Shop>, _: usize) -> Result<()> {
    run_command(&shop.sf, &new_key()).await.map(drop)
}

async fn replay(shop: Arc<Shop>, _: usize) -> Result<()> {
    expect_replay(run_command(&shop.sf, shop.old_keys.next()).await?)
}

async fn replay_elsewhere(shop: Arc<Shop>, _: usize) -> Result<()> {
    expect_replay(run_command(&shop.elsewhere, shop.old_keys.next()).await?)
}

/// Runs a command and says whether it was replayed.
pub(super) async fn run_command(sf: &Steadfast<Postgres>, key: &str) -> Result<bool> {
    let reply = sf
        .command(OPERATION, key)
        .owner(&OWNER)
        .input(&*ORDER)
        .run(async |tx| Ok(place(tx.db(), &ORDER).await?))
        .await
        .context("running a command")?;
    Ok(reply.replayed)
}

/// The bare transaction.
pub(super) async fn place_in_transaction(pool: &PgPool, order: &Order) -> Result<Placed> {
    let mut tx = pool.begin().await?;
    let placed = place(&mut tx, order).await?;
    tx.commit().await?;
    Ok(placed)
}

pub(super) async fn place(conn: &mut PgConnection, order: &Order) -> sqlx::Result<Placed> {
    let id = sqlx::query_scalar(INSERT)
        .bind(&order.sku)
        .bind(order.quantity)
        .bind(&order.note)
        .fetch_one(conn)
        .await?;
    Ok(order.placed(id))
}
