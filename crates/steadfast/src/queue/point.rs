//! The places on the way of a row where a crash is worth imagining.

use uuid::Uuid;

/// A place on the way of a row through the engine, named so that tests can kill a process exactly there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkPoint {
    /// The row is leased, and nothing else has happened.
    AfterClaim,
    /// The user's code is about to run.
    BeforeHandler,
    /// It has run: what it did outside is done, what it wrote is not durable.
    AfterHandler,
    /// What was done is about to be said to the database.
    BeforeFinish,
    /// A message from elsewhere was received; the database knows nothing of it.
    AfterReceive,
    /// What a message from elsewhere did is durable, and its source has not been told.
    AfterCommitBeforeAck,
}

impl WorkPoint {
    /// Every point of a row, in the order it passes them.
    pub const ALL: [WorkPoint; 4] = [
        WorkPoint::AfterClaim,
        WorkPoint::BeforeHandler,
        WorkPoint::AfterHandler,
        WorkPoint::BeforeFinish,
    ];

    /// The points of messages from elsewhere, in the order they pass them; between the two they pass the handler's.
    pub const INBOX: [WorkPoint; 2] = [WorkPoint::AfterReceive, WorkPoint::AfterCommitBeforeAck];

    /// The point's name in the lab and in test output.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkPoint::AfterClaim => "after_claim_message",
            WorkPoint::BeforeHandler => "before_handler",
            WorkPoint::AfterHandler => "after_handler",
            WorkPoint::BeforeFinish => "before_finish",
            WorkPoint::AfterReceive => "after_receive",
            WorkPoint::AfterCommitBeforeAck => "after_commit_before_ack",
        }
    }
}

/// Which row is at a [`WorkPoint`].
#[derive(Clone, Copy, Debug)]
pub struct WorkId<'w> {
    /// The message.
    pub item: Uuid,
    /// What is done with it: the name of the target.
    pub kind: &'w str,
    /// Which attempt it is, from 1.
    pub attempt: u32,
}
