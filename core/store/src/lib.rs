//! The event log, the turn tree and ownership, on SQLite
