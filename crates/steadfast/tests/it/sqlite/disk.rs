//! A disk that is really full: a file system of a few megabytes, in memory.

use std::path::Path;
use std::process::Command;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection, SqliteConnection};
use steadfast::{Code, Error, Owner, Reply, Steadfast};
use tempfile::TempDir;

use super::Db;

/// A file system of its own, for as long as it lives.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None`: not everybody may mount.
    fn mount(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "steadfast_test"])
            .arg(directory.path())
            .output();
        mounted
            .is_ok_and(|done| done.status.success())
            .then_some(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a connection may still be closing.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// A command that needs 50 kB.
async fn make(sf: &Steadfast<Db>, key: &str) -> Result<Reply<u32>, Error> {
    let owner = Owner::new("tenant-1", "user-a");
    sf.command("effects.make", key)
        .owner(&owner)
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag, load) VALUES ($1, zeroblob(50000))")
                .bind(key)
                .execute(tx.db())
                .await?;
            Ok(1)
        })
        .await
}

async fn count(conn: &mut SqliteConnection, sql: &'static str, key: &str) -> i64 {
    sqlx::query_scalar(sql).bind(key).fetch_one(conn).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_meet_a_full_disk_are_done_or_undone_and_go_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount("4m") else {
        eprintln!("NOT RUN: mounting a small file system needs root");
        return;
    };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1_500_000]).unwrap();
    let file = SqliteConnectOptions::new()
        .filename(disk.path().join("test.db"))
        .create_if_missing(true);
    let builder = Steadfast::builder(SqlitePoolOptions::new().connect_lazy_with(file.clone()));
    builder.migrate().await.unwrap();
    let sf = builder.build().await.unwrap();
    sf.transact(async |tx| {
        sqlx::raw_sql("CREATE TABLE effects (tag TEXT NOT NULL, load BLOB NOT NULL)")
            .execute(tx.db())
            .await?;
        Ok(())
    })
    .await
    .unwrap();

    // Eight at a time, so that they share their COMMITs, until well after the disk is full.
    let mut told = Vec::new();
    for round in 0..12 {
        let round: Vec<_> = (0..8)
            .map(|member| {
                let (sf, key) = (sf.clone(), format!("{round}-{member}"));
                tokio::spawn(async move { (make(&sf, &key).await, key) })
            })
            .collect();
        for member in round {
            told.push(member.await.unwrap());
        }
    }
    let refused: Vec<_> = told.iter().filter_map(|(told, _)| told.as_ref().err()).collect();
    assert!(refused.len() < told.len(), "some fit");
    assert!(refused.iter().any(|error| error.code() == Code::Full), "{refused:?}");
    assert!(refused.iter().all(|error| error.is_transient()), "{refused:?}");

    let mut reader = SqliteConnection::connect_with(&file.read_only(true)).await.unwrap();
    for (told, key) in &told {
        let expected = i64::from(told.is_ok());
        let effects = count(&mut reader, "SELECT count(*) FROM effects WHERE tag = $1", key).await;
        let keys = count(&mut reader, "SELECT count(*) FROM steadfast_keys WHERE value = $1", key).await;
        assert_eq!((effects, keys), (expected, expected), "{key} was told {told:?}");
    }
    reader.close().await.unwrap();

    // With room again, who was refused succeeds, and who had succeeded is answered as before.
    std::fs::remove_file(&ballast).unwrap();
    for (told, key) in told.iter().rev().take(4).chain(&told[..1]) {
        let again = make(&sf, key).await.unwrap();
        assert_eq!(again.replayed, told.is_ok(), "{key}");
    }
}
