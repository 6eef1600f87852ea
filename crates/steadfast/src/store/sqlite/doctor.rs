//! What endangers a SQLite file: how it is written, where it lies, and what its tables demand.

use std::fs;
use std::path::Path;

use sqlx::SqlitePool;

use super::{SqliteStore, Store};
use crate::doctor::Check;
use crate::error::Result;

/// Kinds of file systems, as Linux names them, whose locks cannot be trusted: another machine may hold the file.
const NETWORK: [&str; 10] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "afs",
    "fuse.sshfs",
    "fuse.glusterfs",
];
/// Those that a restart of the machine empties.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

pub(super) async fn examine(readers: &SqlitePool) -> Result<Vec<Check>> {
    let options = readers.connect_options();
    let file = options.get_filename();
    Ok(vec![
        journal_mode(&pragma(readers, "PRAGMA journal_mode").await?),
        synchronous(&pragma(readers, "PRAGMA synchronous").await?),
        deferred_keys(has_deferred_keys(readers).await?),
        writable(file),
        file_system(file),
    ])
}

/// Whether a foreign key is looked at only at COMMIT.
pub(super) async fn has_deferred_keys(readers: &SqlitePool) -> Result<bool> {
    sqlx::query_scalar("SELECT count(*) > 0 FROM sqlite_schema WHERE sql LIKE '%initially%deferred%'")
        .fetch_one(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "looking for deferred foreign keys"))
}

/// The value of a setting, whether it is a number or a word.
async fn pragma(readers: &SqlitePool, statement: &'static str) -> Result<String> {
    let value = sqlx::query_scalar::<_, String>(statement).fetch_one(readers).await;
    match value {
        Err(sqlx::Error::ColumnDecode { .. }) => sqlx::query_scalar::<_, i64>(statement)
            .fetch_one(readers)
            .await
            .map(|number| number.to_string()),
        value => value,
    }
    .map_err(|error| SqliteStore::error(error, "reading a setting"))
}

fn journal_mode(mode: &str) -> Check {
    let found = format!("journal_mode is {mode}");
    if mode == "wal" {
        return Check::ok("journal_mode", found);
    }
    let fix = "start the service once, which switches the file to WAL, or run `sqlite3 FILE 'PRAGMA journal_mode=WAL'`; \
               until then readers and the writer wait for each other";
    Check::warn("journal_mode", found, fix)
}

/// The setting belongs to a connection, not to the file. Ours writes with FULL whatever the pool has.
fn synchronous(level: &str) -> Check {
    match level {
        "2" | "3" => Check::ok(
            "synchronous",
            "synchronous is FULL: an acknowledged commit is on the disk",
        ),
        _ => Check::warn(
            "synchronous",
            format!("synchronous is {level} in this pool; Steadfast's own connection has FULL"),
            "set `.synchronous(SqliteSynchronous::Full)` on your pool, or what you write with it may be lost in a power cut",
        ),
    }
}

fn deferred_keys(has_deferred: bool) -> Check {
    if has_deferred {
        return Check::warn(
            "deferred_keys",
            "a foreign key is INITIALLY DEFERRED, so every command commits by itself",
            "declare it without INITIALLY DEFERRED, and commands share their COMMITs again",
        );
    }
    Check::ok(
        "deferred_keys",
        "no foreign key is deferred, so commands share their COMMITs",
    )
}

/// Opens the file as a writer would, and writes nothing.
fn writable(file: &Path) -> Check {
    match fs::OpenOptions::new().append(true).open(file) {
        Ok(_) => Check::ok("writable", "the file can be written"),
        Err(error) => Check::fail(
            "writable",
            format!("{} cannot be written: {error}", file.display()),
            "give the service's user the right to write the file and its directory, where the log of SQLite lies",
        ),
    }
}

fn file_system(file: &Path) -> Check {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let place = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    match kind_of_file_system(&place, &mounts) {
        Some(kind) if NETWORK.contains(&kind) => Check::fail(
            "file_system",
            format!("the file lies on {kind}, a network file system"),
            "move it to a local disk: locks over a network do not keep two writers apart",
        ),
        Some(kind) if MEMORY.contains(&kind) => Check::warn(
            "file_system",
            format!("the file lies on {kind}, in memory"),
            "move it to a disk: a restart of the machine deletes it",
        ),
        Some(kind) => Check::ok("file_system", format!("the file lies on {kind}")),
        None => Check::ok("file_system", "what the file lies on is not known on this system"),
    }
}

/// The kind of the mount with the longest path above the file; of two on one path the later one, which hides the other.
fn kind_of_file_system<'m>(file: &Path, mounts: &'m str) -> Option<&'m str> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    mounts
        .filter(|(path, _)| file.starts_with(path))
        .max_by_key(|(path, _)| path.len())
        .map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
overlay / overlay rw 0 0
tmpfs /run tmpfs rw 0 0
server:/data /srv/data nfs4 rw 0 0
/dev/sda1 /srv ext4 rw 0 0
";

    #[test]
    fn the_mount_nearest_to_the_file_decides() {
        let kind = |file| kind_of_file_system(Path::new(file), MOUNTS);
        assert_eq!(kind("/srv/data/shop.db"), Some("nfs4"));
        assert_eq!(
            kind("/srv/database/shop.db"),
            Some("ext4"),
            "a name that only begins alike is another place"
        );
        assert_eq!(kind("/run/shop.db"), Some("tmpfs"));
        assert_eq!(kind("/home/shop.db"), Some("overlay"));
        assert_eq!(kind_of_file_system(Path::new("/home/shop.db"), ""), None);
    }
}
