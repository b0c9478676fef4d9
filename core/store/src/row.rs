//! What all tables share: the ways in which work inside a transaction fails.
//!
//! Neighbours: error.

use crate::error::Error;

/// Why work inside a transaction stopped.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The request is at fault; the transaction goes on without it.
    Refused(Error),
    /// The database is at fault, and with it the whole transaction.
    Broken(rusqlite::Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<rusqlite::types::FromSqlError> for Trouble {
    fn from(error: rusqlite::types::FromSqlError) -> Self {
        Self::Broken(error.into())
    }
}

/// An error for what no healthy database of ours holds; [`Error::Corrupt`] in the end.
pub(crate) fn damaged(what: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(what.to_owned()))
}
