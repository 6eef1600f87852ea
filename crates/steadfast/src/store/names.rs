//! Where our tables are: the schema `steadfast` on PostgreSQL, the prefix `steadfast_` on SQLite, or another
//! name for several instances in one database.

use std::collections::HashMap;
use std::sync::Mutex;

#[cfg(feature = "postgres")]
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::error::{Code, Error, Result};

pub(super) const DEFAULT: &str = "steadfast";

/// The name all our tables go by. Statements are written with the default one and read as plain SQL.
pub(crate) struct Names {
    name: String,
    /// What sets the locks of this instance apart from those of others in the same database.
    #[cfg(feature = "postgres")]
    pub(crate) lock_salt: i64,
    renamed: Mutex<HashMap<&'static str, SqlStr>>,
}

impl Default for Names {
    fn default() -> Self {
        Self::of(DEFAULT)
    }
}

impl Names {
    /// Takes a name that needs no quoting anywhere, so that it can stand in a statement.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut characters = name.chars();
        let starts_well = characters
            .next()
            .is_some_and(|first| first.is_ascii_lowercase() || first == '_');
        let goes_on_well = characters.all(|next| next.is_ascii_lowercase() || next.is_ascii_digit() || next == '_');
        if !starts_well || !goes_on_well || name.len() > 41 || name.starts_with("pg_") {
            return Err(Error::new(
                Code::ConfigurationInvalid,
                format!(
                    "{name:?} cannot name the tables; write a lower-case letter or _, then up to 40 lower-case \
                     letters, digits or _, and not the reserved pg_"
                ),
            ));
        }
        Ok(Self::of(name))
    }

    fn of(name: &str) -> Self {
        Self {
            name: name.into(),
            #[cfg(feature = "postgres")]
            lock_salt: lock_number(&Sha256::digest(name)),
            renamed: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A statement of ours, with its tables where they are. Free of cost for the default name.
    pub(crate) fn sql(&self, statement: &'static str) -> SqlStr {
        if self.name == DEFAULT {
            return statement.into_sql_str();
        }
        let mut renamed = self.renamed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        renamed
            .entry(statement)
            .or_insert_with(|| AssertSqlSafe(self.rename(statement)).into_sql_str())
            .clone()
    }

    /// A text of ours with the default name replaced: as a prefix as it is, as a schema in quotes, so that it may be any
    /// word of SQL.
    pub(crate) fn rename(&self, text: &str) -> String {
        let mut parts = text.split(DEFAULT);
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let name = if part.starts_with('_') {
                self.name.clone()
            } else {
                self.quoted()
            };
            renamed.push_str(&name);
            renamed.push_str(part);
        }
        renamed
    }

    /// The name as an identifier of PostgreSQL.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.name)
    }
}

/// The first eight bytes of a hash as the number of an advisory lock.
#[cfg(feature = "postgres")]
pub(crate) fn lock_number(hash: &[u8]) -> i64 {
    hash.first_chunk().copied().map_or(0, i64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_carry_sql_is_refused() {
        for bad in [
            "",
            "a b",
            "a;drop table x",
            "A",
            "1a",
            "a\"b",
            "a.b",
            "pg_x",
            "é",
            &"a".repeat(42),
        ] {
            assert_eq!(Names::new(bad).err().expect(bad).code(), Code::ConfigurationInvalid);
        }
    }

    #[test]
    fn statements_name_the_tables_of_their_instance() {
        let names = Names::new("billing").expect("a good name");
        assert_eq!(
            names.sql("SELECT 1 FROM steadfast.keys").as_str(),
            "SELECT 1 FROM \"billing\".keys"
        );
        assert_eq!(
            names.sql("SELECT 1 FROM steadfast_keys").as_str(),
            "SELECT 1 FROM billing_keys"
        );
        assert_eq!(
            Names::default().sql("SELECT 1 FROM steadfast.keys").as_str(),
            "SELECT 1 FROM steadfast.keys"
        );
    }
}
