use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use proptest::prelude::*;
use raddle_protocol::{TokenCounts, TurnErrorKind};
use tokio::time::Instant;

use super::*;
use crate::event::{FinishReason, ModelEvent, ToolCall};
use crate::request::AssistantPart;

fn ask(prompt: &str, answered: usize, attempt: u32) -> ModelRequest {
    let mut messages = vec![
        Message::Assistant { parts: vec![AssistantPart::Text("before".into())] },
        Message::user("script: text of an older message"),
        Message::user(prompt),
    ];
    for number in 0..answered {
        messages.push(Message::Assistant { parts: vec![] });
        messages.push(Message::ToolResult {
            call_id: "c".into(),
            tool_name: "ls".into(),
            text: format!("result {number}"),
            is_error: false,
        });
    }
    ModelRequest { messages, attempt, ..ModelRequest::default() }
}

async fn run(request: &ModelRequest) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut events = Vec::new();
    let mut stream = stream(request);
    while let Some(item) = stream.next().await {
        match item {
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(stream.next().await.is_none(), "an error is last");
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

/// Runs a prompt that needs no time; gives its events without the counted usage.
fn play(prompt: &str, answered: usize) -> Vec<ModelEvent> {
    let (events, error) = run(&ask(prompt, answered, 1)).now_or_never().expect("it waits");
    assert!(error.is_none(), "{error:?}");
    events.into_iter().filter(|event| !matches!(event, ModelEvent::Usage(_))).collect()
}

fn fail(prompt: &str) -> (Vec<ModelEvent>, ModelError) {
    let (events, error) = run(&ask(prompt, 0, 1)).now_or_never().expect("it waits");
    (events, error.expect("it does not fail"))
}

fn text(text: &str) -> ModelEvent {
    ModelEvent::Text(text.to_owned())
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.to_owned(), arguments: arguments.to_owned(), ..ToolCall::default() }
}

#[test]
fn p9_a_repeat_may_be_as_large_as_documented() {
    let events = play("script: repeat 2 bytes=65536", 0);
    assert_eq!(events.len(), 3);
    assert!(matches!(&events[1], ModelEvent::Text(text) if text.len() == 65_536 && text.starts_with("2 ")));
}

#[test]
fn one_line_and_many_lines_say_the_same() {
    let expected = [
        text("Looking."),
        ModelEvent::ToolCall(call("ls", r#"{"path":";;"}"#)),
        ModelEvent::Finish(FinishReason::ToolCalls),
    ];
    let line = r#"script: text Looking. ;; call ls {"path":";;"} ;; --- ;; text Done."#;
    let lines = "Please do this.\n\n  script:\n# a comment\ntext Looking.\ncall ls {\"path\":\";;\"}\n\n---\ntext Done.\n";
    let windows = lines.replace('\n', "\r\n");
    let fenced = format!("```\n{lines}```\nthis is no part of it");
    for prompt in [line, lines, &windows, &fenced] {
        assert_eq!(play(prompt, 0), expected, "{prompt}");
        assert_eq!(play(prompt, 1), [text("Done."), ModelEvent::Finish(FinishReason::Stop)], "{prompt}");
        assert_eq!(play(prompt, 2).len(), 7, "{prompt}");
    }
    assert_eq!(play("script: text x", 4)[..3], [text("The "), text("script "), text("has ")]);
}

#[test]
fn every_statement_does_what_it_says() {
    let prompt = r#"script:
        reasoning Let me see.
        signature c2ln
        text "  exact\n;; text "
        words one two
        ping
        repeat 2 as=reasoning hm
        repeat 2 bytes=5
        result
        call read#c1 {"path": "a",
                      "n": [1, {"x": "}"}]} signature=U0lH
        call ls
        call ls raw {"path
        usage input=10 output=2 cacheRead=3 cacheWrite=4"#;
    let (events, error) = run(&ask(prompt, 0, 1)).now_or_never().unwrap();
    assert!(error.is_none(), "{error:?}");
    let read = ToolCall {
        id: Some("c1".into()),
        signature: Some("U0lH".into()),
        ..call("read", "{\"path\": \"a\",\n                      \"n\": [1, {\"x\": \"}\"}]}")
    };
    assert_eq!(
        events,
        [
            ModelEvent::Reasoning("Let me see.".into()),
            ModelEvent::ReasoningSignature("c2ln".into()),
            text("  exact\n;; text "),
            text("one "),
            text("two"),
            ModelEvent::Ping,
            ModelEvent::Reasoning("hm".into()),
            ModelEvent::Reasoning("hm".into()),
            text("1    "),
            text("2    "),
            text("(no result)"),
            ModelEvent::ToolCall(read),
            ModelEvent::ToolCall(call("ls", "{}")),
            ModelEvent::ToolCall(call("ls", "{\"path")),
            ModelEvent::Usage(TokenCounts { input: 10, output: 2, cache_read: 3, cache_write: 4 }),
            ModelEvent::Finish(FinishReason::ToolCalls),
        ]
    );
    assert_eq!(play("script: --- ;; result", 1)[0], text("result 0"));
    assert_eq!(play("script: text x ;; finish length", 0)[1], ModelEvent::Finish(FinishReason::Length));
    // Without `usage`, words count as tokens.
    let (events, _) = run(&ask("script: text one two ;; reasoning three", 0, 1)).now_or_never().unwrap();
    assert_eq!(events[2], ModelEvent::Usage(TokenCounts { input: 7, output: 3, ..TokenCounts::default() }));
}

#[test]
fn errors_come_where_they_are_asked_for() {
    let (events, error) = fail("script: error rateLimit after=2s slow down, please");
    assert_eq!(events, []);
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::RateLimit, true));
    assert_eq!(
        (error.message().as_str(), error.retry_after()),
        ("slow down, please", Some(Duration::from_secs(2)))
    );

    let (events, error) = fail("script: text Part ;; call ls ;; error contextOverflow");
    assert_eq!(events, [text("Part")]);
    assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::ContextOverflow, false));
    assert!(fail("script: error auth retryable").1.retryable());
    assert!(!fail("script: error network final").1.retryable());

    // A call before a cut is not given, as by a real adapter.
    let (events, error) = fail("script: text Part ;; call ls ;; cut");
    assert_eq!(events, [text("Part")]);
    assert!(matches!(error, ModelError::Cut));
    assert_eq!(play("script: text Part ;; call ls ;; cut silently", 0), [text("Part")]);
}

