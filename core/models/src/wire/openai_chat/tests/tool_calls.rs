use super::*;

/// Decodes deltas with tool calls, each `pieces` being the list in one chunk, and the end that case R09 gives.
fn calls(pieces: &[&str]) -> Outcome {
    calls_ended_by("tool_calls", pieces)
}

fn calls_ended_by(why: &str, pieces: &[&str]) -> Outcome {
    let mut data: Vec<String> =
        pieces.iter().map(|pieces| delta(&format!(r#"{{"tool_calls":[{pieces}]}}"#))).collect();
    data.push(reason(why));
    data.push("[DONE]".to_owned());
    let data: Vec<&str> = data.iter().map(String::as_str).collect();
    decode(body(&data))
}

#[test]
fn r09_a_call_without_an_id() {
    let outcome = calls(&[
        r#"{"index":0,"function":{"name":"ls","arguments":"{\"pa"}}"#,
        r#"{"index":0,"function":{"arguments":"th\":\".\"}"}}"#,
    ]);
    assert_eq!(outcome.calls(), [r#"- ls {"path":"."}"#]);
    assert_eq!(outcome.finish(), FinishReason::ToolCalls);
}

#[test]
fn r09_a_call_without_an_index_whose_name_is_late() {
    let outcome = calls(&[
        r#"{"id":"call_x","type":"function","function":{"arguments":"{\"path\":"}}"#,
        r#"{"id":"call_x","function":{"name":"ls","arguments":"\".\"}"}}"#,
    ]);
    assert_eq!(outcome.calls(), [r#"call_x ls {"path":"."}"#]);
}

#[test]
fn r09_a_call_whose_index_starts_at_one() {
    let outcome = calls(&[
        r#"{"index":1,"id":"call_y","type":"function","function":{"name":"ls","arguments":""}}"#,
        r#"{"index":1,"id":null,"function":{"name":null,"arguments":"{\"path\":\".\"}"}}"#,
    ]);
    assert_eq!(outcome.calls(), [r#"call_y ls {"path":"."}"#]);
}

#[test]
fn interleaved_calls_are_kept_apart_by_their_index() {
    let outcome = calls(&[
        r#"{"index":0,"id":"a","function":{"name":"read","arguments":""}}"#,
        r#"{"index":1,"id":"b","function":{"name":"read","arguments":""}}"#,
        r#"{"index":0,"function":{"arguments":"{\"n\":"}},{"index":1,"function":{"arguments":"{\"n\":"}}"#,
        r#"{"index":1,"function":{"arguments":"2}"}}"#,
        r#"{"index":0,"function":{"arguments":"1}"}}"#,
    ]);
    assert_eq!(outcome.calls(), [r#"a read {"n":1}"#, r#"b read {"n":2}"#]);
}

#[test]
fn whole_calls_are_told_apart_when_servers_do_not_count() {
    let two: &[&[&str]] = &[
        // In one chunk: the same index, none, and none with no id either.
        &[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"n\":1}"}},{"index":0,"id":"b","function":{"name":"f","arguments":"{\"n\":2}"}}"#,
        ],
        &[
            r#"{"id":"a","function":{"name":"f","arguments":"{\"n\":1}"}},{"id":"b","function":{"name":"f","arguments":"{\"n\":2}"}}"#,
        ],
        &[r#"{"function":{"name":"f","arguments":{"n":1}}},{"function":{"name":"f","arguments":{"n":2}}}"#],
        &[
            r#"{"index":0,"id":"","function":{"name":"f","arguments":"{\"n\":1}"}},{"index":0,"id":"","function":{"name":"f","arguments":"{\"n\":2}"}}"#,
        ],
        // In a chunk each: the same.
        &[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"n\":1}"}}"#,
            r#"{"index":0,"id":"b","function":{"name":"f","arguments":"{\"n\":2}"}}"#,
        ],
        &[
            r#"{"index":0,"function":{"name":"f","arguments":"{\"n\":1}"}}"#,
            r#"{"index":0,"function":{"name":"f","arguments":"{\"n\":2}"}}"#,
        ],
        // With one id for two calls that are counted.
        &[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"n\":1}"}}"#,
            r#"{"index":1,"id":"a","function":{"name":"f","arguments":"{\"n\":2}"}}"#,
        ],
    ];
    for pieces in two {
        let outcome = calls(pieces);
        let arguments: Vec<String> =
            outcome.calls().iter().map(|call| call.split_once(' ').unwrap().1.to_owned()).collect();
        assert_eq!(arguments, [r#"f {"n":1}"#, r#"f {"n":2}"#], "{pieces:?}");
    }
}

#[test]
fn a_name_that_every_piece_repeats_is_one_call() {
    let outcome = calls(&[
        r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"n\""}}"#,
        r#"{"index":0,"id":"a","function":{"name":"f","arguments":":1}"}}"#,
        r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#,
    ]);
    assert_eq!(outcome.calls(), [r#"a f {"n":1}"#]);
    let outcome = calls(&[
        r#"{"function":{"name":"f","arguments":"{\"n\""}}"#,
        r#"{"function":{"name":"f","arguments":":1}"}}"#,
    ]);
    assert_eq!(outcome.calls(), [r#"- f {"n":1}"#]);
}

#[test]
fn arguments_are_passed_on_as_they_are() {
    let one = |arguments: &str| {
        calls(&[&format!(r#"{{"index":0,"id":"a","function":{{"name":"f"{arguments}}}}}"#)]).calls()
    };
    assert_eq!(one(""), ["a f {}"]);
    assert_eq!(one(r#","arguments":null"#), ["a f {}"]);
    assert_eq!(one(r#","arguments":" ""#), ["a f {}"]);
    assert_eq!(one(r#","arguments":{"a": [1]}"#), [r#"a f {"a": [1]}"#]);
    assert_eq!(one(r#","arguments":"{\"a\":""#), [r#"a f {"a":"#]);
    assert_eq!(one(r#","arguments":"{\"a\":\"\ud83d\"}""#), ["a f {\"a\":\"\u{fffd}\"}"]);
}

#[test]
fn a_call_that_a_limit_cut_keeps_its_missing_input() {
    let piece = r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#;
    let outcome = calls_ended_by("length", &[piece]);
    assert_eq!((outcome.calls(), outcome.finish()), (vec!["a f ".to_owned()], FinishReason::Length));
    let outcome = calls_ended_by("stop", &[piece]);
    assert_eq!((outcome.calls(), outcome.finish()), (vec!["a f {}".to_owned()], FinishReason::ToolCalls));
}

#[test]
fn ghosts_are_dropped_and_nameless_calls_fail() {
    let real = r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}"#;
    assert_eq!(
        calls(&[real, r#"{"index":1,"id":"ghost","function":{"name":"","arguments":""}}"#, "{}"]).calls(),
        ["a f {}"]
    );
    let outcome = calls(&[r#"{"index":0,"id":"a","function":{"arguments":"{\"n\":1}"}}"#]);
    assert_eq!(
        outcome.failure(),
        (TurnErrorKind::Provider, true, "the model made a tool call without a name")
    );
}

#[test]
fn more_calls_than_one_reply_may_hold_fail_it() {
    let pieces: Vec<String> = (0..300)
        .map(|n| format!(r#"{{"index":{n},"id":"c{n}","function":{{"name":"f","arguments":"{{}}"}}}}"#))
        .collect();
    let bytes = body(&[&delta(&format!(r#"{{"tool_calls":[{}]}}"#, pieces.join(",")))]);
    assert!(!decode_pieces([bytes.as_bytes()]).failure().1);
}

#[test]
fn r13_signatures_come_with_their_call() {
    let outcome = calls(&[
        r#"{"index":0,"id":"a","function":{"name":"read","arguments":"{}"},"extra_content":{"google":{"thought_signature":"U0lH"}}},{"index":1,"id":"b","function":{"name":"read","arguments":"{}"}}"#,
    ]);
    let signatures: Vec<Option<String>> = outcome
        .events
        .iter()
        .filter_map(|event| match event {
            ModelEvent::ToolCall(call) => Some(call.signature.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(signatures, [Some("U0lH".to_owned()), None]);
}
