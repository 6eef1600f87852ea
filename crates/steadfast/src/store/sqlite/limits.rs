//! Queues with limits on SQLite: how many of their jobs run at once on all nodes together, in all and for each key, and how many begin within
//! a time.
//!
//! Whoever has the turn is alone, so what is counted here is the truth until its end. Each job that runs has a *slot*. Nobody gives a
//! slot back: it is free when no row has the lease that it was taken for, so finishing, renewing and dying cost nothing here, and
//! nobody has to be alive to free it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::SqliteConnection;

use super::queue::may_begin;
use super::{Names, SqliteStore, Store};
use crate::error::Result;
use crate::queue::{Claim, Claims, Turns, Wanted};

/// What a queue has left for a claim.
pub(super) struct Limit {
    /// How many may begin.
    room: Option<i64>,
    /// How many of one key run at the most.
    key_running_max: Option<i64>,
    /// How many of each key run.
    running: HashMap<String, i64>,
    rate: Option<Rate>,
    /// What each kind has of it, where several have something to do.
    parts: HashMap<Arc<str>, Part>,
    /// The slots that were taken: item, kind and epoch.
    taken: Vec<Value>,
}

/// What a kind has of what a queue may begin.
struct Part {
    turns: Turns,
    /// How many rows of it there are, as far as they were counted.
    found: i64,
    /// Whether there may be more of them than could begin.
    is_full: bool,
    room: i64,
}

/// How many may begin within a time.
struct Rate {
    count: i64,
    every: i64,
    /// How many may begin now.
    tokens: f64,
}

impl Limit {
    /// How many rows of a kind are looked for.
    pub(super) fn room(&self, wanted: &Wanted) -> i64 {
        let most = self.most(wanted);
        self.parts.get(&wanted.kind).map_or(most, |part| part.room.min(most))
    }

    /// How many of them could begin, were there no others.
    fn most(&self, wanted: &Wanted) -> i64 {
        i64::from(wanted.room).min(self.room.unwrap_or(i64::MAX))
    }

    /// Divides what may begin among those of these kinds that have rows, by their turns.
    async fn divide(&mut self, conn: &mut SqliteConnection, names: &Names, wanted: &[&Wanted], now: i64) -> Result<()> {
        let (Some(mut left), [_, _, ..]) = (self.room, wanted) else {
            return Ok(());
        };
        let count = names.sql(concat!(
            "
            SELECT count(*)
            FROM (SELECT 1 FROM steadfast_queue AS q
                  WHERE q.kind = $1 AND q.visible_at <= $2 AND ",
            may_begin!("$4"),
            " LIMIT $3)"
        ));
        for wanted in wanted {
            let most = self.most(wanted);
            let counting = sqlx::query_scalar(count.clone())
                .bind(&*wanted.kind)
                .bind(now)
                .bind(most)
                .bind(wanted.queue.as_deref());
            let found = counting.fetch_one(&mut *conn).await;
            let found = found.map_err(|error| SqliteStore::error(error, "counting what may begin"))?;
            let part = Part {
                turns: wanted.turns,
                found,
                is_full: found > 0 && found >= most,
                room: 0,
            };
            self.parts.insert(wanted.kind.clone(), part);
        }
        while left > 0
            && let hungry = self.parts.values_mut().filter(|part| part.room < part.found)
            && let Some(next) = hungry.min_by_key(|part| part.turns.next())
        {
            next.turns.take(1);
            next.room += 1;
            left -= 1;
        }
        Ok(())
    }

    /// Whether there may be more of a kind, of which so many rows were looked at.
    pub(super) fn is_full(&self, wanted: &Wanted, rows: i64) -> bool {
        let alone = rows > 0 && rows >= self.most(wanted);
        self.parts.get(&wanted.kind).map_or(alone, |part| part.is_full)
    }

    /// Whether the key of a row, if it has one, has room for it.
    pub(super) fn admit(&mut self, key: Option<&str>) -> bool {
        let (Some(key), Some(max)) = (key, self.key_running_max) else {
            return true;
        };
        let running = self.running.entry(key.to_owned()).or_default();
        let is_admitted = *running < max;
        *running += i64::from(is_admitted);
        is_admitted
    }

    /// A row is claimed. One whose lease has expired has a slot already.
    pub(super) fn take(&mut self, item: &str, wanted: &Wanted, epoch: i64, has_slot: bool) {
        if !has_slot {
            self.room = self.room.map(|room| room - 1);
        }
        self.taken.push(json!([item, &*wanted.kind, epoch]));
        if let Some(rate) = &mut self.rate {
            rate.tokens -= 1.0;
        }
    }
}

/// The queues with limits that a claim is about.
pub(super) struct Limits(HashMap<Arc<str>, Limit>);

impl Limits {
    /// Counts what runs, and what may begin.
    pub(super) async fn read(conn: &mut SqliteConnection, names: &Names, claim: &Claim<'_>, now: i64) -> Result<Self> {
        let mut queues: Vec<_> = claim.wanted.iter().filter_map(|wanted| wanted.queue.clone()).collect();
        queues.dedup();
        let mut limits = HashMap::new();
        for queue in queues {
            if !limits.contains_key(&queue)
                && let Some(limit) = read(conn, names, &queue, now).await?
            {
                limits.insert(queue, limit);
            }
        }
        Ok(Self(limits))
    }

