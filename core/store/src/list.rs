//! Listing threads, newest activity first.
//!
//! Pages are cut by key, not counted off: a page costs the page, and a thread that moves to the front
//! between two pages is neither missing nor doubled among those that did not move.
//!
//! Neighbours: cursor, error, row, thread.

use raddle_protocol::limits::{LIST_PAGE_DEFAULT, LIST_PAGE_MAX};
use rusqlite::{Connection, params};

use crate::cursor::{ListCursor, bond};
use crate::error::Error;
use crate::row::Trouble;
use crate::thread::{self, ThreadRow};

/// Which threads to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Where to go on; from [`ListPage::next_cursor`] of a query with the same filters.
    pub cursor: Option<String>,
    /// Threads on the page, 1 to [`LIST_PAGE_MAX`]; what is outside is brought to the nearer end.
    pub limit: u32,
    /// Only threads of this directory.
    pub cwd: Option<String>,
    /// The archived threads, or the others.
    pub archived: bool,
    /// Only threads with this in their name or title, whatever its case. Looks at every thread until the
    /// page is full.
    pub search: Option<String>,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self { cursor: None, limit: LIST_PAGE_DEFAULT, cwd: None, archived: false, search: None }
    }
}

/// A page of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct ListPage {
    /// Newest activity first.
    pub threads: Vec<ThreadRow>,
    /// For the next page; none on the last.
    pub next_cursor: Option<String>,
}

impl ListQuery {
    /// A hash of the filters.
    fn bond(&self) -> u64 {
        let option = |value: &Option<String>| value.as_ref().map_or("none", |_| "some");
        bond([
            if self.archived { "archived" } else { "" },
            option(&self.cwd),
            self.cwd.as_deref().unwrap_or_default(),
            option(&self.search),
            self.search.as_deref().unwrap_or_default(),
        ])
    }
}

pub(crate) fn list(connection: &Connection, query: &ListQuery) -> Result<ListPage, Trouble> {
    let bond = query.bond();
    let after = match query.cursor.as_deref().map(ListCursor::decode).transpose()? {
        Some(cursor) if cursor.bond != bond => return Err(Error::InvalidCursor.into()),
        Some(cursor) => cursor,
        None => ListCursor { updated_at: i64::MAX, thread: i64::MAX, bond },
    };
    let limit = query.limit.clamp(1, LIST_PAGE_MAX) as usize;
    let needle = query.search.as_deref().map(str::to_lowercase);
    let of_cwd = if query.cwd.is_some() { "AND t.cwd = ?4" } else { "AND ?4 IS NULL" };
    let mut select = connection.prepare_cached(&format!(
        "SELECT {} {}
         WHERE t.archived = ?1 AND (t.updated_at, t.key) < (?2, ?3) {of_cwd}
         ORDER BY t.updated_at DESC, t.key DESC",
        thread::COLUMNS,
        thread::FROM
    ))?;
    let mut rows = select.query(params![query.archived, after.updated_at, after.thread, query.cwd])?;
    let mut found: Vec<(i64, ThreadRow)> = Vec::new();
    let mut more = false;
    while let Some(row) = rows.next()? {
        if let Some(needle) = &needle {
            let hit = |text: Option<&str>| text.is_some_and(|text| text.to_lowercase().contains(needle));
            if !hit(row.get_ref(3)?.as_str_or_null()?) && !hit(row.get_ref(4)?.as_str_or_null()?) {
                continue;
            }
        }
        if found.len() == limit {
            more = true;
            break;
        }
        let row = thread::from_row(row)?;
        found.push((row.key, row.complete(connection)?));
    }
    let next_cursor = found
        .last()
        .filter(|_| more)
        .map(|(key, last)| ListCursor { updated_at: last.updated_at.0, thread: *key, bond }.encode());
    Ok(ListPage { threads: found.into_iter().map(|(_, thread)| thread).collect(), next_cursor })
}
