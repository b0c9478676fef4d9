//! What was asked of the provider.

use serde_json::Value;

use crate::content::{self, SentImage};

/// One recorded request.
#[derive(Debug)]
pub struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Request {
    /// The method, as `POST`.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The path with its query, as `/v1/chat/completions`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// All headers in the order sent, their names in lower case.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The first header of that name (in lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body, or `null` if there was none.
    #[must_use]
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// The messages of a chat completion request; empty for any other.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The images that were sent, in the order of their messages and parts; empty for any other request than a chat
    /// completion.
    #[must_use]
    pub fn images(&self) -> Vec<SentImage<'_>> {
        content::images(self.messages())
    }

    /// The text of the last user message, its parts joined; empty if there is none.
    #[must_use]
    pub fn last_user_text(&self) -> String {
        last_user_text(&self.body)
    }
}

/// The text of the last user message of a chat completion request.
pub(crate) fn last_user_text(body: &Value) -> String {
    let messages = body["messages"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let last = messages.iter().rfind(|message| message["role"] == "user");
    last.map(|message| content::text(&message["content"])).unwrap_or_default()
}
