//! The adapter against a server that sends real bytes over real connections. What the bytes mean is tested on the
//! decoder alone, in every cut; here it is what a connection adds.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says what it needs by failing without it"
)]

use std::time::Duration;

use futures_util::StreamExt;
use raddle_fakes::{Ending, Gate, Provider, Reply, SentImage, sse};
use raddle_models::{
    AssistantPart, FinishReason, ImagePart, Message, ModelConfig, ModelError, ModelEvent, ModelRequest,
    Models, ModelsConfig, ModelsError, ProviderConfig, ProviderKind, ResolvedModel, Secret,
};
use raddle_protocol::{ModelRef, TurnErrorKind};
use serde_json::json;

const KEY: &str = "sk-very-secret-key";

fn config(base_url: &str) -> ProviderConfig {
    ProviderConfig {
        api_key: Some(Secret::new(KEY)),
        models: vec![ModelConfig::new("fake-model")],
        ..ProviderConfig::new("fake", base_url)
    }
}

fn models(providers: Vec<ProviderConfig>) -> Models {
    Models::new(ModelsConfig { providers, ..ModelsConfig::default() })
}

async fn model_at(base_url: &str) -> ResolvedModel {
    models(vec![config(base_url)]).resolve(&ModelRef::new("fake", "fake-model")).await.unwrap()
}

fn hello() -> ModelRequest {
    ModelRequest { messages: vec![Message::user("Hello")], ..ModelRequest::default() }
}

/// Takes a reply to its end; signs of life are left out.
async fn take(model: &ResolvedModel) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut stream = model.stream(hello());
    let mut events = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(ModelEvent::Ping) => {}
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(stream.next().await.is_none(), "an error is last");
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

async fn fail(provider: &Provider, reply: Reply) -> ModelError {
    provider.push(reply);
    take(&model_at(&provider.base_url()).await).await.1.expect("it does not fail")
}

fn text(text: &str) -> ModelEvent {
    ModelEvent::Text(text.to_owned())
}

#[tokio::test]
async fn a_reply_over_one_connection_after_the_other_request() {
    let provider = Provider::start().await;
    let model = model_at(&provider.base_url()).await;
    for _ in 0..2 {
        provider.push(Reply::says("Hi"));
        let (events, error) = take(&model).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(events[0], text("Hi"));
        assert!(matches!(events[1], ModelEvent::Usage(_)));
        assert_eq!(events[2..], [ModelEvent::Finish(FinishReason::Stop)]);
    }
    let request = provider.request(0).await;
    assert_eq!(request.path(), "/v1/chat/completions");
    assert_eq!(request.header("authorization"), Some("Bearer sk-very-secret-key"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.body()["model"], "fake-model");
    assert_eq!(request.messages(), [json!({"role": "user", "content": "Hello"})]);
}

#[tokio::test]
async fn images_reach_only_a_model_that_takes_them() {
    let provider = Provider::start().await;
    provider.set_default(|_| Reply::says("A cat."));
    let seeing = ModelConfig { images: true, ..ModelConfig::new("seeing") };
    let config =
        ProviderConfig { models: vec![seeing, ModelConfig::new("blind")], ..config(&provider.base_url()) };
    let models = models(vec![config]);
    let image = ImagePart { mime_type: "image/png".to_owned(), data: "iVBORw0KGgo=".into() };
    let message = Message::User { text: "Look".to_owned(), images: vec![image] };
    let request = ModelRequest { messages: vec![message], ..ModelRequest::default() };
    for id in ["seeing", "blind"] {
        let model = models.resolve(&ModelRef::new("fake", id)).await.unwrap();
        let events: Vec<_> = model.stream(request.clone()).collect().await;
        assert!(matches!(events.last(), Some(Ok(ModelEvent::Finish(_)))), "{events:?}");
    }
    let (seeing, blind) = (provider.request(0).await, provider.request(1).await);
    let sent = SentImage { message: 0, mime_type: "image/png", data: "iVBORw0KGgo=" };
    assert_eq!(seeing.images(), [sent]);
    assert_eq!(seeing.last_user_text(), "Look");
    assert!(blind.images().is_empty());
    let told = "Look\n\n[1 picture was left out here: this model takes no pictures]";
    assert_eq!(blind.messages(), [json!({"role": "user", "content": told})]);
}

#[tokio::test]
async fn deltas_come_as_they_are_sent_and_dropping_the_stream_closes_the_connection() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    provider.push(Reply::stream().text("a").wait(&gate).text("b").hang());
    let mut stream = model_at(&provider.base_url()).await.stream(hello());
    assert_eq!(stream.next().await.unwrap().unwrap(), text("a"));
    gate.reached().await;
    gate.open();
    assert_eq!(stream.next().await.unwrap().unwrap(), text("b"));
    drop(stream);
    provider.disconnected(0).await;
}

