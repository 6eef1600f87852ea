//! What carries notices from process to process, where the database does not.

use crate::failure::Failure;

/// Carries notices between the processes of a service: tells all who listen to a channel, at once. For
/// [`PushTarget::across`](crate::PushTarget::across).
///
/// A notice is a hint: what it is about is found without it too, only later. So a messenger may lose notices, and may tell one
/// twice. What it must hold, whatever it is:
///
/// - **Nobody waits for it.** [`tell`](Self::tell) and [`listen`](Self::listen) fail when the other side cannot be reached; they are
///   called again after a pause that grows. Neither tries again by itself for long.
/// - **Who is cut off knows it.** [`Ear::hear`] fails when it may have missed something. Then everything is looked at, and somebody
///   listens anew.
pub trait Messenger: Send + Sync + 'static {
    /// What hears the notices of a channel.
    type Ear: Ear;

    /// Tells everybody who listens to the channel, this process too if it does. Notices are short, less than 8,000 bytes.
    fn tell(&self, channel: &str, notice: &str) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Listens to a channel: letters, digits and dots.
    fn listen(&self, channel: &str) -> impl Future<Output = Result<Self::Ear, Failure>> + Send;

    /// The other side, for logs: without passwords.
    fn address(&self) -> String {
        "a messenger".to_owned()
    }
}

/// What hears the notices of a channel, as [`Messenger::listen`] has it.
pub trait Ear: Send + 'static {
    /// Waits for the next notice. It may be dropped at any time, and loses none. What others say on the channel does no harm, and
    /// need not be text.
    fn hear(&mut self) -> impl Future<Output = Result<String, Failure>> + Send;
}
