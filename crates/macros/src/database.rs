//! The databases a macro knows, and whether steadfast was built for them.

/// A database to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Database {
    /// The word for it in `#[steadfast::test]`, the name of the test, and the feature of `steadfast` that it needs.
    pub(crate) word: &'static str,
    /// The type in `sqlx`, and the word for it in `#[steadfast::service]`.
    pub(crate) type_name: &'static str,
    pub(crate) is_there: bool,
}

pub(crate) const SQLITE: Database = Database {
    word: "sqlite",
    type_name: "Sqlite",
    is_there: cfg!(feature = "sqlite"),
};

pub(crate) const POSTGRES: Database = Database {
    word: "postgres",
    type_name: "Postgres",
    is_there: cfg!(feature = "postgres"),
};
