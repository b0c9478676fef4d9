//! Telling text from what is not, by the first bytes of a file.
//!
//! Neighbours: none.

/// What the first bytes of a file say that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// UTF-8 as far as one can see, after a byte order mark of that many bytes.
    Text { mark_bytes: usize },
    /// Text in an encoding that its byte order mark names; the second name is the one that iconv takes.
    Encoded(&'static str, &'static str),
    /// Not text; what it is, if its first bytes say so.
    Binary(&'static str),
    /// No NUL, and not UTF-8 either: the first wrong byte and where it is.
    NotUtf8 { byte: u8, at: usize },
}

/// First bytes, and what begins with them.
const SIGNATURES: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"\0\0\x01\0", "an icon image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive, or a document made of one"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\0", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x7fELF", "an ELF program or library"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O program or library"),
    (b"\xca\xfe\xba\xbe", "a Mach-O or Java class file"),
    (b"MZ", "a Windows program or library"),
    (b"\0asm", "a WebAssembly module"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"OggS", "Ogg media"),
    (b"ID3", "MP3 audio"),
    (b"fLaC", "FLAC audio"),
    (b"wOF2", "a WOFF2 font"),
];

/// Looks at the first bytes of a file. `is_whole` says that there are no more.
pub(super) fn sniff(head: &[u8], is_whole: bool) -> Content {
    // The longer marks come first: the one of UTF-32 begins with the one of UTF-16.
    for (mark, name, iconv) in [
        (&b"\xff\xfe\0\0"[..], "UTF-32, little-endian", "UTF-32"),
        (b"\0\0\xfe\xff", "UTF-32, big-endian", "UTF-32"),
        (b"\xff\xfe", "UTF-16, little-endian", "UTF-16"),
        (b"\xfe\xff", "UTF-16, big-endian", "UTF-16"),
    ] {
        if head.starts_with(mark) {
            return Content::Encoded(name, iconv);
        }
    }
    let mark_bytes = if head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let wrong = match str::from_utf8(head) {
        Ok(_) => None,
        // The last character may go on after the first bytes.
        Err(error) if error.error_len().is_none() && !is_whole => None,
        Err(error) => Some(error.valid_up_to()),
    };
    if wrong.is_none() && !head.contains(&0) {
        return Content::Text { mark_bytes };
    }
    if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        return Content::Binary("a WebP image");
    }
    if let Some((_, name)) = SIGNATURES.iter().find(|(bytes, _)| head.starts_with(bytes)) {
        return Content::Binary(name);
    }
    match wrong {
        Some(at) if !head.contains(&0) => Content::NotUtf8 { byte: head[at], at },
        _ => Content::Binary("binary data"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r35_contents_are_told_apart() {
        let text = Content::Text { mark_bytes: 0 };
        for (head, content) in [
            (&b""[..], text),
            (b"plain\n", text),
            ("a real \u{fffd}\n".as_bytes(), text),
            (b"\xef\xbb\xbfmarked", Content::Text { mark_bytes: 3 }),
            (b"GIF89a is a format", text),
            (b"const x = 1;\n// caf\xe9 note\n", Content::NotUtf8 { byte: 0xe9, at: 19 }),
            (b"n = 1\n\xd6\xd0\xce\xc4\n", Content::NotUtf8 { byte: 0xd6, at: 6 }),
            (b"\xff\xfea\0b\0", Content::Encoded("UTF-16, little-endian", "UTF-16")),
            (b"\xfe\xff\0a\0b", Content::Encoded("UTF-16, big-endian", "UTF-16")),
            (b"\xff\xfe\0\0a\0\0\0", Content::Encoded("UTF-32, little-endian", "UTF-32")),
            (b"\x89PNG\r\n\x1a\nabc", Content::Binary("a PNG image")),
            (b"RIFF\xf0\0\0\0WEBPVP8 ", Content::Binary("a WebP image")),
            (b"text\0text", Content::Binary("binary data")),
            (b"\xe9\0", Content::Binary("binary data")),
        ] {
            assert_eq!(sniff(head, true), content, "{head:?}");
        }
    }

    #[test]
    fn a_character_cut_by_the_end_of_the_first_bytes_is_text() {
        assert_eq!(sniff(b"caf\xc3", false), Content::Text { mark_bytes: 0 });
        assert_eq!(sniff(b"caf\xc3", true), Content::NotUtf8 { byte: 0xc3, at: 3 });
    }
}
