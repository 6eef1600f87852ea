//! Targets, for those who look after them: which there are, whether anybody works on them, and how one is paused or removed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::count::Count;
use super::delivery::target_of;
use crate::audit::AuditEntry;
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::queue::JOBS;
use crate::steadfast::Steadfast;
use crate::store::jobs::QueueStateRow;
use crate::store::letters::{Among, DeliveryFilter, KindRow, Letters, Targets};
use crate::store::{Database, Store};
use crate::words;

/// How far the deliveries of a kind are counted.
const COUNT_MAX: u32 = 10_000;

/// How long ago a node must have said that it knows a kind to count as there. It says so every minute.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(2 * 60);

/// Why nothing is delivered to a target for now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// Since when.
    pub at: SystemTime,
    /// Who paused it.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Paused {
    pub(crate) fn of_queue(row: &QueueStateRow) -> Option<Self> {
        Some(Self {
            at: Timestamp(row.paused_at?).into(),
            by: row.paused_by.clone().unwrap_or_default(),
            reason: row.paused_reason.clone().unwrap_or_default(),
        })
    }

    pub(super) fn read(row: &KindRow) -> Option<Self> {
        Some(Self {
            at: Timestamp(row.paused_at?).into(),
            by: row.paused_by.clone().unwrap_or_default(),
            reason: row.paused_reason.clone().unwrap_or_default(),
        })
    }
}

/// A target: where messages go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedTarget {
    /// Its name.
    pub name: String,
    /// Which types of events it wants. None: no new deliveries are written for it.
    pub patterns: Vec<String>,
    /// Since when it is declared.
    pub since: Option<SystemTime>,
    /// When a node that knows it last said so.
    pub seen_at: Option<SystemTime>,
    /// Whether that was lately: a node says it every minute.
    pub is_known: bool,
    /// Whether it is paused.
    pub paused: Option<Paused>,
    /// How many deliveries are pending or leased.
    pub waiting: Count,
    /// How many are dead.
    pub dead: Count,
}