#[test]
fn fail_lets_later_attempts_pass() {
    let prompt = "script: fail 2 provider overloaded ;; text Here.";
    for (attempt, fails) in [(0, true), (1, true), (2, true), (3, false)] {
        let (events, error) = run(&ask(prompt, 0, attempt)).now_or_never().unwrap();
        assert_eq!(
            error.map(|error| error.message()),
            fails.then(|| "overloaded".to_owned()),
            "attempt {attempt}"
        );
        assert_eq!(events.first() == Some(&text("Here.")), !fails);
    }
}

#[test]
fn a_prompt_that_is_no_script_is_answered() {
    for prompt in ["Hello", "", "what is a script: tell me", "Script: text x"] {
        let events = play(prompt, 0);
        assert_eq!(events[..3], [text("This "), text("model "), text("obeys ")], "{prompt}");
        assert_eq!(events.last(), Some(&ModelEvent::Finish(FinishReason::Stop)));
    }
    // The example in the explanation is itself a script.
    let example = EXPLANATION.split('`').find(|part| part.starts_with("script:")).unwrap();
    assert_eq!(play(example, 0).len(), 3);
}

#[test]
fn the_recipes_in_the_documentation_are_scripts() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/script-model.md");
    let page = std::fs::read_to_string(page).unwrap();
    let recipes = page.lines().filter_map(|line| line.strip_prefix("- `script: ")?.split('`').next());
    let read =
        recipes.map(|recipe| parse::parse(&format!("script: {recipe}")).unwrap().unwrap().replies.len());
    assert_eq!(read.collect::<Vec<_>>(), [1, 1, 1, 1, 1, 1, 2, 1, 1]);
}

