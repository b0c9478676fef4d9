-- Threads that share turns, rewind and go; queues; sends; large values.

-- How many reach a turn directly: threads whose head it is, and turns that follow it. A turn at zero is kept while the thread
-- that ran it is there, since that thread's log has it, and removed when it is not. A turn that starts takes the place of the
-- head that it follows, so nothing is counted then. Before forks and rewinds each turn had one of them: its follower or its thread.
ALTER TABLE turn ADD COLUMN uses INTEGER NOT NULL DEFAULT 1;

-- Threads that were deleted, as long as something of them is there: what is still to be removed, and turns that others reach.
-- `id` is for those: it stays the name of who ran them, whoever has it now.
CREATE TABLE deleted (
    thread INTEGER PRIMARY KEY,                 -- the thread.key that it had
    id     TEXT    NOT NULL,
    until  INTEGER                              -- the highest number of an event to look at; none: nothing to do
) STRICT;

CREATE INDEX deleted_to_do ON deleted (thread) WHERE until IS NOT NULL;

-- Inputs that wait, oldest first. What they say is in their event.
CREATE TABLE queue (
    thread INTEGER NOT NULL,
    seq    INTEGER NOT NULL,                    -- of the event that queued it
    id     TEXT    NOT NULL,
    PRIMARY KEY (thread, seq)
) STRICT, WITHOUT ROWID;

-- The newest keys of sends. What a send did is in its event.
CREATE TABLE send (
    thread   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,                  -- of the event that it became
    key      TEXT    NOT NULL,
    queue_id TEXT,                              -- of the input that it queued
    PRIMARY KEY (thread, seq),
    UNIQUE (thread, key)
) STRICT, WITHOUT ROWID;

-- Values that are too large for their events, each once, whoever uses it. Without a hash it is no longer used: it cannot be
-- found, and is removed in bites.
CREATE TABLE blob (
    key   INTEGER PRIMARY KEY,
    hash  BLOB UNIQUE,                          -- SHA-256, the id of its references
    bytes INTEGER NOT NULL
) STRICT;

CREATE INDEX blob_unused ON blob (key) WHERE hash IS NULL;

-- Its bytes, cut into parts: SQLite finds a place in a large value by walking there page by page, and removes it in one go.
-- id = blob.key << 20 | number of the part.
CREATE TABLE blob_part (
    id   INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

-- Which events use a blob.
CREATE TABLE blob_use (
    event INTEGER NOT NULL,                     -- event.id
    blob  INTEGER NOT NULL,                     -- blob.key
    PRIMARY KEY (event, blob)
) STRICT, WITHOUT ROWID;

CREATE INDEX blob_use_by_blob ON blob_use (blob);
