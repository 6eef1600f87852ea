//! What the shop has to do later: work that is enqueued in the transaction that wants it, and done by whichever process can.
//!
//! All of it is mail, which only processes that know the outside world can send; until one is there, it waits. What writes the
//! digest is in [`digest`](crate::digest).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{Job, QueueOptions, parse_duration};

/// The line that all mail stands in.
pub(crate) const QUEUE: &str = "mail";

/// The names of all jobs, in the lab and in tables.
pub(crate) const NAMES: [&str; 4] = [
    SendReceipt::NAME,
    SendReminder::NAME,
    SendDigest::NAME,
    crate::digest::NAME,
];

/// Eight mails at once in a process and twelve in all: mail services do not like to be overrun, however many shops there are.
pub(crate) fn queue() -> QueueOptions {
    QueueOptions::new().concurrency(8).limit(12)
}

/// Who has not paid after a year is not reminded of it.
const REMIND_AFTER_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Reads `--remind-after`: what no job can be delayed by is refused when the shop opens, and not with each order.
pub(crate) fn read_remind_after(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(delay) if delay <= REMIND_AFTER_MAX => Ok(delay),
        Ok(_) => Err(format!("{text:?} is too long; write at most 365d")),
        Err(error) => Err(error.to_string()),
    }
}

/// Tell a customer that his money has come in.
#[derive(Serialize, Deserialize, Job)]
#[job("receipt.send", queue = "mail")]
pub(crate) struct SendReceipt {
    pub(crate) payment_id: String,
    pub(crate) amount: i64,
    pub(crate) currency: String,
    #[redact]
    pub(crate) email: String,
}

/// Remind a customer of an order that he has not paid for. There is one for each order, and it is cancelled when nothing is left to
/// remind of.
#[derive(Serialize, Deserialize, Job)]
#[job("reminder.send", queue = "mail")]
pub(crate) struct SendReminder {
    pub(crate) order_id: String,
    pub(crate) sku: String,
    pub(crate) quantity: i64,
    #[redact]
    pub(crate) email: String,
}

/// Send a digest to the office.
#[derive(Serialize, Deserialize, Job)]
#[job("digest.send", queue = "mail")]
pub(crate) struct SendDigest {
    pub(crate) until: String,
    pub(crate) orders: i64,
    pub(crate) pieces: i64,
    pub(crate) payments: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reminder_is_due_within_a_year() {
        assert_eq!(read_remind_after("365d"), Ok(REMIND_AFTER_MAX));
        for text in ["366d", "", "soon"] {
            assert!(read_remind_after(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_mail_stands_in_one_line() {
        let queues = [SendReceipt::QUEUE, SendReminder::QUEUE, SendDigest::QUEUE];
        assert_eq!(queues, [Some(QUEUE); 3]);
    }
}
