//! Every limit of the protocol, named. Source: the app-server documentation, "Limits", unless said otherwise.
//!
//! Neighbours: none.

/// Most method names in `optOutNotifications`; more are `invalidParams`.
pub const OPT_OUT_NOTIFICATIONS_MAX: usize = 256;

/// Bytes of a line that a client sends, without its end; a longer one is dropped, and an `error` notification says so.
pub const STDIN_LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of a request id that is a string; a longer one is `invalidRequest` without an id. Ours: ids are kept while
/// requests run.
pub const REQUEST_ID_BYTES_MAX: usize = 1_024;

/// Bytes that may wait unread in a connection's outbox; at more the connection ends.
pub const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Turns on a history page; a larger `limit` is `invalidParams`.
pub const HISTORY_PAGE_TURNS_MAX: u32 = 50;

/// Bytes of a history or list response as JSON, its envelope included; a page that would have more ends earlier and goes
/// on at its cursor.
pub const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of an item, or of a whole turn, as JSON; a larger one has references in the place of its largest values.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one chunk of a payload, before base64.
pub const PAYLOAD_CHUNK_BYTES_MAX: usize = 48 * 1024;

/// Milliseconds after which a payload reference that nobody used expires; reading it again later is `invalidParams` with
/// `data.reason: "unknownPayload"`.
pub const PAYLOAD_EXPIRES_AFTER_MS: u64 = 30 * 60 * 1000;

/// Snapshots of lists that are kept for later pages; at more, the one unused for longest goes, and its cursors are
/// `invalidCursor`.
pub const LIST_SNAPSHOTS_MAX: usize = 32;

/// Milliseconds after which a snapshot of a list that nobody used goes.
pub const LIST_SNAPSHOT_EXPIRES_AFTER_MS: u64 = 5 * 60 * 1000;

/// Inputs that may wait in a thread's queue; one more is `invalidParams`. Ours.
pub const QUEUED_INPUTS_MAX: usize = 64;

/// Bytes of the texts and pictures (in base64) of a thread's queue, and as many again of the steers that wait; an input that
/// would bring more is `invalidParams`. Ours.
pub const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Characters of an `idempotencyKey`; an empty or longer one is `invalidParams`. Ours.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 128;

/// Keys of sends that a thread remembers; of more, the oldest is forgotten. Ours.
pub const SEND_KEYS_MAX: usize = 256;

/// Characters of a thread's id that a caller chose. Ours.
pub const THREAD_ID_CHARS_MAX: usize = 128;

/// Characters of a thread's name; a longer one is `invalidParams`. Ours.
pub const THREAD_NAME_CHARS_MAX: usize = 200;

/// Bytes of a thread's or a compaction's instructions; longer ones are `invalidParams`. Ours.
pub const INSTRUCTIONS_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one picture; a larger one is `invalidParams`.
pub const IMAGE_BYTES_MAX: usize = 20 * 1024 * 1024;

/// Pictures of one input; more are `invalidParams`. Ours.
pub const IMAGES_MAX: usize = 16;

/// Bytes of all pictures of one input; more are `invalidParams`. Ours.
pub const IMAGES_BYTES_MAX: usize = 40 * 1024 * 1024;

/// Threads on a list page when no `limit` is given.
pub const LIST_PAGE_DEFAULT: u32 = 50;

/// The largest `limit` of `thread/list`; a larger one is `invalidParams`.
pub const LIST_PAGE_MAX: u32 = 200;

/// Bytes of a `requestId`; a longer one is `invalidParams`. Ours: it is kept with its turn and told to everybody.
pub const REQUEST_TOKEN_BYTES_MAX: usize = 1024;

/// Characters of a `clientMessageId`; an empty or longer one is `invalidParams`.
pub const CLIENT_MESSAGE_ID_CHARS_MAX: usize = 128;

/// Bytes of an input's text; a longer one is `invalidParams`. Ours: in process no line bounds it.
pub const INPUT_TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Characters of a failed turn's `error.message`; the rest is cut.
pub const TURN_ERROR_CHARS_MAX: usize = 2_000;

/// Characters of a decline's message; the rest is cut on a character border.
pub const DECLINE_MESSAGE_CHARS_MAX: usize = 4_000;

/// Characters of a title that is derived from a thread's first message; the rest is cut.
pub const TITLE_CHARS_MAX: usize = 80;

/// The first `max` characters of a text, cut on a character border.
pub fn cut_chars(text: &str, max: usize) -> &str {
    match text.char_indices().nth(max) {
        Some((at, _)) => &text[..at],
        None => text,
    }
}
