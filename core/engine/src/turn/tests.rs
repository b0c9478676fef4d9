//! The limits of the machine and the pipeline (P7).

use std::collections::HashSet;
use std::sync::Arc;

use raddle_models::{FinishReason, ModelEvent, ToolCall};
use raddle_protocol::event::{Delta, EventBody};
use raddle_protocol::thread::ApprovalMode;
use raddle_protocol::{Event, ItemKind, ModelRef, ThreadId, TokenUsage, TurnId, UnixMillis};
use raddle_tools::Effect;

use super::pipeline::{DELTA_BYTES_MAX, WAITING_BYTES_MAX};
use super::*;

fn delta(item: &str, bytes: usize) -> Command {
    let delta = Delta { item_id: item.into(), delta: "x".repeat(bytes) };
    let event = Event {
        turn_id: Some(TurnId::new("t")),
        at: UnixMillis(0),
        body: EventBody::AgentMessageDelta(delta),
    };
    Command::Append(Append { event, reply: None })
}

fn running() -> (Machine, Vec<Command>) {
    let mut machine = Machine::new(ThreadId::new("t"), RetryPolicy::default(), TokenUsage::default(), []);
    let mut commands = Vec::new();
    let settings = RunSettings {
        model: ModelRef::new("p", "m"),
        context_window: 0,
        cost: None,
        approval_mode: ApprovalMode::Ask,
        tools: Arc::new([("look".to_owned(), Effect::ReadOnly)].into()),
    };
    let start = StartTurn {
        token: Some(Token(1)),
        turn_id: TurnId::new("u"),
        parent: None,
        depth: 1,
        purpose: Purpose::Answer(Said { input: "go".into(), ..Said::default() }),
        queue_id: None,
        request_id: None,
        used_call_ids: HashSet::new(),
        settings,
    };
    machine.step(UnixMillis(0), Input::Start(Box::new(start)), &mut commands);
    commands.clear();
    (machine, commands)
}

fn call_look(machine: &mut Machine, commands: &mut Vec<Command>, times: usize) {
    for number in 0..times {
        let tool_call = ToolCall {
            id: Some(format!("c{number}")),
            name: "look".into(),
            arguments: "{}".into(),
            signature: None,
        };
        machine.step(
            UnixMillis(0),
            Input::Model { call: 1, event: ModelEvent::ToolCall(tool_call) },
            commands,
        );
    }
    let finish = ModelEvent::Finish(FinishReason::ToolCalls);
    machine.step(UnixMillis(0), Input::Model { call: 1, event: finish }, commands);
}

fn runs(commands: &[Command]) -> usize {
    commands.iter().filter(|command| matches!(command, Command::RunTool { .. })).count()
}

#[test]
fn p7_merged_deltas_and_waiting_text_are_bounded() {
    let mut pipeline = Pipeline::default();
    pipeline.extend([delta("a", 10)]);
    let Step::Commit(first) = pipeline.next_step() else { panic!("the first goes out at once") };
    let pieces = WAITING_BYTES_MAX / 1_000 + 1;
    for _ in 0..pieces {
        assert!(pipeline.has_room());
        pipeline.extend([delta("a", 1_000)]);
    }
    assert!(!pipeline.has_room(), "more than {WAITING_BYTES_MAX} bytes wait");
    assert!(matches!(pipeline.next_step(), Step::Wait));
    assert_eq!(pipeline.committed(first).count(), 1);
    let Step::Commit(events) = pipeline.next_step() else { panic!("what waits is next") };
    let lengths: Vec<usize> = events
        .iter()
        .map(|event| match &event.body {
            EventBody::AgentMessageDelta(delta) => delta.delta.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths.iter().sum::<usize>(), pieces * 1_000);
    assert!(lengths.iter().all(|length| *length <= DELTA_BYTES_MAX) && lengths.len() < 20);
    assert!(pipeline.has_room(), "what is under way waits no more");
}

#[test]
fn p7_only_so_many_tools_run_side_by_side() {
    let (mut machine, mut commands) = running();
    call_look(&mut machine, &mut commands, PARALLEL_TOOLS_MAX + 4);
    assert_eq!(runs(&commands), PARALLEL_TOOLS_MAX);
    commands.clear();
    let outcome =
        ToolOutcome { text: "ok".into(), is_error: false, interrupted: false, file_changes: Vec::new() };
    machine.step(UnixMillis(0), Input::ToolFinished { item_id: "c0".into(), outcome }, &mut commands);
    assert_eq!(runs(&commands), 1, "one place was free");
}

#[test]
fn p7_calls_beyond_the_limit_are_refused_with_a_word() {
    let (mut machine, mut commands) = running();
    call_look(&mut machine, &mut commands, CALLS_PER_REPLY_MAX + 3);
    let refused = commands.iter().filter(|command| match command {
        Command::Append(Append { event: Event { body: EventBody::ItemCompleted(logged), .. }, .. }) => {
            matches!(&logged.item.kind, ItemKind::ToolCall { output: Some(text), .. } if text.as_str().contains("at most"))
        }
        _ => false,
    });
    assert_eq!(refused.count(), 3);
}

#[test]
fn p7_a_reply_that_never_ends_fails() {
    let (mut machine, mut commands) = running();
    let piece = "x".repeat(1024 * 1024);
    let mut pieces = 0;
    while machine.is_running() {
        let event = ModelEvent::Text(piece.clone());
        machine.step(UnixMillis(0), Input::Model { call: 1, event }, &mut commands);
        commands.retain(|command| !matches!(command, Command::Append(_)));
        pieces += 1;
    }
    assert_eq!(pieces, ITEM_TEXT_BYTES_MAX / piece.len() + 1);
    assert!(commands.contains(&Command::DropModel));
}

#[test]
fn p7_steers_that_wait_are_bounded() {
    let (mut machine, mut commands) = running();
    for number in 0..=STEERS_WAITING_MAX {
        let token = Token(10 + number as u64);
        let steer = Input::Steer {
            token,
            expected: "u".into(),
            said: Box::new(Said { input: "also".into(), ..Said::default() }),
        };
        machine.step(UnixMillis(0), steer, &mut commands);
    }
    let refusals = commands.iter().filter(|command| {
        matches!(command, Command::Answer(Reply { outcome: Outcome::Refused(Refusal::TooManySteers(_)), .. }))
    });
    assert_eq!(refusals.count(), 1);
}
