use proptest::prelude::*;
use raddle_protocol::TokenCounts;

use super::*;

const STOP: &str = r#"{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

fn counts(input: u64, output: u64, cache_read: u64, cache_write: u64) -> TokenCounts {
    TokenCounts { input, output, cache_read, cache_write }
}

fn usage(outcome: &Outcome) -> Vec<TokenCounts> {
    let usage = |event: &ModelEvent| match event {
        ModelEvent::Usage(counts) => Some(*counts),
        _ => None,
    };
    outcome.events.iter().filter_map(usage).collect()
}

#[test]
fn r01_characters_survive_every_cut() {
    let first = delta(r#"{"role":"assistant","content":"café 😀 ok"}"#);
    let outcome = decode(body(&[&first, STOP, "[DONE]"]));
    assert_eq!(
        outcome.events,
        [ModelEvent::Text("café 😀 ok".to_owned()), ModelEvent::Ping, ModelEvent::Finish(FinishReason::Stop)]
    );
}

#[test]
fn r01_an_invalid_byte_is_replaced() {
    let mut bytes = body(&[&delta(r#"{"content":"a?b"}"#), STOP, "[DONE]"]).into_bytes();
    let at = bytes.iter().position(|byte| *byte == b'?').unwrap();
    bytes[at] = 0xFF;
    let outcome = decode(bytes);
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("a\u{fffd}b", FinishReason::Stop));
}

#[test]
fn r01_half_a_surrogate_pair_is_replaced() {
    let outcome = decode(body(&[
        &delta(r#"{"content":"a\ud83d"}"#),
        &delta(r#"{"content":"\ude00b \\ud83d \ud83d\ude00"}"#),
        STOP,
        "[DONE]",
    ]));
    assert_eq!(outcome.text(), "a\u{fffd}\u{fffd}b \\ud83d 😀");
}

#[test]
fn r03_keep_alives_are_pings_and_no_content() {
    let outcome = decode(concat!(
        ":\n\n: PROCESSING\n\nid: 7\n",
        r#"data: {"id":"c1","choices":[{"index":0,"delta":{"content":"A"},"finish_reason":null}]}"#,
        "\n\n: ping\n\ndata:\n\nevent: ping\ndata: {}\n\nretry: 3000\n\n",
        r#"data: {"id":"c1","choices":[{"index":0,"delta":{"content":"B"},"finish_reason":"stop"}]}"#,
        "\n\ndata: [DONE]\n\n"
    ));
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("AB", FinishReason::Stop));
    let pings = outcome.events.iter().filter(|event| **event == ModelEvent::Ping).count();
    assert_eq!(pings, 6);
    assert_eq!(outcome.events[..2], [ModelEvent::Ping, ModelEvent::Ping]);
}

#[test]
fn r05_cut_stream_is_never_finished() {
    let outcome = decode(body(&[&delta(r#"{"content":"The answer is"}"#)]));
    assert_eq!(outcome.text(), "The answer is");
    assert_eq!(
        outcome.failure(),
        (TurnErrorKind::Network, true, "stream ended before the reply was finished")
    );

    // Wherever a whole reply is cut, it is not finished until its reason, or its end, has come.
    let call = delta(r#"{"tool_calls":[{"index":0,"id":"w","function":{"name":"write","arguments":"{}"}}]}"#);
    let whole = body(&[&delta(r#"{"content":"Hi"}"#), &call, &reason("tool_calls"), "[DONE]"]);
    let finished_at = whole.find(r#""tool_calls"}]}"#).unwrap() + r#""tool_calls"}]}"#.len();
    for at in 0..=whole.len() {
        let outcome = decode_pieces([&whole.as_bytes()[..at]]);
        if at < finished_at {
            assert_eq!(outcome.failure().0, TurnErrorKind::Network, "cut at {at}");
        } else {
            assert_eq!(outcome.finish(), FinishReason::ToolCalls, "cut at {at}");
        }
    }
}

#[test]
fn r05_a_cut_call_is_never_given() {
    let outcome = decode(body(&[&delta(
        r#"{"tool_calls":[{"index":0,"id":"call_w","type":"function","function":{"name":"write","arguments":"{\"path\":\"a.txt\",\"cont"}}]}"#,
    )]));
    assert_eq!(outcome.events, [ModelEvent::Ping]);
    assert_eq!(outcome.failure().0, TurnErrorKind::Network);
}

#[test]
fn r05_an_explicit_end_without_a_reason_is_finished() {
    let outcome = decode(body(&[
        &delta(r#"{"content":"Done."}"#),
        r#"{"id":"c1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#,
        "[DONE]",
    ]));
    assert_eq!((outcome.text().as_str(), outcome.finish()), ("Done.", FinishReason::Unknown));
    assert_eq!(usage(&outcome), [counts(9, 2, 0, 0)]);
}

#[test]
fn r06_an_error_in_the_stream_fails_the_reply() {
    let outcome = decode(body(&[
        r#"{"id":"c1","choices":[],"error":{"code":502,"message":"upstream worker limit reached"}}"#,
        "[DONE]",
    ]));
    assert_eq!(
        outcome.failure(),
        (TurnErrorKind::Provider, true, "upstream worker limit reached (code 502)")
    );

    let outcome = decode(body(&[
        &delta(r#"{"content":"Part"}"#),
        r#"{"error":{"message":"quota exceeded","type":"insufficient_quota","code":"server_error"}}"#,
    ]));
    assert_eq!(outcome.text(), "Part");
    assert_eq!(outcome.failure(), (TurnErrorKind::RateLimit, false, "quota exceeded (code server_error)"));
}

#[test]
fn r06_errors_are_found_wherever_servers_put_them() {
    let part = delta(r#"{"content":"Part"}"#);
    let tails = [
        // In the choice, with a reason of its own (OpenRouter).
        r#"data: {"choices":[{"index":0,"delta":{},"error":{"code":503,"message":"it broke"},"finish_reason":"error"}]}"#,
        // As the whole chunk.
        r#"data: {"object":"error","message":"it broke","code":503}"#,
        // As an event of its own.
        "event: error\ndata: {\"message\":\"it broke\",\"code\":503}",
        // Without the field, as older llama.cpp does, and as a bare line.
        r#"error: {"code":503,"message":"it broke"}"#,
        r#"{"error":{"code":503,"message":"it broke"}}"#,
        // Behind a half-written chunk, in the same event or in the next one.
        r#"data: {"id":"c1","choices":[{"index":0,"delta":{"contdata: {"error":{"code":503,"message":"it broke"}}"#,
        "data: {\"id\":\"c1\",\"choices\":[{\"ind\n\ndata: {\"error\":{\"code\":503,\"message\":\"it broke\"}}",
        // In a list (Gemini).
        r#"data: [{"error":{"code":503,"message":"it broke"}}]"#,
    ];
    for tail in tails {
        let outcome = decode(format!("data: {part}\n\n{tail}\n\ndata: [DONE]\n\n"));
        assert_eq!(outcome.text(), "Part", "{tail}");
        assert_eq!(outcome.failure(), (TurnErrorKind::Provider, true, "it broke (code 503)"), "{tail}");
    }
}

#[test]
fn r06_a_reply_that_says_nothing_is_no_success() {
    for data in [vec!["[DONE]"], vec!["{}", "[DONE]"], vec![r#"{"choices":[]}"#, "[DONE]"]] {
        let outcome = decode(body(&data));
        assert_eq!(
            outcome.failure(),
            (TurnErrorKind::Provider, true, "the provider ended the reply without saying anything")
        );
    }
    assert_eq!(decode("{}").failure().0, TurnErrorKind::Provider);
    assert_eq!(decode("").failure().0, TurnErrorKind::Network);
    // A model that says on purpose that it has nothing to say is believed.
    assert_eq!(decode(body(&[STOP])).finish(), FinishReason::Stop);
    // A provider that gives up says so in place of a reason.
    let outcome = decode(body(&[&reason("insufficient_system_resource"), "[DONE]"]));
    assert!(outcome.failure().1);
}

#[test]
fn a_chunk_that_is_no_json_fails_the_reply_once_nothing_explains_it() {
    let part = delta(r#"{"content":"Part"}"#);
    for tail in [vec![part.as_str()], vec!["[DONE]"], vec!["{{{"], vec![]] {
        let mut data = vec![part.as_str(), "{nonsense}"];
        data.extend(tail);
        let outcome = decode(body(&data));
        let (kind, retryable, message) = outcome.failure();
        assert_eq!((kind, retryable), (TurnErrorKind::Provider, true));
        assert!(message.starts_with("the provider sent a chunk that is not JSON: "), "{message}");
        assert_eq!(outcome.text(), "Part");
    }
    // What comes after the reason is not needed.
    assert_eq!(decode(body(&[&part, STOP, "{nonsense}", "[DONE]"])).finish(), FinishReason::Stop);
}

#[test]
fn r11_thinking_comes_under_either_name_and_once() {
    let outcome = decode(body(&[
        &delta(r#"{"role":"assistant","content":"","reasoning":"Need ","reasoning_content":"Need "}"#),
        &delta(r#"{"reasoning_content":"a "}"#),
        &delta(r#"{"reasoning":"listing."}"#),
        &delta(
            r#"{"content":null,"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"ls","arguments":"{\"path\":\".\"}"}}]}"#,
        ),
        &reason("tool_calls"),
        "[DONE]",
    ]));
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("Need a listing.", ""));
    assert_eq!(outcome.calls(), [r#"call_a ls {"path":"."}"#]);
}

#[test]
fn content_may_be_a_list_of_parts() {
    let outcome = decode(body(&[
        &delta(r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm."}]}]}"#),
        &delta(
            r#"{"content":[{"type":"text","text":"A"},{"type":"text","text":"B"},null,{"type":"image"}]}"#,
        ),
        &delta(r#"{"content":7,"reasoning":{"odd":[]},"refusal":"No."}"#),
        STOP,
    ]));
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("Hm.", "ABNo."));
}

#[test]
fn the_end_may_come_with_and_without_its_mark() {
    let hi = delta(r#"{"content":"Hi"}"#);
    let tokens = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;
    // The counts come after the reason, so the reply is finished only at the end.
    let expected = [
        ModelEvent::Text("Hi".to_owned()),
        ModelEvent::Ping,
        ModelEvent::Ping,
        ModelEvent::Usage(counts(5, 1, 0, 0)),
        ModelEvent::Finish(FinishReason::Stop),
    ];
    assert_eq!(decode(body(&[&hi, STOP, tokens])).events, expected);
    assert_eq!(decode(body(&[&hi, STOP, tokens, "[DONE]"])).events, expected);
    assert_eq!(decode(body(&[&hi, STOP, tokens, "[DONE]", "junk", &hi])).events, expected);
    assert_eq!(decode(body(&[&hi, STOP, tokens]).trim_end()).events, expected);
    assert_eq!(decode(body(&[&hi, STOP, tokens, "[DONE]"]).replace('\n', "\r\n")).events, expected);
    assert_eq!(decode(format!("\u{feff}{}", body(&[&hi, STOP, tokens, "[DONE]"]))).events, expected);
}

#[test]
fn counts_come_in_many_shapes() {
    let cases = [
        (
            r#""usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}"#,
            counts(6, 2, 4, 0),
        ),
        (
            r#""usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6}"#,
            counts(6, 2, 4, 0),
        ),
        (
            r#""usage":{"prompt_tokens":10,"completion_tokens":2,"cached_tokens":4,"prompt_tokens_details":null}"#,
            counts(6, 2, 4, 0),
        ),
        (
            r#""usage":{"prompt_tokens":10.0,"completion_tokens":"2","prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":5}}"#,
            counts(2, 2, 3, 5),
        ),
        (
            r#""usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":99}}"#,
            counts(0, 2, 10, 0),
        ),
        (r#""x_groq":{"id":"r","usage":{"prompt_tokens":10,"completion_tokens":2}}"#, counts(10, 2, 0, 0)),
    ];
    for (part, expected) in cases {
        let outcome = decode(body(&[
            &delta(r#"{"content":"Hi"}"#),
            STOP,
            &format!(r#"{{"choices":[],{part}}}"#),
            "[DONE]",
        ]));
        assert_eq!(usage(&outcome), [expected], "{part}");
    }
    // In the choice; and counted up in every chunk, of which the last is right; and null, or all zero, is none.
    let counted = |n| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}},"usage":{{"prompt_tokens":5,"completion_tokens":{n}}}}}],"usage":null}}"#
        )
    };
    let outcome = decode(body(&[
        &counted(1),
        &counted(2),
        STOP,
        r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#,
    ]));
    assert_eq!(usage(&outcome), [counts(5, 2, 0, 0)]);
    // A reply that fails was paid for, too.
    let outcome = decode(body(&[&counted(3), r#"{"error":{"message":"no"}}"#]));
    assert_eq!((usage(&outcome), outcome.failure().2), (vec![counts(5, 3, 0, 0)], "no"));
}

#[test]
fn a_reply_that_is_not_streamed_is_taken_too() {
    let json = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"finish_reason":"tool_calls","message":
        {"role":"assistant","content":"Hi","reasoning_content":"Hm","tool_calls":[
            {"id":"a","type":"function","function":{"name":"ls","arguments":"{}"}},
            {"id":"b","type":"function","function":{"name":"ls","arguments":{"path":"."}}}]}}],
        "usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
    let outcome = decode(json);
    assert_eq!((outcome.reasoning().as_str(), outcome.text().as_str()), ("Hm", "Hi"));
    assert_eq!(outcome.calls(), ["a ls {}", r#"b ls {"path":"."}"#]);
    assert_eq!((outcome.finish(), usage(&outcome)), (FinishReason::ToolCalls, vec![counts(3, 4, 0, 0)]));
    assert_eq!(decode(&json[..json.len() - 1]).failure().0, TurnErrorKind::Network);
    // Keep-alives before it, and an error instead of it.
    assert_eq!(decode(format!("\n\n{json}")).events[..2], [ModelEvent::Ping, ModelEvent::Ping]);
    assert_eq!(decode(r#"{"error":"model is loading"}"#).failure().2, "model is loading");
    assert_eq!(decode(r#"{"detail":"Not Found"}"#).failure().2, "Not Found");
    assert_eq!(
        decode("<!doctype html>").failure(),
        (
            TurnErrorKind::Provider,
            false,
            "the provider answered with a web page instead of a reply; check `apiEndpoint`"
        )
    );
    // A stream that ends with the whole message again does not say it twice.
    let whole = r#"{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}]}"#;
    assert_eq!(decode(body(&[&delta(r#"{"content":"Hi"}"#), whole, "[DONE]"])).text(), "Hi");
}

#[test]
fn reasons_are_known_in_many_words() {
    let cases = [
        ("stop", FinishReason::Stop),
        ("STOP", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
        ("who_knows", FinishReason::Unknown),
        // Nothing was called, so nothing can be waited for.
        ("tool_calls", FinishReason::Unknown),
    ];
    for (word, expected) in cases {
        assert_eq!(
            decode(body(&[&delta(r#"{"content":"x"}"#), &reason(word), "[DONE]"])).finish(),
            expected,
            "{word}"
        );
    }
    // An empty reason is none.
    assert_eq!(
        decode(body(&[&delta(r#"{"content":"x"}"#), &reason("")])).failure().0,
        TurnErrorKind::Network
    );
    // A second answer is not ours.
    let other = r#"{"choices":[{"index":1,"delta":{"content":"other"},"finish_reason":"stop"}]}"#;
    assert_eq!(decode(body(&[other, &delta(r#"{"content":"x"}"#), STOP])).text(), "x");
}

proptest! {
    /// Bytes of any kind never panic, and the way they are cut never matters.
    #[test]
    fn any_cut_of_anything_gives_the_same_events(
        parts in prop::collection::vec(prop::sample::select(vec![
            "data: {\"choices\":[{\"delta\":{\"content\":\"é😀\"}}]}\n\n", "data: [DONE]\n\n", ": x\n\n", "\r\n", "data: {}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n", "\u{feff}", "{", "<", "data", " ",
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\n",
            "data: {\"error\":\"no\"}\n\n", "data: {\"choices\":[{\n\n", "\"}", "data: \"\\ud83d\"\n\n",
        ]), 0..12),
        cuts in prop::collection::vec(0usize..600, 0..8),
        spoilt in prop::option::of((0usize..600, any::<u8>())),
    ) {
        let mut bytes = parts.concat().into_bytes();
        if let Some((at, byte)) = spoilt && let Some(slot) = bytes.get_mut(at) {
            *slot = byte;
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([bytes.len()]).collect();
        cuts.sort_unstable();
        let mut from = 0;
        let pieces: Vec<&[u8]> = cuts.iter().map(|to| { let piece = &bytes[from..*to]; from = *to; piece }).collect();
        prop_assert_eq!(decode_pieces(pieces), decode_pieces([bytes.as_slice()]));
    }
}
