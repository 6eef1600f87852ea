//! The shape of a handler written as `async |tx| { .. }`.
//!
//! `AsyncFn` cannot yet say that its futures may move between threads, and axum and `tokio::spawn` need that. These
//! two traits give the future a name (the technique of diesel-async), so that a bound can. Every async closure has
//! them; nobody implements them by hand.

use std::future::Future;

/// An async closure that can be called again: what it needs is borrowed, not moved in.
#[diagnostic::on_unimplemented(
    message = "this handler is not `async |tx| {{ .. }}`, or cannot be called again",
    note = "borrow what it needs instead of moving it in; a handler that must own something goes to `run_once`"
)]
pub trait AsyncRerun<A, T>: AsyncFn(A) -> T + Fn(A) -> <Self as AsyncRerun<A, T>>::Fut {
    /// The future of one call.
    type Fut: Future<Output = T>;
}

impl<F, A, Fut, T> AsyncRerun<A, T> for F
where
    F: AsyncFn(A) -> T + Fn(A) -> Fut,
    Fut: Future<Output = T>,
{
    type Fut = Fut;
}

/// An async closure that is called once.
#[diagnostic::on_unimplemented(message = "this handler is not `async |tx| {{ .. }}`")]
pub trait AsyncOnce<A, T>: AsyncFnOnce(A) -> T + FnOnce(A) -> <Self as AsyncOnce<A, T>>::Fut {
    /// The future of the call.
    type Fut: Future<Output = T>;
}

impl<F, A, Fut, T> AsyncOnce<A, T> for F
where
    F: AsyncFnOnce(A) -> T + FnOnce(A) -> Fut,
    Fut: Future<Output = T>,
{
    type Fut = Fut;
}
