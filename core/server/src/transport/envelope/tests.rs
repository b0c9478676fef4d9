use proptest::prelude::*;
use raddle_protocol::approval::RequestApprovalParams;
use raddle_protocol::methods::ServerAnswer;
use raddle_protocol::model::ModelListParams;
use raddle_protocol::server::{ErrorNotification, InitializedParams};
use raddle_protocol::thread::ThreadReadParams;
use serde_json::json;

use super::*;

/// A thread name that breaks readers who split lines at more than line feeds, and writers who escape too little.
const ODD: &str = "a\u{2028}b\u{2029}c\u{85}d\re\0f";

fn client(line: &str) -> Option<Incoming> {
    read_client_line(line.as_bytes())
}

/// The code of what is answered to a line, and the id that is answered to.
fn refused(line: &str) -> (Option<RequestId>, &'static str) {
    let (id, error) = match client(line) {
        Some(Incoming::Malformed { id, error }) => (id, error),
        Some(Incoming::BadRequest { id, error, .. }) => (Some(id), error),
        other => panic!("{line}: {other:?}"),
    };
    let known = ErrorCode::ALL.iter().find(|code| **code == error.code);
    (
        id,
        match known.unwrap() {
            ErrorCode::ParseError => "parseError",
            ErrorCode::InvalidRequest => "invalidRequest",
            ErrorCode::InvalidParams => "invalidParams",
            ErrorCode::MethodNotFound => "methodNotFound",
            other => panic!("{line}: {other}"),
        },
    )
}

