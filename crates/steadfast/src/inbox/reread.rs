//! Messages that nobody could read, and that somebody has requeued: they are read once more.

use std::pin::Pin;
use std::sync::Arc;

use super::batch::Todo;
use super::consume::{Reading, read};
use super::intake::Sourced;
use super::keep::{Keep, Keeping, recall};
use crate::command::CommandOptions;
use crate::command::attempt::rolled_back;
use crate::command::execute;
use crate::error::Code;
use crate::queue::{Claimed, Ended, Row, Work, WorkOptions};
use crate::steadfast::Steadfast;
use crate::store::Database;

impl<Db: Database> Work<Db> for Sourced {
    fn kinds(&self) -> &[Arc<str>] {
        &self.kinds
    }

    fn options(&self) -> &WorkOptions {
        &self.options
    }

    fn run(self: Arc<Self>, sf: Steadfast<Db>, rows: Arc<[Row]>) -> Pin<Box<dyn Future<Output = Vec<Ended>> + Send>> {
        Box::pin(async move {
            let mut ends = Vec::with_capacity(rows.len());
            for row in &*rows {
                ends.push(self.reread(&sf, &row.claimed).await);
            }
            ends
        })
    }
}

impl Sourced {
    /// If it can be read now, it is handed on to its consumers, and leaves the queue with the same commit.
    async fn reread<Db: Database>(&self, sf: &Steadfast<Db>, claimed: &Claimed) -> Ended {
        let message = match recall(sf, &claimed.message).await {
            Ok(message) => message,
            Err(error) => return Ended::Failed(error.into()),
        };
        let Some(elsewhere) = &message.elsewhere else {
            return Ended::Skipped("it was edited, and is no message of its source any more");
        };
        let todos: Vec<Todo<Db>> = match read(sf, self, &elsewhere.incoming) {
            Reading::Todo(todos) => todos,
            Reading::Ignored => return Ended::Skipped("nobody wants events of its type any more"),
            Reading::Unreadable(failure) => return Ended::Failed(failure),
        };
        let kept: Arc<Vec<_>> = Arc::new(todos.iter().map(Keep::of).collect());
        let keeping = Keeping::new(kept.clone(), 0..kept.len());
        let options = CommandOptions::default();
        match execute::transact(sf, &options, Some(&claimed.lease), keeping).await {
            Ok(Ok(_)) => {
                sf.rows_were_committed();
                Ended::Settled
            }
            Ok(Err(failure)) => Ended::Failed(failure),
            Err(error) if error.code() == Code::LeaseLost => Ended::Lost,
            Err(error) => Ended::Failed(rolled_back(error)),
        }
    }
}
