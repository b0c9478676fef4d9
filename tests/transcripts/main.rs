//! Whole sessions over stdio, kept as pages to read: one a capability. `UPDATE_GOLDEN=1` writes them anew.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test says what it needs by failing without it")]

mod session;

use serde_json::{Value, json};
use session::Session;

/// A reply that says something and then stands still, for a turn that is surely running.
const HALF: &str = "script: text Half an answer ;; hang";

#[tokio::test]
async fn handshake() {
    let mut s = Session::start();
    s.note("A request before the handshake is refused.");
    s.ask("model/list", json!({})).await;
    s.note("The client says who it is, and which notifications it does not want.");
    let capabilities = json!({ "optOutNotifications": ["item/reasoning/delta", "not/known"] });
    let client =
        json!({ "clientInfo": { "name": "example", "version": "1.0" }, "capabilities": capabilities });
    s.ask("initialize", client.clone()).await;
    s.ask("thread/list", json!({})).await;
    s.tell("initialized", json!({})).await;
    s.ask("thread/list", json!({})).await;
    s.note("The handshake happens once.");
    s.ask("initialize", client).await;
    s.check("handshake", "Handshake", "What comes first, and what is refused before it.");
}

#[tokio::test]
async fn plain_turn() {
    let mut s = Session::ready().await;
    let thread = s.thread("echo", "ask").await;
    let params = json!({ "threadId": thread, "text": "Explain this repository", "requestId": "client-start-1", "clientMessageId": "optimistic-1" });
    s.ask("turn/start", params).await;
    s.idle().await;
    s.note("The saved history has no client tokens.");
    s.ask("thread/read", json!({ "threadId": thread })).await;
    s.check("plain-turn", "A plain turn", "A thread is started, a text is sent, the model answers.");
}

#[tokio::test]
async fn approvals() {
    let mut s = Session::ready().await;
    let thread = s.thread("script", "ask").await;
    for (note, answer) in [
        ("Accepted: the tool runs.", json!({ "decision": "accept" })),
        (
            "Declined with a message: the model is told, and goes on.",
            json!({ "decision": "decline", "message": "Use the other one" }),
        ),
        ("Cancelled: the call is blocked and the turn ends.", json!({ "decision": "cancel" })),
    ] {
        s.note(note);
        let text = "script: call bash {\"command\":\"echo done\"} ;; --- ;; text The tool said: ;; result";
        s.ask("turn/start", json!({ "threadId": thread, "text": text })).await;
        let asked = s.seen("item/toolCall/requestApproval").await;
        s.write(&json!({ "id": asked["id"], "result": answer }).to_string()).await;
        s.idle().await;
    }
    s.check("approvals", "Approvals", "A tool that changes something asks first.");
}

#[tokio::test]
async fn steer_and_interrupt() {
    let mut s = Session::ready().await;
    let thread = s.thread("script", "ask").await;
    let turn = s.request("turn/start", json!({ "threadId": thread, "text": HALF })).await["turnId"].take();
    s.seen("item/agentMessage/delta").await;
    s.note("A steer names the turn that it means.");
    s.ask("turn/steer", json!({ "threadId": thread, "expectedTurnId": "another", "text": "No" })).await;
    s.ask("turn/steer", json!({ "threadId": thread, "expectedTurnId": turn, "text": "And be brief" })).await;
    s.note("A second start is refused.");
    s.ask("turn/start", json!({ "threadId": thread, "text": "Now" })).await;
    s.note("An interrupt ends the turn. The steer that the model never saw stays in the history.");
    s.ask("turn/interrupt", json!({ "threadId": thread, "turnId": turn })).await;
    s.idle().await;
    s.ask("turn/interrupt", json!({ "threadId": thread, "turnId": turn })).await;
    s.ask("turn/interrupt", json!({ "threadId": thread })).await;
    s.check("steer-and-interrupt", "Steering and interrupting", "Input into a running turn, and its end.");
}

#[tokio::test]
async fn queue_and_send() {
    let mut s = Session::ready().await;
    let thread = s.thread("script", "ask").await;
    s.note("`turn/send` starts a turn when none runs.");
    let send = |text: &str, mode: &str, key: Option<&str>| {
        let mut params = json!({ "threadId": thread, "text": text, "mode": mode });
        if let Some(key) = key {
            params["idempotencyKey"] = json!(key);
        }
        params
    };
    s.ask("turn/send", send(HALF, "auto", None)).await;
    s.seen("item/agentMessage/delta").await;
    s.note("While one runs it steers, or queues. The same key is the same send.");
    s.ask("turn/send", send("And this", "auto", None)).await;
    s.ask("turn/send", send("script: text Later", "queue", Some("key-1"))).await;
    s.ask("turn/send", send("script: text Later", "queue", Some("key-1"))).await;
    s.note("What waits can be taken back, once.");
    let queued =
        s.request("turn/queue/add", json!({ "threadId": thread, "text": "Never" })).await["queueId"].take();
    s.ask("turn/queue/remove", json!({ "threadId": thread, "queueId": queued })).await;
    s.ask("turn/queue/remove", json!({ "threadId": thread, "queueId": queued })).await;
    s.note("An interrupt drops what waits.");
    s.ask("turn/interrupt", json!({ "threadId": thread })).await;
    s.idle().await;
    s.note("On an idle thread a queued input starts at once.");
    s.ask("turn/queue/add", json!({ "threadId": thread, "text": "script: text At once" })).await;
    s.idle().await;
    s.check(
        "queue-and-send",
        "The queue, and the send that decides by itself",
        "Inputs that wait, and `turn/send`.",
    );
}

