//! When something is due: schedules, and nothing that happens by them. Pure: time comes from outside.
//!
//! A schedule has *ticks*, the moments at which it is due. [`cron`] finds those of a cron expression in a time zone: [`text`] says
//! what may be written, [`fields`] what fits on the clock and the calendar on the wall, [`zone`] when that clock is set. [`every`] has
//! those of a fixed interval, [`timing`] is one or the other. [`missed`] decides which ticks are to be worked on now, after
//! a while in which nobody was there.
//!
//! Every process has to come to the same ticks: one job is to be made of each, by comparing them to the microsecond. So nothing here
//! depends on when a process was started, nor on what the machine has installed.

mod cron;
mod text;
mod fields;
mod zone;
mod every;
mod timing;
mod missed;

use crate::clock::Timestamp;

pub use cron::Cron;
pub use every::Every;
pub use missed::{Due, Missed};
pub use timing::Timing;

/// The ticks after one moment and up to another, from the first one on, at most so many.
fn ticks(
    tick_after: impl Fn(Timestamp) -> Option<Timestamp>,
    after: Timestamp,
    until: Timestamp,
    max: usize,
) -> Vec<Timestamp> {
    let following = std::iter::successors(tick_after(after), |tick| tick_after(*tick));
    following.take_while(|tick| *tick <= until).take(max).collect()
}
