//! Requests about turns: starting, steering, queueing, stopping.
//!
//! Neighbours: error, input, subscriber, thread, turn.

use std::sync::Arc;

use raddle_protocol::ThreadId;
use raddle_protocol::limits::{IDEMPOTENCY_KEY_CHARS_MAX, REQUEST_TOKEN_BYTES_MAX};
use raddle_protocol::turn::{
    TurnInterruptParams, TurnQueueAddParams, TurnQueueRemoveParams, TurnSendParams, TurnSendResult,
    TurnStartParams, TurnStartResult, TurnSteerParams, TurnSteerResult,
};

use super::Engine;
use crate::error::Error;
use crate::input;
use crate::subscriber::{Answer, ConnectionId, Subscriber};
use crate::thread::{Change, Message, Start};
use crate::turn::{Refusal, Said};

impl Engine {
    /// Ends a subscription of a connection that is gone. A thread that is not loaded has none.
    pub async fn detach(&self, id: &ThreadId, connection: ConnectionId) {
        if let Some(handle) = self.shared.loaded(id) {
            let _ = handle.send(Message::Detach { connection, answer: None }).await;
        }
    }

    /// Ends a subscription; answers whether there was one.
    pub async fn unsubscribe(&self, id: &ThreadId, connection: ConnectionId, answer: Answer<bool>) {
        let detach = Message::Detach { connection, answer: Some(answer) };
        let returned = match self.shared.loaded(id) {
            Some(handle) => handle.send(detach).await,
            None => Err(detach),
        };
        if let Err(Message::Detach { answer: Some(answer), .. }) = returned {
            // A thread that is not loaded has no subscribers; one that does not exist is told of.
            answer.send(self.shared.store.thread(id).await.map(|_| false).map_err(Error::from));
        }
    }

    /// Starts a turn, loading the thread if need be; the answer does not wait for the turn's end.
    pub async fn start_turn(
        &self,
        params: TurnStartParams,
        subscriber: Arc<dyn Subscriber>,
        answer: Answer<TurnStartResult>,
    ) {
        let id = params.thread_id.clone();
        match ready(params, None).await {
            Ok(start) => {
                let start = Box::new(start);
                let message = Message::StartTurn { start, subscriber: Some(subscriber), answer };
                self.shared.deliver(&id, message).await;
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Starts, steers or queues, whichever fits the thread at that moment, loading it if need be.
    pub async fn send(
        &self,
        params: TurnSendParams,
        subscriber: Arc<dyn Subscriber>,
        answer: Answer<TurnSendResult>,
    ) {
        let TurnSendParams { start, mode, idempotency_key } = params;
        let id = start.thread_id.clone();
        match ready(start, idempotency_key).await {
            Ok(start) => {
                let start = Box::new(start);
                self.shared.deliver(&id, Message::Send { start, mode, subscriber, answer }).await;
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Queues an input, loading the thread if need be; answers with its id in the queue.
    pub async fn queue_add(&self, params: TurnQueueAddParams, answer: Answer<String>) {
        let TurnQueueAddParams { thread_id, text, images, request_id, client_message_id } = params;
        let params =
            TurnStartParams { thread_id: thread_id.clone(), text, images, request_id, client_message_id };
        match ready(params, None).await {
            Ok(start) => {
                let change = Change::Queue { start: Box::new(start), answer };
                self.shared.deliver(&thread_id, Message::Change(change)).await;
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Takes an input out of the queue, loading the thread if need be; answers whether it was there.
    pub async fn queue_remove(&self, params: TurnQueueRemoveParams, answer: Answer<bool>) {
        let TurnQueueRemoveParams { thread_id, queue_id } = params;
        let change = Change::Unqueue { queue_id, answer };
        self.shared.deliver(&thread_id, Message::Change(change)).await;
    }

    /// Adds to the running turn.
    pub async fn steer(&self, params: TurnSteerParams, answer: Answer<TurnSteerResult>) {
        let TurnSteerParams { thread_id, expected_turn_id: expected, text, images, client_message_id } =
            params;
        let said = match input::said(text, images, client_message_id).await {
            Ok(said) => Box::new(said),
            Err(error) => return answer.send(Err(error)),
        };
        match self.running_thread(&thread_id, Message::Steer { expected, said, answer }).await {
            Ok(()) => {}
            Err(message) => message.fail(Refusal::TurnMismatch { running: None }.into()),
        }
    }

    /// Stops the running turn and drops what waits in the queue; the answer does not wait for the turn's end.
    pub async fn interrupt(&self, params: TurnInterruptParams, answer: Answer<()>) {
        let id = params.thread_id.clone();
        match self.running_thread(&id, Message::Change(Change::Interrupt { params, answer })).await {
            Ok(()) => {}
            Err(Message::Change(Change::Interrupt {
                params: params @ TurnInterruptParams { turn_id: None, .. },
                answer,
            })) => {
                // Nothing runs, but inputs may wait for the next load: they go as they would on a loaded thread.
                match self.shared.store.queue(&id).await {
                    Ok(queue) if queue.is_empty() => answer.send(Ok(())),
                    Ok(_) => {
                        let interrupt = Change::Interrupt { params, answer };
                        self.shared.deliver(&id, Message::Change(interrupt)).await;
                    }
                    Err(error) => answer.send(Err(error.into())),
                }
            }
            Err(message) => message.fail(Refusal::TurnMismatch { running: None }.into()),
        }
    }

    /// Hands a message to a loaded thread. A thread that is not loaded runs nothing: its message comes back, unless
    /// there is no such thread at all.
    async fn running_thread(&self, id: &ThreadId, message: Message) -> Result<(), Message> {
        if self.shared.is_stopping() {
            message.fail(Error::ShuttingDown);
            return Ok(());
        }
        match self.shared.loaded(id) {
            Some(handle) => handle.send(message).await,
            None => match self.idles_here(id).await {
                Ok(()) => Err(message),
                Err(error) => {
                    message.fail(error);
                    Ok(())
                }
            },
        }
    }

    /// A thread that is not loaded here is idle, unless another process runs it: who speaks to its turn must hear of that.
    async fn idles_here(&self, id: &ThreadId) -> Result<(), Error> {
        let row = self.shared.store.thread(id).await?;
        if row.head_ended {
            return Ok(());
        }
        // The newest turn has no end: it runs elsewhere, or a crash cut it off, in which case nobody owns it.
        self.shared.visit(id, |_| std::future::ready(Ok(()))).await.map(drop)
    }
}

/// Checks an input and reads its pictures, before anything is queued.
async fn ready(params: TurnStartParams, key: Option<String>) -> Result<Start, Error> {
    let TurnStartParams { thread_id: _, text, images, request_id, client_message_id } = params;
    if let Some(key) = &key
        && (key.is_empty() || key.chars().count() > IDEMPOTENCY_KEY_CHARS_MAX)
    {
        return Err(Error::invalid(format!(
            "`idempotencyKey` must have 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters"
        )));
    }
    if request_id.as_ref().is_some_and(|id| id.len() > REQUEST_TOKEN_BYTES_MAX) {
        return Err(Error::invalid(format!("`requestId` must have at most {REQUEST_TOKEN_BYTES_MAX} bytes")));
    }
    let said = input::said(text, images, client_message_id).await?;
    Ok(Start { said: Said { idempotency_key: key, ..said }, request_id })
}
