//! `builtin/echo`: says what it was told, word by word; of a message with images alone, how many there were. Needs
//! nothing and is always the same.
//!
//! Neighbours: event, request.

use futures_util::stream;
use raddle_protocol::TokenCounts;

use crate::event::{FinishReason, ModelEvent, ModelStream};
use crate::request::{ImagePart, Message, ModelRequest};

/// The reply: one delta for each word of the last user message, with the white space that follows it. A word counts
/// as a token, and so does an image.
pub(crate) fn stream(request: &ModelRequest) -> ModelStream {
    let (said, images) = last_user_message(request);
    let text = match images.len() {
        1 if said.trim().is_empty() => "[1 image]".to_owned(),
        count if count > 1 && said.trim().is_empty() => format!("[{count} images]"),
        _ => said.to_owned(),
    };
    let usage = TokenCounts {
        input: count_words(said) + images.len() as u64,
        output: count_words(&text),
        ..TokenCounts::default()
    };
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
    last_user_message(request).0
}

fn last_user_message(request: &ModelRequest) -> (&str, &[ImagePart]) {
    let mut messages = request.messages.iter().rev().filter_map(|message| match message {
        Message::User { text, images } => Some((text.as_str(), images.as_slice())),
        _ => None,
    });
    messages.next().unwrap_or_default()
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
        show(text, 0).await
    }

    async fn show(text: &str, images: usize) -> Vec<ModelEvent> {
        let image = ImagePart { mime_type: "image/png".to_owned(), data: "AAAA".into() };
        let message = Message::User { text: text.to_owned(), images: vec![image; images] };
        let request = ModelRequest { messages: vec![message], ..ModelRequest::default() };
        stream(&request).map(Result::unwrap).collect().await
    }

    fn usage(input: u64, output: u64) -> ModelEvent {
        ModelEvent::Usage(TokenCounts { input, output, ..TokenCounts::default() })
    }

    fn text(text: &str) -> ModelEvent {
        ModelEvent::Text(text.to_owned())
    }

    #[tokio::test]
    async fn images_are_counted_only_where_there_is_no_text() {
        let stop = ModelEvent::Finish(FinishReason::Stop);
        assert_eq!(show("look", 2).await, [text("look"), usage(3, 1), stop.clone()]);
        assert_eq!(show("", 1).await, [text("[1 "), text("image]"), usage(1, 2), stop.clone()]);
        assert_eq!(show(" \n", 2).await, [text("[2 "), text("images]"), usage(2, 2), stop]);
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
        assert_eq!(events[3..], [usage(3, 3), ModelEvent::Finish(FinishReason::Stop)]);
        assert_eq!(say(" ").await.len(), 2);
    }
}
