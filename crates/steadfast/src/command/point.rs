//! The places where a crash is worth imagining.

/// A place in the corridor, named so that tests can kill a process exactly there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Point {
    /// The request is read; the database knows nothing of it.
    BeforeClaim,
    /// The transaction is open and the key claimed; the handler has not run.
    AfterClaim,
    /// The business rows and the outcome are written; nothing is durable.
    BeforeCommit,
    /// Everything is durable; nobody has been told.
    AfterCommit,
}

impl Point {
    /// Every point, in the order a command passes them.
    pub const ALL: [Point; 4] = [
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::BeforeCommit,
        Point::AfterCommit,
    ];

    /// The point's name in the lab and in test output.
    pub fn as_str(self) -> &'static str {
        match self {
            Point::BeforeClaim => "before_claim",
            Point::AfterClaim => "after_claim",
            Point::BeforeCommit => "before_commit",
            Point::AfterCommit => "after_commit",
        }
    }
}
