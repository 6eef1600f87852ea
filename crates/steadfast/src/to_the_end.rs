//! Work that ends whether or not anybody waits for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span};

/// A future that is polled by whoever waits for it, and when they go away goes on in a task of its own.
///
/// So in the usual case, where somebody waits to the end, nothing is handed to another thread and back. The tracker
/// counts it from the first moment.
pub(crate) struct ToTheEnd<F: Future<Output: Send> + Send + 'static> {
    /// `None` while it is polled, so that one that panicked is not polled again; and when it has ended.
    work: Option<Pin<Box<F>>>,
    tracker: TaskTracker,
    _counted: TaskTrackerToken,
    span: Span,
    /// Where it goes on. It may be dropped anywhere.
    runtime: Option<Handle>,
}

impl<F: Future<Output: Send> + Send + 'static> ToTheEnd<F> {
    pub(crate) fn new(work: F, tracker: &TaskTracker) -> Self {
        Self {
            work: Some(Box::pin(work)),
            tracker: tracker.clone(),
            _counted: tracker.token(),
            span: Span::current(),
            runtime: Handle::try_current().ok(),
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for ToTheEnd<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(mut work) = self.work.take() else {
            panic!("polled after it had ended");
        };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for ToTheEnd<F> {
    fn drop(&mut self) {
        // Without a runtime nothing can go on: what it holds is dropped, and its transaction rolled back.
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
            let work = work.instrument(self.span.clone());
            self.tracker.spawn_on(work, runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_goes_on_to_its_end() {
        let (tracker, (go, gone)) = (TaskTracker::new(), oneshot::channel());
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let mut work = ToTheEnd::new(
            async move {
                gone.await.expect("not dropped");
                end.store(true, Ordering::SeqCst);
            },
            &tracker,
        );
        assert!((&mut work).now_or_never().is_none());
        assert_eq!(tracker.len(), 1, "it is counted while somebody waits");
        drop(work);
        assert_eq!(tracker.len(), 1, "and when nobody does");
        go.send(()).expect("somebody listens");
        tracker.close();
        tracker.wait().await;
        assert!(ended.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn work_that_nobody_ever_polled_is_done_all_the_same() {
        let tracker = TaskTracker::new();
        let (told, heard) = oneshot::channel();
        drop(ToTheEnd::new(async move { told.send(()) }, &tracker));
        heard.await.expect("told");
    }

    #[tokio::test]
    async fn a_panic_reaches_whoever_waits_and_nothing_is_left() {
        let tracker = TaskTracker::new();
        let mut work = ToTheEnd::new(async { panic!("on purpose") }, &tracker);
        let polled = std::panic::AssertUnwindSafe(&mut work).catch_unwind().await;
        assert!(polled.is_err());
        drop(work);
        assert!(tracker.is_empty());
    }

    #[test]
    fn dropped_outside_of_its_runtime_it_goes_on_there() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (tracker, (told, heard)) = (TaskTracker::new(), oneshot::channel());
        let yields = async move {
            tokio::task::yield_now().await;
            told.send(())
        };
        let mut work = {
            let _inside = runtime.enter();
            ToTheEnd::new(yields, &tracker)
        };
        runtime.block_on(async { assert!((&mut work).now_or_never().is_none()) });
        drop(work);
        runtime.block_on(heard).expect("told");
    }

    #[test]
    fn without_a_runtime_it_is_dropped() {
        let tracker = TaskTracker::new();
        let (told, mut heard) = oneshot::channel();
        drop(ToTheEnd::new(async move { told.send(()) }, &tracker));
        assert_eq!(heard.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(tracker.is_empty());
    }
}
