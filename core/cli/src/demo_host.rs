//! `raddle demo-host`: the process that hosts the demo's threads, until its parent kills it.
//!
//! This is what a host looks like: open an engine, connect a client, answer its approvals, start threads and turns,
//! follow the notifications. Only the reports to the parent are the demo's own.
//!
//! Neighbours: demo.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use raddle::protocol::approval::{Decision, RequestApprovalParams, RequestApprovalResult};
use raddle::protocol::methods::{ServerAnswer, ServerNotification, ServerRequest, method};
use raddle::protocol::thread::{ApprovalMode, ThreadStartParams};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ModelRef, RpcError, ThreadId};
use raddle::{Client, ClientError, Notifications, Options, Raddle};
use tokio::sync::oneshot;

use crate::demo::{COMMAND, Choice, Lane, Prompts, Report, Reporter, Step};

/// Host the demo's threads, and report to standard output. Ends with its standard input.
#[derive(Debug, Args)]
pub(crate) struct DemoHost {
    #[arg(long)]
    home: PathBuf,
    #[arg(long)]
    project: PathBuf,
    #[arg(long)]
    model: ModelRef,
}

/// Why the host could not go on.
#[derive(Debug, thiserror::Error)]
enum HostError {
    #[error("{0}")]
    Model(String),
    #[error(transparent)]
    Open(#[from] raddle::OpenError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the notifications ended early")]
    Ended,
    #[error("the parent is gone: {0}")]
    Parent(#[from] io::Error),
}

impl DemoHost {
    /// Runs until every step is done and then waits to be killed; ends by itself only when its parent is gone.
    pub(crate) async fn run(self) -> ExitCode {
        let reporter = Arc::new(Reporter::default());
        let parent_gone = parent_gone();
        let hosting = async {
            let last = match self.host(&reporter).await {
                Ok(()) => Report::Finished,
                Err(error) => Report::Failed { message: error.to_string() },
            };
            if reporter.send(&last).is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = hosting => {}
            _ = parent_gone => {}
        }
        ExitCode::FAILURE
    }

    async fn host(&self, reporter: &Arc<Reporter>) -> Result<(), HostError> {
        let choice = Choice::make(Some(self.model.clone())).await.map_err(HostError::Model)?;
        let prompts =
            if choice.is_scripted() { Prompts::scripted(&self.project) } else { Prompts::natural() };
        let options = Options {
            models: Some(choice.models),
            default_model: Some(choice.model),
            ..Options::in_home(&self.home)
        };
        let raddle = Raddle::open(options).await?;
        let client = raddle.client("raddle demo host", env!("CARGO_PKG_VERSION")).await?;
        let handler_reporter = reporter.clone();
        client.on_request(move |request| {
            let answer = answer(&handler_reporter, request);
            async move { answer }
        });
        // By callback, not from the stream: a callback has returned before the handler is asked what came after it.
        let told = reporter.clone();
        let _reports = client.on_notification(move |notification| {
            if let Err(error) = told.notification(notification) {
                tracing::warn!(%error, "the parent cannot be told");
            }
        });
        let mut notifications = client.notifications();

        let first = self.start_thread(&client, reporter, Lane::A).await?;
        let second = self.start_thread(&client, reporter, Lane::B).await?;

        reporter.send(&Report::Step { step: Step::Together })?;
        tokio::try_join!(
            start_turn(&client, &first, prompts.list),
            start_turn(&client, &second, prompts.run)
        )?;
        follow(&mut notifications, vec![first.clone(), second]).await?;

        reporter.send(&Report::Step { step: Step::Story })?;
        start_turn(&client, &first, prompts.story).await?;
        follow(&mut notifications, vec![first]).await
    }

    async fn start_thread(
        &self,
        client: &Client,
        reporter: &Reporter,
        lane: Lane,
    ) -> Result<ThreadId, HostError> {
        let params = ThreadStartParams {
            cwd: self.project.display().to_string(),
            approval_mode: Some(ApprovalMode::Ask),
            name: Some(format!("Demo, thread {lane}")),
            ..ThreadStartParams::default()
        };
        let thread = client.request::<method::ThreadStart>(params).await?.thread;
        reporter.send(&Report::Thread { lane, id: thread.id.clone() })?;
        Ok(thread.id)
    }
}

async fn start_turn(client: &Client, thread: &ThreadId, text: String) -> Result<(), ClientError> {
    client.request::<method::TurnStart>(TurnStartParams::new(thread.clone(), text)).await?;
    Ok(())
}

/// Waits until the turns of these threads have ended.
async fn follow(notifications: &mut Notifications, mut running: Vec<ThreadId>) -> Result<(), HostError> {
    while !running.is_empty() {
        let notification = notifications.next().await.ok_or(HostError::Ended)?;
        if let ServerNotification::TurnCompleted(ended) = &notification {
            running.retain(|id| id != &ended.thread_id);
        }
    }
    Ok(())
}

/// The person at the screen, in a demo without one.
fn answer(reporter: &Reporter, request: ServerRequest) -> Result<ServerAnswer, RpcError> {
    #[allow(
        unreachable_patterns,
        reason = "there may be more to ask one day, and this host knows nothing of it"
    )]
    match request {
        ServerRequest::ItemToolCallRequestApproval(ask) => {
            let decision = decide(&ask);
            let result = RequestApprovalResult {
                decision,
                message: (decision != Decision::Accept)
                    .then(|| format!("This demo allows one command only: {COMMAND}")),
            };
            reporter
                .send(&Report::Approval { ask, decision })
                .map_err(|error| RpcError::new(ErrorCode::Internal, error.to_string()))?;
            Ok(result.into())
        }
        _ => Err(RpcError::new(ErrorCode::MethodNotFound, "the demo answers approvals only")),
    }
}

/// Only what the demo itself asked for: a real model may want to run anything, and nobody looks.
fn decide(ask: &RequestApprovalParams) -> Decision {
    let command = ask.input.get("command").and_then(|command| command.as_str()).unwrap_or_default();
    let words = command.replace(['"', '\''], "");
    let is_ours = ask.tool_name == "bash" && words.trim() == COMMAND;
    if is_ours { Decision::Accept } else { Decision::Decline }
}

/// Ready when the standard input has ended: the parent holds its other end as long as it lives.
fn parent_gone() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = sender.send(());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_demos_own_command_is_allowed() {
        let decision = |tool: &str, command: &str| {
            decide(&RequestApprovalParams {
                thread_id: "t".into(),
                turn_id: "u".into(),
                item_id: "i".into(),
                tool_name: tool.to_owned(),
                input: json!({ "command": command }),
                decisions: vec![Decision::Accept, Decision::Decline],
                prefix: None,
                reason: None,
            })
        };
        assert_eq!(decision("bash", COMMAND), Decision::Accept);
        assert_eq!(decision("bash", "echo \"hello from the demo\"\n"), Decision::Accept);
        for other in
            ["", "rm -rf .", "echo hello from the demo; ls", "echo hello from the demo\nls", "echo $HOME"]
        {
            assert_eq!(decision("bash", other), Decision::Decline, "{other}");
        }
        assert_eq!(decision("write", COMMAND), Decision::Decline);
    }
}
