//! The one table of the protocol. A method is one row: wire name, params, result, scope, errors.
//!
//! Everything that depends on the set of methods is generated from here: the typed enums that move over
//! in-process channels, decoding and encoding for transports of bytes, the schema, and the documentation.
//!
//! Neighbours: approval, error, model, payload, server, thread, turn, usage.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::approval::{RequestApprovalParams, RequestApprovalResult, ServerRequestCancelledNotification};
use crate::error::{ErrorCode, RpcError};
use crate::model::{ModelListParams, ModelListResult};
use crate::payload::{PayloadReadParams, PayloadReadResult};
use crate::server::{
    DiagnosticsParams, DiagnosticsResult, ErrorNotification, InitializeParams, InitializeResult,
    InitializedParams, WarningNotification,
};
use crate::thread::{
    ThreadArchiveResult, ThreadCompactParams, ThreadCompactResult, ThreadDeleteResult, ThreadForkParams,
    ThreadForkResult, ThreadIdNotification, ThreadIdParams, ThreadListParams, ThreadListResult,
    ThreadNameNotification, ThreadNameSetParams, ThreadNameSetResult, ThreadNotification, ThreadReadParams,
    ThreadReadResult, ThreadReplacedNotification, ThreadResumeResult, ThreadRewindParams, ThreadRewindResult,
    ThreadRewoundNotification, ThreadSettingsUpdateParams, ThreadSettingsUpdateResult, ThreadStartParams,
    ThreadStartResult, ThreadStatusNotification, ThreadUnarchiveResult, ThreadUnsubscribeResult,
};
use crate::turn::{
    DeltaNotification, ItemNotification, ItemRemovedNotification, TurnInterruptParams, TurnInterruptResult,
    TurnNotification, TurnQueueAddParams, TurnQueueAddResult, TurnQueueRemoveParams, TurnQueueRemoveResult,
    TurnQueueUpdatedNotification, TurnRetryingNotification, TurnSendParams, TurnSendResult, TurnStartParams,
    TurnStartResult, TurnSteerParams, TurnSteerResult,
};
use crate::usage::TokenUsageUpdatedNotification;

/// What a request is ordered against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The connection alone.
    Connection,
    /// Nothing: it reads, and may overtake others.
    Read,
    /// The thread that it names: such requests run in the order of their arrival.
    Thread,
}

/// Who gets a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Connections that subscribed to the thread.
    Subscribers,
    /// Every initialised connection.
    Everyone,
    /// The one connection that it concerns.
    Connection,
}

/// Which way a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A request of a client, with its ordering.
    ClientRequest(Scope),
    /// A request of the server.
    ServerRequest,
    /// A notification of a client.
    ClientNotification,
    /// A notification of the server, with its audience.
    ServerNotification(Audience),
}

/// A row of the table, for documentation and checks.
#[derive(Clone, Copy, Debug)]
pub struct MethodRow {
    /// The wire name.
    pub name: &'static str,
    /// Which way it goes.
    pub direction: Direction,
    /// The errors of its own; those of every method (`notInitialized`, `invalidParams`, `shuttingDown`,
    /// `internal`) are not repeated.
    pub errors: &'static [ErrorCode],
    /// One line about it.
    pub doc: &'static str,
}

/// A request of a client, as a type: what ties a method's params to its result.
pub trait Method: Send + Sync + 'static {
    /// The wire name.
    const NAME: &'static str;
    /// What is asked.
    type Params: Serialize + DeserializeOwned + Send + 'static;
    /// What is answered.
    type Result: Serialize + DeserializeOwned + Send + 'static;
    /// The params as the request that moves over a channel.
    fn request(params: Self::Params) -> ClientRequest;
    /// The answer out of a response; `None` when the response is another method's.
    fn result(response: ClientResponse) -> Option<Self::Result>;
}

fn decode_params<T: DeserializeOwned>(method: &str, params: Value) -> Result<T, RpcError> {
    // A request without params means the same as one with an empty object.
    let params = if params.is_null() { Value::Object(serde_json::Map::new()) } else { params };
    serde_json::from_value(params).map_err(|error| RpcError::invalid_params(format!("{method}: {error}")))
}

fn encode<T: Serialize>(value: &T) -> Result<Value, serde_json::Error> {
    serde_json::to_value(value)
}