    /// Divides what each queue may begin among these kinds.
    pub(super) async fn divide(
        &mut self,
        conn: &mut SqliteConnection,
        names: &Names,
        wanted: &[&Wanted],
        now: i64,
    ) -> Result<()> {
        for (queue, limit) in &mut self.0 {
            let of_queue = wanted
                .iter()
                .copied()
                .filter(|wanted| wanted.queue.as_ref() == Some(queue));
            limit.divide(conn, names, &of_queue.collect::<Vec<_>>(), now).await?;
        }
        Ok(())
    }

    /// The limit that rows of a kind are under, if they are.
    pub(super) fn of(&mut self, wanted: &Wanted) -> Option<&mut Limit> {
        self.0.get_mut(wanted.queue.as_ref()?)
    }

    /// Writes down who has taken slots, and says of which queues there may be no more for now.
    pub(super) async fn write(
        self,
        conn: &mut SqliteConnection,
        names: &Names,
        now: i64,
        claims: &mut Claims,
    ) -> Result<()> {
        for (queue, limit) in self.0 {
            if limit.room.is_some_and(|room| room <= 0) {
                claims.held_up.push(queue.clone());
            }
            if let Some(rate) = limit.rate.as_ref().filter(|rate| rate.tokens < 1.0) {
                let wait = (1.0 - rate.tokens) * rate.every as f64 / rate.count as f64;
                let wait = Duration::from_micros(wait.ceil() as u64);
                claims.next_in = Some(claims.next_in.map_or(wait, |other| other.min(wait)));
            }
            write(conn, names, &queue, &limit, now).await?;
        }
        Ok(())
    }
}

/// The limits of a queue; `None`: it has none.
async fn read(conn: &mut SqliteConnection, names: &Names, queue: &str, now: i64) -> Result<Option<Limit>> {
    type Row = (
        Option<i64>,
        Option<i64>,
        Option<i64>,
        Option<i64>,
        Option<f64>,
        Option<i64>,
    );
    let fail = |error| SqliteStore::error(error, "reading the limits of a queue");
    let statement = names.sql(
        "
        SELECT running_max, key_running_max, rate_count, rate_every, tokens, tokens_at
        FROM steadfast_queues
        WHERE name = $1 AND (running_max IS NOT NULL OR key_running_max IS NOT NULL OR rate_count IS NOT NULL)",
    );
    let row: Option<Row> = sqlx::query_as(statement)
        .bind(queue)
        .fetch_optional(&mut *conn)
        .await
        .map_err(fail)?;
    let Some((running_max, key_running_max, rate_count, rate_every, tokens, tokens_at)) = row else {
        return Ok(None);
    };
    let held = names.sql(
        "
        SELECT q.chain, count(*)
        FROM steadfast_slots AS s
        CROSS JOIN steadfast_queue AS q ON q.item = s.item AND q.kind = s.kind AND q.epoch = s.epoch
        WHERE s.queue = $1 AND q.state = 'leased'
        GROUP BY q.chain",
    );
    let held: Vec<(Option<String>, i64)> = sqlx::query_as(held).bind(queue).fetch_all(conn).await.map_err(fail)?;
    let rate = rate_count.zip(rate_every).map(|(count, every)| {
        let passed = now.saturating_sub(tokens_at.unwrap_or(now)).max(0);
        let more = passed as f64 / every.max(1) as f64 * count as f64;
        Rate {
            count,
            every,
            tokens: (tokens.unwrap_or(count as f64) + more).min(count as f64),
        }
    });
    let running: i64 = held.iter().map(|(_, count)| count).sum();
    let free = running_max.map(|max| (max - running).max(0));
    // A lease that was taken over has had its token, whether or not there was one.
    let begin = rate.as_ref().map(|rate| rate.tokens.floor().max(0.0) as i64);
    Ok(Some(Limit {
        room: [free, begin].into_iter().flatten().min(),
        key_running_max,
        running: held
            .into_iter()
            .filter_map(|(key, count)| Some((key?, count)))
            .collect(),
        rate,
        parts: HashMap::new(),
        taken: Vec::new(),
    }))
}

async fn write(conn: &mut SqliteConnection, names: &Names, queue: &str, limit: &Limit, now: i64) -> Result<()> {
    let fail = |error| SqliteStore::error(error, "taking slots of a queue");
    let vacate = names.sql(
        "
        DELETE FROM steadfast_slots
        WHERE queue = $1
          AND NOT EXISTS (SELECT 1 FROM steadfast_queue AS q
                          WHERE q.item = steadfast_slots.item AND q.kind = steadfast_slots.kind
                            AND q.epoch = steadfast_slots.epoch AND q.state = 'leased')",
    );
    sqlx::query(vacate)
        .bind(queue)
        .execute(&mut *conn)
        .await
        .map_err(fail)?;
    if limit.taken.is_empty() {
        return Ok(());
    }
    let take = names.sql(
        "
        INSERT INTO steadfast_slots (queue, item, kind, epoch)
        SELECT $1, t.value ->> 0, t.value ->> 1, t.value ->> 2
        FROM json_each($2) AS t
        WHERE true
        ON CONFLICT (queue, item, kind) DO UPDATE SET epoch = excluded.epoch",
    );
    let taken = Value::from(limit.taken.clone()).to_string();
    let take = sqlx::query(take).bind(queue).bind(taken);
    take.execute(&mut *conn).await.map_err(fail)?;
    let Some(rate) = &limit.rate else {
        return Ok(());
    };
    let spend = names.sql("UPDATE steadfast_queues SET tokens = $2, tokens_at = $3 WHERE name = $1");
    let spend = sqlx::query(spend).bind(queue).bind(rate.tokens).bind(now);
    spend.execute(conn).await.map(drop).map_err(fail)
}