#[tokio::test]
async fn a_reply_whose_stream_is_dropped_after_finish_was_received_whole() {
    let provider = Provider::start().await;
    provider.push(Reply::says("Hi"));
    let mut stream = model_at(&provider.base_url()).await.stream(hello());
    while !matches!(stream.next().await.unwrap().unwrap(), ModelEvent::Finish(_)) {}
    drop(stream);
    assert_eq!(provider.ended(0).await, Ending::Complete);
    // A server that says nothing more but does not end its body costs a moment and no more.
    provider.push(Reply::stream().text("Hi").finish("stop").done().hang());
    let (events, error) = take(&model_at(&provider.base_url()).await).await;
    assert!(error.is_none() && events.len() == 2);
}

#[tokio::test]
async fn r01_r03_the_worst_cuts_there_are() {
    let body = [
        ": ping\n\n".to_owned(),
        sse::text("café 😀 ok"),
        "data:\n\n".to_owned(),
        sse::finish("stop"),
        sse::done(),
    ]
    .concat();
    let provider = Provider::start().await;
    provider.push(Reply::one_byte_at_a_time(body));
    let (events, error) = take(&model_at(&provider.base_url()).await).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events, [text("café 😀 ok"), ModelEvent::Finish(FinishReason::Stop)]);
}

#[tokio::test]
async fn r05_cut_connections_are_errors_that_can_be_tried_again() {
    let provider = Provider::start().await;
    let model = model_at(&provider.base_url()).await;
    let call = || sse::tool_call(0, "call_w", "write", "{\"path\":\"a.txt\"}");
    for reply in [
        Reply::stream().text("The answer is").send(call()).cut(),
        Reply::stream().text("The answer is").send(call()).until_close(),
        Reply::stream().text("The answer is").send(call()),
    ] {
        provider.push(reply);
        let (events, error) = take(&model).await;
        let error = error.expect("it does not fail");
        assert_eq!(events, [text("The answer is")]);
        assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Network, true));
    }
    // The reason was given, so the reply is whole however its connection ends.
    for reply in [
        Reply::stream().text("Hi").finish("stop").cut(),
        Reply::stream().text("Hi").finish("stop").until_close(),
    ] {
        provider.push(reply);
        let (events, error) = take(&model).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(events, [text("Hi"), ModelEvent::Finish(FinishReason::Stop)]);
    }
}

#[tokio::test]
async fn r05_a_reset_connection_is_a_network_error() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    provider.push(Reply::stream().text("a").wait(&gate).reset());
    let mut stream = model_at(&provider.base_url()).await.stream(hello());
    assert_eq!(stream.next().await.unwrap().unwrap(), text("a"));
    gate.open();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Network, true));
    assert!(error.message().starts_with("the connection to http://127.0.0.1:"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_network_error() {
    let provider = Provider::start().await;
    let base_url = provider.base_url();
    provider.stop().await;
    let (_, error) = take(&model_at(&base_url).await).await;
    let error = error.expect("it does not fail");
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Network, true));
    assert!(error.message().starts_with("could not connect to http://127.0.0.1:"), "{error}");
    assert!(error.message().contains("refused"), "{error}");
}