macro_rules! method_table {
    (
        client_requests {
            $(#[doc = $cr_doc:literal] $cr:ident $cr_name:literal ($cr_params:ty) -> $cr_result:ty,
                $cr_scope:ident, [$($cr_err:ident),*];)+
        }
        server_requests {
            $(#[doc = $sr_doc:literal] $sr:ident $sr_name:literal ($sr_params:ty) -> $sr_result:ty;)+
        }
        client_notifications {
            $(#[doc = $cn_doc:literal] $cn:ident $cn_name:literal ($cn_params:ty);)+
        }
        server_notifications {
            $(#[doc = $sn_doc:literal] $sn:ident $sn_name:literal ($sn_params:ty), $sn_audience:ident;)+
        }
    ) => {
        /// All rows, in the order of the table.
        pub const METHODS: &[MethodRow] = &[
            $(MethodRow {
                name: $cr_name,
                direction: Direction::ClientRequest(Scope::$cr_scope),
                errors: &[$(ErrorCode::$cr_err),*],
                doc: $cr_doc,
            },)+
            $(MethodRow { name: $sr_name, direction: Direction::ServerRequest, errors: &[], doc: $sr_doc },)+
            $(MethodRow { name: $cn_name, direction: Direction::ClientNotification, errors: &[], doc: $cn_doc },)+
            $(MethodRow {
                name: $sn_name,
                direction: Direction::ServerNotification(Audience::$sn_audience),
                errors: &[],
                doc: $sn_doc,
            },)+
        ];

        /// The methods as types, for [`Method`].
        pub mod method {
            $(#[doc = $cr_doc] #[derive(Clone, Copy, Debug)] pub struct $cr;)+
        }

        $(impl Method for method::$cr {
            const NAME: &'static str = $cr_name;
            type Params = $cr_params;
            type Result = $cr_result;
            fn request(params: $cr_params) -> ClientRequest {
                ClientRequest::$cr(params)
            }
            fn result(response: ClientResponse) -> Option<$cr_result> {
                match response {
                    ClientResponse::$cr(result) => Some(*result),
                    _ => None,
                }
            }
        })+

        /// A request of a client.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ClientRequest {
            $(#[doc = $cr_doc] $cr($cr_params),)+
        }

        impl ClientRequest {
            /// The wire name.
            pub fn method(&self) -> &'static str {
                match self { $(Self::$cr(_) => $cr_name,)+ }
            }

            /// What it is ordered against.
            pub fn scope(&self) -> Scope {
                match self { $(Self::$cr(_) => Scope::$cr_scope,)+ }
            }

            /// Reads params as they came over a transport of bytes.
            ///
            /// # Errors
            /// `methodNotFound` and `invalidParams`.
            pub fn decode(method: &str, params: Value) -> Result<Self, RpcError> {
                match method {
                    $($cr_name => decode_params(method, params).map(Self::$cr),)+
                    _ => Err(RpcError::new(
                        ErrorCode::MethodNotFound,
                        format!("there is no method `{method}`"),
                    )),
                }
            }

            /// The params for a transport of bytes.
            ///
            /// # Errors
            /// When a value has no JSON form; ours all have one.
            pub fn params(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$cr(params) => encode(params),)+ }
            }
        }

        /// The answer to a request of a client.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ClientResponse {
            $(#[doc = $cr_doc] $cr(Box<$cr_result>),)+
        }

        $(impl From<$cr_result> for ClientResponse {
            fn from(result: $cr_result) -> Self {
                Self::$cr(Box::new(result))
            }
        })+

        impl ClientResponse {
            /// The result for a transport of bytes.
            ///
            /// # Errors
            /// When a value has no JSON form; ours all have one.
            pub fn result(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$cr(result) => encode(result),)+ }
            }

            /// Reads the result of `method` as it came over a transport of bytes.
            ///
            /// # Errors
            /// `methodNotFound` for a method that is not ours, `internal` for a result that does not fit.
            pub fn decode(method: &str, result: Value) -> Result<Self, RpcError> {
                match method {
                    $($cr_name => serde_json::from_value(result).map(Self::$cr).map_err(|error| {
                        RpcError::new(ErrorCode::Internal, format!("the result of {method}: {error}"))
                    }),)+
                    _ => Err(RpcError::new(
                        ErrorCode::MethodNotFound,
                        format!("there is no method `{method}`"),
                    )),
                }
            }
        }

        /// A request of the server.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ServerRequest {
            $(#[doc = $sr_doc] $sr($sr_params),)+
        }

        impl ServerRequest {
            /// The wire name.
            pub fn method(&self) -> &'static str {
                match self { $(Self::$sr(_) => $sr_name,)+ }
            }

            /// The params for a transport of bytes.
            ///
            /// # Errors
            /// When a value has no JSON form; ours all have one.
            pub fn params(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$sr(params) => encode(params),)+ }
            }

            /// Reads params as they came over a transport of bytes.
            ///
            /// # Errors
            /// `methodNotFound` and `invalidParams`.
            pub fn decode(method: &str, params: Value) -> Result<Self, RpcError> {
                match method {
                    $($sr_name => decode_params(method, params).map(Self::$sr),)+
                    _ => Err(RpcError::new(
                        ErrorCode::MethodNotFound,
                        format!("there is no request `{method}`"),
                    )),
                }
            }

            /// Reads an answer to this request as it came over a transport of bytes.
            ///
            /// # Errors
            /// `invalidParams` when it does not fit.
            pub fn decode_answer(&self, result: Value) -> Result<ServerAnswer, RpcError> {
                ServerAnswer::decode(self.method(), result)
            }
        }

        /// A client's answer to a request of the server.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ServerAnswer {
            $(#[doc = $sr_doc] $sr($sr_result),)+
        }

        impl ServerAnswer {
            /// The result for a transport of bytes.
            ///
            /// # Errors
            /// When a value has no JSON form; ours all have one.
            pub fn result(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$sr(result) => encode(result),)+ }
            }

            /// Reads the answer to `method` as it came over a transport of bytes.
            ///
            /// # Errors
            /// `methodNotFound` for a method that is not ours, `invalidParams` for an answer that does not fit.
            pub fn decode(method: &str, result: Value) -> Result<Self, RpcError> {
                match method {
                    $($sr_name => decode_params(method, result).map(Self::$sr),)+
                    _ => Err(RpcError::new(
                        ErrorCode::MethodNotFound,
                        format!("there is no request `{method}`"),
                    )),
                }
            }
        }

        $(impl From<$sr_result> for ServerAnswer {
            fn from(result: $sr_result) -> Self {
                Self::$sr(result)
            }
        })+

        /// A notification of a client.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ClientNotification {
            $(#[doc = $cn_doc] $cn($cn_params),)+
        }

        impl ClientNotification {
            /// The wire name.
            pub fn method(&self) -> &'static str {
                match self { $(Self::$cn(_) => $cn_name,)+ }
            }

            /// The params for a transport of bytes.
            ///
            /// # Errors
            /// When a value has no JSON form; ours all have one.
            pub fn params(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$cn(params) => encode(params),)+ }
            }

            /// Reads params as they came over a transport of bytes.
            ///
            /// # Errors
            /// `methodNotFound` and `invalidParams`.
            pub fn decode(method: &str, params: Value) -> Result<Self, RpcError> {
                match method {
                    $($cn_name => decode_params(method, params).map(Self::$cn),)+
                    _ => Err(RpcError::new(
                        ErrorCode::MethodNotFound,
                        format!("there is no notification `{method}`"),
                    )),
                }
            }
        }

        /// A notification of the server.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ServerNotification {
            $(#[doc = $sn_doc] $sn($sn_params),)+
        }

        impl ServerNotification {
            /// The wire name.
            pub fn method(&self) -> &'static str {
                match self { $(Self::$sn(_) => $sn_name,)+ }
            }

            /// Who gets it.
            pub fn audience(&self) -> Audience {
                match self { $(Self::$sn(_) => Audience::$sn_audience,)+ }
            }

            /// The params for a transport of bytes.
            ///
            /// # Errors
            /// When a value has no JSON form; ours all have one.
            pub fn params(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$sn(params) => encode(params),)+ }
            }

            /// Reads a notification as it came over a transport of bytes.
            ///
            /// # Errors
            /// `methodNotFound` for a name that is not ours, `invalidParams` for params that do not fit.
            pub fn decode(method: &str, params: Value) -> Result<Self, RpcError> {
                match method {
                    $($sn_name => decode_params(method, params).map(Self::$sn),)+
                    _ => Err(RpcError::new(
                        ErrorCode::MethodNotFound,
                        format!("there is no notification `{method}`"),
                    )),
                }
            }
        }

        /// Adds the schema of every row to a generator: for each wire name its params, and its result if it has one.
        pub(crate) fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<RowSchema> {
            vec![
                $(RowSchema {
                    name: $cr_name,
                    params: generator.subschema_for::<$cr_params>(),
                    result: Some(generator.subschema_for::<$cr_result>()),
                },)+
                $(RowSchema {
                    name: $sr_name,
                    params: generator.subschema_for::<$sr_params>(),
                    result: Some(generator.subschema_for::<$sr_result>()),
                },)+
                $(RowSchema { name: $cn_name, params: generator.subschema_for::<$cn_params>(), result: None },)+
                $(RowSchema { name: $sn_name, params: generator.subschema_for::<$sn_params>(), result: None },)+
            ]
        }
    };
}

