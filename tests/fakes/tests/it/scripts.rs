//! Replies do what their steps say, byte for byte.

use raddle_fakes::{Ending, Gate, Provider, Reply, SentImage, sse};
use serde_json::json;

use crate::client::{Client, chat, deltas, user};

#[tokio::test]
async fn replies_are_taken_in_order_and_then_the_default_answers() {
    let provider = Provider::start().await;
    provider.push(Reply::says("one"));
    provider.push_with(|request| Reply::says(&format!("two for {}", request["model"])));
    provider.set_default(|request| Reply::says(request["messages"][0]["content"].as_str().unwrap()));
    let mut client = Client::connect(&provider.base_url()).await;
    // All three on one connection, which stays open after a complete reply.
    for (asked, answer) in [("a", "one"), ("b", "two for \"fake-model\""), ("c", "c")] {
        client.ask(asked).await;
        let (status, headers) = client.head().await;
        assert_eq!(status, 200);
        assert!(headers.contains(&"content-type: text/event-stream; charset=utf-8".to_owned()));
        let (chunks, end) = client.chunks().await;
        end.unwrap();
        assert_eq!(chunks, [sse::text(answer), sse::finish("stop"), sse::usage(10, 5), sse::done()]);
    }
    assert_eq!(provider.queued(), 0);
    let asked: Vec<String> = provider.requests().iter().map(|request| request.last_user_text()).collect();
    assert_eq!(asked, ["a", "b", "c"]);
    let request = provider.request(1).await;
    assert_eq!(request.header("authorization"), Some("Bearer secret"));
    assert_eq!((request.method(), request.path()), ("POST", "/v1/chat/completions"));
    assert_eq!(request.messages(), [user("b")]);
    assert_eq!(request.body()["stream"], true);
    assert_eq!(provider.ended(2).await, Ending::Complete);
}

#[tokio::test]
async fn a_request_can_be_awaited_before_it_comes() {
    let provider = Provider::start().await;
    provider.push(Reply::says("hi"));
    let base_url = provider.base_url();
    let (request, ()) = tokio::join!(provider.request(0), async {
        let mut client = Client::connect(&base_url).await;
        client.ask("hello").await;
        client.head().await;
    });
    assert_eq!(request.last_user_text(), "hello");
}

#[tokio::test]
async fn the_images_of_a_request_can_be_seen() {
    let provider = Provider::start().await;
    provider.push(Reply::says("A cat."));
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } });
    let look = json!({ "role": "user", "content": [{ "type": "text", "text": "look" }, image] });
    let mut client = Client::connect(&provider.base_url()).await;
    client.send("POST", "/v1/chat/completions", &chat(&json!([user("hi"), look]))).await;
    assert_eq!(client.head().await.0, 200);
    let request = provider.request(0).await;
    assert_eq!(request.last_user_text(), "look");
    let sent = SentImage { message: 1, mime_type: "image/png", data: "iVBORw0KGgo=" };
    assert_eq!(request.images(), [sent]);
}

#[tokio::test]
async fn a_gate_holds_the_rest_back() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    provider.push(Reply::stream().text("Hel").wait(&gate).text("lo").done());
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    gate.reached().await;
    client.head().await;
    assert_eq!(client.chunk().await.unwrap(), sse::text("Hel").into_bytes());
    gate.open();
    let (rest, end) = client.chunks().await;
    end.unwrap();
    assert_eq!(rest, [sse::text("lo"), sse::done()]);
}

#[tokio::test]
async fn an_open_gate_stops_nobody() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    gate.open();
    provider.set_default(move |_| Reply::stream().wait(&gate).done());
    let mut client = Client::connect(&provider.base_url()).await;
    for _ in 0..2 {
        client.ask("x").await;
        client.head().await;
        assert_eq!(client.chunks().await.0, [sse::done()]);
    }
}

#[tokio::test]
async fn a_client_may_leave_at_a_gate() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    provider.push(Reply::stream().text("a").wait(&gate).text("b"));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    gate.reached().await;
    drop(client);
    provider.disconnected(0).await;
}

#[tokio::test]
async fn each_byte_can_be_a_chunk_of_its_own() {
    let provider = Provider::start().await;
    let body = "data: caf\u{e9} \u{1f600}\n\n".as_bytes();
    provider.push(Reply::one_byte_at_a_time(body));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    for byte in body {
        assert_eq!(client.chunk().await.unwrap(), [*byte]);
    }
    assert!(client.chunk().await.unwrap().is_empty());
}

