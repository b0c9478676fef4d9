//! What a model answers: neutral between providers.
//!
//! Neighbours: error.

use std::pin::Pin;

use futures_util::Stream;
use raddle_protocol::TokenCounts;

use crate::error::ModelError;

/// The events of one reply.
///
/// The stream ends after [`ModelEvent::Finish`] or after the first error. One that ends without either was cut,
/// and what it said is not a whole reply. Dropping the stream before its end closes its connection; after
/// [`ModelEvent::Finish`] it can be dropped at no such cost.
///
/// # Cancel safety
///
/// Dropping the future of `next()` loses nothing: the next call goes on where it stopped.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelEvent, ModelError>> + Send>>;

/// One step of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelEvent {
    /// The provider is alive and has nothing to say yet: a comment, an empty chunk.
    Ping,
    /// More of the answer; never empty.
    Text(String),
    /// More of the thinking; never empty.
    Reasoning(String),
    /// What the thinking so far is signed with.
    ReasoningSignature(String),
    /// A whole tool call. Comes only after the provider has finished the reply, never from a cut stream.
    ToolCall(ToolCall),
    /// What the reply used; at most once. It can come before an error, too.
    Usage(TokenCounts),
    /// The reply is complete. Exactly once, and last.
    Finish(FinishReason),
}

/// A tool call, as the model wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The provider's id; absent when it gave none. Unique only within the reply, if that.
    pub id: Option<String>,
    /// The tool; never empty.
    pub name: String,
    /// The input. A finished reply gives `{}` for none at all; otherwise it is what the model wrote, which need not
    /// be JSON.
    pub arguments: String,
    /// What the provider signed the call with.
    pub signature: Option<String>,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// It said all it had to say.
    Stop,
    /// It waits for the results of its calls.
    ToolCalls,
    /// It met the limit of its output or of its window. A call in it may be cut short.
    Length,
    /// The provider withheld the rest.
    ContentFilter,
    /// The provider said that the reply is complete and not why.
    Unknown,
}