impl<Db: Database> Steadfast<Db> {
    /// Every target that was declared, that a node knows or that a delivery waits for, by name.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn targets(&self) -> Result<Vec<ListedTarget>> {
        let now = self.clock().at(self.store().now().await?);
        let kinds = self.ask("list kinds").list_kinds(COUNT_MAX).await?;
        let lines = self.ask("list targets").list_targets().await?;
        let mut targets = BTreeMap::<String, ListedTarget>::new();
        for row in kinds {
            let name = target_of(&row.kind).to_owned();
            targets
                .entry(name)
                .or_insert_with_key(|name| nothing_of(name))
                .add(&row, now);
        }
        for (name, pattern, since) in lines {
            let target = targets.entry(name).or_insert_with_key(|name| nothing_of(name));
            let since = SystemTime::from(Timestamp(since));
            target.since = Some(target.since.map_or(since, |other| other.min(since)));
            target.patterns.push(pattern);
        }
        Ok(targets.into_values().collect())
    }

    /// Stops delivering to a target, whatever the version of the event, until it is [resumed](Self::resume_target). What is
    /// worked on ends; what is published meanwhile waits.
    ///
    /// # Errors
    /// SF102 if there is no target of this name that a node has known.
    pub async fn pause_target(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        self.set_pause(name, Some((operator, reason)), "target.pause", operator, reason)
            .await
    }

    /// Goes on delivering to a target.
    ///
    /// # Errors
    /// As [`pause_target`](Self::pause_target).
    pub async fn resume_target(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        self.set_pause(name, None, "target.resume", operator, reason).await?;
        self.rows_were_committed();
        Ok(())
    }

    async fn set_pause(
        &self,
        name: &str,
        pause: Option<(&str, &str)>,
        action: &str,
        operator: &str,
        reason: &str,
    ) -> Result<()> {
        let entry = AuditEntry::new(operator, action, name).because(reason);
        let entry = &entry;
        let set = self.transact(async |tx| {
            let (store, conn, offset) = tx.parts("pause a target");
            let count = store.pause_kinds(conn, name, pause, offset).await?;
            if count > 0 {
                tx.audit(entry).await?;
            }
            Ok(count)
        });
        match set.await.map_err(Error::unwrapped)? {
            0 => Err(self.unknown_target(name).await?),
            _ => Ok(()),
        }
    }

    /// Removes a target: no new deliveries are written for it.
    ///
    /// # Errors
    /// SF117 if a node has known it within two minutes, since it would declare it again; and if deliveries to it are still to
    /// do. SF102 if there is none of this name.
    pub async fn remove_target(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        let targets = self.targets().await?;
        let Some(target) = targets.iter().find(|target| target.name == name) else {
            return Err(self.unknown_target(name).await?);
        };
        if target.is_known {
            return Err(Error::new(
                Code::Conflict,
                format!(
                    "a node has known the target {name} within the last {} minutes, and would declare it again; stop the nodes \
                     that react by this name first",
                    SILENCE_MAX.as_secs() / 60
                ),
            ));
        }
        if name.starts_with(JOBS) {
            let message = format!(
                "{name} is what jobs are run by, and no target; once none of them is left, nothing has to be removed: cancel them by \
                 `steadfast jobs cancel ID --reason WHY`"
            );
            return Err(Error::new(Code::InputInvalid, message));
        }
        let mut left = DeliveryFilter::of(Among::Queue);
        left.target = Some(name.to_owned());
        if self.ask("look for deliveries").count_deliveries(&left, 1).await? > 0 {
            let message = format!(
                "deliveries to the target {name} are still to do ({} waiting, {} dead); skip them first: `steadfast outbox skip \
                 --target {name} --reason WHY`",
                target.waiting, target.dead
            );
            return Err(Error::new(Code::Conflict, message));
        }
        let entry = AuditEntry::new(operator, "target.remove", name).because(reason);
        let entry = &entry;
        let removed = self.transact(async |tx| {
            let (store, conn, _) = tx.parts("remove a target");
            store.remove_target(conn, name).await?;
            Ok(tx.audit(entry).await?)
        });
        removed.await.map_err(Error::unwrapped)
    }

    /// There is no target of this name; perhaps there is one nearby.
    async fn unknown_target(&self, name: &str) -> Result<Error> {
        let targets = self.targets().await?;
        let known: Vec<_> = targets.iter().map(|target| &*target.name).collect();
        let near = words::did_you_mean(name, &known);
        let help = match &*near {
            "" => "; `steadfast targets list` shows them",
            near => near,
        };
        Ok(Error::new(
            Code::InputInvalid,
            format!("there is no target {name:?}{help}"),
        ))
    }
}

/// A target of which nothing is known but its name.
fn nothing_of(name: &str) -> ListedTarget {
    let none = Count::default();
    ListedTarget {
        name: name.to_owned(),
        patterns: Vec::new(),
        since: None,
        seen_at: None,
        is_known: false,
        paused: None,
        waiting: none,
        dead: none,
    }
}

impl ListedTarget {
    /// Adds what is known of one of its kinds.
    fn add(&mut self, row: &KindRow, now: Timestamp) {
        self.is_known |= is_known(row, now);
        self.seen_at = self.seen_at.max(row.seen_at.map(|at| Timestamp(at).into()));
        self.paused = self.paused.take().or_else(|| Paused::read(row));
        self.waiting = self.waiting.plus(Count::of(row.waiting, COUNT_MAX));
        self.dead = self.dead.plus(Count::of(row.dead, COUNT_MAX));
    }
}

/// Whether a node has lately said that it knows this kind.
pub(super) fn is_known(row: &KindRow, now: Timestamp) -> bool {
    row.seen_at.is_some_and(|at| at > now.before(SILENCE_MAX).0)
}
