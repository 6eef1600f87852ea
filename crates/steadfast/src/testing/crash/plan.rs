//! What happens at which event of a run.

use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::super::{CommitReply, Crash};
use super::report::Place;

/// What an observer can see of a scenario, in the order it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Asked(&'static str),
    CommitApplied,
}

/// Where a run is to go wrong: at which event, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) event: usize,
    pub(super) place: Place,
}

/// Every way in which a recorded scenario can go wrong, in order.
pub(super) fn aims(events: &[Event]) -> Vec<Aim> {
    let places = |event: &Event| match event {
        Event::Asked(statement) => vec![Place::Before(statement)],
        Event::CommitApplied => vec![Place::ReplyLost, Place::AfterCommit],
    };
    let aims = events.iter().enumerate();
    aims.flat_map(|(event, seen)| places(seen).into_iter().map(move |place| Aim { event, place }))
        .collect()
}

type LastWill = Box<dyn FnOnce() + Send>;

/// Sees the events of one run, and makes it go wrong at one of them.
pub(crate) struct Plan {
    aim: Option<Aim>,
    seen: Mutex<Vec<Event>>,
    has_hit: Mutex<bool>,
    /// What a crash takes along, so that a scenario that catches the panic gets nothing more from it.
    last_will: Mutex<Option<LastWill>>,
    /// From here on the process is dead, and whoever asks for anything dies with it.
    pub(super) crashed: CancellationToken,
}

impl Plan {
    /// Without an aim, it only looks.
    pub(super) fn new(aim: Option<Aim>) -> Self {
        Self {
            aim,
            seen: Mutex::default(),
            has_hit: Mutex::default(),
            last_will: Mutex::default(),
            crashed: CancellationToken::new(),
        }
    }

    /// Says what a crash takes along.
    pub(super) fn on_crash(&self, last_will: impl FnOnce() + Send + 'static) {
        *lock(&self.last_will) = Some(Box::new(last_will));
    }

    /// The process is over, one way or another: nothing of it is kept.
    pub(super) fn end(&self) {
        drop(lock(&self.last_will).take());
    }

    /// Whether it does more than look.
    pub(super) fn is_aimed(&self) -> bool {
        self.aim.is_some()
    }

    /// What was seen.
    pub(super) fn events(&self) -> Vec<Event> {
        lock(&self.seen).clone()
    }

    /// Whether it went wrong where it should, and the event that was there instead if it did not.
    pub(super) fn verdict(&self) -> Result<(), Option<Event>> {
        match self.aim {
            Some(aim) if !*lock(&self.has_hit) => Err(lock(&self.seen).get(aim.event).copied()),
            _ => Ok(()),
        }
    }

    pub(crate) fn asked(&self, statement: &'static str) {
        if let Some(Place::Before(_)) = self.see(Event::Asked(statement)) {
            self.crash();
        }
    }

    pub(crate) fn commit_applied(&self) -> CommitReply {
        match self.see(Event::CommitApplied) {
            Some(Place::ReplyLost) => return CommitReply::IsLost,
            Some(Place::AfterCommit) => self.crash(),
            _ => {}
        }
        CommitReply::Arrives
    }

    /// Notes an event, and says whether this is the one.
    fn see(&self, event: Event) -> Option<Place> {
        if self.crashed.is_cancelled() {
            self.crash();
        }
        let mut seen = lock(&self.seen);
        seen.push(event);
        let aim = self.aim.filter(|aim| aim.event + 1 == seen.len())?;
        let is_expected = match aim.place {
            Place::Before(statement) => event == Event::Asked(statement),
            Place::ReplyLost | Place::AfterCommit => event == Event::CommitApplied,
        };
        *lock(&self.has_hit) |= is_expected;
        is_expected.then_some(aim.place)
    }

    /// Dies: the scenario is stopped before anything else of it runs, and this task unwinds without a word.
    fn crash(&self) {
        self.crashed.cancel();
        let last_will = lock(&self.last_will).take();
        if let Some(last_will) = last_will {
            last_will();
        }
        // A destructor that asks on its way down would abort the whole test process.
        if !std::thread::panicking() {
            resume_unwind(Box::new(Crash));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const EVENTS: [Event; 3] = [Event::Asked("begin"), Event::Asked("commit"), Event::CommitApplied];

    /// Whether asking is survived.
    fn survives(ask: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(ask)).is_ok()
    }

    #[test]
    fn each_statement_is_one_point_and_each_commit_two_more() {
        let places: Vec<_> = aims(&EVENTS).into_iter().map(|aim| aim.place).collect();
        assert_eq!(
            places,
            [
                Place::Before("begin"),
                Place::Before("commit"),
                Place::ReplyLost,
                Place::AfterCommit
            ]
        );
    }

    #[test]
    fn after_a_crash_nobody_gets_anything() {
        let plan = Plan::new(aims(&EVENTS).get(1).copied());
        plan.asked("begin");
        assert!(!survives(|| plan.asked("commit")));
        assert!(plan.crashed.is_cancelled() && plan.verdict().is_ok());
        assert!(!survives(|| plan.asked("begin")));
        assert!(!survives(|| {
            plan.commit_applied();
        }));
    }

    #[test]
    fn a_lost_reply_is_lost_once_and_nobody_dies() {
        let plan = Plan::new(aims(&EVENTS).get(2).copied());
        plan.asked("begin");
        plan.asked("commit");
        assert_eq!(plan.commit_applied(), CommitReply::IsLost);
        assert_eq!(plan.commit_applied(), CommitReply::Arrives);
        assert!(!plan.crashed.is_cancelled() && plan.verdict().is_ok());
    }

    #[test]
    fn a_point_that_is_not_there_any_more_is_not_hit() {
        let plan = Plan::new(aims(&EVENTS).get(1).copied());
        plan.asked("begin");
        assert_eq!(plan.verdict(), Err(None), "not reached yet");
        plan.asked("something else");
        assert_eq!(plan.verdict(), Err(Some(Event::Asked("something else"))));
    }
}
