//! The providers' formats, pure: a request becomes bytes, bytes become model events. No sockets, no clock.
//!
//! Neighbours: none.

pub(crate) mod fault;
pub(crate) mod openai_chat;
pub(crate) mod sse;
