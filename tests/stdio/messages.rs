//! The handshake, and a conversation.

use serde_json::{Value, json};

use crate::process::Machine;

#[tokio::test]
async fn nothing_works_before_the_handshake() {
    let machine = Machine::new();
    let mut server = machine.start();
    for request in [
        json!({ "id": "a", "method": "model/list" }),
        json!({ "id": "a", "method": "no/such/method" }),
        json!({ "id": "a", "method": "thread/read", "params": { "threadId": 7 } }),
    ] {
        server.write(format!("{request}\n")).await;
        let answer = server.answer().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("a"), &json!("notInitialized")));
    }
    let nameless = server.ask("initialize", json!({})).await;
    assert_eq!(nameless["error"]["code"], "invalidParams");

    let client = json!({ "clientInfo": { "name": "test", "version": "1.0" } });
    let hello = server.request("initialize", client.clone()).await;
    assert_eq!(hello["serverInfo"]["name"], "raddle");
    assert!(["linux", "darwin", "win32"].contains(&hello["platform"]["os"].as_str().unwrap()));
    let early = server.ask("model/list", json!({})).await;
    assert_eq!(early["error"]["code"], "notInitialized");
    server.write("{\"method\":\"initialized\"}\n").await;
    server.request("model/list", json!({})).await;

    let again = server.ask("initialize", client).await;
    assert_eq!(again["error"]["code"], "invalidRequest");
    let unknown = server.ask("no/such/method", json!({})).await;
    assert_eq!(unknown["error"]["code"], "methodNotFound");
    let wrong = server.ask("thread/read", json!({ "threadId": 7 })).await;
    assert_eq!(wrong["error"]["code"], "invalidParams");
    server
        .write("{\"method\":\"no/such/notification\"}\n{\"id\":99,\"result\":{\"decision\":\"accept\"}}\n")
        .await;
    server.request("model/list", json!({})).await;
    server.finish().await;
}

/// The order of a plain turn, as the protocol promises it.
#[tokio::test]
async fn a_turn_is_told_in_its_order() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let thread = server.thread(&machine, "echo").await;
    let start = json!({ "threadId": thread, "text": "Hello, thread!", "requestId": "r" });
    let started = server.request("turn/start", start).await;
    assert_eq!((&started["status"], &started["requestId"]), (&json!("started"), &json!("r")));
    let mut messages = Vec::new();
    loop {
        let message = server.next().await.unwrap();
        let is_last = message["method"] == "turn/completed";
        messages.push(message);
        if is_last {
            break;
        }
    }
    let ours =
        ["turn/started", "item/started", "item/agentMessage/delta", "item/completed", "turn/completed"];
    let mut methods: Vec<_> = messages
        .iter()
        .map(|message| message["method"].as_str().unwrap())
        .filter(|method| ours.contains(method))
        .collect();
    methods.dedup_by(|next, last| next == last && next.ends_with("delta"));
    let expected = [
        "turn/started",
        "item/started",
        "item/completed",
        "item/started",
        "item/agentMessage/delta",
        "item/completed",
        "turn/completed",
    ];
    assert_eq!(methods, expected);
    let text: String = messages.iter().filter_map(|message| message["params"]["delta"].as_str()).collect();
    assert_eq!(text, "Hello, thread!");
    server.finish().await;
}

/// Makes an answer to the request with this id.
type Answer = fn(&Value) -> Value;

/// An approval, asked and answered on the wire; answers that come too late or make no sense decide nothing. Holds: P6.
#[tokio::test]
async fn p6_an_approval_is_asked_and_answered() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let model = json!({ "provider": "builtin", "id": "script" });
    let params = json!({ "cwd": machine.project(), "approvalMode": "ask", "model": model });
    let thread = server.request("thread/start", params).await["thread"]["id"].take();
    let answers: [(Answer, bool); 4] = [
        (|id| json!({ "id": id, "result": { "decision": "accept" } }), true),
        (|id| json!({ "id": id, "result": { "decision": "whatever" } }), false),
        (|id| json!({ "id": id, "result": "accept" }), false),
        (|id| json!({ "id": id, "error": { "code": "internal", "message": "no" } }), false),
    ];
    for (answer, runs) in answers {
        let file = machine.project().join("file");
        let _ = std::fs::remove_file(&file);
        let text = r#"script: call bash {"command":"touch file"} ;; --- ;; text Done."#;
        server.request("turn/start", json!({ "threadId": thread, "text": text })).await;
        let ask = server.until("item/toolCall/requestApproval").await;
        assert_eq!(ask["params"]["toolName"], "bash");
        let answer = answer(&ask["id"]);
        // The second one is late.
        server
            .write(format!("{answer}\n{}\n", json!({ "id": ask["id"], "result": { "decision": "accept" } })))
            .await;
        server.until("turn/completed").await;
        assert_eq!(file.exists(), runs, "{answer}");
    }
    server.finish().await;
}
