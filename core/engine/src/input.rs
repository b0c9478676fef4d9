//! What clients give: checked, and brought to the form in which it is kept, before anything is queued.
//!
//! Neighbours: error, turn.

use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use raddle_protocol::ThreadId;
use raddle_protocol::item::Image;
use raddle_protocol::limits::{
    CLIENT_MESSAGE_ID_CHARS_MAX, IMAGE_BYTES_MAX, IMAGES_BYTES_MAX, IMAGES_MAX, INPUT_TEXT_BYTES_MAX,
    INSTRUCTIONS_BYTES_MAX, THREAD_ID_CHARS_MAX, THREAD_NAME_CHARS_MAX,
};
use raddle_protocol::turn::{ImageInput, UserInput};

use crate::error::Error;
use crate::turn::Said;

/// An input that may start or steer a turn, its pictures read.
pub(crate) async fn said(
    text: String,
    images: Vec<ImageInput>,
    client_message_id: Option<String>,
) -> Result<Said, Error> {
    if text.trim().is_empty() && images.is_empty() {
        return Err(Error::invalid("`text` is empty: say something"));
    }
    if text.len() > INPUT_TEXT_BYTES_MAX {
        return Err(Error::invalid(format!(
            "`text` has {} bytes; at most {INPUT_TEXT_BYTES_MAX} are taken: put it into a file",
            text.len()
        )));
    }
    if let Some(id) = &client_message_id
        && (id.is_empty() || id.chars().count() > CLIENT_MESSAGE_ID_CHARS_MAX)
    {
        return Err(Error::invalid(format!(
            "`clientMessageId` must have 1 to {CLIENT_MESSAGE_ID_CHARS_MAX} characters"
        )));
    }
    let images = match images.is_empty() {
        true => Vec::new(),
        false => {
            tokio::task::spawn_blocking(move || read_images(images)).await.map_err(|_| Error::Abandoned)??
        }
    };
    Ok(Said { input: UserInput { text: text.into(), images }, client_message_id, idempotency_key: None })
}

fn read_images(images: Vec<ImageInput>) -> Result<Vec<Image>, Error> {
    if images.len() > IMAGES_MAX {
        let message = format!("`images` has {} pictures; at most {IMAGES_MAX} are taken", images.len());
        return Err(Error::invalid(message));
    }
    let mut bytes_in_all = 0;
    let mut read = Vec::with_capacity(images.len());
    for (at, image) in images.into_iter().enumerate() {
        let (image, bytes) = match image {
            ImageInput::Inline { mime_type, data } => inline_image(mime_type, data),
            ImageInput::Path { path } => image_file(path),
        }
        .map_err(|problem| Error::invalid(format!("`images[{at}]`: {problem}")))?;
        bytes_in_all += bytes;
        if bytes_in_all > IMAGES_BYTES_MAX {
            let message = format!("`images` has more than {IMAGES_BYTES_MAX} bytes in all");
            return Err(Error::invalid(message));
        }
        read.push(image);
    }
    Ok(read)
}

fn inline_image(mime_type: String, data: String) -> Result<(Image, usize), String> {
    // Four characters carry three bytes: too much is refused before it is decoded.
    if data.len() / 4 * 3 > IMAGE_BYTES_MAX + 3 {
        return Err(format!("the picture has more than {IMAGE_BYTES_MAX} bytes"));
    }
    let bytes = BASE64_STANDARD.decode(&data).map_err(|error| format!("`data` is not base64: {error}"))?;
    let found = checked(&bytes)?;
    if found != mime_type {
        return Err(format!("`mimeType` is `{mime_type}`, but the bytes are `{found}`"));
    }
    Ok((Image { mime_type, data: data.into(), path: None }, bytes.len()))
}

fn image_file(path: String) -> Result<(Image, usize), String> {
    let file = Path::new(&path);
    if !file.is_absolute() {
        return Err(format!("`path` must be absolute, not `{path}`"));
    }
    let failed = |error: std::io::Error| format!("`{path}` cannot be read: {error}");
    // Before it is opened: opening a pipe would wait for its other end.
    let regular = |metadata: &std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(format!("`{path}` is not a regular file")),
    };
    regular(&std::fs::metadata(file).map_err(failed)?)?;
    let mut opened = std::fs::File::open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    regular(&metadata)?;
    if metadata.len() > IMAGE_BYTES_MAX as u64 {
        return Err(format!("`{path}` has {} bytes; at most {IMAGE_BYTES_MAX} are taken", metadata.len()));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    opened.by_ref().take(IMAGE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    let mime_type = checked(&bytes).map_err(|problem| format!("`{path}`: {problem}"))?.to_owned();
    let data = BASE64_STANDARD.encode(&bytes).into();
    Ok((Image { mime_type, data, path: Some(path) }, bytes.len()))
}

/// The format of a picture by its first bytes.
fn checked(bytes: &[u8]) -> Result<&'static str, String> {
    if bytes.len() > IMAGE_BYTES_MAX {
        return Err(format!("the picture has more than {IMAGE_BYTES_MAX} bytes"));
    }
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok("image/png"),
        [0xff, 0xd8, 0xff, ..] => Ok("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok("image/webp"),
        _ => Err("the bytes are no PNG, JPEG, GIF or WebP picture".to_owned()),
    }
}

/// A thread's id: the caller's own, or a new one.
pub(crate) fn new_thread_id(own: Option<ThreadId>) -> Result<ThreadId, Error> {
    let Some(id) = own else { return Ok(ThreadId::generate()) };
    let text = id.as_str();
    let fits = (1..=THREAD_ID_CHARS_MAX).contains(&text.chars().count());
    if !fits || text.chars().any(char::is_control) || text.trim() != text {
        return Err(Error::invalid(format!(
            "a thread's id must have 1 to {THREAD_ID_CHARS_MAX} characters, no control characters, and no blanks at \
             its ends"
        )));
    }
    Ok(id)
}

/// A thread's name; a blank one is none.
pub(crate) fn thread_name(name: Option<String>) -> Result<Option<String>, Error> {
    let Some(name) = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    if name.chars().count() > THREAD_NAME_CHARS_MAX {
        return Err(Error::invalid(format!("`name` must have at most {THREAD_NAME_CHARS_MAX} characters")));
    }
    Ok(Some(name))
}

/// Instructions for the model; blank ones are none.
pub(crate) fn instructions(text: Option<String>) -> Result<Option<String>, Error> {
    match text.filter(|text| !text.trim().is_empty()) {
        Some(text) if text.len() > INSTRUCTIONS_BYTES_MAX => {
            Err(Error::invalid(format!("`instructions` must have at most {INSTRUCTIONS_BYTES_MAX} bytes")))
        }
        text => Ok(text),
    }
}
