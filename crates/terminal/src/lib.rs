//! What our programs show on a terminal: tables, and how far they are.

mod bar;
mod table;

pub use bar::Bar;
pub use table::table;
