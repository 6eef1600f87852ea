//! A database that is missing something, in the way, or half gone; and handlers that break their transaction.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast::{Code, Error, Reply, Steadfast};

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, fresh};

async fn run(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Result<Reply<u32>, Error> {
    sf.command("effects.make", key)
        .owner(&harness.owner)
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(key)
                .execute(tx.db())
                .await?;
            Ok(1)
        })
        .await
}

#[tokio::test]
async fn a_swallowed_sql_error_is_never_acknowledged() {
    let harness = fresh::<Db>().await;
    harness.run("CREATE UNIQUE INDEX once ON effects (tag)").await;
    // PostgreSQL aborts the transaction at any error; SQLite does when the statement says so.
    let insert = if Db::IS_SQLITE {
        "INSERT OR ROLLBACK INTO effects (tag) VALUES ('twin')"
    } else {
        "INSERT INTO effects (tag) VALUES ('twin')"
    };
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let error = command
        .run(async |tx| {
            let _ = sqlx::query(insert).execute(tx.db()).await;
            let _ = sqlx::query(insert).execute(tx.db()).await;
            let _ = sqlx::query("INSERT INTO effects (tag) VALUES ('after the error')")
                .execute(tx.db())
                .await;
            Ok("all is well".to_owned())
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::TransactionBroken, "{error:?}");
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));

    let error = harness
        .sf
        .transact(async |tx| {
            let _ = sqlx::query(insert).execute(tx.db()).await;
            let _ = sqlx::query(insert).execute(tx.db()).await;
            Ok(())
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::TransactionBroken, "{error:?}");
    assert_eq!(harness.effects().await, 0);
    run(&harness, &harness.sf, "k").await.unwrap();
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_itself_is_never_acknowledged() {
    let harness = fresh::<Db>().await;
    for statement in ["ROLLBACK", "COMMIT"] {
        let command = harness.sf.command("effects.make", statement).owner(&harness.owner);
        let error = command
            .run_once(async |tx| {
                sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                    .execute(tx.db())
                    .await?;
                let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(tx.db()).await;
                Ok(())
            })
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::TransactionBroken, "{statement}: {error:?}");
        assert_eq!(harness.keys().await, 0, "{statement}");

        let without_key = harness.sf.transact(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(tx.db()).await;
            Ok(())
        });
        let error = without_key.await.unwrap_err();
        assert_eq!(error.code(), Code::TransactionBroken, "{statement}: {error:?}");
    }
}

