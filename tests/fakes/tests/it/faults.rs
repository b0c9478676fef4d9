//! A request that no provider would take is refused, and fails the test that let it be sent.

use std::panic::{AssertUnwindSafe, catch_unwind};

use raddle_fakes::{Provider, Reply};
use serde_json::{Value, json};

use crate::client::{Client, chat, user};

async fn refused(provider: &Provider, messages: Value) -> String {
    let mut client = Client::connect(&provider.base_url()).await;
    client.send("POST", "/v1/chat/completions", &chat(&messages)).await;
    let (status, body) = client.json().await;
    assert_eq!(status, 400);
    body["error"]["message"].as_str().unwrap().to_owned()
}

fn panic_message(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

#[tokio::test]
async fn a_bad_history_is_answered_with_400_and_recorded() {
    let provider = Provider::start().await;
    provider.push(Reply::says("for the good request"));
    let orphan = json!([user("x"), { "role": "tool", "tool_call_id": "a", "content": "" }]);
    let message = refused(&provider, orphan).await;
    assert!(message.starts_with("request 0: message 1: a result for tool call \"a\""), "{message}");
    // The queued reply is still there for the request that it was meant for.
    assert_eq!(provider.queued(), 1);
    let panic = panic_message(|| provider.assert_well_formed());
    assert_eq!(panic, format!("fake provider: 1 bad request(s):\n  {message}"));
    // Said once: the drop that follows must not fail this test.
}

#[tokio::test]
async fn dropping_the_provider_fails_the_test() {
    let provider = Provider::start().await;
    let message = refused(&provider, json!([])).await;
    assert_eq!(message, "request 0: the request has no messages");
    assert!(panic_message(|| drop(provider)).contains(&message));
}

#[tokio::test]
async fn faults_can_be_expected() {
    let provider = Provider::start().await;
    let message = refused(&provider, json!([user("x")])).await;
    assert_eq!(message, "request 0: no reply is queued, and there is no default");
    assert_eq!(provider.take_faults(), [message]);
}

#[tokio::test]
async fn what_is_not_served_is_a_fault() {
    let provider = Provider::start().await;
    let mut client = Client::connect(&provider.base_url()).await;
    client.send("POST", "/v1/embeddings", "{}").await;
    assert_eq!(client.json().await.0, 404);
    client.send("POST", "/v1/chat/completions", "{nonsense").await;
    let (status, body) = client.json().await;
    assert_eq!(status, 400);
    assert!(body["error"]["message"].as_str().unwrap().contains("not JSON"));
    assert_eq!(client.rest().await.unwrap(), "", "nothing more can be read from such a connection");
    assert_eq!(provider.take_faults().len(), 2);
}

#[tokio::test]
async fn a_responder_that_panics_is_a_fault() {
    let provider = Provider::start().await;
    provider.set_default(|_| panic!("on purpose"));
    let message = refused(&provider, json!([user("x")])).await;
    assert_eq!(message, "request 0: the responder panicked: on purpose");
    assert_eq!(provider.take_faults(), [message]);
}
