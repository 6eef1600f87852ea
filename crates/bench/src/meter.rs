//! What else a slice used up: bytes of write-ahead log, and time of the processors.
//!
//! The log is exact as long as nobody else writes to the server. Processor time is that of our own threads, or those of the
//! process that is measured, and of all processes of PostgreSQL, as far as `/proc` tells; elsewhere than on Linux there is none.

use std::collections::BTreeMap;
use std::fs;

use sqlx::PgPool;

use crate::error::{Context, Result};

/// Reads the counters before and after a slice.
#[derive(Default)]
pub(crate) struct Meter {
    /// A connection beside those that are measured.
    pub(crate) server: Option<PgPool>,
    pub(crate) process: Process,
}

/// Whose time counts, beside that of the server.
#[derive(Clone, Copy, Default)]
pub(crate) enum Process {
    #[default]
    Ours,
    Another(u32),
    /// It would say nothing.
    Nobodys,
}

/// What the counters showed.
#[derive(Default)]
pub(crate) struct Reading {
    wal_bytes: Option<i64>,
    /// Nanoseconds on a processor, by the number of the thread.
    cpu: BTreeMap<i32, u64>,
}

/// What was used between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    pub(crate) wal_bytes: Option<f64>,
    pub(crate) cpu_us: Option<f64>,
    pub(crate) statements: Option<f64>,
    pub(crate) memory_bytes: Option<f64>,
}

impl Meter {
    pub(crate) async fn read(&self) -> Result<Reading> {
        let mut reading = Reading::default();
        if let Some(server) = &self.server {
            let counters = "
                SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint,
                       (SELECT array_agg(pid) FROM pg_stat_activity)";
            let (wal_bytes, pids): (i64, Vec<i32>) = sqlx::query_as(counters)
                .fetch_one(server)
                .await
                .context("reading the counters of PostgreSQL")?;
            reading.wal_bytes = Some(wal_bytes);
            let servers = pids.into_iter().filter(|pid| is_postgres(*pid));
            reading.cpu.extend(servers.filter_map(|pid| time_of(pid, pid)));
        }
        let process = match self.process {
            Process::Ours => Some(std::process::id()),
            Process::Another(pid) => Some(pid),
            Process::Nobodys => None,
        };
        reading.cpu.extend(process.into_iter().flat_map(threads_of));
        Ok(reading)
    }
}

impl Reading {
    /// What a process has used alone, beside whatever a [`Meter`] reads.
    pub(crate) fn of_process(pid: u32) -> Self {
        Self {
            wal_bytes: None,
            cpu: threads_of(pid).collect(),
        }
    }

    /// A thread that was not there before counts from its beginning.
    pub(crate) fn since(&self, before: &Self) -> Used {
        let wal_bytes = self.wal_bytes.zip(before.wal_bytes);
        let nanoseconds = self.cpu.iter().map(|(thread, now)| {
            let earlier = before.cpu.get(thread).copied().unwrap_or(0);
            now.saturating_sub(earlier)
        });
        Used {
            wal_bytes: wal_bytes.map(|(now, earlier)| (now - earlier) as f64),
            cpu_us: (!self.cpu.is_empty()).then(|| nanoseconds.sum::<u64>() as f64 / 1e3),
            ..Used::default()
        }
    }
}

impl Used {
    /// The share of each of so many.
    pub(crate) fn per(self, count: usize) -> Self {
        let share = |all: f64| all / count.max(1) as f64;
        Self {
            wal_bytes: self.wal_bytes.map(share),
            cpu_us: self.cpu_us.map(share),
            statements: self.statements.map(share),
            memory_bytes: self.memory_bytes.map(share),
        }
    }

    /// Both together, as far as they are known.
    pub(crate) fn and(self, other: Self) -> Self {
        let both = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        Self {
            wal_bytes: both(self.wal_bytes, other.wal_bytes),
            cpu_us: both(self.cpu_us, other.cpu_us),
            statements: both(self.statements, other.statements),
            memory_bytes: both(self.memory_bytes, other.memory_bytes),
        }
    }
}

fn threads_of(process: u32) -> impl Iterator<Item = (i32, u64)> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    threads.filter_map(move |entry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        time_of(i32::try_from(process).ok()?, thread)
    })
}

/// A server elsewhere, or in a container, has numbers that mean another process here.
fn is_postgres(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("postgres"))
}

fn time_of(pid: i32, thread: i32) -> Option<(i32, u64)> {
    let times = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    Some((thread, times.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_since_counts() {
        let before = Reading {
            wal_bytes: Some(1_000),
            cpu: [(1, 5_000), (2, 9_000)].into(),
        };
        let after = Reading {
            wal_bytes: Some(5_000),
            // Thread 2 has ended, thread 3 is new.
            cpu: [(1, 6_000), (3, 3_000)].into(),
        };
        let used = after.since(&before).per(4);
        assert_eq!(used.wal_bytes, Some(1_000.0));
        assert_eq!(used.cpu_us, Some(1.0));
    }

    #[test]
    fn what_two_have_counted_is_added_up() {
        let used = |cpu_us, statements| Used {
            cpu_us,
            statements,
            ..Used::default()
        };
        let both = used(Some(2.0), None).and(used(Some(3.0), Some(4.0)));
        assert_eq!(both, used(Some(5.0), Some(4.0)));
    }

    #[test]
    fn what_nobody_counted_is_not_known() {
        let nothing = Reading::default();
        assert_eq!(nothing.since(&Reading::default()), Used::default());
    }
}
