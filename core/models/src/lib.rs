//! Models: a request in, a stream of model events out.
//!
//! [`Models`] knows every model of the process by its ref: the two that are built in, those of the providers in
//! [`ModelsConfig`], and what extensions add as a [`Provider`]. [`Models::resolve`] gives a [`ResolvedModel`], and its
//! [`stream`](ResolvedModel::stream) turns a [`ModelRequest`] into [`ModelEvent`]s, the same ones for every provider.
//!
//! What the rest of the engine may rely on, whatever a server sends:
//!
//! - A reply is finished only when its provider said so. [`ModelEvent::Finish`] comes once and last; a connection that
//!   ends before it gives an error, and no [`ModelEvent::ToolCall`] of such a reply is ever seen.
//! - A [`ModelError`] has a class, tells whether a retry can help, carries the provider's own words, and holds no key.
//! - A model that takes no images is sent none: a note in the text stands for them.
//! - Every buffer has a limit with a name.
//!
//! A provider's format is a pure decoder of bytes (`wire`), and only `http` opens connections. One loop over sockets
//! and JSON would be shorter, but the formats' many oddities could then not be tested on every way of cutting the
//! bytes, and that is where they go wrong.
//!
//! ```
//! use futures_util::StreamExt;
//! use raddle_models::{Message, ModelEvent, ModelRequest, Models, ModelsConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let models = Models::new(ModelsConfig::default());
//! let model = models.resolve(&"builtin/script".parse()?).await?;
//! let prompt = "script: text Hello, ;; text world.";
//! let mut reply = model.stream(ModelRequest { messages: vec![Message::user(prompt)], ..ModelRequest::default() });
//! let mut text = String::new();
//! while let Some(event) = reply.next().await {
//!     if let ModelEvent::Text(delta) = event? {
//!         text.push_str(&delta);
//!     }
//! }
//! assert_eq!(text, "Hello,world.");
//! # Ok(())
//! # }
//! ```
//!
//! It must never import the engine, know what a thread is, or run a tool.

mod builtin;
mod config;
mod discover;
mod echo;
mod environment;
mod error;
mod event;
mod http;
mod openai;
mod provider;
mod registry;
mod request;
mod script;
mod secret;
mod wire;

pub use config::{
    BUILTIN_PROVIDER, MaxTokensField, ModelConfig, ModelsConfig, ProviderConfig, ProviderKind,
    ReasoningReplay, TimeLimits,
};
pub use discover::{DISCOVERED_MODELS_MAX, DISCOVERY_TIME_MAX};
pub use environment::{FoundModels, PROBE_TIME_MAX};
pub use error::{KNOWN_MODELS_MAX, ModelError, ModelsError};
pub use event::{FinishReason, ModelEvent, ModelStream, ToolCall};
pub use provider::Provider;
pub use registry::{Models, ResolvedModel};
pub use request::{AssistantPart, ImagePart, Message, ModelRequest, ToolDef};
pub use secret::Secret;
