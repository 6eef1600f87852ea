//! The world outside, where shops send their mail, and the checker of receipts: every payment that was committed has one there, under
//! the key of its job, or its job is dead. Nothing else has.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::check::Violation;
use crate::error::{Context, Result};
use crate::snapshot::Snapshot;

/// What makes payments.
const PAYMENTS: &str = "payments.make";

/// How a receipt begins; what follows is the payment's id, and a colon.
const SUBJECT: &str = "Your payment ";

/// How long it may take to open.
const PATIENCE: Duration = Duration::from_secs(60);

/// `shop outside`, to which nothing happens: it is the judge's own ledger.
pub(crate) struct World {
    /// It ends with us.
    _child: Child,
    pub(crate) url: String,
    ledger: String,
}

/// A receipt that was sent: the key it was asked for with, and the payment it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) key: String,
    pub(crate) payment: String,
}

impl World {
    pub(crate) async fn open(shop_binary: &Path, directory: &Path) -> Result<Self> {
        let ledger = format!("sqlite://{}", directory.join("outside.db").display());
        let mut child = Command::new(shop_binary)
            .args(["outside", "--listen", "127.0.0.1:0", "--ledger", &ledger])
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting the world outside")?;
        let stdout = child.stdout.take().ok_or("a world without a standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        // It says where it is, on a line of its own.
        let listening = async {
            while let Some(line) = lines.next_line().await? {
                if line.starts_with("http://") {
                    return Ok(line);
                }
            }
            Err("the world outside did not open".into())
        };
        let url: Result<String> = timeout(PATIENCE, listening).await.context("waiting for the world")?;
        Ok(Self {
            _child: child,
            url: url?,
            ledger,
        })
    }

    /// Every receipt that was sent, as often as it was.
    pub(crate) async fn receipts(&self) -> Result<Vec<Receipt>> {
        let reading = async {
            let options: SqliteConnectOptions = self.ledger.parse()?;
            let mut conn = SqliteConnection::connect_with(&options).await?;
            let select = "SELECT coalesce(key, ''), detail ->> 'subject' FROM effects WHERE operation = 'mail.send'";
            sqlx::query_as(select).fetch_all(&mut conn).await
        };
        let sent: sqlx::Result<Vec<(String, String)>> = reading.await;
        let sent = sent.context("reading the ledger")?;
        let receipt = |(key, subject): (String, String)| {
            let (payment, _) = subject.strip_prefix(SUBJECT)?.split_once(':')?;
            let payment = payment.to_owned();
            Some(Receipt { key, payment })
        };
        Ok(sent.into_iter().filter_map(receipt).collect())
    }
}

/// Every payment has one receipt, or its job is a dead letter.
pub(crate) fn judge(snapshot: &Snapshot, receipts: &[Receipt]) -> Vec<Violation> {
    let broken = |sentence| Violation {
        rule: "JOB-1",
        sentence,
        command: None,
    };
    let payments = snapshot.effects.iter().filter(|effect| effect.operation == PAYMENTS);
    let mut keys: HashMap<&str, Vec<&str>> = payments.map(|payment| (&*payment.id, Vec::new())).collect();
    let mut violations = Vec::new();
    for receipt in receipts {
        match keys.get_mut(&*receipt.payment) {
            Some(keys) => keys.push(&receipt.key),
            None => violations.push(broken(format!("{receipt:?} was sent, and there is no such payment"))),
        }
    }
    let dead: HashSet<&str> = snapshot.dead_receipts.iter().map(String::as_str).collect();
    violations.extend(keys.iter().filter_map(|(payment, keys)| match &keys[..] {
        [key] if key.starts_with("job:") => None,
        [] if dead.contains(payment) => None,
        keys => Some(broken(format!(
            "the payment {payment} has {} receipts: {keys:?}",
            keys.len()
        ))),
    }));
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Effect;

    fn receipt(key: &str, payment: &str) -> Receipt {
        Receipt {
            key: key.into(),
            payment: payment.into(),
        }
    }

    /// A payment and an order, which has none.
    fn snapshot() -> Snapshot {
        let effect = |operation: &str, id: &str| Effect {
            operation: operation.into(),
            id: id.into(),
            tenant: "tenant-1".into(),
            owner: "user-a".into(),
            mark: String::new(),
            at_ms: 0,
        };
        Snapshot {
            effects: vec![effect(PAYMENTS, "p-1"), effect("orders.place", "o-1")],
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_payment_with_one_receipt_is_good_and_none_two_or_a_strange_one_is_seen() {
        let one = receipt("job:1", "p-1");
        for (receipts, broken) in [
            (vec![one.clone()], 0),
            (vec![], 1),
            (vec![one.clone(), one.clone()], 1),
            (vec![one.clone(), receipt("job:2", "p-1")], 1),
            (vec![receipt("", "p-1")], 1),
            (vec![one, receipt("job:2", "p-2")], 1),
        ] {
            assert_eq!(judge(&snapshot(), &receipts).len(), broken, "{receipts:?}");
        }
    }

    #[test]
    fn a_receipt_that_was_given_up_is_not_missed() {
        let mut snapshot = snapshot();
        snapshot.dead_receipts.push("p-1".into());
        assert!(judge(&snapshot, &[]).is_empty());
        // It was sent, and nobody could say so.
        assert!(judge(&snapshot, &[receipt("job:1", "p-1")]).is_empty());
    }
}