#[tokio::test]
async fn resume() {
    let mut s = Session::ready().await;
    let thread = s.thread("script", "ask").await;
    s.run(&thread, "script: text First").await;
    s.request("turn/start", json!({ "threadId": thread, "text": HALF })).await;
    s.seen("item/agentMessage/delta").await;
    s.ask("turn/queue/add", json!({ "threadId": thread, "text": "Later" })).await;
    s.note("A client that leaves the thread hears no more of it, and comes back to a snapshot.");
    s.ask("thread/unsubscribe", json!({ "threadId": thread })).await;
    s.ask("thread/unsubscribe", json!({ "threadId": thread })).await;
    s.ask("thread/resume", json!({ "threadId": thread })).await;
    s.ask("turn/interrupt", json!({ "threadId": thread })).await;
    s.idle().await;
    s.check(
        "resume",
        "Resuming in the middle of a turn",
        "History, the running turn, the queue and the usage, as of one moment.",
    );
}

#[tokio::test]
async fn history_and_lists() {
    let mut s = Session::ready().await;
    let thread = s.thread("echo", "ask").await;
    for text in ["one", "two", "three"] {
        s.run(&thread, text).await;
    }
    s.note("Pages go from the newest to the oldest; within a page turns are in order.");
    let page = s.request("thread/read", json!({ "threadId": thread, "limit": 2 })).await;
    s.request("thread/read", json!({ "threadId": thread, "limit": 2, "cursor": page["nextCursor"] })).await;
    s.ask("thread/read", json!({ "threadId": thread, "cursor": "nonsense" })).await;
    s.ask("thread/read", json!({ "threadId": "nobody" })).await;
    s.note("Lists are newest activity first.");
    s.thread("echo", "ask").await;
    let list = s.request("thread/list", json!({ "limit": 1 })).await;
    s.request("thread/list", json!({ "limit": 1, "cursor": list["nextCursor"] })).await;
    s.ask("thread/list", json!({ "limit": 1, "archived": true, "cursor": list["nextCursor"] })).await;
    s.check("history-and-lists", "History and lists", "Pages, cursors, and what is refused.");
}

#[tokio::test]
async fn fork_and_rewind() {
    let mut s = Session::ready().await;
    let thread = s.thread("echo", "ask").await;
    let first = s.run(&thread, "one").await;
    let second = s.run(&thread, "two").await;
    s.note("A fork shares the turns up to the named one.");
    let fork =
        s.request("thread/fork", json!({ "threadId": thread, "turnId": first })).await["thread"]["id"].take();
    s.run(&fork, "instead").await;
    s.note("A rewind takes later turns off the branch.");
    s.ask("thread/rewind", json!({ "threadId": thread, "turnId": first })).await;
    s.seen("thread/rewound").await;
    s.ask("thread/rewind", json!({ "threadId": thread, "turnId": second })).await;
    s.ask("thread/read", json!({ "threadId": thread })).await;
    s.check(
        "fork-and-rewind",
        "Forking and rewinding",
        "History is a tree, and a thread is a name for one leaf.",
    );
}

#[tokio::test]
async fn compact() {
    let mut s = Session::ready().await;
    let thread = s.thread("echo", "ask").await;
    s.ask("thread/compact", json!({ "threadId": thread })).await;
    s.run(&thread, "one").await;
    s.note("A compaction is a turn with one item. (This model repeats what it was asked.)");
    s.ask("thread/compact", json!({ "threadId": thread, "instructions": "the names of files" })).await;
    s.idle().await;
    s.ask("thread/compact", json!({ "threadId": thread })).await;
    s.check("compact", "Compacting", "The model sums the conversation up, and goes on from its summary.");
}

