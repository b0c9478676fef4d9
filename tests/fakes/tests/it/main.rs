//! The fakes are tested over a raw socket, since they promise exact bytes.

#![expect(clippy::unwrap_used, reason = "all of this is tests, helpers too")]

mod client;
mod faults;
mod load;
mod scripts;