#[tokio::test]
async fn pieces_keep_their_cuts_and_an_empty_one_does_not_end_the_body() {
    let provider = Provider::start().await;
    provider.push(Reply::pieces([&b"data: \xC3"[..], b"", b"\xA9\n\n"]));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    assert_eq!(client.chunk().await.unwrap(), b"data: \xC3");
    assert_eq!(client.chunk().await.unwrap(), b"\xA9\n\n");
    assert!(client.chunk().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_cut_leaves_the_body_without_an_end() {
    let provider = Provider::start().await;
    provider.push(Reply::stream().text("The answer is").cut().text("never sent"));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    let (chunks, end) = client.chunks().await;
    assert_eq!(chunks, [sse::text("The answer is")]);
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(provider.ended(0).await, Ending::Cut);
}

#[tokio::test]
async fn a_body_can_end_with_the_connection() {
    let provider = Provider::start().await;
    provider.push(Reply::stream().text("cut").until_close());
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    let (_, headers) = client.head().await;
    assert!(headers.contains(&"connection: close".to_owned()));
    assert_eq!(client.rest().await.unwrap(), sse::text("cut"));
    assert_eq!(provider.ended(0).await, Ending::Complete);
}

#[tokio::test]
async fn a_hang_lasts_until_the_client_leaves() {
    let provider = Provider::start().await;
    provider.push(Reply::stream().text("a").hang());
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    client.chunk().await.unwrap();
    drop(client);
    provider.disconnected(0).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_long_reply_is_noticed() {
    let provider = Provider::start().await;
    // Far more than the two socket buffers hold, so the server is still writing when the client leaves.
    provider.push(Reply::stream().send(vec![b'x'; 64 * 1024 * 1024]));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    drop(client);
    provider.disconnected(0).await;
}

#[tokio::test]
async fn a_reset_is_an_error_and_not_an_end() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    provider.push(Reply::stream().text("a").wait(&gate).reset());
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    client.chunk().await.unwrap();
    gate.open();
    assert_eq!(client.chunk().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(provider.ended(0).await, Ending::Cut);
}

#[tokio::test]
async fn an_error_has_its_status_headers_and_body() {
    let provider = Provider::start().await;
    let body = json!({ "error": { "message": "slow down", "code": 429 } });
    provider.push(Reply::json_error(429, &body).header("Retry-After", "7"));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    let (status, headers) = client.head().await;
    assert_eq!(status, 429);
    assert!(headers.contains(&"retry-after: 7".to_owned()));
    assert_eq!(client.body(body.to_string().len()).await, body);
}

#[tokio::test]
async fn tool_calls_stream_whole() {
    let provider = Provider::start().await;
    provider.push(Reply::calls(&[("a", "ls", json!({ "path": "." })), ("b", "read", json!({}))]));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    let (chunks, _) = client.chunks().await;
    assert_eq!(chunks[0], sse::tool_call(0, "a", "ls", r#"{"path":"."}"#));
    assert_eq!(chunks[1], sse::tool_call(1, "b", "read", "{}"));
    assert_eq!(chunks[2], sse::finish("tool_calls"));
}

#[tokio::test]
async fn text_deltas_are_numbered() {
    let provider = Provider::start().await;
    provider.push(Reply::text_deltas(3));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    assert_eq!(deltas(&client.chunks().await.0.concat()), ["w0 ", "w1 ", "w2 "]);
}

#[tokio::test]
async fn models_are_listed_apart_from_requests() {
    let provider = Provider::start().await;
    let mut client = Client::connect(&provider.base_url()).await;
    client.send("GET", "/v1/models", "").await;
    let (status, list) = client.json().await;
    assert_eq!((status, &list["data"][0]["id"]), (200, &json!("fake-model")));
    provider.set_models(Reply::error(401, "invalid_api_key", "no such key"));
    client.send("GET", "/v1/models", "").await;
    assert_eq!(client.json().await.0, 401);
    assert_eq!(provider.list_request(1).await.header("authorization"), Some("Bearer secret"));
    assert!(provider.requests().is_empty());
}

#[tokio::test]
async fn other_wire_formats_take_replies_too() {
    let provider = Provider::start().await;
    let mut client = Client::connect(&provider.origin()).await;
    for path in ["/v1/messages", "/v1/responses", "/v1beta/models/g:streamGenerateContent?alt=sse"] {
        provider.push(Reply::pieces(["data: {}\n\n"]));
        client.send("POST", path, "{}").await;
        client.head().await;
        assert_eq!(client.chunks().await.0, ["data: {}\n\n"]);
    }
    assert_eq!(provider.request(2).await.path(), "/v1beta/models/g:streamGenerateContent?alt=sse");
}

#[tokio::test]
async fn a_request_may_arrive_in_pieces() {
    let provider = Provider::start().await;
    provider.push(Reply::says("ok"));
    let mut client = Client::connect(&provider.base_url()).await;
    let text = "long ".repeat(100_000);
    client.send("POST", "/v1/chat/completions", &chat(&json!([user(&text)]))).await;
    assert_eq!(client.head().await.0, 200);
    assert_eq!(provider.request(0).await.last_user_text(), text);
}

#[tokio::test]
async fn a_stopped_provider_refuses_connections() {
    let provider = Provider::start().await;
    let address = provider.origin().replace("http://", "");
    let gate = Gate::new();
    provider.push(Reply::stream().wait(&gate));
    let mut client = Client::connect(&provider.base_url()).await;
    client.ask("x").await;
    client.head().await;
    provider.stop().await;
    assert!(client.chunk().await.is_err(), "the open connection ends with the provider");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
