//! What can happen to a COMMIT on its way, when it shall happen, and what came of it.

use std::collections::VecDeque;

/// An accident of a COMMIT.
///
/// A COMMIT is a message that contains a statement `COMMIT` or `END`: a simple query, or the execution of a
/// prepared statement. Statements that commit by themselves, outside of a transaction, are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The COMMIT does not reach the server, and both sides lose their connection: nothing is committed.
    CutBeforeCommit,
    /// The COMMIT reaches the server, and the client loses its connection before it can hear of it.
    ///
    /// The server keeps its connection until it has answered, so it has decided by itself.
    CutAfterCommit,
    /// The COMMIT reaches the server, and the client hears nothing more until it gives up.
    ///
    /// Whatever else it sends on that connection goes nowhere.
    SwallowCommitReply,
}

/// A fault that has happened.
///
/// In none of them has the client heard the answer, so its own history says "unknown" where this says what is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired {
    /// What has happened.
    pub fault: Fault,
    /// Which connection it has happened to, counted from 1 since the proxy was started.
    pub connection: u64,
    /// The server process of that connection, which is what `pg_backend_pid()` says on it.
    pub backend: Option<i32>,
    /// What the server has said to the COMMIT.
    pub answer: Answer,
}

/// What the server has said to a COMMIT whose client could not hear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// Nothing, for it was never asked.
    NotAsked,
    /// Nothing yet. This changes; [`Counts::settled`](super::Counts::settled) counts those that have.
    Awaited,
    /// It has committed.
    Committed,
    /// It has rolled back, as it does when a statement before the COMMIT had failed.
    RolledBack,
    /// It has refused with an error, for instance of a deferred constraint.
    Refused,
    /// Nothing, and its connection has ended. Only the database knows.
    Lost,
}

impl Answer {
    /// Whether it is final.
    pub fn is_settled(self) -> bool {
        self != Self::Awaited
    }

    /// What a CommandComplete says, if it is the end of a transaction.
    pub(super) fn of(command: &str) -> Option<Self> {
        match command {
            "COMMIT" => Some(Self::Committed),
            "ROLLBACK" => Some(Self::RolledBack),
            _ => None,
        }
    }
}

/// The faults that are to come.
#[derive(Default)]
pub(super) struct Armed {
    next: VecDeque<Fault>,
    every: Option<Every>,
    share: Option<Share>,
}

struct Every {
    fault: Fault,
    n: u64,
    commits: u64,
}

struct Share {
    share: f64,
    faults: Vec<Fault>,
    random: Random,
}

impl Armed {
    pub(super) fn next(&mut self, fault: Fault) {
        self.next.push_back(fault);
    }

    pub(super) fn every(&mut self, fault: Fault, n: u64) {
        let commits = 0;
        self.every = (n > 0).then_some(Every { fault, n, commits });
    }

    pub(super) fn share(&mut self, share: f64, seed: u64, faults: &[Fault]) {
        self.share = (!faults.is_empty()).then(|| Share {
            share,
            faults: faults.to_vec(),
            random: Random::new(seed),
        });
    }

    /// The fate of a COMMIT. Each is asked once, and each of the three ways sees every one of them.
    pub(super) fn fate(&mut self) -> Option<Fault> {
        let every = self.every.as_mut().and_then(Every::fate);
        let share = self.share.as_mut().and_then(Share::fate);
        self.next.pop_front().or(every).or(share)
    }
}

impl Every {
    fn fate(&mut self) -> Option<Fault> {
        self.commits += 1;
        self.commits.is_multiple_of(self.n).then_some(self.fault)
    }
}

impl Share {
    fn fate(&mut self) -> Option<Fault> {
        // Two numbers for each COMMIT, whatever comes of the first: which fault the tenth has does not depend on the ninth.
        let (is_hit, which) = (self.random.fraction() < self.share, self.random.next());
        let fault = self.faults[which as usize % self.faults.len()];
        is_hit.then_some(fault)
    }
}

/// The same numbers for the same seed, on every machine (xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Zero would stay zero, and small seeds would begin alike.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        // The lower half of these is the weaker one.
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// From zero up to, but not, one.
    fn fraction(&mut self) -> f64 {
        (self.next() % (1 << 32)) as f64 / (1_u64 << 32) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fault::{CutAfterCommit, CutBeforeCommit, SwallowCommitReply};

    fn fates(armed: &mut Armed, n: usize) -> Vec<Option<Fault>> {
        std::iter::repeat_with(|| armed.fate()).take(n).collect()
    }

    #[test]
    fn armed_faults_fire_once_each_in_their_order() {
        let mut armed = Armed::default();
        armed.next(CutAfterCommit);
        armed.next(CutBeforeCommit);
        assert_eq!(
            fates(&mut armed, 3),
            [Some(CutAfterCommit), Some(CutBeforeCommit), None]
        );
    }

    #[test]
    fn every_nth_commit_is_counted_from_when_it_was_armed() {
        let mut armed = Armed::default();
        armed.every(SwallowCommitReply, 3);
        let third = [None, None, Some(SwallowCommitReply)];
        assert_eq!(fates(&mut armed, 6), [third, third].concat());
        armed.every(SwallowCommitReply, 0);
        assert_eq!(fates(&mut armed, 6), [None; 6]);
    }

    #[test]
    fn a_share_is_the_same_for_the_same_seed_and_about_as_large_as_asked() {
        let run = |share, seed| {
            let mut armed = Armed::default();
            armed.share(share, seed, &[CutBeforeCommit, CutAfterCommit]);
            fates(&mut armed, 10_000)
        };
        let hits = |fates: &[Option<Fault>], fault| fates.iter().filter(|fate| **fate == Some(fault)).count();
        for seed in [0, 1, 2, u64::MAX] {
            let fates = run(0.2, seed);
            assert_eq!(fates, run(0.2, seed));
            for fault in [CutBeforeCommit, CutAfterCommit] {
                assert!(
                    (850..1150).contains(&hits(&fates, fault)),
                    "{seed}: {}",
                    hits(&fates, fault)
                );
            }
        }
        assert_ne!(run(0.2, 0), run(0.2, 1));
        assert!(run(0.0, 0).iter().all(Option::is_none));
        assert!(run(1.0, 0).iter().all(Option::is_some));
        assert!(run(f64::NAN, 0).iter().all(Option::is_none));
    }
}
