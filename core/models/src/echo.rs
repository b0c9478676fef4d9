//! `builtin/echo`: says what it was told, word by word. Needs nothing and is always the same.
//!
//! Neighbours: event, request.

use futures_util::stream;
use raddle_protocol::TokenCounts;

use crate::event::{FinishReason, ModelEvent, ModelStream};
use crate::request::{Message, ModelRequest};

/// The reply: one delta for each word of the last user message, with the white space that follows it. A word counts
/// as a token.
pub(crate) fn stream(request: &ModelRequest) -> ModelStream {
    let text = last_user_text(request).to_owned();
    let words = count_words(&text);
    let usage = TokenCounts { input: words, output: words, ..TokenCounts::default() };
    let end = [ModelEvent::Usage(usage), ModelEvent::Finish(FinishReason::Stop)];
    let mut at = 0;
    let deltas = std::iter::from_fn(move || {
        let piece = next_word(&text[at..])?;
        at += piece.len();
        Some(ModelEvent::Text(piece.to_owned()))
    });
    Box::pin(stream::iter(deltas.chain(end).map(Ok)))
}

/// What the user said last; empty when nobody said anything.
pub(crate) fn last_user_text(request: &ModelRequest) -> &str {
    let mut texts = request.messages.iter().rev().filter_map(|message| match message {
        Message::User { text } => Some(text.as_str()),
        _ => None,
    });
    texts.next().unwrap_or_default()
}

/// Words, as the built-in models count tokens.
pub(crate) fn count_words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// The first word with the white space around it; nothing at the end.
pub(crate) fn next_word(text: &str) -> Option<&str> {
    let word = text.find(|c: char| !c.is_whitespace())?;
    let space = text[word..].find(char::is_whitespace).map_or(text.len(), |end| word + end);
    let next = text[space..].find(|c: char| !c.is_whitespace()).map_or(text.len(), |end| space + end);
    Some(&text[..next])
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    async fn say(text: &str) -> Vec<ModelEvent> {
        let request = ModelRequest { messages: vec![Message::user(text)], ..ModelRequest::default() };
        stream(&request).map(Result::unwrap).collect().await
    }

    #[tokio::test]
    async fn echo_gives_the_words_back() {
        let events = say(" héllo  big\nworld ").await;
        let texts: Vec<&str> = events
            .iter()
            .filter_map(|event| match event {
                ModelEvent::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, [" héllo  ", "big\n", "world "]);
        assert_eq!(
            events[3..],
            [
                ModelEvent::Usage(TokenCounts { input: 3, output: 3, ..TokenCounts::default() }),
                ModelEvent::Finish(FinishReason::Stop)
            ]
        );
        assert_eq!(say(" ").await.len(), 2);
    }
}
