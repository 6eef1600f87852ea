//! The steps that make our tables: files, one purpose each, the same numbers and names for both databases.
//!
//! They never run by themselves. A process that finds other tables than it was built for says so at start.

use super::{Database, Store};
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

/// What to do about tables that are missing or old.
const REMEDY: &str = "run `Steadfast::builder(pool).migrate().await?` once in your deployment, with a role that may create \
                      tables, or apply `Steadfast::<Db>::migration_script()` with your own tool";

/// All migrations as one script, with the rows that say that they ran.
pub(crate) fn script<Db: Database>() -> String {
    let mut script = String::from(<Db::Store as Store<Db>>::BOOTSTRAP);
    for migration in <Db::Store as Store<Db>>::MIGRATIONS {
        let Migration { version, name, sql } = migration;
        let row = <Db::Store as Store<Db>>::RECORD_MIGRATION
            .replace("$1", &version.to_string())
            .replace("$2", &format!("'{name}'"));
        script.push_str(&format!("\n{sql}\n{row};\n"));
    }
    script
}

/// Fails with SF301 unless the tables are exactly those this version was built for.
pub(super) fn check_version(found: Option<i64>, migrations: &[Migration], name: &str) -> Result<()> {
    let expected = latest_version(migrations);
    let message = match found {
        Some(found) if found == expected => return Ok(()),
        Some(found) if found > expected => format!(
            "the tables of {name} have version {found}, this program knows {expected}; run the newer version of the program"
        ),
        Some(found) => format!("the tables of {name} have version {found}, this program needs {expected}; {REMEDY}"),
        None => format!("the tables of {name} are missing; {REMEDY}"),
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
}
