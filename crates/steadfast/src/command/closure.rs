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

/// An async closure, or function, of two arguments that can be called again.
#[diagnostic::on_unimplemented(
    message = "this handler is not an `async fn` of the transaction, or the event's context, and the event",
    note = "a handler that needs something of its own is a method of a `#[steadfast::service]`, under `#[on(..)]`"
)]
pub trait AsyncReact<A, B, T>: AsyncFn(A, B) -> T + Fn(A, B) -> <Self as AsyncReact<A, B, T>>::Fut {
    /// The future of one call.
    type Fut: Future<Output = T>;
}

impl<F, A, B, Fut, T> AsyncReact<A, B, T> for F
where
    F: AsyncFn(A, B) -> T + Fn(A, B) -> Fut,
    Fut: Future<Output = T>,
{
    type Fut = Fut;
}

/// An async closure of two arguments that is called once.
#[diagnostic::on_unimplemented(message = "this is not `async |aggregate, db| {{ .. }}`")]
pub trait AsyncSave<A, B, T>: AsyncFnOnce(A, B) -> T + FnOnce(A, B) -> <Self as AsyncSave<A, B, T>>::Fut {
    /// The future of the call.
    type Fut: Future<Output = T>;
}

impl<F, A, B, Fut, T> AsyncSave<A, B, T> for F
where
    F: AsyncFnOnce(A, B) -> T + FnOnce(A, B) -> Fut,
    Fut: Future<Output = T>,
{
    type Fut = Fut;
}
