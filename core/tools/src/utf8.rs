//! Decoding UTF-8 that arrives in pieces cut anywhere.
//!
//! Neighbours: none.

/// Decodes UTF-8 across pieces: a character that is cut between two of them comes out whole, and bytes that
/// no piece can complete come out as U+FFFD, just as `String::from_utf8_lossy` would do with the whole.
#[derive(Debug, Default)]
pub(crate) struct Utf8Decoder {
    /// The beginning of a character, at most three bytes.
    begun: Vec<u8>,
}

impl Utf8Decoder {
    /// Decodes the next piece onto the end of `text`.
    pub(crate) fn push(&mut self, mut bytes: &[u8], text: &mut String) {
        // The begun character takes bytes one by one, so that the rest needs no copy.
        while let (false, Some((&next, rest))) = (self.begun.is_empty(), bytes.split_first()) {
            self.begun.push(next);
            bytes = rest;
            let begun = std::mem::take(&mut self.begun);
            self.decode(&begun, text);
        }
        self.decode(bytes, text);
    }

    /// Ends the text: a character that was only begun comes out as U+FFFD.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !self.begun.is_empty() {
            self.begun.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn decode(&mut self, mut bytes: &[u8], text: &mut String) {
        loop {
            match str::from_utf8(bytes) {
                Ok(valid) => {
                    text.push_str(valid);
                    return;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    // Valid by the error's own word, so nothing is replaced here.
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(wrong) = error.error_len() else {
                        self.begun.extend_from_slice(rest);
                        return;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[wrong..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: &[&[u8]] = &[
        "café 😀 ok".as_bytes(),
        b"a\0b\xe2\x80\xa8c",
        b"lone \xff here",
        b"\xf0\x9f\x98",
        b"\xe2\x82x\xc3\xc3\xa9\xed\xa0\x80\xf4\x90\x80\x80",
        b"\x80\x80\xf0\x9f\x92\x96\xf0",
    ];

    fn decode(pieces: &[&[u8]]) -> String {
        let mut decoder = Utf8Decoder::default();
        let mut text = String::new();
        for piece in pieces {
            decoder.push(piece, &mut text);
        }
        decoder.finish(&mut text);
        text
    }

    #[test]
    fn r01_every_way_of_cutting_in_three_gives_the_text_of_the_whole() {
        for sample in SAMPLES {
            let whole = String::from_utf8_lossy(sample);
            for first in 0..=sample.len() {
                for second in first..=sample.len() {
                    let pieces = [&sample[..first], &sample[first..second], &sample[second..]];
                    assert_eq!(decode(&pieces), whole, "{sample:?} cut at {first} and {second}");
                }
            }
        }
    }

    #[test]
    fn r01_byte_by_byte_gives_the_text_of_the_whole() {
        for sample in SAMPLES {
            let pieces: Vec<&[u8]> = sample.chunks(1).collect();
            assert_eq!(decode(&pieces), String::from_utf8_lossy(sample));
        }
    }
}
