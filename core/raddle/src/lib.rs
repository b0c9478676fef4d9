//! Raddle, an embeddable engine for LLM agent threads.
//!
//! A host opens [`Raddle`] in its own process, connects a [`Client`], and from then on hosts any number of conversation
//! threads: streamed turns, tools under approval, durable history. The client speaks the typed protocol of
//! [`protocol`]: each method is a type in [`protocol::methods::method`], passed to [`Client::request`].
//!
//! ```
//! # use raddle::protocol::methods::{ServerNotification, method};
//! # use raddle::protocol::thread::ThreadStartParams;
//! # use raddle::protocol::turn::TurnStartParams;
//! # use raddle::{Options, Raddle};
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let home = tempfile::tempdir()?;
//! # let cwd = home.path().display().to_string();
//! # let options = Options { models: Some(raddle::engine::models::Models::new(Default::default())), ..Options::in_home(home.path()) };
//! let raddle = Raddle::open(options).await?;
//! let client = raddle.client("example", "1.0").await?;
//! let mut notifications = client.notifications();
//!
//! let params = ThreadStartParams { cwd, ..Default::default() };
//! let thread = client.request::<method::ThreadStart>(params).await?.thread;
//! client.request::<method::TurnStart>(TurnStartParams::new(thread.id, "Hello, thread!")).await?;
//!
//! let mut text = String::new();
//! while let Some(notification) = notifications.next().await {
//!     match notification {
//!         ServerNotification::ItemAgentMessageDelta(delta) => text.push_str(&delta.delta),
//!         ServerNotification::TurnCompleted(_) => break,
//!         _ => {}
//!     }
//! }
//! assert_eq!(text, "Hello, thread!");
//! raddle.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same [`Client`] also drives a server elsewhere: over any reader and writer ([`Client::over`]), or in a child process
//! that it starts and ends ([`Client::spawn`]). Messages are lines of JSON then; nothing else differs.
//!
//! This is the crate that a Rust host depends on. It holds no logic of threads or turns; it is the face of those below.

mod client;
mod error;
mod host;
mod link;
mod notifications;
mod payload;
mod process;
mod pump;

pub use client::{Client, FAR_END_AFTER, Registration};
pub use error::{ClientError, OpenError};
pub use host::{Options, Raddle, create_in_process_client};
pub use notifications::Notifications;
pub use payload::PayloadReader;
pub use process::{ServerStderr, SpawnOptions};
pub use pump::HANDLERS_RUNNING_MAX;
pub use raddle_server::Answered;

pub use raddle_engine as engine;
pub use raddle_protocol as protocol;
pub use raddle_server as server;
