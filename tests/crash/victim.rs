//! The process that crash tests kill, stop and start again: a host with one client, driven through its pipes.
//!
//! The one argument is a JSON object. `home` is where the store lies; `provider` the address of a fake provider, which
//! then serves the default model; `heartbeatMs` and `takeoverMs` go to the store.
//!
//! The first line of output is `{"opened":PID}`, or `{"refused":{"code":…,"message":…,"data":…}}` when Raddle could not
//! be opened. From then on each line of input is a message of the client, and each line of output is a message that the
//! client was handed, in that order, in the form of JSON-RPC:
//!
//! ```text
//! > {"id":1,"method":"thread/start","params":{"cwd":"…"}}
//! < {"id":1,"result":{"thread":…}}
//! < {"method":"turn/started","params":{…}}
//! < {"id":1,"method":"item/toolCall/requestApproval","params":{…}}
//! > {"id":1,"result":{"decision":"accept"}}
//! ```
//!
//! A line is written to the pipe before the next message is taken, so whoever reads one knows that the client had seen it.
//! The end of input closes Raddle and ends the process.
//!
//! Why not the typed client of `raddle`? Its answers and its notifications come to different tasks, so the order in which
//! they were sent would be lost on the way to the pipe.

#![expect(clippy::expect_used, reason = "a victim that cannot do its part must fail its test")]

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use raddle::engine::RetryPolicy;
use raddle::engine::models::{ModelConfig, Models, ModelsConfig, ProviderConfig};
use raddle::protocol::approval::RequestApprovalResult;
use raddle::protocol::methods::{ClientNotification, ClientRequest};
use raddle::protocol::rpc::{ClientMessage, ServerMessage};
use raddle::protocol::server::{ClientCapabilities, ClientInfo, InitializeParams, InitializedParams};
use raddle::protocol::{ModelRef, RequestId};
use raddle::server::Connection;
use raddle::{Options, Raddle};
use serde_json::{Value, json};

/// The id of the request that opens the connection; its answer is not for the test.
const HANDSHAKE: i64 = 0;

fn main() {
    // Failures that a test causes are not for its output, unless somebody wants to see them.
    let filter = std::env::var("RADDLE_CRASH_LOG").unwrap_or_else(|_| "off".to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .init();
    let argument = std::env::args().nth(1).expect("one argument");
    let setup: Value = serde_json::from_str(&argument).expect("the argument is JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let raddle = match runtime.block_on(Raddle::open(options(&setup))) {
        Ok(raddle) => raddle,
        Err(refused) => return print(&json!({ "refused": refused.0 })),
    };
    let connection = raddle.server().connect();
    runtime.block_on(shake_hands(&connection));
    print(&json!({ "opened": std::process::id() }));

    let input = {
        let (connection, handle) = (connection.clone(), runtime.handle().clone());
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let line = line.expect("input is text");
                handle.block_on(take(&connection, &line));
            }
            handle.block_on(raddle.close());
        })
    };
    // Printing blocks, so it has this thread to itself.
    while let Some(message) = runtime.block_on(connection.next()) {
        if let Some(line) = line_of(&message) {
            print(&line);
        }
    }
    input.join().expect("input is messages");
}

fn options(setup: &Value) -> Options {
    let home = setup["home"].as_str().expect("a home");
    let millis = |name: &str| setup[name].as_u64().map(Duration::from_millis);
    let endpoint = setup["provider"].as_str();
    let providers = endpoint.map(|endpoint| ProviderConfig {
        models: vec![ModelConfig::new("fake-model")],
        ..ProviderConfig::new("fake", endpoint)
    });
    Options {
        models: Some(Models::new(ModelsConfig {
            providers: providers.into_iter().collect(),
            ..ModelsConfig::default()
        })),
        default_model: endpoint.map(|_| ModelRef::new("fake", "fake-model")),
        retry: Some(RetryPolicy { attempts_max: 3, delay_first_ms: 5, delay_max_ms: 1_000 }),
        heartbeat: millis("heartbeatMs"),
        takeover_after: millis("takeoverMs"),
        ..Options::in_home(home)
    }
}

async fn shake_hands(connection: &Arc<Connection>) {
    let client_info = ClientInfo { name: "victim".to_owned(), version: "1".to_owned() };
    let params = InitializeParams { client_info, capabilities: ClientCapabilities::default() };
    let id = RequestId::Number(HANDSHAKE);
    connection.receive(ClientMessage::Request { id, request: ClientRequest::Initialize(params) }).await;
    let ready = ClientNotification::Initialized(InitializedParams {});
    connection.receive(ClientMessage::Notification(ready)).await;
}

/// Hands one line of input to the server.
async fn take(connection: &Arc<Connection>, line: &str) {
    let mut line: Value = serde_json::from_str(line).expect("a line of input is JSON");
    let id: RequestId = serde_json::from_value(line["id"].take()).expect("a message has an id");
    let message = match line["method"].as_str() {
        Some(method) => {
            let request = ClientRequest::decode(method, line["params"].clone()).expect("a request");
            ClientMessage::Request { id, request }
        }
        None => {
            // Also when it is too late, or the id is one of an earlier life: that is for the server to notice.
            let decided: RequestApprovalResult =
                serde_json::from_value(line["result"].take()).expect("an answer to an approval");
            ClientMessage::Answer { id, answer: Ok(decided.into()) }
        }
    };
    connection.receive(message).await;
}

fn line_of(message: &ServerMessage) -> Option<Value> {
    Some(match message {
        ServerMessage::Response { id: Some(RequestId::Number(HANDSHAKE)), .. } => return None,
        ServerMessage::Response { id, result } => match result {
            Ok(response) => json!({ "id": id, "result": response.result().expect("a result") }),
            Err(error) => json!({ "id": id, "error": error }),
        },
        ServerMessage::Notification(notification) => json!({
            "method": notification.method(),
            "params": notification.params().expect("params"),
        }),
        ServerMessage::Request { id, request } => json!({
            "id": id,
            "method": request.method(),
            "params": request.params().expect("params"),
        }),
    })
}

/// Writes a line into the pipe, whole. A test that does not read any more has ended.
fn print(line: &Value) {
    let mut bytes = line.to_string().into_bytes();
    bytes.push(b'\n');
    let mut out = std::io::stdout().lock();
    if out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}