#[tokio::test]
async fn refusals_are_classified_and_hold_no_key() {
    let provider = Provider::start().await;
    let error =
        fail(&provider, Reply::error(401, "invalid_api_key", &format!("Incorrect API key provided: {KEY}")))
            .await;
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Auth, false));
    assert_eq!(error.message(), "HTTP 401: Incorrect API key provided: *** (code invalid_api_key)");
    assert!(!format!("{error:?}").contains(KEY));

    let error =
        fail(&provider, Reply::error(429, "rate_limit_exceeded", "slow down").header("Retry-After", "7"))
            .await;
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::RateLimit, true));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));

    let dated = Reply::error(503, "overloaded", "later")
        .header("Date", "Wed, 21 Oct 2015 07:27:30 GMT")
        .header("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT");
    let error = fail(&provider, dated).await;
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Provider, true));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(30)));

    let error =
        fail(&provider, Reply::error(400, "context_length_exceeded", "maximum context length is 10 tokens"))
            .await;
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::ContextOverflow, false));

    let error = fail(&provider, Reply::body(502, "text/html", "<html>Bad</html>")).await;
    assert_eq!(
        (error.kind(), error.retryable(), error.message().as_str()),
        (TurnErrorKind::Provider, true, "HTTP 502 Bad Gateway")
    );

    let error =
        fail(&provider, Reply::body(307, "text/html", "").header("Location", "http://elsewhere.invalid/"))
            .await;
    assert!(!error.retryable() && error.message().contains("redirect"), "{error}");

    // The body of an error breaks off, and one never ends: what is there is used.
    let broken = Reply::stream().status(500).send("{\"error\":").cut();
    assert_eq!(fail(&provider, broken).await.message(), "HTTP 500 Internal Server Error");
    let endless = Reply::stream().status(500).send("x".repeat(900)).send("y".repeat(100_000)).hang();
    assert_eq!(fail(&provider, endless).await.message(), "HTTP 500 Internal Server Error");
}

#[tokio::test]
async fn a_reply_that_is_not_streamed_and_errors_under_status_200() {
    let provider = Provider::start().await;
    let whole = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]});
    provider.push(Reply::json(200, &whole));
    let (events, error) = take(&model_at(&provider.base_url()).await).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events, [text("Hi"), ModelEvent::Finish(FinishReason::Stop)]);

    let error = fail(
        &provider,
        Reply::stream().text("Part").send(sse::data(r#"{"error":{"message":"gone","code":502}}"#)).hang(),
    )
    .await;
    assert_eq!((error.kind(), error.message().as_str()), (TurnErrorKind::Provider, "gone (code 502)"));
    let error = fail(&provider, Reply::body(200, "text/html", "<!doctype html>")).await;
    assert!(!error.retryable(), "{error}");
}

#[tokio::test]
async fn a_key_that_no_header_can_hold_is_refused_before_anything_is_sent() {
    let provider = Provider::start().await;
    let bad = ProviderConfig { api_key: Some(Secret::new("sk-a\nb")), ..config(&provider.base_url()) };
    let model = models(vec![bad]).resolve(&ModelRef::new("fake", "fake-model")).await.unwrap();
    let error = take(&model).await.1.expect("it does not fail");
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Auth, false));
    assert!(provider.requests().is_empty());
}

#[tokio::test]
async fn r11_r13_what_a_call_came_with_goes_back_with_it() {
    let provider = Provider::start().await;
    provider.push(Reply::says("ok"));
    let model = model_at(&provider.base_url()).await;
    let reply = Message::Assistant {
        parts: vec![
            AssistantPart::Reasoning { text: "Need a listing.".into(), signature: None },
            AssistantPart::ToolCall {
                id: "a".into(),
                name: "ls".into(),
                arguments: "{}".into(),
                signature: Some("U0lH".into()),
            },
        ],
    };
    let request = ModelRequest { messages: vec![Message::user("Hi"), reply], ..ModelRequest::default() };
    let _: Vec<_> = model.stream(request).collect().await;
    let request = provider.request(0).await;
    let sent = &request.messages()[1];
    assert_eq!(sent["reasoning_content"], "Need a listing.");
    assert_eq!(sent["tool_calls"][0]["extra_content"]["google"]["thought_signature"], "U0lH");
    assert_eq!(request.messages()[2]["tool_call_id"], "a");
}

#[tokio::test]
async fn limits_of_the_answer_are_the_least_that_anyone_set() {
    let provider = Provider::start().await;
    provider.set_default(|_| Reply::says("ok"));
    let configured = ProviderConfig {
        models: vec![
            ModelConfig { max_output_tokens: Some(50), ..ModelConfig::new("small") },
            ModelConfig::new("large"),
        ],
        max_output_tokens: Some(100),
        ..config(&provider.base_url())
    };
    let models = models(vec![configured]);
    let cases =
        [("large", None, 100), ("large", Some(70), 70), ("large", Some(900), 100), ("small", Some(70), 50)];
    for (number, (id, asked, sent)) in cases.into_iter().enumerate() {
        let model = models.resolve(&ModelRef::new("fake", id)).await.unwrap();
        let request = ModelRequest { max_output_tokens: asked, ..hello() };
        let _: Vec<_> = model.stream(request).collect().await;
        assert_eq!(provider.request(number).await.body()["max_tokens"], sent);
    }
}

