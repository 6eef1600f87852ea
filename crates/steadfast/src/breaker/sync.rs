//! What the gate synchronises with. `tests/loom` compiles the gate with loom's in its place.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
