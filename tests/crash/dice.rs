//! Chance from a printed seed.
//!
//! Neighbours: none.

use std::hash::{BuildHasher, RandomState};

/// A generator of chance whose seed says all that it will give (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The seed in `RADDLE_CRASH_SEED`, else a fresh one; printed, so that a failed run can be repeated. What a seed
    /// decides is what was asked and when it was killed, not how fast the machine was.
    pub(crate) fn from_environment() -> Self {
        let given = std::env::var("RADDLE_CRASH_SEED").ok();
        let seed = match &given {
            Some(text) => text.parse().expect("RADDLE_CRASH_SEED is a whole number"),
            None => RandomState::new().hash_one("seed"),
        };
        println!("RADDLE_CRASH_SEED={seed}");
        Self(seed)
    }

    /// The dice of a seed.
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice of their own for part `number` of a test.
    pub(crate) fn part(&self, number: u64) -> Self {
        let mut part = Self(self.0 ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        part.next();
        part
    }

    /// A number from 0 to `below` - 1.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    /// A place in something of that length.
    pub(crate) fn below(&mut self, length: usize) -> usize {
        usize::try_from(self.roll(length as u64)).expect("a small number")
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
