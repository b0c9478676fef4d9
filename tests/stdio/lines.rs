//! Lines: their ends, their cuts, their bounds, and what is none. Case R22.

use raddle::protocol::limits::STDIN_LINE_BYTES_MAX;
use serde_json::json;

use crate::process::Machine;

/// What readers and writers of lines stumble over.
const ODD: &str = "a\u{2028}b\u{2029}c\u{85}d\re\0f";

#[tokio::test]
async fn r22_ends_of_lines_are_forgiven() {
    let machine = Machine::new();
    let mut server = machine.start();
    let hello = json!({ "id": 1, "method": "initialize", "params": { "clientInfo": { "name": "t", "version": "1" } } });
    server.write(format!("\u{FEFF}{hello}\r\n")).await;
    assert_eq!(server.answer().await["id"], 1);
    // Two messages and blank lines in one write; a member that old clients send.
    let list = |id: &str| json!({ "jsonrpc": "2.0", "id": id, "method": "model/list" });
    let (two, three) = (list("two"), list("three"));
    server.write(format!("{{\"method\":\"initialized\"}}\r\n\r\n\n  \n{two}\r\n{three}\n")).await;
    let mut ids = [server.answer().await["id"].take(), server.answer().await["id"].take()];
    ids.sort_by_key(|id| id.to_string());
    assert_eq!(ids, [json!("three"), json!("two")]);
    // A last line without an end.
    server.write(json!({ "id": 4, "method": "server/diagnostics" }).to_string()).await;
    let ended = server.finish().await;
    assert!(ended.answer(&json!(4)).get("result").is_some());
}

#[tokio::test]
async fn r22_a_message_may_be_cut_at_every_byte() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let request = json!({ "id": "cut 🦀", "method": "thread/read", "params": { "threadId": "é\u{2028}" } });
    let line = format!("{request}\r\n");
    for cut in 0..=line.len() {
        server.write(&line.as_bytes()[..cut]).await;
        server.write(&line.as_bytes()[cut..]).await;
        assert_eq!(server.answer().await["error"]["code"], "threadNotFound");
    }
    for byte in line.as_bytes() {
        server.write([*byte]).await;
    }
    assert_eq!(server.answer().await["id"], "cut 🦀");
    server.finish().await;
}

#[tokio::test]
async fn r22_what_is_no_message_is_answered_and_the_next_line_works() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let deep = format!(
        "{{\"id\":1,\"method\":\"x\",\"params\":{}{}}}",
        "[".repeat(1_000_000),
        "]".repeat(1_000_000)
    );
    for (line, id, code) in [
        (&b"{\"id\":1,"[..], json!(null), "parseError"),
        (b"\xC3\x28", json!(null), "parseError"),
        (b"{\"id\":1,\"method\":\"\xFF\"}", json!(null), "parseError"),
        (deep.as_bytes(), json!(null), "parseError"),
        (b"[1]", json!(null), "invalidRequest"),
        (b"{\"id\":7}", json!(7), "invalidRequest"),
        (b"{\"id\":1.5,\"method\":\"model/list\"}", json!(null), "invalidRequest"),
        (b"{\"id\":null,\"method\":\"model/list\"}", json!(null), "invalidRequest"),
        (b"{\"id\":{},\"method\":\"model/list\"}", json!(null), "invalidRequest"),
    ] {
        server.write([line, b"\n"].concat()).await;
        let answer = server.answer().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{answer}");
        server.request("model/list", json!({})).await;
    }
    server.finish().await;
}

/// The characters survive, and every message is one line to every reader, which the harness checks.
#[tokio::test]
async fn r22_odd_characters_go_through() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let model = json!({ "provider": "builtin", "id": "script" });
    let params =
        json!({ "cwd": machine.project(), "approvalMode": "fullAccess", "model": model, "name": ODD });
    let started = server.request("thread/start", params).await;
    assert_eq!(started["thread"]["name"], ODD);
    let thread = &started["thread"]["id"];
    std::fs::write(machine.project().join("odd.txt"), ODD.replace('\0', "")).unwrap();
    let text = r#"script: call bash {"command":"cat odd.txt"} ;; --- ;; result"#;
    server.request("turn/start", json!({ "threadId": thread, "text": text })).await;
    server.until("turn/completed").await;
    let read = server.request("thread/read", json!({ "threadId": thread })).await;
    let items = read["turns"][0]["items"].as_array().unwrap();
    let output = items.iter().find_map(|item| item["output"].as_str()).unwrap();
    assert!(output.contains("a\u{2028}b\u{2029}c\u{85}d"), "{output:?}");
    server.finish().await;
}

/// Long lines in, and whatever comes of them out.
#[tokio::test]
async fn r22_long_lines_go_through() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let thread = server.thread(&machine, "echo").await;
    let text = format!("{ODD}{}", "x".repeat(2 << 20));
    let more = "x".repeat(8 << 20);
    server.request("turn/start", json!({ "threadId": thread, "text": text, "more": more })).await;
    let completed = server.until("turn/completed").await;
    assert_eq!(completed["params"]["turn"]["status"], "completed");
    server.finish().await;
}

#[tokio::test]
async fn p7_a_line_that_is_too_long_is_dropped_and_told() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let request = |bytes: usize| {
        let params = json!({ "threadId": "t", "more": "" });
        let empty = json!({ "id": "long", "method": "thread/read", "params": params }).to_string();
        empty.replace("\"\"", &format!("\"{}\"", "x".repeat(bytes - empty.len())))
    };
    server.write(format!("{}\r\n", request(STDIN_LINE_BYTES_MAX))).await;
    assert_eq!(server.answer().await["error"]["code"], "threadNotFound");

    server.write(request(STDIN_LINE_BYTES_MAX + 1)).await;
    server.write("\n").await;
    let told = server.until("error").await;
    assert_eq!(told["params"]["code"], "invalidRequest");
    assert_eq!(told["params"]["data"]["reason"], "lineTooLong");
    let ours = server.ask("server/diagnostics", json!({})).await;
    assert!(ours.get("result").is_some());

    // Twice the bound in one line: what is dropped is not kept either.
    let before = ours["result"]["rssBytes"].as_u64().unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..2 * (STDIN_LINE_BYTES_MAX >> 20) {
        server.write(&piece).await;
    }
    server.write("\n").await;
    server.until("error").await;
    let after = server.request("server/diagnostics", json!({})).await["rssBytes"].as_u64().unwrap();
    assert!(after < before + STDIN_LINE_BYTES_MAX as u64, "{before} to {after} bytes");
    server.finish().await;
}
