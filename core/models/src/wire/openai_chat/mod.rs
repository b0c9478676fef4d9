//! OpenAI chat completions, and everything that calls itself compatible with it.
//!
//! [`encode`] turns a request into the body; [`ReplyDecoder`] turns the bytes of the reply, cut anywhere, into model
//! events. Servers differ in what they leave out, rename or double, so the decoder is tolerant about how a thing is
//! said and strict about one thing only: whether the reply was finished.
//!
//! Neighbours: none.

mod calls;
mod chunk;
mod decoder;
mod encode;

pub(crate) use decoder::ReplyDecoder;
pub(crate) use encode::{Dialect, encode};

#[cfg(test)]
mod tests;
