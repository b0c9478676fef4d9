-- The log, the turn tree and who owns what.
--
-- `event` and `piece` are the log, and the only truth. `thread` and `turn` are derived from it by the store, in the transaction that
-- writes the events, so they can never tell another story. `owner` belongs to processes, not to threads.

-- Threads and turns are named by integers inside the database: a row that points at one costs a byte or two
-- instead of a UUID. AUTOINCREMENT, so that the number of a deleted thread never comes back: an old lease or
-- cursor then finds nothing, rather than somebody else's thread.
CREATE TABLE thread (
    key         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    cwd         TEXT    NOT NULL,
    name        TEXT,
    title       TEXT,                           -- start of the first user message
    created_at  INTEGER NOT NULL,               -- unix milliseconds, as all times here
    updated_at  INTEGER NOT NULL,
    archived    INTEGER NOT NULL DEFAULT 0,
    forked_from TEXT,                           -- an id, not a key: the source may be deleted first
    settings    TEXT    NOT NULL,               -- JSON
    head        INTEGER                         -- turn.key of the newest turn on its branch
) STRICT;

-- Lists run newest first. The row key that ends every index entry breaks ties, so no id is needed here.
CREATE INDEX thread_by_activity ON thread (archived, updated_at);
CREATE INDEX thread_by_cwd ON thread (cwd, archived, updated_at);

-- A turn points at its parent; a thread names one leaf. `jump` points further up, in the pattern of a
-- skew-binary list (Myers 1983): "is this turn on that branch" costs O(log depth) rows whatever the depth.
CREATE TABLE turn (
    key          INTEGER PRIMARY KEY,
    id           TEXT    NOT NULL UNIQUE,
    thread       INTEGER NOT NULL,              -- the thread that ran it, and that holds its events
    parent       INTEGER,                       -- turn.key; none for the first of a branch
    jump         INTEGER,                       -- turn.key of an ancestor; none for the first
    depth        INTEGER NOT NULL,              -- turns on the branch up to and including this one
    first_seq    INTEGER NOT NULL,
    last_seq     INTEGER,                       -- none while no later event bounds it
    ended        INTEGER NOT NULL DEFAULT 0,
    status       TEXT    NOT NULL,              -- the protocol's word
    started_at   INTEGER NOT NULL,
    completed_at INTEGER
) STRICT;

-- id = thread.key << 32 | seq. A rowid table keyed by one integer rather than WITHOUT ROWID keyed by two:
-- the events of a thread lie together and in order all the same, an append is one descent with an integer
-- comparison, and a large body goes to overflow pages instead of widening the inner nodes of the tree.
-- A turn's events are those of its thread between first_seq and last_seq that carry its key, so they need
-- no index of their own.
CREATE TABLE event (
    id   INTEGER PRIMARY KEY,
    turn INTEGER,                               -- turn.key; none for what concerns the thread
    kind INTEGER NOT NULL,                      -- raddle_protocol::EventKind
    item TEXT,
    at   INTEGER NOT NULL,
    body BLOB    NOT NULL                       -- text of a delta, JSON of the rest
) STRICT;

-- Events too: the deltas of items that are not complete. They lie in order of arrival, whatever their thread,
-- so that a commit of fifty threads' deltas writes one page and not fifty; most are never read. A delta counts
-- while no later event completes or removes its item. What does not count is deleted from the front when there
-- is time; the last row stays, so that ids only grow.
CREATE TABLE piece (
    id     INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    turn   INTEGER NOT NULL,
    kind   INTEGER NOT NULL,
    item   TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    body   BLOB    NOT NULL
) STRICT;

-- Who may write a thread. `process` is the UUID that names a file under owners/; none after a release. The
-- row stays when the owner goes, because `epoch` must grow with every change of owner.
--
-- `pieces_from` is the first piece.id that may count for the thread; none when no piece does. It is in this
-- row because every append reads the row anyway.
CREATE TABLE owner (
    thread      INTEGER PRIMARY KEY,
    process     BLOB,
    epoch       INTEGER NOT NULL,
    pieces_from INTEGER
) STRICT;

CREATE INDEX owner_with_pieces ON owner (pieces_from) WHERE pieces_from IS NOT NULL;
