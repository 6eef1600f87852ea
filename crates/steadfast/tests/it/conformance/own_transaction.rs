//! Our rows in the caller's own transaction.

use steadfast::{AuditEntry, Code, Error, Failure, FailureClass, Reply};

use super::Db;
use crate::harness::{Harness, TestDatabase, fresh};

async fn place(
    harness: &Harness<Db>,
    conn: &mut <Db as sqlx::Database>::Connection,
    key: &str,
) -> Result<Reply<String>, Error> {
    let command = harness
        .sf
        .on(conn)
        .command("effects.make", key)
        .owner(&harness.owner)
        .input(&key);
    command
        .run_once(async |db| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(key)
                .execute(db)
                .await?;
            Ok("placed".to_owned())
        })
        .await
}

#[tokio::test]
async fn the_callers_commit_decides_about_everything() {
    let harness = fresh::<Db>().await;
    let mut tx = harness.sf.pool().begin().await.unwrap();
    assert!(!place(&harness, &mut tx, "k").await.unwrap().replayed);
    tx.rollback().await.unwrap();
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));

    let mut tx = harness.sf.pool().begin().await.unwrap();
    assert!(!place(&harness, &mut tx, "k").await.unwrap().replayed);
    tx.commit().await.unwrap();
    assert_eq!((harness.effects().await, harness.keys().await), (1, 1));

    let mut tx = harness.sf.pool().begin().await.unwrap();
    let reply = place(&harness, &mut tx, "k").await.unwrap();
    assert_eq!((reply.value.as_str(), reply.replayed), ("placed", true));
    tx.commit().await.unwrap();
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn the_callers_own_rows_and_ours_are_one() {
    let harness = fresh::<Db>().await;
    let mut tx = harness.sf.pool().begin().await.unwrap();
    sqlx::query("INSERT INTO effects (tag) VALUES ('before')")
        .execute(&mut *tx)
        .await
        .unwrap();
    place(&harness, &mut tx, "k").await.unwrap();
    sqlx::query("INSERT INTO effects (tag) VALUES ('after')")
        .execute(&mut *tx)
        .await
        .unwrap();
    let entry = AuditEntry::new("me", "effects.make", "k");
    harness.sf.on(&mut tx).audit(&entry).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((harness.effects().await, harness.keys().await), (3, 1));
    let audit = format!("SELECT count(*) FROM {}", Db::table("audit"));
    assert_eq!(Db::count(&harness.admin, &audit).await, 1);
}

#[tokio::test]
async fn a_connection_in_no_transaction_is_refused_with_sf024() {
    let harness = fresh::<Db>().await;
    let mut conn = harness.sf.pool().acquire().await.unwrap();
    let error = place(&harness, &mut conn, "k").await.unwrap_err();
    assert_eq!(error.code(), Code::NotInTransaction);
    let entry = AuditEntry::new("me", "effects.make", "k");
    assert_eq!(
        harness.sf.on(&mut conn).audit(&entry).await.unwrap_err().code(),
        Code::NotInTransaction
    );
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
}

#[tokio::test]
async fn a_transaction_sqlx_does_not_see_can_be_vouched_for() {
    let harness = fresh::<Db>().await;
    let mut conn = harness.sf.pool().acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
    let entry = AuditEntry::new("me", "effects.make", "k");
    harness
        .sf
        .on(&mut conn)
        .assume_transaction()
        .audit(&entry)
        .await
        .unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await.unwrap();
    let audit = format!("SELECT count(*) FROM {}", Db::table("audit"));
    assert_eq!(Db::count(&harness.admin, &audit).await, 0);
}

#[tokio::test]
async fn a_failed_handler_and_a_mismatch_leave_the_transaction_to_its_owner() {
    let harness = fresh::<Db>().await;
    let mut tx = harness.sf.pool().begin().await.unwrap();
    place(&harness, &mut tx, "k").await.unwrap();
    let other = harness
        .sf
        .on(&mut tx)
        .command("effects.make", "k")
        .owner(&harness.owner)
        .input(&"other");
    assert_eq!(
        other.run_once(async |_| Ok(())).await.unwrap_err().code(),
        Code::Mismatch
    );
    let failing = harness
        .sf
        .on(&mut tx)
        .command("effects.make", "k2")
        .owner(&harness.owner);
    let error = failing
        .run_once(async |_| Err::<(), _>(Failure::definitive(FailureClass::NotFound, "gone", "gone")))
        .await
        .unwrap_err();
    assert_eq!(error.failure().unwrap().code(), "gone");
    tx.commit().await.unwrap();
    assert_eq!((harness.effects().await, harness.keys().await), (1, 1));
}

#[tokio::test]
async fn a_transaction_that_is_gone_gets_nothing_of_ours() {
    let harness = fresh::<Db>().await;
    harness.run("CREATE UNIQUE INDEX once ON effects (tag)").await;
    let insert = if Db::IS_SQLITE { "INSERT OR ROLLBACK" } else { "INSERT" };
    let insert = sqlx::AssertSqlSafe(format!("{insert} INTO effects (tag) VALUES ('twin')"));
    let break_it = async |db: &mut <Db as sqlx::Database>::Connection| {
        for _ in 0..2 {
            let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(insert.0.as_str()))
                .execute(&mut *db)
                .await;
        }
    };
    let mut tx = harness.sf.pool().begin().await.unwrap();
    let command = harness
        .sf
        .on(&mut tx)
        .command("effects.make", "k")
        .owner(&harness.owner);
    let error = command
        .run_once(async |db| {
            for _ in 0..2 {
                let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(insert.0.as_str()))
                    .execute(&mut *db)
                    .await;
            }
            Ok("all is well".to_owned())
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::TransactionBroken, "{error:?}");
    drop(tx);

    let mut tx = harness.sf.pool().begin().await.unwrap();
    break_it(&mut tx).await;
    let entry = AuditEntry::new("me", "effects.make", "k");
    assert_eq!(
        harness.sf.on(&mut tx).audit(&entry).await.unwrap_err().code(),
        Code::TransactionBroken
    );
    drop(tx);
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    let audit = format!("SELECT count(*) FROM {}", Db::table("audit"));
    assert_eq!(Db::count(&harness.admin, &audit).await, 0);
}
