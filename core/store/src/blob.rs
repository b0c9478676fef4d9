//! Tables `blob`, `blob_part` and `blob_use`: values that are too large for their events.
//!
//! Neighbours: event, row.

use raddle_protocol::EventBody;
use raddle_protocol::payload::FillError;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, params};

use crate::event::REPLACEABLE;
use crate::row::{Trouble, damaged};

/// Bytes of a part. A slice is found by the number of its part, and a blob is removed a few parts at a time.
const PART_BYTES: usize = 256 * 1024;

/// Bits that the number of a part has in a part's key.
const PART_BITS: u32 = 20;

/// Parts that one bite removes, at most.
const BITE_PARTS_MAX: i64 = 4;

/// A piece of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadSlice {
    /// The bytes; fewer than were asked for only at the end.
    pub bytes: Vec<u8>,
    /// How many the payload has in all.
    pub total: u64,
}

/// The SHA-256 of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    /// Reads the id of a reference; none for what cannot be one, so that nothing else reaches the database.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let digits: &[u8; 64] = id.as_bytes().try_into().ok()?;
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            // One blob has one spelling.
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }
}

/// A blob that an event uses.
pub(crate) struct Use {
    pub(crate) hash: Hash,
    /// Its bytes; none where the event came with a reference to what is there already.
    pub(crate) bytes: Option<Vec<u8>>,
}

fn find(connection: &Connection, hash: Hash) -> rusqlite::Result<Option<(i64, u64)>> {
    connection
        .prepare_cached("SELECT key, bytes FROM blob WHERE hash = ?1")?
        .query_row([hash.0], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))
        .optional()
}

fn part_id(blob: i64, part: u64) -> i64 {
    blob << PART_BITS | part.cast_signed()
}

/// Notes what an event uses, and writes what is new of it. False: it refers to something that is not there.
pub(crate) fn put(connection: &Connection, event: i64, uses: &[Use]) -> rusqlite::Result<bool> {
    for used in uses {
        let blob = match (find(connection, used.hash)?, &used.bytes) {
            (Some((blob, _)), _) => blob,
            (None, Some(bytes)) => insert(connection, used.hash, bytes)?,
            (None, None) => return Ok(false),
        };
        connection
            .prepare_cached("INSERT OR IGNORE INTO blob_use (event, blob) VALUES (?1, ?2)")?
            .execute([event, blob])?;
    }
    Ok(true)
}

fn insert(connection: &Connection, hash: Hash, bytes: &[u8]) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("INSERT INTO blob (hash, bytes) VALUES (?1, ?2)")?
        .execute(params![hash.0, bytes.len() as i64])?;
    let blob = connection.last_insert_rowid();
    let mut insert = connection.prepare_cached("INSERT INTO blob_part (id, body) VALUES (?1, ?2)")?;
    for (part, body) in (0..).zip(bytes.chunks(PART_BYTES)) {
        insert.execute(params![part_id(blob, part), body])?;
    }
    Ok(blob)
}

/// Notes that an event is gone. Tells whether something is to be removed for it.
pub(crate) fn release(connection: &Connection, event: i64) -> rusqlite::Result<bool> {
    let mut unused = false;
    for blob in used_by(connection, event)? {
        connection
            .prepare_cached("DELETE FROM blob_use WHERE event = ?1 AND blob = ?2")?
            .execute([event, blob])?;
        unused |= 1
            == connection
                .prepare_cached(
                    "UPDATE blob SET hash = NULL
                     WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM blob_use WHERE blob = ?1)",
                )?
                .execute([blob])?;
    }
    Ok(unused)
}

fn used_by(connection: &Connection, event: i64) -> rusqlite::Result<Vec<i64>> {
    let mut select = connection.prepare_cached("SELECT blob FROM blob_use WHERE event = ?1")?;
    select.query_map([event], |row| row.get(0))?.collect()
}

/// Those events of an item that its completion replaces and that use blobs, from the first key to before the second.
pub(crate) fn users_of_item(
    connection: &Connection,
    (first, end): (i64, i64),
    item: &str,
) -> rusqlite::Result<Vec<i64>> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT DISTINCT u.event FROM blob_use u JOIN event e ON e.id = u.event
         WHERE u.event >= ?1 AND u.event < ?2 AND e.item = ?3 AND e.{REPLACEABLE}"
    ))?;
    select.query_map(params![first, end, item], |row| row.get(0))?.collect()
}

/// Removes some parts of a blob that nothing uses. Tells whether there was one.
pub(crate) fn bite(connection: &Connection) -> rusqlite::Result<bool> {
    let blob: Option<i64> = connection
        .prepare_cached("SELECT key FROM blob WHERE hash IS NULL LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    let Some(blob) = blob else { return Ok(false) };
    let removed = connection
        .prepare_cached(
            "DELETE FROM blob_part WHERE id IN
             (SELECT id FROM blob_part WHERE id >= ?1 AND id < ?2 LIMIT ?3)",
        )?
        .execute([part_id(blob, 0), part_id(blob + 1, 0), BITE_PARTS_MAX])?;
    if (removed as i64) < BITE_PARTS_MAX {
        connection.prepare_cached("DELETE FROM blob WHERE key = ?1")?.execute([blob])?;
    }
    Ok(true)
}

/// A slice of a payload, without loading the rest; none if there is no such payload.
pub(crate) fn slice(
    connection: &Connection,
    id: &str,
    offset: u64,
    max: usize,
) -> rusqlite::Result<Option<PayloadSlice>> {
    let Some((blob, total)) = Hash::parse(id).map(|hash| find(connection, hash)).transpose()?.flatten()
    else {
        return Ok(None);
    };
    let wanted = total.saturating_sub(offset).min(max as u64);
    let mut bytes = vec![0; usize::try_from(wanted).unwrap_or_default()];
    let (mut read, mut at) = (0, offset);
    while read < bytes.len() {
        let (part, within) = (at / PART_BYTES as u64, (at % PART_BYTES as u64) as usize);
        let body = connection.blob_open(MAIN_DB, "blob_part", "body", part_id(blob, part), true)?;
        let end = bytes.len().min(read + body.len().saturating_sub(within));
        if end == read {
            return Err(damaged("a blob is shorter than it says"));
        }
        body.read_at_exact(&mut bytes[read..end], within)?;
        at += (end - read) as u64;
        read = end;
    }
    Ok(Some(PayloadSlice { bytes, total }))
}

/// Puts the values of all references in an event back.
pub(crate) fn fill(connection: &Connection, body: &mut EventBody) -> Result<(), Trouble> {
    struct Broken(rusqlite::Error);
    impl From<FillError> for Broken {
        fn from(_: FillError) -> Self {
            Self(damaged("a blob is not what its reference says"))
        }
    }
    body.fill(|reference| match slice(connection, &reference.id, 0, usize::MAX) {
        Ok(Some(slice)) => Ok(slice.bytes),
        Ok(None) => Err(Broken(damaged("a blob that an event uses is not there"))),
        Err(source) => Err(Broken(source)),
    })
    .map_err(|Broken(source)| Trouble::Broken(source))
}
