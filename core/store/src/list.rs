//! Listing threads, newest activity first.
//!
//! The first page costs the page. Which threads the later ones have, and in which order, is collected in the same read
//! transaction after the first was handed out.
//!
//! Neighbours: cursor, row, thread.

use raddle_protocol::limits::{LIST_PAGE_DEFAULT, LIST_PAGE_MAX};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::cursor::bond;
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
    /// first page is full.
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
    pub(crate) fn bond(&self) -> u64 {
        let option = |value: &Option<String>| value.as_ref().map_or("none", |_| "some");
        bond([
            if self.archived { "archived" } else { "" },
            option(&self.cwd),
            self.cwd.as_deref().unwrap_or_default(),
            option(&self.search),
            self.search.as_deref().unwrap_or_default(),
        ])
    }

    fn limit(&self) -> usize {
        self.limit.clamp(1, LIST_PAGE_MAX) as usize
    }
}

/// Which threads a query is for.
struct Filter<'a> {
    query: &'a ListQuery,
    needle: Option<String>,
}

impl<'a> Filter<'a> {
    fn new(query: &'a ListQuery) -> Self {
        Self { query, needle: query.search.as_deref().map(str::to_lowercase) }
    }

    /// The rows after a place that the database can tell by itself, with [`parameters`](Self::parameters).
    fn condition(&self) -> &'static str {
        match self.query.cwd {
            Some(_) => {
                "WHERE t.archived = ?1 AND (t.updated_at, t.key) < (?2, ?3) AND t.cwd = ?4
                 ORDER BY t.updated_at DESC, t.key DESC"
            }
            None => {
                "WHERE t.archived = ?1 AND (t.updated_at, t.key) < (?2, ?3) AND ?4 IS NULL
                 ORDER BY t.updated_at DESC, t.key DESC"
            }
        }
    }

    fn parameters(&self, after: Spot) -> (bool, i64, i64, &Option<String>) {
        (self.query.archived, after.updated_at, after.key, &self.query.cwd)
    }

    /// Whether a thread with this name and title is searched for.
    fn hits(&self, name: ValueRef<'_>, title: ValueRef<'_>) -> rusqlite::Result<bool> {
        let Some(needle) = &self.needle else { return Ok(true) };
        for text in [name, title] {
            if text.as_str_or_null()?.is_some_and(|text| text.to_lowercase().contains(needle)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A place in the order of activity.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    updated_at: i64,
    key: i64,
}

/// The first page, and its last thread if there are more.
pub(crate) fn first(
    connection: &Connection,
    query: &ListQuery,
) -> Result<(Vec<ThreadRow>, Option<Spot>), Trouble> {
    if query.search.is_some() {
        return first_found(connection, query);
    }
    let filter = Filter::new(query);
    let mut select = connection.prepare_cached(&format!(
        "SELECT {} {} {}",
        thread::COLUMNS,
        thread::FROM,
        filter.condition()
    ))?;
    let mut rows = select.query(filter.parameters(Spot { updated_at: i64::MAX, key: i64::MAX }))?;
    let mut threads = Vec::new();
    let mut last = None;
    while let Some(row) = rows.next()? {
        if threads.len() == query.limit() {
            return Ok((threads, last));
        }
        let found = thread::from_row(row)?;
        let key = found.key;
        let thread = found.complete(connection)?;
        last = Some(Spot { updated_at: thread.updated_at.0, key });
        threads.push(thread);
    }
    Ok((threads, None))
}

/// [`first`] of a search: looks at nothing of a thread but its name and title until one of them fits.
fn first_found(
    connection: &Connection,
    query: &ListQuery,
) -> Result<(Vec<ThreadRow>, Option<Spot>), Trouble> {
    let filter = Filter::new(query);
    let mut select = connection.prepare_cached(&format!(
        "SELECT t.key, t.name, t.title, t.updated_at FROM thread t {}",
        filter.condition()
    ))?;
    let mut rows = select.query(filter.parameters(Spot { updated_at: i64::MAX, key: i64::MAX }))?;
    let mut threads = Vec::new();
    let mut last = None;
    while let Some(row) = rows.next()? {
        if !filter.hits(row.get_ref(1)?, row.get_ref(2)?)? {
            continue;
        }
        if threads.len() == query.limit() {
            return Ok((threads, last));
        }
        let key = row.get(0)?;
        last = Some(Spot { updated_at: row.get(3)?, key });
        threads.extend(thread::by_key(connection, key)?);
    }
    Ok((threads, None))
}

/// The keys of all threads that follow.
pub(crate) fn rest(connection: &Connection, query: &ListQuery, after: Spot) -> rusqlite::Result<Vec<u32>> {
    let filter = Filter::new(query);
    // Without a search the index has all that it takes.
    let columns = if query.search.is_some() { "t.key, t.name, t.title" } else { "t.key, NULL, NULL" };
    let mut select =
        connection.prepare_cached(&format!("SELECT {columns} FROM thread t {}", filter.condition()))?;
    let mut rows = select.query(filter.parameters(after))?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        if filter.hits(row.get_ref(1)?, row.get_ref(2)?)? {
            keys.push(row.get(0)?);
        }
    }
    Ok(keys)
}

/// The threads with the first of some keys, as they are now, and how many keys that took: those of deleted ones lead to none.
pub(crate) fn of_keys(
    connection: &Connection,
    keys: &[u32],
    query: &ListQuery,
) -> Result<(Vec<ThreadRow>, usize), Trouble> {
    let mut threads = Vec::new();
    let mut taken = 0;
    for key in keys {
        if threads.len() == query.limit() {
            break;
        }
        taken += 1;
        threads.extend(thread::by_key(connection, i64::from(*key))?);
    }
    Ok((threads, taken))
}
