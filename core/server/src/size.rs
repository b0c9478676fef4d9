//! How many bytes a message that waits stands for: its texts, and a flat amount for the rest.
//!
//! A typed message has no exact size; the bound needs one that grows as the message does.
//!
//! Neighbours: none.

use raddle_protocol::item::value_bytes;
use raddle_protocol::methods::{ClientResponse, ServerNotification, ServerRequest};
use raddle_protocol::rpc::ServerMessage;
use raddle_protocol::thread::Thread;
use raddle_protocol::turn::Queue;
use raddle_protocol::{Item, Turn};

/// Bytes of a message besides its texts: ids, numbers, and the room of the structures.
const MESSAGE_BYTES: usize = 256;

/// The same for an item within a message.
const ITEM_BYTES: usize = 192;

pub(crate) fn message_bytes(message: &ServerMessage) -> usize {
    let texts = match message {
        ServerMessage::Notification(notification) => notification_bytes(notification),
        ServerMessage::Request { request: ServerRequest::ItemToolCallRequestApproval(params), .. } => {
            value_bytes(&params.input)
        }
        ServerMessage::Response { result: Ok(response), .. } => response_bytes(response),
        ServerMessage::Response { result: Err(error), .. } => error.message.len(),
    };
    MESSAGE_BYTES + texts
}

fn notification_bytes(notification: &ServerNotification) -> usize {
    match notification {
        ServerNotification::ItemAgentMessageDelta(n)
        | ServerNotification::ItemReasoningDelta(n)
        | ServerNotification::ItemToolCallOutputDelta(n) => n.delta.len(),
        ServerNotification::ItemStarted(n) | ServerNotification::ItemCompleted(n) => item_bytes(&n.item),
        ServerNotification::Error(n) => n.message.len(),
        ServerNotification::Warning(n) => n.warning.message.len(),
        ServerNotification::TurnQueueUpdated(n) => queue_bytes(&n.queue),
        _ => 0,
    }
}

fn response_bytes(response: &ClientResponse) -> usize {
    match response {
        ClientResponse::ThreadRead(result) => turns_bytes(&result.turns),
        ClientResponse::ThreadResume(result) => {
            turns_bytes(&result.turns)
                + result.running_turn.as_ref().map_or(0, turn_bytes)
                + queue_bytes(&result.queue)
        }
        ClientResponse::ThreadList(result) => result.threads.iter().map(thread_bytes).sum(),
        ClientResponse::PayloadRead(chunk) => chunk.data.len(),
        ClientResponse::ModelList(result) => result.models.len() * MESSAGE_BYTES,
        _ => 0,
    }
}

fn thread_bytes(thread: &Thread) -> usize {
    MESSAGE_BYTES + thread.cwd.len() + thread.settings.instructions.as_ref().map_or(0, String::len)
}

fn queue_bytes(queue: &Queue) -> usize {
    let follow_up = queue.follow_up.iter().map(|input| &input.text);
    queue.steering.iter().chain(follow_up).map(|text| MESSAGE_BYTES + text.len()).sum()
}

fn turns_bytes(turns: &[Turn]) -> usize {
    turns.iter().map(turn_bytes).sum()
}

fn turn_bytes(turn: &Turn) -> usize {
    MESSAGE_BYTES + turn.items.iter().map(item_bytes).sum::<usize>()
}

fn item_bytes(item: &Item) -> usize {
    ITEM_BYTES + item.text_bytes()
}
