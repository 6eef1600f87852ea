//! `steadfast migrate`: the tables, and how they came to be.

use std::time::SystemTime;

use serde::Serialize;
use sqlx::{Postgres, Sqlite};
use steadfast::{Database, MigrationStatus, Steadfast};

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{Exit, Result};
use crate::options::{Engine, SqlOptions};
use crate::output::{escape, relative};

/// A migration as it is shown.
#[derive(Serialize)]
struct Shown {
    version: i64,
    name: String,
    applied_at: Option<String>,
    known: bool,
    #[serde(skip)]
    state: String,
}

impl Shown {
    fn new(migration: &MigrationStatus) -> Self {
        let state = match migration.applied_at {
            Some(at) if migration.is_known => relative(at, SystemTime::now()),
            Some(at) => format!("{}, by a newer program", relative(at, SystemTime::now())),
            None => "missing".to_owned(),
        };
        Self {
            version: migration.version,
            name: migration.name.clone(),
            applied_at: migration.applied_at.map(steadfast::rfc3339),
            known: migration.is_known,
            state,
        }
    }
}

/// Runs what is missing, and shows what that was.
pub(crate) async fn up(context: &Context) -> Result<Exit> {
    let (count, migrations) = on_database!(context, Access::Create, builder => {
        let builder = builder?;
        let count = builder.migrate().await?;
        // Tables of a newer program are not ours to call up to date.
        builder.build().await?;
        (count, builder.migrations().await?)
    });
    // What ran is the end of what there is: nothing newer was there, or building had failed.
    let ran = migrations.iter().skip(migrations.len().saturating_sub(count));
    let ran: Vec<_> = ran.map(Shown::new).collect();
    if ran.is_empty() {
        context.output.remark("nothing to do: the tables are up to date");
    }
    if context.output.is_json {
        context.output.objects(&ran)?;
    } else {
        let lines = ran
            .iter()
            .map(|migration| format!("ran {} {}\n", migration.version, migration.name));
        context.output.print(&lines.collect::<String>())?;
    }
    Ok(Exit::Ok)
}

/// Shows which have run.
pub(crate) async fn status(context: &Context) -> Result<Exit> {
    let migrations = on_database!(context, Access::Read, builder => builder?.migrations().await?);
    let shown: Vec<_> = migrations.iter().map(Shown::new).collect();
    context
        .output
        .records(&shown, &["version", "name", "applied"], |migration| {
            vec![
                migration.version.to_string(),
                escape(&migration.name),
                migration.state.clone(),
            ]
        })?;
    Ok(Exit::Ok)
}

/// Prints them as a script.
pub(crate) fn sql(context: &Context, options: &SqlOptions) -> Result<Exit> {
    let engine = match options.database {
        Some(engine) => engine,
        None => context.config.engine()?,
    };
    let script = match engine {
        Engine::Sqlite => script::<Sqlite>(context, options.to),
        Engine::Postgres => script::<Postgres>(context, options.to),
    }?;
    context.output.print(&script)?;
    Ok(Exit::Ok)
}

fn script<Db: Database>(context: &Context, to: Option<i64>) -> Result<String> {
    Ok(Steadfast::<Db>::migration_script_for(context.config.schema(), to)?)
}