pub(crate) struct RowSchema {
    pub(crate) name: &'static str,
    pub(crate) params: schemars::Schema,
    pub(crate) result: Option<schemars::Schema>,
}

method_table! {
    client_requests {
        /// Opens the connection; the first request, once.
        Initialize "initialize" (InitializeParams) -> InitializeResult, Connection, [InvalidRequest];
        /// Creates a durable thread and subscribes to it.
        ThreadStart "thread/start" (ThreadStartParams) -> ThreadStartResult, Read, [];
        /// Reads a page of saved history; loads, locks and writes nothing.
        ThreadRead "thread/read" (ThreadReadParams) -> ThreadReadResult, Read, [ThreadNotFound, InvalidCursor];
        /// Loads a thread, owns it, subscribes, and answers with history and live state as of one moment.
        ThreadResume "thread/resume" (ThreadReadParams) -> ThreadResumeResult, Thread,
            [ThreadNotFound, InvalidCursor, ThreadLockedElsewhere];
        /// Lists threads, newest activity first.
        ThreadList "thread/list" (ThreadListParams) -> ThreadListResult, Read, [InvalidCursor];
        /// Changes a thread's settings for the turns to come.
        ThreadSettingsUpdate "thread/settings/update" (ThreadSettingsUpdateParams) -> ThreadSettingsUpdateResult,
            Thread, [ThreadNotFound, ThreadLockedElsewhere];
        /// Makes a thread that shares the history of another up to a turn, and subscribes to it.
        ThreadFork "thread/fork" (ThreadForkParams) -> ThreadForkResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere, TurnInProgress];
        /// Names a thread.
        ThreadNameSet "thread/name/set" (ThreadNameSetParams) -> ThreadNameSetResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere];
        /// Puts an idle thread away.
        ThreadArchive "thread/archive" (ThreadIdParams) -> ThreadArchiveResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere, TurnInProgress];
        /// Takes a thread out of the archive.
        ThreadUnarchive "thread/unarchive" (ThreadIdParams) -> ThreadUnarchiveResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere];
        /// Removes an archived thread for good.
        ThreadDelete "thread/delete" (ThreadIdParams) -> ThreadDeleteResult, Thread,
            [ThreadNotFound, ThreadNotArchived, TurnInProgress, ThreadLockedElsewhere];
        /// Ends this connection's subscription.
        ThreadUnsubscribe "thread/unsubscribe" (ThreadIdParams) -> ThreadUnsubscribeResult, Thread,
            [ThreadNotFound];
        /// Has the model sum up the conversation, and goes on from the summary.
        ThreadCompact "thread/compact" (ThreadCompactParams) -> ThreadCompactResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere, TurnInProgress];
        /// Takes the turns after one off the branch.
        ThreadRewind "thread/rewind" (ThreadRewindParams) -> ThreadRewindResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere, TurnInProgress];
        /// Starts a turn and subscribes; does not wait for its end.
        TurnStart "turn/start" (TurnStartParams) -> TurnStartResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere, TurnInProgress];
        /// Hands input to the running turn.
        TurnSteer "turn/steer" (TurnSteerParams) -> TurnSteerResult, Thread,
            [ThreadNotFound, TurnMismatch, ThreadLockedElsewhere];
        /// Stops the running turn; answers at once.
        TurnInterrupt "turn/interrupt" (TurnInterruptParams) -> TurnInterruptResult, Thread,
            [ThreadNotFound, TurnMismatch, ThreadLockedElsewhere];
        /// Starts, steers or queues, whichever fits, in one step; subscribes if it starts a turn.
        TurnSend "turn/send" (TurnSendParams) -> TurnSendResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere];
        /// Queues an input that starts a turn of its own once the thread is idle.
        TurnQueueAdd "turn/queue/add" (TurnQueueAddParams) -> TurnQueueAddResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere];
        /// Takes an input out of the queue.
        TurnQueueRemove "turn/queue/remove" (TurnQueueRemoveParams) -> TurnQueueRemoveResult, Thread,
            [ThreadNotFound, ThreadLockedElsewhere];
        /// Reads a chunk of a large value.
        PayloadRead "payload/read" (PayloadReadParams) -> PayloadReadResult, Read, [];
        /// Lists the models of all providers.
        ModelList "model/list" (ModelListParams) -> ModelListResult, Read, [];
        /// Tells how the whole process is doing.
        ServerDiagnostics "server/diagnostics" (DiagnosticsParams) -> DiagnosticsResult, Read, [];
    }
    server_requests {
        /// Asks a person whether a tool may run.
        ItemToolCallRequestApproval "item/toolCall/requestApproval" (RequestApprovalParams) -> RequestApprovalResult;
    }
    client_notifications {
        /// Ends the handshake.
        Initialized "initialized" (InitializedParams);
    }
    server_notifications {
        /// A thread was created.
        ThreadStarted "thread/started" (ThreadNotification), Everyone;
        /// A thread does something else now.
        ThreadStatusChanged "thread/status/changed" (ThreadStatusNotification), Everyone;
        /// A thread has another name, or none.
        ThreadNameUpdated "thread/name/updated" (ThreadNameNotification), Everyone;
        /// A thread was put away.
        ThreadArchived "thread/archived" (ThreadIdNotification), Everyone;
        /// A thread was taken out of the archive.
        ThreadUnarchived "thread/unarchived" (ThreadIdNotification), Everyone;
        /// A thread is gone for good.
        ThreadDeleted "thread/deleted" (ThreadIdNotification), Everyone;
        /// Turns left the branch.
        ThreadRewound "thread/rewound" (ThreadRewoundNotification), Subscribers;
        /// A subscription went over to another thread.
        ThreadReplaced "thread/replaced" (ThreadReplacedNotification), Subscribers;
        /// A turn ended, for those who do not subscribe.
        ThreadTurnCompleted "thread/turn/completed" (TurnNotification), Everyone;
        /// A turn began.
        TurnStarted "turn/started" (TurnNotification), Subscribers;
        /// A turn ended.
        TurnCompleted "turn/completed" (TurnNotification), Subscribers;
        /// The provider failed and is asked again.
        TurnRetrying "turn/retrying" (TurnRetryingNotification), Subscribers;
        /// What waits has changed.
        TurnQueueUpdated "turn/queue/updated" (TurnQueueUpdatedNotification), Subscribers;
        /// An item began.
        ItemStarted "item/started" (ItemNotification), Subscribers;
        /// An item as it finally is.
        ItemCompleted "item/completed" (ItemNotification), Subscribers;
        /// An item is withdrawn.
        ItemRemoved "item/removed" (ItemRemovedNotification), Subscribers;
        /// Text of an agent message.
        ItemAgentMessageDelta "item/agentMessage/delta" (DeltaNotification), Subscribers;
        /// Text of a reasoning item.
        ItemReasoningDelta "item/reasoning/delta" (DeltaNotification), Subscribers;
        /// Output of a running tool.
        ItemToolCallOutputDelta "item/toolCall/outputDelta" (DeltaNotification), Subscribers;
        /// The thread's token totals.
        ThreadTokenUsageUpdated "thread/tokenUsage/updated" (TokenUsageUpdatedNotification), Subscribers;
        /// A request of the server needs no answer any more.
        ServerRequestCancelled "serverRequest/cancelled" (ServerRequestCancelledNotification), Connection;
        /// Something failed that no response can tell.
        Error "error" (ErrorNotification), Subscribers;
        /// Something went wrong that does not stop the thread.
        Warning "warning" (WarningNotification), Subscribers;
    }
}