#[tokio::test]
async fn a_constraint_that_fails_at_commit_leaves_nothing() {
    let harness = fresh::<Db>().await;
    harness.defer_a_foreign_key().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let error = command
        .run(async |tx| {
            sqlx::query("INSERT INTO children (parent) VALUES (42)")
                .execute(tx.db())
                .await?;
            sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            Ok(())
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::CommitRefused, "{error:?}");
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    run(&harness, &harness.sf, "k").await.unwrap();
}

#[tokio::test]
async fn an_exhausted_pool_gives_up_in_time_and_runs_nothing() {
    let harness = Db::create(PoolSize {
        connections: 1,
        patience: Duration::from_millis(200),
    })
    .await;
    let mut waited = Ok(());
    let command = harness.sf.command("effects.make", "outer").owner(&harness.owner);
    command
        .run_once(async |_| {
            // The outer command holds the only connection that can write.
            waited = run(&harness, &harness.sf, "inner").await.map(drop);
            Ok(())
        })
        .await
        .unwrap();
    let error = waited.unwrap_err();
    assert_eq!(error.code(), Code::PoolExhausted, "{error:?}");
    assert!(error.retry_after().is_some());
    assert_eq!(harness.effects().await, 0);
    run(&harness, &harness.sf, "inner").await.unwrap();
}

#[tokio::test]
async fn missing_and_too_new_tables_are_told_at_start_with_the_way_out() {
    let harness = fresh::<Db>().await;
    let start = async || Steadfast::new(Db::another_pool(&harness, PoolSize::default())).await;
    let migrations = Db::table("migrations");
    harness.run(&format!("INSERT INTO {migrations} (version, name, applied_at) SELECT 999, 'tomorrow', max(applied_at) FROM {migrations}")).await;
    let too_new = start().await.unwrap_err();
    assert_eq!(too_new.code(), Code::TablesMissing);
    assert!(too_new.to_string().contains("999"), "{too_new}");
    harness
        .run(&format!("DELETE FROM {migrations} WHERE version > 1"))
        .await;
    assert!(start().await.unwrap_err().to_string().contains(".migrate()"));
    let pool = Db::another_pool(&harness, PoolSize::default());
    let missing = Steadfast::builder(pool)
        .schema("elsewhere")
        .unwrap()
        .build()
        .await
        .unwrap_err();
    assert_eq!(missing.code(), Code::TablesMissing);
    assert!(
        missing.to_string().contains("elsewhere") && missing.to_string().contains(".migrate()"),
        "{missing}"
    );
}

#[tokio::test]
async fn the_migration_script_makes_what_migrating_makes() {
    let harness = fresh::<Db>().await;
    let script = Steadfast::<Db>::migration_script();
    harness.run(&script.replace("steadfast", "scripted")).await;
    let builder = Steadfast::builder(harness.admin.clone()).schema("scripted").unwrap();
    let scripted = builder.build().await.unwrap();
    run(&harness, &scripted, "k").await.unwrap();
    builder.migrate().await.unwrap();
    assert!(
        run(&harness, &builder.build().await.unwrap(), "k")
            .await
            .unwrap()
            .replayed
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_run_once_however_many_deployments_start_together() {
    let harness = fresh::<Db>().await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let pool = harness.admin.clone();
            tokio::spawn(async move {
                Steadfast::builder(pool)
                    .schema("billing")
                    .unwrap()
                    .migrate()
                    .await
                    .map(drop)
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let billing = Steadfast::builder(harness.admin.clone())
        .schema("billing")
        .unwrap()
        .build()
        .await
        .unwrap();
    run(&harness, &billing, "k").await.unwrap();
    run(&harness, &harness.sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 2, "two instances in one database do not meet");
}

#[tokio::test]
async fn an_instance_may_be_called_almost_anything() {
    let harness = fresh::<Db>().await;
    for name in ["steadfast_billing", "user", "a_steadfast_b", "_"] {
        let builder = Steadfast::builder(harness.admin.clone()).schema(name).unwrap();
        builder.migrate().await.unwrap();
        let sf = builder.build().await.unwrap();
        assert!(!run(&harness, &sf, "k").await.unwrap().replayed, "{name}");
        assert!(run(&harness, &sf, "k").await.unwrap().replayed, "{name}");
    }
    assert_eq!(harness.effects().await, 4);
}

#[tokio::test]
async fn a_conflict_behind_an_error_of_the_users_own_is_found() {
    #[derive(Debug)]
    struct Mine(sqlx::Error);
    impl std::fmt::Display for Mine {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("mine")
        }
    }
    impl std::error::Error for Mine {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let harness = fresh::<Db>().await;
    let runs = AtomicU32::new(0);
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let reply = command
        .run(async |_| match runs.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Mine(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())).into()),
            run => Ok(run),
        })
        .await
        .unwrap();
    assert_eq!(reply.value, 1);
}

#[tokio::test]
async fn a_conflict_is_repeated_where_the_handler_can_be_and_reported_where_not() {
    let harness = fresh::<Db>().await;
    let runs = AtomicU32::new(0);
    let conflict = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
    let command = || harness.sf.command("effects.make", "k").owner(&harness.owner);
    let reply = command()
        .run(async |_| match runs.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(conflict().into()),
            run => Ok(run),
        })
        .await
        .unwrap();
    assert_eq!((reply.value, reply.replayed), (2, false));

    let once = harness.sf.command("effects.make", "k2").owner(&harness.owner);
    let error = once
        .run_once(async |_| Err::<(), _>(conflict().into()))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::ConnectionLost);
    assert!(error.is_transient());
    let always = harness.sf.command("effects.make", "k3").owner(&harness.owner);
    runs.store(0, Ordering::Relaxed);
    let error = always
        .run(async |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(conflict().into())
        })
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), runs.load(Ordering::Relaxed)),
        (Code::ConnectionLost, 5),
        "bounded"
    );
}
