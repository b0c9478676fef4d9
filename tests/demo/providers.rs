//! Providers that do badly: the demo says what happened and what to do, and ends.

use raddle_fakes::{Provider, Reply};
use serde_json::{Value, json};

use crate::command::{Machine, Run};

async fn demo(provider: &Provider, arguments: &[&str]) -> Run {
    let base = provider.base_url();
    let environment =
        [("OPENAI_BASE_URL", base.as_str()), ("OPENAI_API_KEY", "sk-any"), ("RADDLE_MODEL", "fake-model")];
    Machine::new().demo(arguments, &environment).await
}

#[tokio::test]
async fn a_model_that_says_little_and_calls_nothing_is_no_failure() {
    let provider = Provider::start().await;
    provider.set_default(|_| Reply::says("No."));
    let run = demo(&provider, &[]).await;
    assert_eq!((run.last(), run.code), ("demo: ok", Some(0)), "\n{}", run.text);
    run.has("openai/fake-model");
    run.has("RADDLE_MODEL asks for it");
    run.has("A │ No.");
    run.has("the model called no tool");
    run.has("was killed after the model was done");
    assert_eq!(run.step(3).matches("all there").count(), 2, "{}", run.text);
}

#[tokio::test]
async fn a_model_may_run_nothing_but_what_the_demo_asked_for() {
    let provider = Provider::start().await;
    provider.set_default(|request| {
        let asked = request["messages"].as_array().and_then(|all| all.last()).unwrap_or(&Value::Null);
        if asked["role"] == "tool" {
            Reply::says("I see.")
        } else {
            Reply::calls(&[("c1", "bash", json!({ "command": "echo hello from the demo; ls" }))])
        }
    });
    let run = demo(&provider, &[]).await;
    assert_eq!((run.last(), run.code), ("demo: ok", Some(0)), "\n{}", run.text);
    run.has("may bash run this? The demo answers: decline");
    assert!(!run.text.contains("accept"), "{}", run.text);
}

#[tokio::test]
async fn a_key_that_is_refused_is_told_with_the_way_out() {
    let provider = Provider::start().await;
    provider.set_default(|_| Reply::error(401, "invalid_api_key", "Incorrect API key provided"));
    let run = demo(&provider, &[]).await;
    assert_eq!(run.code, Some(1), "\n{}", run.text);
    run.has("the turn failed: ");
    run.has("Incorrect API key provided");
    run.has("Look at OPENAI_API_KEY");
    assert!(run.last().starts_with("demo: failed: the turn of thread A failed"), "{}", run.text);
}

#[tokio::test]
async fn a_model_that_is_silent_ends_at_the_time_limit() {
    let provider = Provider::start().await;
    provider.set_default(|_| Reply::stream().text("One moment. ").hang());
    let run = demo(&provider, &["--timeout", "2"]).await;
    assert_eq!(run.code, Some(1), "\n{}", run.text);
    run.has("A │ One moment.");
    run.has("B │ One moment.");
    assert!(
        run.last().starts_with(
            "demo: failed: after 2 s the turns of threads A and B had not ended. The model openai/"
        ),
        "{}",
        run.text
    );
}