#[tokio::test]
async fn archive_and_delete() {
    let mut s = Session::ready().await;
    let thread = s.thread("echo", "ask").await;
    s.ask("thread/name/set", json!({ "threadId": thread, "name": "Weaving" })).await;
    s.seen("thread/name/updated").await;
    s.ask("thread/delete", json!({ "threadId": thread })).await;
    s.ask("thread/archive", json!({ "threadId": thread })).await;
    s.seen("thread/archived").await;
    s.ask("turn/start", json!({ "threadId": thread, "text": "No" })).await;
    s.ask("thread/unarchive", json!({ "threadId": thread })).await;
    s.seen("thread/unarchived").await;
    s.ask("thread/archive", json!({ "threadId": thread })).await;
    s.seen("thread/archived").await;
    s.ask("thread/delete", json!({ "threadId": thread })).await;
    s.seen("thread/deleted").await;
    s.ask("thread/read", json!({ "threadId": thread })).await;
    s.check(
        "archive-and-delete",
        "Names, the archive, and the end",
        "What can be done to a thread without loading it.",
    );
}

#[tokio::test]
async fn settings_and_images() {
    let mut s = Session::ready().await;
    let thread = s.thread("echo", "ask").await;
    let settings =
        json!({ "threadId": thread, "approvalMode": "fullAccess", "instructions": "Answer in verse" });
    s.ask("thread/settings/update", settings).await;
    s.ask(
        "thread/settings/update",
        json!({ "threadId": thread, "model": { "provider": "nobody", "id": "x" } }),
    )
    .await;
    s.ask("thread/settings/update", json!({ "threadId": thread, "approvalMode": "whenever" })).await;
    s.note("Pictures are checked before anything happens.");
    for image in [json!({ "path": "relative.png" }), json!({ "mimeType": "image/png", "data": "AAAA" })] {
        s.ask("turn/start", json!({ "threadId": thread, "text": "Look", "images": [image] })).await;
    }
    let image = json!({ "mimeType": "image/gif", "data": "R0lGODlhAQABAAAAACw=" });
    s.ask("turn/start", json!({ "threadId": thread, "text": "Look", "images": [image] })).await;
    s.idle().await;
    s.check(
        "settings-and-images",
        "Settings and pictures",
        "What a thread remembers, and what an input may bring along.",
    );
}

#[tokio::test]
async fn large_values() {
    let mut s = Session::ready().await;
    let thread = s.thread("script", "ask").await;
    s.note("The text of this turn is longer than what is sent inline: a reference stands in its place.");
    let text = "script: text \"the end\" ;; --- ;; text never";
    s.run(&thread, text).await;
    let params = json!({ "threadId": thread, "text": "script: repeat 70 bytes=1000" });
    s.write(&json!({ "id": 100, "method": "turn/start", "params": params }).to_string()).await;
    let completed = loop {
        // The one large delta is left out of the page.
        let message = s.quietly().await;
        if message["method"] == "item/completed" && message["params"]["item"]["type"] == "agentMessage" {
            break message;
        }
    };
    let reference = completed["params"]["item"]["text"].clone();
    assert_eq!(reference["type"], "payloadReference");
    s.show(&completed);
    s.until(|message| message["params"]["status"]["type"] == "idle").await;
    s.note("Chunks have 48 KiB at most; `nextOffset` says where the next one begins. (Their data is left out here.)");
    let mut offset = json!(0);
    loop {
        let params = json!({ "id": reference["id"], "offset": offset });
        let mut chunk = s.ask_quietly("payload/read", params).await;
        chunk["result"]["data"] = json!("…");
        s.show(&chunk);
        if chunk["result"]["eof"] == Value::Bool(true) {
            break;
        }
        offset = chunk["result"]["nextOffset"].clone();
    }
    s.ask("payload/read", json!({ "id": "../../etc/passwd", "offset": 0 })).await;
    s.check("large-values", "Large values", "References, and how to read what they stand for.");
}

#[tokio::test]
async fn errors() {
    let mut s = Session::ready().await;
    for line in [
        "this is not JSON",
        "[1,2,3]",
        "{\"id\":1.5,\"method\":\"model/list\"}",
        "{\"id\":7}",
        "{\"id\":8,\"method\":\"no/such/method\"}",
        "{\"id\":9,\"method\":\"thread/read\",\"params\":{\"threadId\":5}}",
    ] {
        s.write(line).await;
        s.until(|message| message.get("error").is_some()).await;
    }
    s.note("After all that, the next request works.");
    s.ask("thread/list", json!({})).await;
    s.check("errors", "Lines that are no messages", "Each is answered once, and the next line is read.");
}

#[tokio::test]
async fn the_end_of_input() {
    let mut s = Session::ready().await;
    let thread = s.thread("script", "ask").await;
    s.ask("turn/start", json!({ "threadId": thread, "text": HALF })).await;
    s.seen("item/agentMessage/delta").await;
    s.note("The client closes its end: the turn ends as interrupted, and the process ends.");
    s.close().await;
    s.check("end-of-input", "The end of input", "How a server that is a child process is shut down.");
}
