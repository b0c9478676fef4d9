//! The process that crash tests kill.
fn main() {}