#[test]
fn requests_notifications_and_answers_are_told_apart() {
    let models = ClientRequest::ModelList(ModelListParams {});
    for line in [
        r#"{"id":1,"method":"model/list"}"#,
        r#"{"method":"model/list","params":{},"id":1,"jsonrpc":"2.0","more":[]}"#,
        r#" {"id":1,"method":"model/list","params":null}"#,
    ] {
        let request = ClientMessage::Request { id: RequestId::Number(1), request: models.clone() };
        assert_eq!(client(line), Some(Incoming::Message(request)), "{line}");
    }
    let ready = ClientMessage::Notification(ClientNotification::Initialized(InitializedParams {}));
    assert_eq!(client(r#"{"method":"initialized"}"#), Some(Incoming::Message(ready)));
    assert_eq!(client(r#"{"method":"initialised"}"#), None);
    for blank in ["", "  ", "\t\r"] {
        assert_eq!(client(blank), None);
    }
    let id = RequestId::String("x".into());
    let answer = Incoming::Answer { id: id.clone(), result: Ok(json!({ "decision": "accept" })) };
    assert_eq!(client(r#"{"id":"x","result":{"decision":"accept"},"error":null}"#), Some(answer));
}

#[test]
fn r22_what_is_no_message_is_refused_by_what_it_is() {
    let number = |n| Some(RequestId::Number(n));
    for (line, id, code) in [
        ("{", None, "parseError"),
        ("nonsense", None, "parseError"),
        (r#"{"id":1,"method":"model/list"} {}"#, None, "parseError"),
        (r#"{"id":1,"method":"\ud800"}"#, None, "parseError"),
        ("[]", None, "invalidRequest"),
        ("7", None, "invalidRequest"),
        ("{}", None, "invalidRequest"),
        (r#"{"id":7}"#, number(7), "invalidRequest"),
        (r#"{"id":7,"method":8}"#, number(7), "invalidRequest"),
        (r#"{"method":8}"#, None, "invalidRequest"),
        (r#"{"result":{}}"#, None, "invalidRequest"),
        (r#"{"id":1.5,"method":"model/list"}"#, None, "invalidRequest"),
        (r#"{"id":1.0,"method":"model/list"}"#, None, "invalidRequest"),
        (r#"{"id":9223372036854775808,"method":"model/list"}"#, None, "invalidRequest"),
        (r#"{"id":null,"method":"model/list"}"#, None, "invalidRequest"),
        (r#"{"id":{},"method":"model/list"}"#, None, "invalidRequest"),
        (r#"{"id":true,"result":{}}"#, None, "invalidRequest"),
        (r#"{"id":1,"method":"model/lost"}"#, number(1), "methodNotFound"),
        (r#"{"id":1,"method":"model/lost","params":[]}"#, number(1), "methodNotFound"),
        (r#"{"id":1,"method":"model/list","params":[]}"#, number(1), "invalidParams"),
        (r#"{"id":1,"method":"thread/read","params":["t"]}"#, number(1), "invalidParams"),
        (r#"{"id":1,"method":"thread/read"}"#, number(1), "invalidParams"),
    ] {
        assert_eq!(refused(line), (id, code), "{line}");
    }
    let long = format!(r#"{{"id":"{}","method":"model/list"}}"#, "x".repeat(REQUEST_ID_BYTES_MAX + 1));
    assert_eq!(refused(&long), (None, "invalidRequest"));
    for bytes in [&b"\xFF"[..], b"{\"id\":1,\"method\":\"\xC3\"}", b"\xFF\xFE{\0}\0"] {
        let Some(Incoming::Malformed { id: None, error }) = read_client_line(bytes) else { panic!() };
        assert_eq!(error.code, ErrorCode::ParseError);
    }
}

#[test]
fn p7_depth_and_length_of_what_is_refused_are_bounded() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let deep =
            format!(r#"{{"id":1,"method":"x","params":{}1{}}}"#, open.repeat(100_000), close.repeat(100_000));
        assert_eq!(refused(&deep), (None, "parseError"));
    }
    let long = "x".repeat(1 << 20);
    for line in [
        format!(r#"{{"id":1,"method":"{long}"}}"#),
        format!(r#"{{"id":1,"method":"thread/start","params":{{"cwd":"/","approvalMode":"{long}"}}}}"#),
    ] {
        let Some(Incoming::BadRequest { error, .. }) = client(&line) else { panic!() };
        assert!(error.message.len() < 2_000, "{}", error.message.len());
    }
}

#[test]
fn p6_an_answer_of_which_nothing_can_be_made_is_an_error() {
    for line in [
        r#"{"id":1,"error":"no"}"#,
        r#"{"id":1,"error":{"code":-32601,"message":"no"}}"#,
        r#"{"id":1,"result":{"decision":"accept"},"error":{"code":"internal","message":"no"}}"#,
    ] {
        assert!(matches!(client(line), Some(Incoming::Answer { result: Err(_), .. })), "{line}");
    }
}

fn written(message: &ServerMessage) -> String {
    let mut out = b"before".to_vec();
    write_server_message(message, &mut out).unwrap();
    String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned()
}

#[test]
fn r22_a_message_is_one_line_for_every_reader() {
    let error = RpcError::new(ErrorCode::Internal, ODD).with_data(json!({ ODD: [ODD] }));
    for message in [
        ServerMessage::Response { id: Some(RequestId::String(ODD.into())), result: Err(error.clone()) },
        ServerMessage::Notification(Arc::new(ServerNotification::Error(ErrorNotification {
            thread_id: Some(ODD.into()),
            code: error.code.clone(),
            message: ODD.into(),
            data: error.data.clone(),
        }))),
        ServerMessage::Request {
            id: RequestId::Number(1),
            request: ServerRequest::ItemToolCallRequestApproval(RequestApprovalParams {
                thread_id: "t".into(),
                turn_id: "u".into(),
                item_id: "i".into(),
                tool_name: ODD.into(),
                input: json!({ ODD: ODD }),
                decisions: Vec::new(),
                prefix: None,
                reason: None,
            }),
        },
    ] {
        let line = written(&message);
        assert!(line.ends_with("}\n"), "{line}");
        assert_eq!(
            line.chars()
                .filter(|c| matches!(c, '\n' | '\r' | '\0' | '\u{85}' | '\u{2028}' | '\u{2029}'))
                .count(),
            1
        );
        assert!(line.contains(r"a\u2028b\u2029c\u0085d\re\u0000f"), "{line}");
        assert!(!line.contains("jsonrpc"));
        assert_eq!(read_server_line(line.as_bytes(), |_| None), Some(FromServer::Message(message)));
    }
    let null = ServerMessage::Response { id: None, result: Err(RpcError::new(ErrorCode::ParseError, "x")) };
    assert_eq!(written(&null), "{\"id\":null,\"error\":{\"code\":\"parseError\",\"message\":\"x\"}}\n");
}

#[test]
fn a_client_skips_what_is_newer_than_itself() {
    let read = |line: &str| read_server_line(line.as_bytes(), |_| Some("model/list"));
    for line in [
        "",
        "nonsense",
        "[]",
        r#"{"method":"thread/exploded","params":{}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"t","turn":{"id":"u","status":"evaporated"}}}"#,
        r#"{"id":true,"method":"x"}"#,
        r#"{"id":null,"result":{}}"#,
    ] {
        assert_eq!(read(line), None, "{line}");
    }
    assert_eq!(read_server_line(br#"{"id":1,"result":{}}"#, |_| None), None);
    assert!(matches!(read(r#"{"id":1,"result":{"models":3}}"#), Some(FromServer::UnreadableResult { .. })));
    assert!(matches!(read(r#"{"id":1,"method":"x/y"}"#), Some(FromServer::UnknownRequest { .. })));
    let Some(FromServer::Message(ServerMessage::Response { result: Ok(response), .. })) =
        read(r#"{"id":1,"result":{"models":[]},"jsonrpc":"2.0"}"#)
    else {
        panic!()
    };
    assert_eq!(response.result().unwrap(), json!({ "models": [] }));
}

proptest! {
    /// Both ends read what the other one writes, whatever the texts are.
    #[test]
    fn what_is_written_is_read_back(text in any::<String>(), number in any::<i64>()) {
        let messages = [
            ClientMessage::Request {
                id: RequestId::Number(number),
                request: ClientRequest::ThreadRead(ThreadReadParams::newest(text.as_str().into())),
            },
            ClientMessage::Notification(ClientNotification::Initialized(InitializedParams {})),
        ];
        for message in messages {
            let mut out = Vec::new();
            write_client_message(&message, &mut out).unwrap();
            prop_assert_eq!(memchr::memchr_iter(b'\n', &out).count(), 1);
            prop_assert_eq!(read_client_line(&out), Some(Incoming::Message(message)));
        }
        let answer = ServerAnswer::decode("item/toolCall/requestApproval", json!({ "decision": "decline", "message": text })).unwrap();
        let mut out = Vec::new();
        write_client_message(&ClientMessage::Answer { id: RequestId::Number(number), answer: Ok(answer.clone()) }, &mut out).unwrap();
        let result = answer.result().unwrap();
        prop_assert_eq!(read_client_line(&out), Some(Incoming::Answer { id: RequestId::Number(number), result: Ok(result) }));
    }

    #[test]
    fn no_line_is_a_panic(line in any::<Vec<u8>>(), json in "[\\[\\]{}:,\"a-z0-9. \\\\]{0,40}") {
        read_client_line(&line);
        read_client_line(json.as_bytes());
        read_server_line(&line, |_| Some("model/list"));
        read_server_line(json.as_bytes(), |_| Some("model/list"));
    }
}

/// A result that is nested more deeply than can be read fails its own request, and no other line.
#[test]
fn p4_an_answer_that_cannot_be_read_fails_its_request() {
    let deep = format!("{{\"result\":{{\"x\":{}{}}},\"id\":5}}", "[".repeat(5_000), "]".repeat(5_000));
    let read = read_server_line(deep.as_bytes(), |id| (*id == RequestId::Number(5)).then_some("thread/read"));
    assert!(matches!(read, Some(FromServer::UnreadableResult { id: RequestId::Number(5), .. })), "{read:?}");
    assert_eq!(read_server_line(deep.as_bytes(), |_| None), None, "nobody waits for it");
    let asks = deep.replace("\"id\":5", "\"id\":5,\"method\":\"x\"");
    assert_eq!(read_server_line(asks.as_bytes(), |_| Some("thread/read")), None, "it answers nothing");
}
