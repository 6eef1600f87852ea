//! What [`#[steadfast::service]`](macro@crate::service) writes calls of, and what you call where you write it by hand.
//!
//! A command in plain Rust is [`Steadfast::command`]; over HTTP it is [`Steadfast::idempotent`] around a handler that takes
//! a [`CmdTx`](crate::CmdTx). This module adds what is left: [`Call`] reads a request into arguments, [`Answer`] makes a
//! response of what came out, and [`register`] sees that an operation means one thing.

use std::panic::Location;
use std::sync::Arc;

use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::operations::Place;
use crate::steadfast::Steadfast;
use crate::store::Database;

#[cfg(feature = "axum")]
pub use crate::transport::service::{Accept, Answer, Call, command, query, segment};
#[cfg(feature = "axum")]
pub use axum::{Router, routing::MethodFilter};
#[cfg(feature = "axum")]
pub use http::StatusCode;

/// What is said where a command is also cacheable.
#[deprecated(
    note = "SF004: a cache would answer instead of the command, without looking at its key, so `max_age` has no effect here; remove it, or make this a `#[query]`"
)]
#[doc(hidden)]
pub const SF004: () = ();

/// What is said where a scope is global.
#[deprecated(
    note = "SF005: under a global scope whoever guesses a key gets the answer stored under it; write `scope = user` or `scope = tenant`, or `#[allow(deprecated)]` if all callers are one party"
)]
#[doc(hidden)]
pub const SF005: () = ();

/// Takes the names of a service's operations on this database. Taking them again for the same service is fine.
///
/// # Panics
/// With SF302 if another service has one of them: the keys of the one would be answered by the other. It is a mistake of the
/// program, found when it starts, as two handlers on one route are.
#[track_caller]
pub fn register<Db: Database>(sf: &Steadfast<Db>, service: &'static str, operations: &[&'static str]) {
    let place = Place {
        service,
        location: Location::caller(),
    };
    for operation in operations {
        if let Some(other) = sf.operations().take(operation, place) {
            let message =
                format!("{place} and {other} both have the operation {operation:?}; give one of them another name");
            panic!("{:?}", Error::new(Code::OperationTaken, message));
        }
    }
}

/// A service that reacts to events, on one database: what [`#[on]`](macro@crate::service#reactions) writes, once for each database
/// of the block. `Orders.on(&sf)` calls it.
///
/// By hand it is not needed: register reactions where the program starts.
#[diagnostic::on_unimplemented(
    message = "the reactions of `{Self}` are not written for `{Db}`",
    note = "name the database in `#[steadfast::service(db = [..])]`"
)]
pub trait React<Db: Database> {
    /// Registers its reactions. They keep the service for as long as they are registered.
    fn react(service: &Arc<Self>, sf: &Steadfast<Db>);
}

/// The stored name of the job that is made of the ticks of a method: what [`#[cron]`](macro@crate::service#schedules) writes.
#[cfg(feature = "schedule")]
#[doc(hidden)]
pub trait Ticked: Send + Sync + 'static {
    const NAME: &'static str;
}

/// A job that says nothing but that its time has come. It is stored as `{}`, so that a job with fields can take its place, and whatever
/// is stored is read as it.
#[cfg(feature = "schedule")]
#[doc(hidden)]
pub struct Ticks<T>(std::marker::PhantomData<fn() -> T>);

#[cfg(feature = "schedule")]
impl<T> Default for Ticks<T> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

#[cfg(feature = "schedule")]
impl<T> serde::Serialize for Ticks<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        serializer.serialize_map(Some(0))?.end()
    }
}

#[cfg(feature = "schedule")]
impl<'de, T> serde::Deserialize<'de> for Ticks<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}

#[cfg(feature = "schedule")]
impl<T: Ticked> crate::Job for Ticks<T> {
    const NAME: &'static str = T::NAME;
}

/// What a handler failed with, as the error a caller gets.
pub fn failed(failure: impl Into<Failure>) -> Error {
    Error::failed(failure.into(), false)
}

/// What a query ended with, as the result a caller gets.
///
/// # Errors
/// [`Code::HandlerFailed`] with the handler's failure.
pub fn answered<T, E: Into<Failure>>(ended: Result<T, E>) -> Result<T> {
    ended.map_err(failed)
}
