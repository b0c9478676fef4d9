//! A chat on the terminal: one thread in the current directory, its answers streamed, its tools under your approval.

#![expect(clippy::print_stdout, reason = "this program talks to a person")]

use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;

use raddle::protocol::approval::{Decision, RequestApprovalResult};
use raddle::protocol::methods::{ServerAnswer, ServerNotification, ServerRequest, method};
use raddle::protocol::thread::ThreadStartParams;
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ItemKind, ModelRef, RpcError};
use raddle::{Notifications, Options, Raddle};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin, stdin};
use tokio::sync::Mutex;

/// What the person types; read between turns by `main`, and within a turn by `answer`.
type Typed = Mutex<Lines<BufReader<Stdin>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The one argument is a model such as `builtin/echo`. Without it, it is whatever the machine has.
    let model: Option<ModelRef> = std::env::args().nth(1).map(|name| name.parse()).transpose()?;
    let typed: Arc<Typed> = Arc::new(Mutex::new(BufReader::new(stdin()).lines()));

    // The store: RADDLE_HOME, else ~/.raddle.
    let raddle = Raddle::open(Options::default()).await?;
    let client = raddle.client("raddle-example", env!("CARGO_PKG_VERSION")).await?;
    let mut notifications = client.notifications();
    let hands = typed.clone();
    client.on_request(move |request| {
        let hands = hands.clone();
        async move { answer(request, &hands).await }
    });

    let cwd = std::env::current_dir()?.display().to_string();
    let params = ThreadStartParams { cwd, model, ..Default::default() };
    let thread = client.request::<method::ThreadStart>(params).await?.thread;
    println!("thread {} in {}; the end of the input ends it", thread.id, thread.cwd);

    loop {
        print!("> ");
        std::io::stdout().flush()?;
        let Some(text) = typed.lock().await.next_line().await? else { break };
        if text.trim().is_empty() {
            continue;
        }
        client.request::<method::TurnStart>(TurnStartParams::new(thread.id.clone(), text)).await?;
        show_turn(&mut notifications).await?;
    }
    println!();
    raddle.close().await;
    Ok(())
}

/// Prints what comes until the turn has ended.
async fn show_turn(notifications: &mut Notifications) -> Result<(), Box<dyn Error>> {
    while let Some(notification) = notifications.next().await {
        match notification {
            ServerNotification::ItemAgentMessageDelta(delta) => print!("{}", delta.delta),
            ServerNotification::ItemCompleted(completed) => match completed.item.kind {
                ItemKind::ToolCall { tool_name, output, .. } => {
                    println!("[{tool_name}] {}", output.unwrap_or_default().as_str().trim_end());
                }
                ItemKind::AgentMessage { .. } => println!(),
                _ => {}
            },
            ServerNotification::TurnCompleted(ended) => {
                if let Some(error) = ended.turn.error {
                    println!("the turn failed: {}", error.message);
                }
                return Ok(());
            }
            _ => {}
        }
        std::io::stdout().flush()?;
    }
    Err("the connection ended".into())
}

/// Asks the person. Whatever is not a clear yes is a no.
async fn answer(request: ServerRequest, typed: &Typed) -> Result<ServerAnswer, RpcError> {
    #[allow(irrefutable_let_patterns, reason = "a later version may ask for more than approvals")]
    let ServerRequest::ItemToolCallRequestApproval(ask) = request else {
        return Err(RpcError::new(ErrorCode::MethodNotFound, "this program answers approvals only"));
    };
    println!("may {} run with {}? [y/N] ", ask.tool_name, ask.input);
    let line = typed.lock().await.next_line().await.ok().flatten().unwrap_or_default();
    let decision = if line.trim() == "y" { Decision::Accept } else { Decision::Decline };
    Ok(RequestApprovalResult::new(decision).into())
}
