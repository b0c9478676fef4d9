//! Tool calls put together from pieces that may lack their id, their index or their name (case R09).
//!
//! Neighbours: event.

use serde_json::value::RawValue;

use super::chunk::{CallPiece, Text, replace_lone_surrogates};
use crate::event::ToolCall;

/// Calls that one reply may make; further ones make the reply malformed.
pub(super) const CALLS_MAX: usize = 256;

/// Bytes that all arguments of one reply may have together; more make the reply malformed.
pub(super) const CALLS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The calls of a reply that is still being received.
#[derive(Default)]
pub(super) struct Calls {
    open: Vec<OpenCall>,
    bytes: usize,
}

#[derive(Default)]
struct OpenCall {
    index: Option<u64>,
    /// The chunk that last added to it.
    chunk: u64,
    call: ToolCall,
}

impl OpenCall {
    /// Whether its arguments are a complete JSON object, so that nothing more can belong to them.
    fn is_whole(&self) -> bool {
        self.call.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<&RawValue>(&self.call.arguments).is_ok()
    }
}

/// What happens to the arguments of a call that has none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EmptyArguments {
    /// The provider finished the call: it has no input.
    AreAnObject,
    /// The reply was cut short by a limit, perhaps here: the caller must see that there is no input.
    StayEmpty,
}

/// The reply makes more, or larger, calls than are taken.
pub(super) struct TooManyCalls;

impl Calls {
    /// Adds the pieces of one chunk; `chunk` counts them.
    pub(super) fn add(&mut self, pieces: Vec<CallPiece<'_>>, chunk: u64) -> Result<(), TooManyCalls> {
        for piece in pieces {
            let index = piece.index.0;
            let id = piece.id.0;
            let (name, arguments) = match piece.function {
                Some(function) => {
                    (function.name.0, function.arguments.map(arguments_text).unwrap_or_default())
                }
                None => Default::default(),
            };
            let signature = piece
                .extra_content
                .and_then(|extra| extra.google)
                .map(|google| google.thought_signature.0)
                .unwrap_or_default();
            if id.is_empty() && name.is_empty() && arguments.is_empty() && signature.is_empty() {
                continue;
            }
            self.bytes += arguments.len();
            let at = match self.find(index, &id, &name, &arguments, chunk) {
                Some(at) => at,
                None => {
                    self.open.push(OpenCall { index, ..OpenCall::default() });
                    self.open.len() - 1
                }
            };
            if self.open.len() > CALLS_MAX || self.bytes > CALLS_BYTES_MAX {
                return Err(TooManyCalls);
            }
            let open = &mut self.open[at];
            open.chunk = chunk;
            open.index = open.index.or(index);
            // The first good value stays: later pieces repeat it, or say null.
            if open.call.id.is_none() && !id.is_empty() {
                open.call.id = Some(id.into_owned());
            }
            if open.call.name.is_empty() {
                open.call.name = name.into_owned();
            }
            if open.call.signature.is_none() && !signature.is_empty() {
                open.call.signature = Some(signature.into_owned());
            }
            open.call.arguments.push_str(&arguments);
        }
        Ok(())
    }

    /// The call that a piece goes on with; nothing for a piece that begins one.
    fn find(&self, index: Option<u64>, id: &str, name: &str, arguments: &str, chunk: u64) -> Option<usize> {
        let by_id = || self.open.iter().rposition(|open| open.call.id.as_deref() == Some(id));
        let candidate = match index {
            Some(_) => self
                .open
                .iter()
                .rposition(|open| open.index == index)
                .or_else(|| if id.is_empty() { None } else { by_id() })
                // A call that is counted elsewhere is another one, even when a server gives both the same id.
                .filter(|at| self.open[*at].index.is_none_or(|counted| Some(counted) == index)),
            None if !id.is_empty() => by_id().or_else(|| self.open.len().checked_sub(1)),
            None => self.open.len().checked_sub(1),
        }?;
        let open = &self.open[candidate];
        let same_id = !id.is_empty() && open.call.id.as_deref() == Some(id);
        if same_id {
            return Some(candidate);
        }
        // Another id, or two names in one chunk, under the same index or none: servers that do not count.
        let other_id = !id.is_empty() && open.call.id.is_some();
        let named_twice = !name.is_empty() && !open.call.name.is_empty();
        let other_name = named_twice && open.call.name != name;
        let after_the_end = named_twice && !arguments.is_empty() && open.is_whole();
        let begins = other_id || other_name || (named_twice && open.chunk == chunk) || after_the_end;
        (!begins).then_some(candidate)
    }

    /// The finished calls, in the order in which they began. A call that never got a name cannot be run and is given
    /// back as an error.
    pub(super) fn finish(self, empty: EmptyArguments) -> Result<Vec<ToolCall>, NamelessCall> {
        let mut calls = Vec::with_capacity(self.open.len());
        for OpenCall { mut call, .. } in self.open {
            if call.name.is_empty() {
                if call.arguments.trim().is_empty() {
                    // A ghost: an id and nothing else.
                    continue;
                }
                return Err(NamelessCall);
            }
            if call.arguments.trim().is_empty() {
                call.arguments =
                    if empty == EmptyArguments::AreAnObject { "{}".to_owned() } else { String::new() };
            }
            calls.push(call);
        }
        Ok(calls)
    }
}

/// A call with arguments and without a name.
pub(super) struct NamelessCall;

/// The text of the arguments: the string that they are, or the JSON that they are.
fn arguments_text(raw: &RawValue) -> std::borrow::Cow<'_, str> {
    match raw.get().as_bytes().first() {
        Some(b'"') => match serde_json::from_str::<Text<'_>>(raw.get()) {
            Ok(text) => text.0,
            // Half a surrogate pair. Nothing at all would read as a call without input, so the rest is kept.
            Err(_) => repaired_arguments(raw.get()).into(),
        },
        Some(b'{' | b'[') => raw.get().into(),
        _ => Default::default(),
    }
}

fn repaired_arguments(raw: &str) -> String {
    serde_json::from_str(&replace_lone_surrogates(raw)).unwrap_or_else(|_| raw.to_owned())
}