#[tokio::test]
async fn models_are_asked_for_once_and_again_only_after_a_failure() {
    let provider = Provider::start().await;
    provider.set_models(Reply::error(500, "oops", "not now"));
    let unlisted = ProviderConfig { models: vec![], ..config(&provider.base_url()) };
    let models = models(vec![unlisted]);
    let ids = |rows: &[raddle_protocol::ModelInfo]| {
        rows.iter().map(|row| format!("{}/{}", row.provider, row.id)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&models.list().await), ["builtin/echo", "builtin/script"]);
    // A provider that cannot say what it has is believed.
    assert_eq!(models.resolve(&ModelRef::new("fake", "any")).await.unwrap().info.id, "any");

    let gate = Gate::new();
    provider.set_models(
        Reply::stream().wait(&gate).send(json!({"data": [{"id": "a/b"}, {"id": "c"}]}).to_string()),
    );
    let (first, second, ()) = tokio::join!(models.list(), models.list(), async {
        gate.reached().await;
        gate.open();
    });
    assert_eq!(first, second);
    assert_eq!(ids(&first), ["builtin/echo", "builtin/script", "fake/a/b", "fake/c"]);
    assert!(first.iter().all(|row| !row.hidden));
    // From here on nobody is asked: this would take the rows away.
    provider.set_models(Reply::error(500, "oops", "not now"));
    assert_eq!(models.list().await, first);
    assert_eq!(models.resolve(&"fake/a/b".parse().unwrap()).await.unwrap().info.id, "a/b");
    let error = models.resolve(&ModelRef::new("fake", "nope")).await.unwrap_err();
    assert_eq!(error.to_string(), "no model `fake/nope`; known: fake/a/b, fake/c");
}

#[tokio::test]
async fn what_is_wrong_with_a_provider_is_told_to_whoever_asks_for_it() {
    let models = models(vec![
        ProviderConfig::new("none", ""),
        ProviderConfig { kind: ProviderKind::Gemini, ..ProviderConfig::new("other", "http://127.0.0.1:1") },
        ProviderConfig::new("builtin", "http://127.0.0.1:1"),
        ProviderConfig::new("a/b", "http://127.0.0.1:1"),
    ]);
    let refuse =
        async |provider: &str| models.resolve(&ModelRef::new(provider, "m")).await.unwrap_err().to_string();
    assert_eq!(refuse("none").await, "provider `none`: `apiEndpoint` is missing");
    assert!(refuse("other").await.contains("not spoken yet"));
    assert_eq!(refuse("builtin").await, "no model `builtin/m`; known: builtin/echo, builtin/script");
    assert_eq!(refuse("nobody").await, "no provider named `nobody`; known: builtin, none, other, a/b");
    assert!(matches!(models.resolve(&ModelRef::new("a/b", "m")).await, Err(ModelsError::Config { .. })));
    assert_eq!(models.list().await.len(), 2);
}

/// Answers two requests on the one connection that it accepts; a second connection would never be answered.
async fn serve_two(listener: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (mut socket, _) = listener.accept().await.unwrap();
    for _ in 0..2 {
        let mut asked = Vec::new();
        while !asked.ends_with(b"}") {
            assert!(socket.read_buf(&mut asked).await.unwrap() > 0, "the client closed the connection");
        }
        let body = [sse::text("Hi"), sse::finish("stop"), sse::done()].concat();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let reply = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        socket.write_all(reply.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_serves_the_next_request_although_the_stream_is_dropped_at_finish() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    let client = async {
        let model = model_at(&base_url).await;
        for _ in 0..2 {
            let mut stream = model.stream(hello());
            while !matches!(stream.next().await.unwrap().unwrap(), ModelEvent::Finish(_)) {}
        }
    };
    let both = async { tokio::join!(serve_two(listener), client) };
    tokio::time::timeout(Duration::from_secs(30), both).await.expect("a second connection was opened");
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_a_network_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = model_at(&format!("https://{}/v1", listener.local_addr().unwrap())).await;
    let server = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut socket, b"220 mail.example ready\r\n").await.unwrap();
    };
    let ((), (events, error)) = tokio::join!(server, take(&model));
    let error = error.expect("it does not fail");
    assert_eq!((events, error.kind(), error.retryable()), (vec![], TurnErrorKind::Network, true));
    assert!(error.message().starts_with("could not connect to https://127.0.0.1:"), "{error}");
}
