//! One handler a row, one file a resource. A handler brings params to the engine and results back; it decides nothing.
//!
//! Neighbours: none.

pub(crate) mod change;
mod page;
pub(crate) mod payload;
pub(crate) mod server;
pub(crate) mod thread;
pub(crate) mod turn;