#[test]
fn mistakes_are_told_with_their_place() {
    let cases = [
        ("script:", 1, 8, "a statement is expected"),
        ("hm\nscript: text a\n  txt b", 3, 3, "`txt` is no statement"),
        ("script: text", 1, 13, "a text is expected"),
        ("script: text é ;; wait 5", 1, 24, "a time is expected"),
        ("script: wait 99m", 1, 14, "the longest time is 3600 s"),
        ("script: text \"a\" b", 1, 18, "`b` is not expected here"),
        ("script: text \"a", 1, 15, "the text is not valid JSON"),
        ("script: call ls {\"a\": }", 1, 23, "the call's input is not valid JSON: expected value"),
        (
            "script: call ls {\"a\":\n  1,\n  b}",
            3,
            3,
            "the call's input is not valid JSON: key must be a string",
        ),
        ("script: call ls [1]", 1, 17, "`[1]` is not expected here"),
        ("script: call", 1, 13, "a tool's name is expected"),
        ("script: usage", 1, 14, "counts are expected"),
        ("script: usage input=x", 1, 21, "a number of tokens is expected"),
        ("script: usage input= 5", 1, 15, "`input=` wants a value"),
        ("script: repeat 99999999999", 1, 16, "a number of deltas from 0 to 10000000 is expected"),
        ("script: repeat 5 bytes=0", 1, 24, "a number of bytes from 1"),
        ("script: repeat 5 as=song", 1, 21, "expected `as=text`"),
        ("script: error oops", 1, 15, "a kind of error is expected"),
        ("script: fail 0 network", 1, 14, "a number of attempts from 1"),
        ("script: finish now", 1, 16, "a reason is expected"),
        ("script: cut ;; text x", 1, 16, "nothing can follow `cut`"),
        ("script: cut now", 1, 13, "`now` is not expected here"),
    ];
    for (prompt, at_line, at_column, expected) in cases {
        let (events, error) = fail(prompt);
        assert!(events.is_empty());
        assert_eq!((error.kind(), error.retryable()), (TurnErrorKind::Other, false));
        let ModelError::Script { line, column, message } = error else { panic!("{prompt}: {error}") };
        assert!(message.starts_with(expected), "{prompt}: {message}");
        assert_eq!((line, column), (at_line, at_column), "{prompt}: {message}");
    }
    let long = format!("script: text {}", "x".repeat(parse::SCRIPT_BYTES_MAX));
    assert!(fail(&long).1.message().contains("at most 1048576 bytes"));
}

#[tokio::test(start_paused = true)]
async fn waits_and_paces_take_their_time() {
    let start = Instant::now();
    let (events, _) = run(&ask("script: wait 250ms ;; repeat 3 every=20ms x ;; wait 1m", 0, 1)).await;
    assert_eq!(events.iter().filter(|event| **event == text("x")).count(), 3);
    assert_eq!(start.elapsed(), Duration::from_millis(250 + 40) + Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_hang_is_quiet_until_it_is_dropped() {
    let request = ask("script: text a ;; hang", 0, 1);
    let mut stream = stream(&request);
    assert_eq!(stream.next().await.unwrap().unwrap(), text("a"));
    assert!(tokio::time::timeout(Duration::from_secs(86_400), stream.next()).await.is_err());
}

proptest! {
    #[test]
    fn no_script_makes_the_parser_panic(
        words in prop::collection::vec(prop::sample::select(vec![
            "text", "words", "call", "ls#1", "ls", "{", "{\"a\":\"é\"}", "\"é", "\"x\"", ";;", ";", "\n", "\r\n", "---", "usage", "input=1",
            "input=", "repeat", "3", "every=1ms", "bytes=9", "as=reasoning", "wait", "5s", "cut", "silently", "error", "auth",
            "after=9m", "fail", "finish", "stop", "raw", "signature=é", "#", "```", "script:", "result", "é😀", "\u{2028}", "\0",
        ]), 0..24),
        glue in prop::sample::select(vec![" ", "", "  "]),
    ) {
        let _ = parse::parse(&format!("script:{glue}{}", words.join(glue)));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = parse::parse(&format!("script:{text}"));
        let _ = parse::parse(&text);
    }
}
