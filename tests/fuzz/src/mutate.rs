//! Changing inputs: some of it blind, some of it knowing JSON.
//!
//! Neighbours: corpus.

use crate::corpus::TOKENS;

/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 4_096;

/// Gives mutations of a corpus; the same seed gives the same ones.
pub(crate) struct Mutator<'a> {
    state: u64,
    corpus: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Self {
        Self { state: seed, corpus }
    }

    /// SplitMix64.
    fn roll(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }

    fn pick(&mut self) -> Vec<u8> {
        let at = self.roll(self.corpus.len());
        self.corpus[at].clone()
    }

    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut input = self.pick();
        for _ in 0..=self.roll(4) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.roll(input.len() + 1);
        match self.roll(9) {
            0 if at < input.len() => input[at] ^= 1 << self.roll(8),
            1 => input.insert(at, self.roll(256) as u8),
            2 if at < input.len() => drop(input.remove(at)),
            3 => {
                let end = (at + self.roll(40)).min(input.len());
                input.drain(at.min(end)..end);
            }
            4 => {
                let end = (at + self.roll(40)).min(input.len());
                let piece = input[at.min(end)..end].to_vec();
                input.splice(at..at, piece);
            }
            5 => {
                let other = self.pick();
                let from = self.roll(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => self.replace_value(input, at),
        }
    }

    /// Puts a token in the place of a JSON value, or at least of what stands between two marks.
    fn replace_value(&mut self, input: &mut Vec<u8>, at: usize) {
        let token = TOKENS[self.roll(TOKENS.len())].as_bytes();
        let is_mark = |byte: &u8| b":,[]{}\n".contains(byte);
        let begin = input[..at].iter().rposition(is_mark).map_or(0, |mark| mark + 1);
        let end = input[at..].iter().position(is_mark).map_or(input.len(), |mark| at + mark);
        input.splice(begin..end, token.iter().copied());
    }
}
