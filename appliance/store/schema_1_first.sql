-- Schema 1. One writer (the core); readers open their own connections. WAL. Times are UTC seconds (REAL).
-- `rev` numbers grow with every change of an alert or camera: a reader that remembers the last one it saw misses none.

CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO counter VALUES ('rev', 0);

CREATE TABLE camera (                     -- one row per configured camera, and what it last said
    name       TEXT PRIMARY KEY,
    run        TEXT NOT NULL DEFAULT '',
    state      TEXT NOT NULL DEFAULT 'connecting',
    reason     TEXT NOT NULL DEFAULT '',
    since_t    REAL NOT NULL,
    source     TEXT NOT NULL DEFAULT '',  -- URL without its password
    model      TEXT NOT NULL DEFAULT '',
    width      INTEGER NOT NULL DEFAULT 0,
    height     INTEGER NOT NULL DEFAULT 0,
    rev        INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE gap (
    id      INTEGER PRIMARY KEY,
    camera  TEXT NOT NULL,
    t_start REAL NOT NULL,
    t_end   REAL,                         -- NULL while it lasts
    reason  TEXT NOT NULL
) STRICT;
CREATE INDEX gap_camera ON gap (camera, t_start);

CREATE TABLE segment (
    path     TEXT PRIMARY KEY,            -- relative to the storage folder
    camera   TEXT NOT NULL,
    t_start  REAL NOT NULL,
    t_end    REAL NOT NULL,
    bytes    INTEGER NOT NULL,
    frames   INTEGER NOT NULL,
    codec    TEXT NOT NULL,
    width    INTEGER NOT NULL,
    height   INTEGER NOT NULL,
    complete INTEGER NOT NULL
) STRICT;
CREATE INDEX segment_camera ON segment (camera, t_start);
CREATE INDEX segment_age ON segment (t_end);
CREATE INDEX segment_told ON segment (camera); -- with the rowid in it: the row written last

CREATE TABLE boxes (                      -- examined frames; objects is the JSON list of TrackedObject
    camera  TEXT NOT NULL,
    t       REAL NOT NULL,
    run     TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    frame   INTEGER NOT NULL,
    looked  INTEGER NOT NULL,
    objects TEXT NOT NULL,
    PRIMARY KEY (camera, t, run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE alert (
    id         TEXT PRIMARY KEY,
    camera     TEXT NOT NULL,
    run        TEXT NOT NULL,
    severity   TEXT NOT NULL,
    rules      TEXT NOT NULL,             -- JSON list
    labels     TEXT NOT NULL,             -- JSON list
    tracks     TEXT NOT NULL,             -- JSON list
    score      REAL NOT NULL,
    t_start    REAL NOT NULL,
    t_end      REAL,                      -- NULL while it lasts
    end_reason TEXT NOT NULL DEFAULT '',
    best       TEXT,                      -- JSON BestView
    verdict    TEXT,                      -- confirmed | rejected | unsure; NULL: none (yet)
    review     TEXT,                      -- reviewed | false_alarm; NULL: not looked at
    review_t   REAL,
    created_t  REAL NOT NULL,
    rev        INTEGER NOT NULL
) STRICT;
CREATE INDEX alert_time ON alert (t_start DESC, id DESC);
CREATE INDEX alert_camera ON alert (camera, t_start DESC);
CREATE INDEX alert_rev ON alert (rev);
CREATE INDEX alert_open ON alert (t_start) WHERE t_end IS NULL;

CREATE TABLE event (
    id       TEXT PRIMARY KEY,
    alert    TEXT REFERENCES alert (id),  -- NULL: held back by a cooldown
    camera   TEXT NOT NULL,
    rule     TEXT NOT NULL,
    kind     TEXT NOT NULL,
    track    INTEGER NOT NULL,
    label    TEXT NOT NULL,
    score    REAL NOT NULL,
    t        REAL NOT NULL,
    zone     TEXT NOT NULL,
    line     TEXT NOT NULL,
    severity TEXT NOT NULL,
    box      TEXT NOT NULL                -- JSON [x1, y1, x2, y2]
) STRICT;
CREATE INDEX event_alert ON event (alert, t);

CREATE TABLE evidence (                   -- files under evidence/<alert>/
    alert   TEXT NOT NULL REFERENCES alert (id),
    kind    TEXT NOT NULL,                -- still | crop | clip | boxes | frame
    n       INTEGER NOT NULL DEFAULT 0,   -- frame number 0..; 0 for the others
    state   TEXT NOT NULL,                -- waiting | ready | missing
    path    TEXT NOT NULL DEFAULT '',     -- relative to the storage folder
    t_start REAL NOT NULL DEFAULT 0,
    t_end   REAL NOT NULL DEFAULT 0,
    bytes   INTEGER NOT NULL DEFAULT 0,
    sha256  TEXT NOT NULL DEFAULT '',
    width   INTEGER NOT NULL DEFAULT 0,
    height  INTEGER NOT NULL DEFAULT 0,
    box     TEXT,                         -- JSON box of the flagged object in this picture
    score   REAL NOT NULL DEFAULT 0,      -- of the object in this picture: a better view replaces a still
    reason  TEXT NOT NULL DEFAULT '',     -- why it is missing, or what is lacking in it
    PRIMARY KEY (alert, kind, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX evidence_waiting ON evidence (state) WHERE state = 'waiting';

CREATE TABLE escalation (                 -- the outbox: source of truth of what is to be asked
    id         TEXT PRIMARY KEY,
    alert      TEXT NOT NULL REFERENCES alert (id),
    site       TEXT NOT NULL,
    camera     TEXT NOT NULL,
    priority   TEXT NOT NULL,             -- high | normal | low
    state      TEXT NOT NULL,             -- waiting (for evidence) | ready | sent | settled | expired
    body       TEXT NOT NULL,             -- JSON wire.Escalation (without media until ready)
    created_t  REAL NOT NULL,
    sent_t     REAL,
    settled_t  REAL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    bytes_sent INTEGER NOT NULL DEFAULT 0, -- payload and headers, retries included
    error      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX escalation_alert ON escalation (alert);
CREATE INDEX escalation_open ON escalation (state, priority, created_t) WHERE state IN ('waiting', 'ready', 'sent');

CREATE TABLE media (                      -- what an escalation carries, and how far it got
    escalation   TEXT NOT NULL REFERENCES escalation (id),
    n            INTEGER NOT NULL,
    id           TEXT NOT NULL,
    path         TEXT NOT NULL,
    ref          TEXT NOT NULL,           -- JSON wire.MediaRef
    chunks       INTEGER NOT NULL,
    chunks_acked INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (escalation, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE verdict (                    -- applied once: the key is the guard
    escalation TEXT PRIMARY KEY REFERENCES escalation (id),
    alert      TEXT NOT NULL,
    decision   TEXT NOT NULL,
    body       TEXT NOT NULL,             -- JSON wire.Verdict
    applied_t  REAL NOT NULL
) STRICT;

CREATE TABLE meter (                      -- bytes and counts, summed per day, core run, camera and kind
    day    TEXT NOT NULL,
    run    TEXT NOT NULL,
    camera TEXT NOT NULL,                 -- '' for what belongs to no camera
    kind   TEXT NOT NULL,                 -- camera_bytes | camera_bytes_estimated | uplink_bytes | packets | decoded | examined | unexamined | reconnects | ...
    amount INTEGER NOT NULL,
    PRIMARY KEY (day, run, camera, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (                      -- what left the site, when, why, how many bytes
    id         INTEGER PRIMARY KEY,
    t          REAL NOT NULL,
    camera     TEXT NOT NULL,
    escalation TEXT NOT NULL,
    kind       TEXT NOT NULL,             -- facts | frame | crop | clip
    bytes      INTEGER NOT NULL,
    sha256     TEXT NOT NULL,
    why        TEXT NOT NULL
) STRICT;
CREATE INDEX audit_t ON audit (t);
