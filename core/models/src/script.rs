//! `builtin/script`: does what a script in the last user message says. The language is specified in
//! `docs/script-model.md`.
//!
//! A script is a list of replies, one for each time that the model is asked since that message: which one is told by
//! counting the assistant messages after it. So nothing is kept between two calls, and a resumed thread goes on in the
//! right place.
//!
//! Neighbours: echo, error, event, request.

mod parse;
mod run;

use futures_util::stream;

use crate::echo::last_user_text;
use crate::error::ModelError;
use crate::event::ModelStream;
use crate::request::{Message, ModelRequest};
use parse::{Script, Step};

/// The answer to a prompt that is no script.
const EXPLANATION: &str = "This model obeys a script in the prompt: statements on lines of their own or divided by `;;`, \
     with `---` between replies, for example `script: text Looking. ;; call ls {\"path\":\".\"} ;; --- ;; result`. \
     Statements are text, words, reasoning, signature, call, result, usage, repeat, wait, ping, hang, error, fail, \
     cut and finish.";

/// The reply that the script has for this request.
pub(crate) fn stream(request: &ModelRequest) -> ModelStream {
    match reply(request) {
        Ok(steps) => run::stream(steps, request),
        Err(error) => Box::pin(stream::iter([Err(error)])),
    }
}

fn reply(request: &ModelRequest) -> Result<Vec<Step>, ModelError> {
    let Some(Script { mut replies }) = parse::parse(last_user_text(request))? else {
        return Ok(vec![Step::Words(EXPLANATION.to_owned())]);
    };
    let asked_before = request
        .messages
        .iter()
        .rev()
        .take_while(|message| !matches!(message, Message::User { .. }))
        .filter(|message| matches!(message, Message::Assistant { .. }))
        .count();
    if asked_before < replies.len() {
        return Ok(replies.swap_remove(asked_before));
    }
    Ok(vec![Step::Words(format!("The script has no reply {}.", asked_before + 1))])
}

#[cfg(test)]
#[path = "script/tests.rs"]
mod tests;
