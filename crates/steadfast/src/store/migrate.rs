//! The steps that make our tables: files, one purpose each, the same numbers and names for both databases.
//!
//! They never run by themselves. A process that finds other tables than it was built for says so at start.

use std::time::SystemTime;

use super::{Database, Names, Store, names};
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};

/// One step, as a file of SQL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    /// Counts from 1.
    pub(crate) version: i64,
    /// What it is about.
    pub(crate) name: &'static str,
    /// The statements, with the default name of the schema or prefix.
    pub(crate) sql: &'static str,
}

pub(super) fn latest_version(migrations: &[Migration]) -> i64 {
    migrations.last().map_or(0, |migration| migration.version)
}

/// A migration that has run, as the database says.
pub(crate) struct AppliedMigration {
    pub(crate) version: i64,
    pub(crate) name: String,
    pub(crate) applied_at: Timestamp,
}

/// A step of our tables, and whether it has been taken: [`Builder::migrations`](crate::Builder::migrations).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationStatus {
    /// Counts from 1.
    pub version: i64,
    /// What it is about.
    pub name: String,
    /// When it ran; `None` if it has not.
    pub applied_at: Option<SystemTime>,
    /// Whether this program knows it. If not, a newer program has run it.
    pub is_known: bool,
}

/// What this program knows beside what the database has, in order.
pub(crate) fn status(known: &[Migration], applied: &[AppliedMigration]) -> Vec<MigrationStatus> {
    let ours = known.iter().map(|migration| MigrationStatus {
        version: migration.version,
        name: migration.name.to_owned(),
        applied_at: applied
            .iter()
            .find(|applied| applied.version == migration.version)
            .map(|applied| applied.applied_at.into()),
        is_known: true,
    });
    let newer = applied.iter().filter(|applied| applied.version > latest_version(known));
    let newer = newer.map(|applied| MigrationStatus {
        version: applied.version,
        name: applied.name.clone(),
        applied_at: Some(applied.applied_at.into()),
        is_known: false,
    });
    ours.chain(newer).collect()
}

/// What to do about tables that are missing or old.
fn remedy(name: &str) -> String {
    let schema = if name == names::DEFAULT {
        String::new()
    } else {
        format!(" --schema {name}")
    };
    format!(
        "run `steadfast migrate up --database-url \"$DATABASE_URL\"{schema}`, or \
         `Steadfast::builder(pool).migrate().await?`, once in your deployment, with a role that may create tables, or apply \
         `Steadfast::<Db>::migration_script()` with your own tool"
    )
}

/// The migrations up to a version as one script, with the rows that say that they ran.
pub(crate) fn script<Db: Database>(names: &Names, to: i64) -> String {
    let mut script = String::from(<Db::Store as Store<Db>>::BOOTSTRAP);
    let migrations = <Db::Store as Store<Db>>::MIGRATIONS;
    for migration in migrations.iter().filter(|migration| migration.version <= to) {
        let Migration { version, name, sql } = migration;
        let row = <Db::Store as Store<Db>>::RECORD_MIGRATION
            .replace("$1", &version.to_string())
            .replace("$2", &format!("'{name}'"));
        script.push_str(&format!("\n{sql}\n{row};\n"));
    }
    if names.name() == names::DEFAULT {
        script
    } else {
        names.rename(&script)
    }
}

/// Fails unless this is the number of a migration.
pub(crate) fn check_known(version: i64, migrations: &[Migration]) -> Result<()> {
    let latest = latest_version(migrations);
    if (1..=latest).contains(&version) {
        return Ok(());
    }
    Err(Error::new(
        Code::ConfigurationInvalid,
        format!("there is no migration {version}; choose one from 1 to {latest}"),
    ))
}

/// Fails with SF301 unless the tables are exactly those this version was built for.
pub(super) fn check_version(found: Option<i64>, migrations: &[Migration], name: &str) -> Result<()> {
    let expected = latest_version(migrations);
    let message = match found {
        Some(found) if found == expected => return Ok(()),
        Some(found) if found > expected => format!(
            "the tables of {name} have version {found}, this program knows {expected}; run the newer version of the program"
        ),
        Some(found) => format!(
            "the tables of {name} have version {found}, this program needs {expected}; {}",
            remedy(name)
        ),
        None => format!("the tables of {name} are missing; {}", remedy(name)),
    };
    Err(Error::new(Code::TablesMissing, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Migration] = &[
        Migration {
            version: 1,
            name: "keys",
            sql: "",
        },
        Migration {
            version: 2,
            name: "audit",
            sql: "",
        },
    ];

    #[test]
    fn missing_old_and_new_tables_are_three_different_sentences() {
        let say = |found| {
            check_version(found, TWO, "steadfast")
                .expect_err("another version")
                .to_string()
        };
        assert!(check_version(Some(2), TWO, "steadfast").is_ok());
        assert!(say(None).contains("missing") && say(None).contains(".migrate()"));
        assert!(say(Some(1)).contains("needs 2") && say(Some(1)).contains(".migrate()"));
        assert!(say(Some(3)).contains("newer version of the program"));
    }

    #[test]
    fn the_remedy_is_a_line_to_copy_and_names_the_schema_where_it_matters() {
        let say = |name| check_version(None, TWO, name).expect_err("no tables").to_string();
        assert!(say("steadfast").contains("`steadfast migrate up --database-url \"$DATABASE_URL\"`"));
        assert!(say("billing").contains("`steadfast migrate up --database-url \"$DATABASE_URL\" --schema billing`"));
    }

    #[test]
    fn what_a_newer_program_ran_is_listed_and_marked() {
        let applied = |version, name: &str| AppliedMigration {
            version,
            name: name.to_owned(),
            applied_at: Timestamp(0),
        };
        let status = status(TWO, &[applied(1, "keys"), applied(3, "outbox")]);
        let told: Vec<_> = status
            .iter()
            .map(|status| {
                (
                    status.version,
                    &*status.name,
                    status.applied_at.is_some(),
                    status.is_known,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                (1, "keys", true, true),
                (2, "audit", false, true),
                (3, "outbox", true, false)
            ]
        );
    }
}
