//! The digest of a day, written each morning by whichever process comes first, once.

use std::sync::Arc;
use std::time::Duration;

use steadfast::{Failure, JobCx, Tx, rfc3339};

use crate::jobs::SendDigest;
use crate::lab::{self, Lab};

/// What the schedule and its job are called.
pub(crate) const NAME: &str = "digest.write";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) struct Digest {
    pub(crate) lab: Option<Arc<Lab>>,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Digest {
    /// Counts what was ordered and paid in the day before eight o'clock. The row, the mail that is to be sent, and that all of this is
    /// done, are one COMMIT. It does not look whether there is a row for this day: it is called once for a tick, as far as its
    /// transaction goes.
    #[cron("0 8 * * *", tz = "UTC", missed = "last", name = "digest.write")]
    pub(crate) async fn write(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        // What comes after the tick is of the next day, however late it is. Somebody who triggers it by hand has no tick.
        let tick = tx.job().and_then(JobCx::tick);
        let until = match tick {
            Some(tick) => tick,
            None => tx.now().await?,
        };
        let (from, until) = (rfc3339(until - DAY), rfc3339(until));
        let select = "
            SELECT count(*), CAST(coalesce(sum(quantity), 0) AS BIGINT),
                   (SELECT count(*) FROM payments WHERE created_at >= $1 AND created_at < $2)
            FROM orders
            WHERE created_at >= $1 AND created_at < $2";
        let (orders, pieces, payments): (i64, i64, i64) = sqlx::query_as(select)
            .bind(&from)
            .bind(&until)
            .fetch_one(tx.db())
            .await?;
        let insert = "INSERT INTO digests (until, orders, pieces, payments) VALUES ($1, $2, $3, $4)";
        sqlx::query(insert)
            .bind(&until)
            .bind(orders)
            .bind(pieces)
            .bind(payments)
            .execute(tx.db())
            .await?;
        let attempt = tx.job().map_or(1, JobCx::attempt);
        tx.enqueue(&SendDigest {
            until,
            orders,
            pieces,
            payments,
        })
        .await?;
        lab::after_job(self.lab.as_ref(), NAME, attempt, None).await
    }
}
